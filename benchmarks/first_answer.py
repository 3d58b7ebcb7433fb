"""Measures the first answer of one library in this process; `cold_start.py` runs this program.

    python benchmarks/first_answer.py LIBRARY FOLDER "$(date +%s.%N)"

The last argument is the time when the process was started. The last line of the output is JSON: the seconds of the
imports, the loading and the first answer, the seconds from the start of the process to the first answer, and the
process's peak memory after 20 batches of 32 x 128 tokens.
"""

import json
import sys
import time

LENGTH = 128
QUESTION, FULL, BATCHES = "could you wake me at a quarter to six tomorrow", ["the " * (LENGTH - 2)] * 32, 20

# Each generator yields once after its imports, then yields a function of texts, loaded from the folder.


def ours(folder):
    import tensorflow as tf

    yield
    model = tf.saved_model.load(folder)
    yield lambda texts: model(tf.constant(texts))["pooled_output"].numpy()


def as_served(folder):
    """Reads the same files as `ours`, in the way of `keras-bert predict` and `serve`."""
    import numpy as np

    from keras_bert.inference.saved_model import SavedModel

    yield
    saved_model = SavedModel(folder, threads=0)
    column, = saved_model.signatures["serving_default"].inputs
    yield lambda texts: saved_model.run(
        "serving_default", [{column: np.array([text.encode() for text in texts], object)}])


def litert(folder):
    """Imports neither TensorFlow nor Keras."""
    import ai_edge_litert.interpreter  # noqa: F401

    from keras_bert import LiteModel

    yield
    yield LiteModel.load(folder).predict


def pytorch(folder):
    import torch
    from transformers import BertModel, BertTokenizerFast

    yield
    tokenizer, model = BertTokenizerFast.from_pretrained(folder), BertModel.from_pretrained(folder)

    @torch.inference_mode()
    def answer(texts):
        return model(**tokenizer(texts, padding=True, truncation=True, max_length=LENGTH, return_tensors="pt"))

    yield answer


def _tokenize(folder):
    """Returns a function from texts to int32 word ids and mask."""
    import numpy as np
    from tokenizers import BertWordPieceTokenizer

    tokenizer = BertWordPieceTokenizer(f"{folder}/vocab.txt", lowercase=True)
    tokenizer.enable_truncation(LENGTH)
    tokenizer.enable_padding()

    def tokenize(texts):
        encodings = tokenizer.encode_batch(texts)
        return [np.array([getattr(each, name) for each in encodings], np.int32) for name in ("ids", "attention_mask")]

    return tokenize


def onnxruntime(folder):
    import onnxruntime
    import tokenizers  # noqa: F401

    yield
    session, tokenize = onnxruntime.InferenceSession(f"{folder}/model.onnx"), _tokenize(folder)
    yield lambda texts: session.run(None, dict(zip(("ids", "mask"), tokenize(texts))))


def openvino(folder):
    import openvino
    import tokenizers  # noqa: F401

    yield
    tokenize, model = _tokenize(folder), openvino.compile_model(
        f"{folder}/model.xml", "CPU", {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"})
    yield lambda texts: model(tokenize(texts))


def kerashub(folder):
    import keras_hub

    yield
    backbone = keras_hub.models.BertBackbone.from_preset(folder)
    preprocessor = keras_hub.models.BertTextClassifierPreprocessor.from_preset(folder, sequence_length=LENGTH)
    yield lambda texts: backbone.predict_on_batch(preprocessor(texts))


LIBRARIES = {"keras_bert": ours, "keras_bert-served": as_served, "keras_bert-litert": litert,
             "keras_bert-litert-int8": litert, "transformers": pytorch, "onnxruntime": onnxruntime,
             "onnxruntime-int8": onnxruntime, "openvino": openvino, "kerashub": kerashub}


def start(name, folder, started):
    """Measures one library in this process, which was started at the time `started`, a str."""
    steps = LIBRARIES[name](folder)
    (import_seconds, _), (load_seconds, answer) = timed(next, steps), timed(next, steps)
    answer_seconds, _ = timed(answer, [QUESTION])
    seconds = time.time() - float(started)
    for _ in range(BATCHES):
        answer(FULL)
    import ruler  # not earlier: it imports modules of the standard library

    return {"import_seconds": import_seconds, "load_seconds": load_seconds, "answer_seconds": answer_seconds,
            "seconds": seconds, "peak_mb": ruler.peak_memory() / 1e6}


def timed(function, argument):
    """Returns the seconds that a call takes, and its result."""
    started = time.perf_counter()
    result = function(argument)
    return time.perf_counter() - started, result


if __name__ == "__main__":
    print(json.dumps(start(*sys.argv[1:])))
