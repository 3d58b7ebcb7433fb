"""BERT encoders of several libraries for `forward.py` and `texts.py`, each set up for speed as its documentation says.

An encoder is a function from int32 arrays [batch, seq], word ids and mask, to the pooled output, float32 [batch,
hidden]. All encoders have the weights of one Hugging Face folder, except KerasHub's and the Model Garden's, which start
from their own random weights. `keras_bert-served` and `keras_bert-litert` also compute a classifier's dense layer, and
return its probabilities.
"""

import functools
import tempfile

import numpy as np
import peer_models
import tensorflow as tf
from ruler import OURS, installed

from keras_bert.config import BertConfig
from keras_bert.convert import load_pretrained, open_source
from keras_bert.inference.saved_model import SavedModel
from keras_bert.models import BertClassifier
from keras_bert.tasks import Classify

_TOLERANCE = 1e-3
_LABELS = ["0", "1"]


def make_encoders(names, folder, dtype):
    """Returns a dict of the named encoders that are installed and support the dtype. In float32, checks that the
    encoders with the same weights have the same outputs.

    Args:
        names: names from `ENCODERS`.
        folder: folder that `write_encoder` wrote.
        dtype: float32 or bfloat16.
    """
    known = {name: ENCODERS[name] for name in names if dtype == "float32" or name not in _FLOAT32_ONLY}
    encoders = installed(known, folder, dtype)
    if dtype == "float32":
        ids = np.random.default_rng(0).integers(5, _config(folder).vocab_size, (4, 16), np.int32)
        mask = (np.arange(16) < [[16], [9], [3], [12]]).astype(np.int32)
        pooled = {name: encode(ids, mask) for name, encode in encoders.items() if name in _SAME_WEIGHTS}
        for name, values in pooled.items():
            np.testing.assert_allclose(values, next(iter(pooled.values())), rtol=0, atol=_TOLERANCE, err_msg=name)
    return encoders


def ours(folder, dtype, unpadded=True):
    bert = load_pretrained(folder, dtype=dtype, layout="unpadded" if unpadded else "padded")
    return _in_graph(lambda ids, mask: bert.pool([ids, mask, tf.zeros_like(ids)]))


def served(folder, dtype):
    """The exported model in a session, as `keras-bert predict` and `serve` run it."""
    source = open_source(folder)
    model = peer_models.load_exported(
        BertClassifier(load_pretrained(source), len(_LABELS)), source.needed_tokenizer(),
        functools.partial(SavedModel, threads=0), labels=_LABELS, max_length=source.config.max_position_embeddings,
        dtype=dtype)
    return lambda ids, mask: model.run("encode", [{
        "input_word_ids": ids, "input_mask": mask, "input_type_ids": np.zeros_like(ids)}])[0]["probabilities"]


def litert(folder, dtype, int8=False):
    source = open_source(folder)
    with tempfile.TemporaryDirectory() as work:
        run = peer_models.load_lite(
            BertClassifier(load_pretrained(source), len(_LABELS)), source.needed_tokenizer(), f"{work}/model",
            Classify(source.config.max_position_embeddings, _LABELS), "int8" if int8 else dtype).runner
    return lambda ids, mask: run(
        {"input_word_ids": ids, "input_mask": mask, "input_type_ids": np.zeros_like(ids)})["probabilities"]


def pytorch(folder, dtype, compiled=False, nested=False):
    import torch

    model = peer_models.nested_module(folder, dtype) if nested else peer_models.torch_module(folder, dtype)
    if compiled:
        torch._dynamo.reset()  # otherwise shapes of earlier models count towards the recompilation limit
        torch._inductor.config.freezing = True  # stores weights in the fastest layout for this machine
        model = torch.compile(model)

    @torch.inference_mode()
    def encode(ids, mask):
        return model(torch.from_numpy(ids), torch.from_numpy(mask)).float().numpy()

    return encode


def onnxruntime(folder, dtype, quantized=False):
    import onnxruntime

    with tempfile.TemporaryDirectory() as work:
        peer_models.write_onnx(folder, f"{work}/model.onnx", quantized)
        session = onnxruntime.InferenceSession(f"{work}/model.onnx", providers=["CPUExecutionProvider"])
    return lambda ids, mask: session.run(None, {"ids": ids, "mask": mask})[0]


def openvino(folder, dtype):
    import openvino

    model = openvino.compile_model(peer_models.openvino_model(folder), "CPU", {
        "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": {"float32": "f32", "bfloat16": "bf16"}[dtype]})
    return lambda ids, mask: model([ids, mask])[0]


def kerashub(folder, dtype, jit_compile=False):
    backbone = peer_models.kerashub_backbone(_config(folder), dtype)
    return _in_graph(lambda ids, mask: backbone({
        "token_ids": ids, "padding_mask": mask, "segment_ids": tf.zeros_like(ids)})["pooled_output"], jit_compile)


def garden(folder, dtype):
    encoder = peer_models.garden_encoder("BertEncoderV2", _config(folder), dtype)
    return _in_graph(lambda ids, mask: encoder({
        "input_word_ids": ids, "input_mask": mask, "input_type_ids": tf.zeros_like(ids)})["pooled_output"])


ENCODERS = {
    OURS: ours, f"{OURS}-padded": functools.partial(ours, unpadded=False), f"{OURS}-served": served,
    f"{OURS}-litert": litert, f"{OURS}-litert-int8": functools.partial(litert, int8=True),
    "transformers": pytorch, "transformers-compiled": functools.partial(pytorch, compiled=True),
    "pytorch-nested": functools.partial(pytorch, nested=True),
    "onnxruntime": onnxruntime, "onnxruntime-int8": functools.partial(onnxruntime, quantized=True),
    "openvino": openvino,
    "kerashub": kerashub, "kerashub-xla": functools.partial(kerashub, jit_compile=True), "garden": garden,
}
_SAME_WEIGHTS = (OURS, f"{OURS}-padded", "transformers", "transformers-compiled", "pytorch-nested", "onnxruntime",
                 "openvino")
_FLOAT32_ONLY = ("onnxruntime", "onnxruntime-int8", f"{OURS}-litert", f"{OURS}-litert-int8")  # on CPUs


def _config(folder):
    return BertConfig.from_json(f"{folder}/config.json")


def _in_graph(encode, jit_compile=False):
    @tf.function(input_signature=[tf.TensorSpec([None, None], tf.int32)] * 2, autograph=False, jit_compile=jit_compile)
    def pooled(ids, mask):
        return tf.cast(encode(ids, mask), tf.float32)

    return lambda ids, mask: pooled(ids, mask).numpy()
