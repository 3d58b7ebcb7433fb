"""Compares MediaPipe's TextClassifier with `LiteModel`, on the same model files and texts.

    python -m venv mp && mp/bin/pip install mediapipe
    python benchmarks/mediapipe_texts.py --mediapipe=mp/bin/python --model=FOLDER --data=FILE [--texts=FILE,…]

`--model` is a folder that `finetune` wrote for the task classify or intent, with an uncased vocabulary; this program
exports it in float32 and int8. `--data` is a labelled file, on which both are scored. `--texts` are more files, with
a text per line, or XQuAD's in any language (https://github.com/google-deepmind/xquad; the Spanish one has accents); by
default those of this repository, in English and Korean. At most `--count` texts of each file are drawn, by default
1,000.

The columns from `long` to `other` count the texts whose ids differ: by MediaPipe's rules, an input is longer than the
model's `max_length`, at which `LiteModel` cuts; or the text has accents, Hangul that the model's rules decompose, or
none of these. `failed` are those that MediaPipe does not answer, since they are longer than the encoder's positions.
`difference` is the largest one of a probability among the texts with equal ids. Takes five minutes on two cores.
"""

import collections
import functools
import json
import pathlib
import re
import string
import tempfile
import unicodedata

import numpy as np
import ruler
from peer_models import load_lite
from real_texts import BUNDLED, announce
from texts import PARAGRAPHS, draw

from keras_bert.inference.fine_tuned import FineTuned
from keras_bert.text.rules import CJK

PROCESS = pathlib.Path(__file__).with_name("mediapipe_answers.py")
LONG, HANGUL, ACCENTS, OTHER = CAUSES = "long", "hangul", "accents", "other"
_LOWER = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)
_MAX_BYTES = 100  # a longer word becomes [UNK]
_JAMO = re.compile("[\u1100-\u11ff]")


def their_ids(text, tokenizer):
    """Returns MediaPipe's ids of a text (`mediapipe/tasks/cc/text/tokenizers/bert_tokenizer.cc`): lower-cases ASCII
    letters alone, and splits at ASCII's white space, punctuation and CJK ideographs."""
    spaced = "".join(f" {each} " if _is_delimiter(each) else each for each in text.translate(_LOWER))
    words = filter(None, re.split("[\t\n\f\r ]+", spaced))
    return [tokenizer.cls_id, *(index for word in words for index in _word_ids(word, tokenizer)), tokenizer.sep_id]


def _is_delimiter(character):
    return (character in string.punctuation or unicodedata.category(character).startswith("P")
            or any(first <= ord(character) <= last for first, last in CJK))


def _word_ids(word, tokenizer):
    if len(word.encode()) > _MAX_BYTES:
        return [tokenizer.unk_id]
    return [token.id for token in tokenizer.subwords.model.tokenize(word)]


def cause(text, tokenizer, max_length):
    """Returns why MediaPipe's ids of a text differ from those of `LiteModel`; None if they are equal."""
    theirs, ((ours, _),) = their_ids(text, tokenizer), tokenizer.pack([text], None, max_length)
    if ours == theirs:
        return None
    if len(theirs) > max_length:
        return LONG
    decomposed = unicodedata.normalize("NFD", text)
    if _JAMO.search(decomposed):
        return HANGUL
    return ACCENTS if any(unicodedata.category(character) == "Mn" for character in decomposed) else OTHER


def compare(lite, texts, labels, answer):
    """Returns a row of a file: the answers of MediaPipe, compared with those of a `LiteModel`.

    Args:
        labels: the right labels, or None.
        answer: function from texts to the answers of `mediapipe_answers.py`.
    """
    causes = [cause(text, lite.tokenizer, lite.task.max_length) for text in texts]
    ours = [dict(zip(found.labels, found.scores)) for found in lite.predict(texts, top_k=len(lite.task.labels))]
    theirs = answer(texts)
    best = [[scores and max(scores, key=scores.get) for scores in answers] for answers in (ours, theirs)]
    accuracies = [labels and np.mean([one == label for one, label in zip(answers, labels)]) for answers in best]
    differences = [abs(scores[label] - other[label]) for scores, other, why in zip(ours, theirs, causes)
                   if why is None for label in scores]
    counts = collections.Counter(causes)
    return {"texts": len(texts), "lite_accuracy": accuracies[0], "mediapipe_accuracy": accuracies[1],
            "labels_equal": np.mean([one == other for one, other in zip(*best)])} | {
                name: counts[name] for name in CAUSES} | {
                    "failed": theirs.count(None), "difference": max(differences, default=None)}


def read(path):
    """Returns the texts of a file: its lines, or the paragraphs and questions of XQuAD's layout."""
    content = path.read_text(encoding="utf-8")
    if path.suffix != ".json":
        return list(filter(None, content.split("\n")))
    paragraphs = [part for article in json.loads(content)["data"] for part in article["paragraphs"]]
    return [text for part in paragraphs for text in (part["context"], *(qa["question"] for qa in part["qas"]))]


def measure(python, model, data, paths, count):
    """Prints the table of a model; returns its rows."""
    tuned, rows = FineTuned.load(model), []
    labelled = [(example.text, example.label) for example in tuned.encode(data).examples]
    sets = {data: labelled} | {path: [(text, None) for text in read(pathlib.Path(path))] for path in paths}
    with tempfile.TemporaryDirectory() as work:
        files = {dtype: f"{work}/{dtype}" for dtype in ("float32", "int8")}
        lites = {dtype: load_lite(tuned.model, tuned.tokenizer, folder, tuned.task, dtype)
                 for dtype, folder in files.items()}
        for path, examples in sets.items():
            chosen = draw(examples, min(count, len(examples)))
            announce(path, len(chosen))
            texts, labels = zip(*chosen)
            for dtype, lite in lites.items():
                answer = functools.partial(answers_of, python, f"{files[dtype]}/model.tflite")
                name = f"{pathlib.Path(path).stem}, {dtype}"
                rows.append({"library": name} | compare(lite, texts, labels if path == data else None, answer))
    ruler.print_table(f"{model}: LiteModel and MediaPipe", rows)
    return rows


def answers_of(python, file, texts):
    return ruler.run_alone(PROCESS, file, python=python, input=json.dumps(texts))


def main():
    given = ruler.parser(__doc__, mediapipe=str, model=str, data=str, count=1000, texts=[
        str(BUNDLED / name) for name in (PARAGRAPHS, "corpora/ko/nsmc_raw_reviews.txt")]).parse_args()
    versions = ruler.describe("tensorflow", "keras", "ai-edge-litert") | {"mediapipe": ruler.run_alone(
        "-c", "import importlib.metadata, json; print(json.dumps(importlib.metadata.version('mediapipe')))",
        python=given.mediapipe)}
    print(f"mediapipe {versions['mediapipe']}")
    rows = measure(given.mediapipe, given.model, given.data, given.texts, given.count)
    ruler.finish("mediapipe_texts", versions, given, rows)


if __name__ == "__main__":
    main()
