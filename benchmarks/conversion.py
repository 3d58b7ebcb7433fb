"""Measures seconds and memory of converting a checkpoint that has the tensor names and shapes of a released one.

    python benchmarks/conversion.py [--tensors=google_index_tensors.json]

--tensors: JSON of {model: {name: {"shape": [...]}}}. Random weights of the first model are written as a TensorFlow 1
checkpoint, which is converted to every format, each in its own process. Memory is the process's peak minus what its
imports use. The conversion's final check, which compares the outputs of two models, is skipped. Takes about two
minutes.
"""

import json
import os
import pathlib
import tempfile
import time

import numpy as np
import ruler
from real_texts import find

FORMATS = ("huggingface", "keras_bert", "tf1", "garden", "kerashub", "hub")


def main():
    parser = ruler.parser(__doc__, tensors=None)
    parser.add_argument("--convert", nargs=3, metavar=("SOURCE", "TARGET", "FORMAT"), help="one conversion, measured")
    arguments = parser.parse_args()
    if arguments.convert:
        return print(json.dumps(measure(*arguments.convert)))
    with tempfile.TemporaryDirectory() as folder:
        source = os.path.join(folder, "source")
        size = make_checkpoint(arguments.tensors or find("checkpoints/google_index_tensors.json"), source)
        rows = [{"library": form} | ruler.run_alone(__file__, "--convert", source, os.path.join(folder, form), form)
                for form in FORMATS]
    versions, rows = ruler.describe("tensorflow", "keras"), [row | {"ratio": 1e6 * row["mb"] / size} for row in rows]
    ruler.print_table(f"source {size / 1e6:.0f} MB; seconds, and memory as a ratio to the source", rows)
    ruler.finish("conversion", versions, arguments, rows)


def make_checkpoint(path, folder):
    """Writes the checkpoint; returns its size in bytes."""
    from keras_bert.weights.bundle import write_bundle

    with open(path) as file:
        shapes = {name: tensor["shape"] for name, tensor in next(iter(json.load(file).values())).items()}
    rng = np.random.default_rng(0)
    os.makedirs(folder)
    write_bundle(os.path.join(folder, "bert_model.ckpt"),
                 ((name, rng.standard_normal(shape, np.float32) * np.float32(0.02)) for name, shape in shapes.items()))
    vocab_size, hidden_size = shapes["bert/embeddings/word_embeddings"]
    config = {"vocab_size": vocab_size, "hidden_size": hidden_size, "num_attention_heads": hidden_size // 64,
              "num_hidden_layers": sum(name.endswith("intermediate/dense/bias") for name in shapes),
              "intermediate_size": 4 * hidden_size}
    pathlib.Path(folder, "bert_config.json").write_text(json.dumps(config))
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces += [f"p{i}" for i in range(vocab_size - len(pieces))]
    pathlib.Path(folder, "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces))
    return sum(entry.stat().st_size for entry in os.scandir(folder))


def measure(source, target, form):
    """Returns the seconds and the peak memory of one conversion."""
    import keras_bert.export  # noqa: F401  what any of the formats imports
    from keras_bert.convert import conversion
    from keras_bert.weights.bundle import Bundle

    Bundle(os.path.join(source, "bert_model.ckpt"))  # imports TensorFlow
    conversion.differences = lambda *_: {"left out": 0.0}
    base, started = ruler.resident(), time.monotonic()
    conversion.convert(source, target, form, allow_inexact=True)
    return {"seconds": time.monotonic() - started, "mb": (ruler.peak_memory() - base) / 1e6}


if __name__ == "__main__":
    main()
