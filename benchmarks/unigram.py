"""Compares the tokenizers of a unigram model of SentencePiece: their ids, and their texts per second.

    python benchmarks/unigram.py --model=FOLDER --texts=ko.txt,en.txt [--odd=20000]

--model: a folder whose tokenizer is a unigram model, with a `.model` file for sentencepiece and tensorflow-text. The
texts are the lines of the files; as many of `--odd` random texts of all Unicode; the lines in NFD; and each code point.
Prints how many have other ids in the graph than in Python, and in Python than in sentencepiece and transformers; how
long texts without a space take; and the rates of the graph and of tensorflow-text, both with offsets, in processor
time. Libraries that are not installed are skipped.
"""

import glob
import os
import pathlib
import random
import statistics
import tempfile
import time
import unicodedata

import ruler
import tensorflow as tf

from keras_bert.export import export_preprocessor
from keras_bert.text import load_tokenizer

BATCHES = {1: 256, 128: 16, 1024: 4}  # texts per batch: batches per turn
TURNS = 5
BLOCKS = ((0x20, 0x7F), (0xA0, 0x250), (0x300, 0x370), (0x370, 0x530), (0x590, 0x700), (0x900, 0xA00), (0x1100, 0x1200),
          (0x2000, 0x2C00), (0x3000, 0x3400), (0x4E00, 0xA000), (0xAC00, 0xD7A4), (0xF900, 0x10000), (0x1F000, 0x1FA00))


def odd_texts(count, lines):
    """Random characters of many scripts, runs of one, and lines with some of these inserted."""
    rng, made = random.Random(0), []

    def character():
        return chr(rng.randrange(*rng.choice(BLOCKS)))

    for number in range(count):
        if number % 3 == 0:
            made.append("".join(character() if rng.random() < 0.85 else " " for _ in range(rng.randrange(1, 40))))
        elif number % 3 == 1:
            runs = (rng.choice("ㅋㅎㅠㅜ!?.~a-=_…") * rng.randrange(1, 30) for _ in range(rng.randrange(1, 6)))
            made.append("".join(runs))
        else:
            line = [*rng.choice(lines)]
            for _ in range(rng.randrange(1, 6)):
                line.insert(rng.randrange(len(line) + 1), character())
            made.append("".join(line))
    return made


def every_code_point():
    points = [chr(point) for point in range(0x110000) if not 0xD800 <= point < 0xE000]
    return [f"가{' 가'.join(points[start:start + 64])}가" for start in range(0, len(points), 64)]


def of_graph(graph, texts):
    return [ids for start in range(0, len(texts), 512)
            for ids in graph(tf.constant(texts[start:start + 512]))[0].merge_dims(1, 2).to_list()]


def of_sentencepiece(folder, tokenizer):
    import sentencepiece

    model = sentencepiece.SentencePieceProcessor(model_file=model_file(folder))
    ids = {piece: index for index, piece in enumerate(tokenizer.vocabulary)}
    own = [tokenizer.unk_id if model.is_unknown(index) else ids.get(model.id_to_piece(index), -1)
           for index in range(model.get_piece_size())]
    return lambda texts: [[own[index] for index in found] for found in model.encode(texts)]


def of_transformers(_, tokenizer):
    """Of the `tokenizer.json` that this package writes, since transformers needs more libraries for a `.model` file."""
    import transformers

    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_for_transformers(folder, 512)
        made = transformers.AutoTokenizer.from_pretrained(folder)
    return lambda texts: made(texts, add_special_tokens=False)["input_ids"]


def model_file(folder):
    return next(iter(glob.glob(os.path.join(folder, "*.model"))))


def of_tensorflow_text(folder):
    import tensorflow_text

    made = tensorflow_text.SentencepieceTokenizer(pathlib.Path(model_file(folder)).read_bytes())
    return in_graph(made.tokenize_with_offsets)


def in_graph(tokenize):
    return tf.function(tokenize, [tf.TensorSpec([None], tf.string)], autograph=False).get_concrete_function()


def seconds(function, *batches):
    """The processor time of calls."""
    started = time.process_time()
    for batch in batches:
        function(batch)
    return time.process_time() - started


def differences(groups, tokenizer, functions):
    """Yields how many texts have other ids than in Python."""
    for group, texts in groups.items():
        ids = tokenizer.ids(texts)
        for name, function in functions.items():
            differing = sum(found != expected for found, expected in zip(function(texts), ids))
            yield {"library": f"{name}, {group}", "texts": len(texts), "other_ids": differing}


def long_words(graph, tokenizer):
    for size in (1000, 8000, 100_000):
        text = ("가나다라마바사아자차카타파하" * 8000)[:size]
        graph(tf.constant([text]))
        yield {"library": f"{size} characters without a space", "graph_seconds": seconds(graph, tf.constant([text])),
               "python_seconds": seconds(tokenizer.ids, [text])}


def rates(graphs, group, texts):
    for size, count in BATCHES.items():
        if len(texts) < size:
            continue
        some = texts[::max(1, len(texts) // (size * count))]
        batches = [tf.constant(some[start:start + size]) for start in range(0, len(some) - size + 1, size)]
        found = {name: [] for name in graphs}
        for _ in range(1 + TURNS):
            for name, function in graphs.items():
                found[name].append(seconds(function, *batches))
        rate = {name: size * len(batches) / statistics.median(times[1:]) for name, times in found.items()}
        yield {"library": f"batches of {size}, {group}", **{f"{name}_texts_per_second": rate[name] for name in rate},
               "ratio": rate["keras_bert"] / rate.get("tensorflow-text", float("nan"))}


def main():
    given = ruler.parser(__doc__, model=str, texts=[], odd=20_000).parse_args()
    versions = ruler.describe("tensorflow", "tensorflow-text", "tokenizers", "sentencepiece", "transformers")
    lines = [line for path in given.texts for line in pathlib.Path(path).read_text(encoding="utf-8").split("\n")
             if line.strip()]
    groups = {"lines": lines, "NFD": [unicodedata.normalize("NFD", line) for line in lines],
              "odd": odd_texts(given.odd, lines), "every code point": every_code_point()}
    tokenizer, made = load_tokenizer(given.model), []
    rows = [{"library": "keras_bert, tables", "seconds": seconds(lambda _: made.append(tokenizer.graph()), None)}]
    graph = in_graph(made[0].tokenize_with_offsets)
    with tempfile.TemporaryDirectory() as folder:
        export_preprocessor(tokenizer, os.path.join(folder, "made"))
        rows[0]["megabytes"] = os.path.getsize(os.path.join(folder, "made/saved_model.pb")) / 1e6
    functions = ruler.installed({
        "keras_bert, graph": lambda *_: lambda texts: of_graph(graph, texts), "sentencepiece": of_sentencepiece,
        "transformers": of_transformers}, given.model, tokenizer)
    graphs = {"keras_bert": graph, **ruler.installed({"tensorflow-text": of_tensorflow_text}, given.model)}
    for row in (*rows, *differences(groups, tokenizer, functions), *long_words(graph, tokenizer),
                *rates(graphs, "lines", lines), *rates(graphs, "odd", groups["odd"])):
        print(", ".join(f"{key} {value:.2f}" if isinstance(value, float) else f"{key} {value}"
                        for key, value in row.items()), flush=True)
        rows.append(row)
    ruler.finish("unigram", versions, given, rows[1:])


if __name__ == "__main__":
    main()
