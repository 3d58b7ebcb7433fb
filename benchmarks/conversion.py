"""Measures seconds and memory of converting a checkpoint that has the tensor names and shapes of a released one.

    python benchmarks/conversion.py [--tensors=google_index_tensors.json]

--tensors: JSON of {model: {name: {"shape": [...]}}}. Random weights of the first model are written as a TensorFlow 1
checkpoint, which is converted to every format, each in its own process. Memory is the process's peak minus what its
imports use. The conversion's final check, which compares the outputs of two models, is skipped. Takes about two
minutes.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time

import numpy as np
from real_texts import find
from ruler import describe, resident

FORMATS = ("huggingface", "keras_bert", "tf1", "garden", "kerashub", "hub")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tensors", default=find("checkpoints/google_index_tensors.json"))
    parser.add_argument("--convert", nargs=3, metavar=("SOURCE", "TARGET", "FORMAT"), help="one conversion, measured")
    arguments = parser.parse_args()
    if arguments.convert:
        return print(json.dumps(measure(*arguments.convert)))
    with tempfile.TemporaryDirectory() as folder:
        source = os.path.join(folder, "source")
        size = make_checkpoint(arguments.tensors, source)
        rows = []
        for form in FORMATS:
            command = [sys.executable, __file__, f"--tensors={arguments.tensors}", "--convert", source,
                       os.path.join(folder, form), form]
            run = subprocess.run(command, capture_output=True, text=True, check=True)
            rows.append({"format": form, **json.loads(run.stdout.splitlines()[-1])})
    describe("tensorflow", "keras")
    print(f"source {size / 1e6:.0f} MB\n")
    print(f"{'to':12} {'seconds':>8} {'memory, MB':>11} {'of the source':>14}")
    for row in rows:
        row["ratio"] = row["bytes"] / size
        print(f"{row['format']:12} {row['seconds']:8.1f} {row['bytes'] / 1e6:11.0f} {row['ratio']:14.2f}")
    print(json.dumps({"benchmark": "conversion", "source_bytes": size, "rows": rows}))


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
    with open(os.path.join(folder, "bert_config.json"), "w") as file:
        json.dump(config, file)
    with open(os.path.join(folder, "vocab.txt"), "w") as file:
        pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        file.writelines(f"{piece}\n" for piece in [*pieces, *(f"p{i}" for i in range(vocab_size - len(pieces)))])
    return sum(entry.stat().st_size for entry in os.scandir(folder))


def measure(source, target, form):
    """Returns the seconds and the peak memory in bytes of one conversion."""
    import keras_bert.export  # noqa: F401  what any of the formats imports
    from keras_bert.convert import conversion
    from keras_bert.weights.bundle import Bundle

    Bundle(os.path.join(source, "bert_model.ckpt"))  # imports TensorFlow
    conversion.differences = lambda *_: {"left out": 0.0}
    base, most, done = resident(), [0], threading.Event()

    def watch():
        while not done.wait(0.01):
            most[0] = max(most[0], resident())

    watcher = threading.Thread(target=watch)
    watcher.start()
    started = time.monotonic()
    conversion.convert(source, target, form, allow_inexact=True)
    seconds = time.monotonic() - started
    done.set()
    watcher.join()
    return {"seconds": seconds, "bytes": most[0] - base}


if __name__ == "__main__":
    main()
