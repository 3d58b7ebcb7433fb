"""Measures time to the first answer, peak memory and disk size of each library, each in its own process.

    python benchmarks/cold_start.py [--size=base --turns=5 --peers=NAME,…]

Each library reads its own files and turns strings into an answer, in float32 unless its name ends in int8. This package
reads the raw-text SavedModel, with `tf.saved_model.load` and as `keras-bert serve` does; and on LiteRT a classifier of
two labels, with `LiteModel`, without TensorFlow. KerasHub reads a preset. The other libraries run the encoder with a
fast tokenizer: transformers its own, ONNX Runtime and OpenVINO that of `tokenizers`. The time is from the start of the
process; its parts are Python's own start, the imports, the loading, and the first answer to one question. The memory is
the process's peak after 20 batches of 32 x 128 tokens. The processes take turns; the files are in the page cache. Takes
about 25 minutes for `base` on two cores.
"""

import functools
import os
import pathlib
import shutil
import statistics
import tempfile
import time

import ruler
from first_answer import LENGTH, LIBRARIES
from peer_models import config_of, openvino_model, write_encoder, write_onnx
from texts import ENGLISH, tokenizer_of

from keras_bert.convert import convert, load_pretrained
from keras_bert.export import export_litert, export_text_model
from keras_bert.models import BertClassifier
from keras_bert.tasks import Classify

PROCESS = pathlib.Path(__file__).with_name("first_answer.py")


def write(name, source, tokenizer, folder):
    """Writes the files of one library; returns their size in bytes.

    Args:
        source: Hugging Face folder with the encoder.
        tokenizer: the encoder's `BertTokenizer`.
    """
    next(LIBRARIES[name](folder))  # runs its imports, which fail if it is not installed
    if "litert" in name:
        export_litert(BertClassifier(load_pretrained(source), 2), tokenizer, folder, Classify(LENGTH, ["0", "1"]),
                      dtype="int8" if "int8" in name else "float32")
    elif name.startswith(ruler.OURS):
        export_text_model(load_pretrained(source), tokenizer, folder)
    elif name == "kerashub":
        convert(source, folder, "kerashub", allow_inexact=True)  # KerasHub's GELU is the tanh form
    elif name == "transformers":
        shutil.copytree(source, folder)
    else:
        os.mkdir(folder)
        shutil.copy(f"{source}/vocab.txt", folder)
        if name == "openvino":
            import openvino

            openvino.save_model(openvino_model(source), f"{folder}/model.xml", compress_to_fp16=False)
        else:
            write_onnx(source, f"{folder}/model.onnx", quantized=name == "onnxruntime-int8")
    return sum(path.stat().st_size for path in pathlib.Path(folder).rglob("*") if path.is_file())


def measure(size, names, turns):
    """Prints the table; returns its rows."""
    tokenizer, runs = tokenizer_of(ENGLISH), {}
    with tempfile.TemporaryDirectory() as work:
        source = f"{work}/source"
        write_encoder(config_of(size, vocab_size=len(tokenizer.vocabulary)), source, tokenizer)
        sizes = ruler.installed({name: functools.partial(write, name, source, tokenizer, f"{work}/{name}")
                           for name in names})
        for _ in range(turns):
            for name in sizes:
                runs.setdefault(name, []).append(ruler.run_alone(PROCESS, name, f"{work}/{name}", str(time.time())))
    rows = [{"library": name} | {key: statistics.median(run[key] for run in runs[name]) for key in runs[name][0]}
            | {"disk_mb": stored / 1e6} for name, stored in sizes.items()]
    ratio = ruler.ratios({row["library"]: row["seconds"] for row in rows})
    rows = [row | {"ratio": ratio[row["library"]]} for row in rows]
    ruler.print_table(f"{size}: seconds to the first answer, and MB; median of {turns} processes each", rows)
    return rows


def main():
    given = ruler.parser(__doc__, size="base", turns=5, peers=list(LIBRARIES)).parse_args()
    versions = ruler.describe(*ruler.PACKAGES, "tokenizers")
    ruler.finish("cold_start", versions, given, measure(given.size, given.peers, given.turns))


if __name__ == "__main__":
    main()
