"""Counts the entities of a tagged file that a tagger finds if it labels every token correctly.

    python benchmarks/entity_ceiling.py FILE [--data_format=klue-ner] [--vocab=VOCAB.TXT,…]

An entity is lost if it begins or ends inside a token of the vocabulary, or inside a word that is [UNK]. --vocab: by
default the Korean vocabularies among the data in the repository. Takes a minute.
"""

import collections
import json

import numpy as np
import ruler
from real_texts import find

from keras_bert.data.tagged import spans_of
from keras_bert.tasks import Tag
from keras_bert.text import BertTokenizer

VOCABULARIES = [f"vocab/{name}/vocab.txt" for name in ("bert-base-multilingual-cased", "koelectra35000")]


def main():
    parser = ruler.parser(__doc__, data_format=None, vocab=[])
    parser.add_argument("file")
    arguments = parser.parse_args()
    examples = Tag.read(arguments.file, data_format=arguments.data_format)
    task = Tag.from_examples(arguments.file, examples, max_length=512)
    total, rows = _count(map(entities, examples)), []
    for vocab in arguments.vocab or map(find, VOCABULARIES):
        encoded = task.encode(examples, BertTokenizer(vocab))
        perfect = [np.eye(len(task.labels))[np.maximum(row, 0)] for row in encoded.targets]
        found = _count({(entity.start, entity.end, entity.label) for entity in answer} & entities(example)
                       for example, answer in zip(examples, task.answers(encoded, perfect)))
        rows.append({"vocab": str(vocab), "found": sum(found.values()), "types": {kind: found[kind] for kind in total}})
        print(f"{vocab}: {sum(found.values()):,} of {sum(total.values()):,} entities")
    print(json.dumps({"benchmark": "entity_ceiling", "file": arguments.file, "texts": len(examples),
                      "entities": sum(total.values()), "types": total, "rows": rows}))


def entities(example):
    """Returns the (start, end, type) of the entities of a `TaggedExample` or a `TaggedText`, in characters."""
    ends = example.starts + (1 if example.unit == "character" else [len(word) for word in example.words])
    return {(int(example.starts[first]), int(ends[end - 1]), example.tags[first][2:])
            for first, end in spans_of(example.tags)}


def _count(entities):
    return collections.Counter(kind for of_text in entities for _, _, kind in sorted(of_text))


if __name__ == "__main__":
    main()
