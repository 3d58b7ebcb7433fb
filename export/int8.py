"""int8 arithmetic in SavedModels (experimental): products of integers by an operation of TensorFlow for oneDNN."""

import pathlib
import re

import keras
import numpy as np
import tensorflow as tf

from keras_bert.errors import InputError, first_line
from keras_bert.layers.attention import EncoderBlock
from keras_bert.layers.base import Dense, check_not_quantized

from . import writing

OPERATION = "_QuantizedMatMul"  # private to TensorFlow; the class QuantizedFusedMatMulOp in mkl_matmul_op_fused.cc
_FAST = {"avx512_vnni", "avx_vnni", "amx_int8"}  # instructions for products of int8, as in /proc/cpuinfo
_LIMIT = 127  # the largest integer


def quantized(model):
    """Returns a copy of a model for inference with the word embeddings and the encoder's dense layers in int8.

    Each column of a kernel and each row of the word embeddings has a scale, which is determined now. Each token has one
    in each layer, which is determined when the model runs (dynamic quantization, as in PyTorch and ONNX Runtime), so
    nothing is calibrated. In the copy, the variable `kernel_scale` holds what the integer 127 would stand for in each
    column. All other layers stay in float32.

    Args:
        model: a `BertLayer` or a head.

    Returns:
        a model in the layout `unpadded`, which runs in `predict`, in `predict_on_batch` and in a `tf.function`. It
        cannot be trained, saved or copied, and its weights must not change after the first call.

    Raises:
        InputError: this TensorFlow does not have the operation, or the model is already quantized.
    """
    check_operation()
    check_not_quantized(model, "convert")
    replica = model.rebuild(dtype="float32", lora_rank=None, layout="unpadded")
    layers = replica._flatten_layers()
    for layer in layers:
        if isinstance(layer, EncoderBlock) and layer.config.hidden_act == "gelu":
            _fold_constants(layer)
    for layer in layers:
        if isinstance(layer, Dense):
            quantize_dense(layer)
        elif isinstance(layer, keras.layers.Embedding) and layer.name == "word_embeddings":
            layer.quantize("int8")
    _use_one_norm(writing.encoder_of(replica))
    replica.get_config = _refuse_to_copy
    return replica


def check_operation():
    """Raises an InputError if this TensorFlow does not have the operation."""
    try:
        values = tf.zeros([1, 1], tf.int8), tf.zeros([1, 1], tf.int8), tf.ones([1])
        tf.function(_multiply, autograph=False).get_concrete_function(*values)(*values)  # a graph in every mode
    except (ValueError, tf.errors.OpError) as error:
        raise InputError(f"the dtype int8 needs TensorFlow for x86-64 processors, with oneDNN; this one has no "
                         f"operation {OPERATION} as expected: {first_line(error):.200}") from None


def is_slow_here():
    """Returns True if the processor has no instructions for products of int8, so that int8 may not be faster than
    float32."""
    path = pathlib.Path("/proc/cpuinfo")
    return not _FAST & set(re.findall(r"\w+", path.read_text())) if path.exists() else True


def quantize_dense(layer):
    """Quantizes a dense layer in place, see `quantized`.

    Processors without VNNI multiply two neighbours in a column by integers from 1 to 255, and add the products in 16
    bits. A larger sum would be cut, silently; so two neighbours together are at most 127 before they are rounded, and
    128 after. Which rows are added depends on the number of rows; here it is any two.
    """
    kernel = layer.kernel.numpy()
    sizes = np.abs(kernel)
    largest = np.maximum((sizes + np.pad(sizes[1:], ((0, 1), (0, 0)))).max(axis=0), 1e-30)
    layer.quantize("int8")  # makes the variables
    layer.kernel.assign(np.round(kernel / largest * _LIMIT))
    layer.kernel_scale.assign(largest)
    layer.quantized_call = _call_of(layer)


def _fold_constants(block):
    """Moves the constants of GELU, x / 2 * (1 + erf(x / sqrt(2))), into the kernels before and after it, because the
    activation is not fused into a product of integers: two operations less."""
    for variable in (block.intermediate.kernel, block.intermediate.bias, block.output_dense.kernel):
        variable.assign(variable * 0.5**0.5)
    block.activate = lambda x: x * (1 + tf.math.erf(x))


def _use_one_norm(encoder):
    """Makes an encoder use the same form of the layer norm for any number of tokens. The forms round differently, and
    a value that is rounded to another integer changes more than the last digits of an answer."""
    arrange = encoder._arrange

    def arrange_with_one_norm(*arguments):
        layout = arrange(*arguments)
        layout.few_tokens = 0
        return layout

    encoder._arrange = arrange_with_one_norm


def _refuse_to_copy():
    raise InputError("a model in int8 cannot be saved or copied; save the model that it was made from")


def _call_of(layer):
    """Returns the function that calls a quantized dense layer."""
    def call(inputs, training=False):
        if tf.executing_eagerly():
            raise InputError("a model in int8 runs in predict, in predict_on_batch or in a tf.function")
        x = tf.reshape(inputs, [-1, inputs.shape[-1]])
        x = tf.raw_ops.PreventGradient(input=x, message="a model in int8 cannot be trained")
        highest, lowest = tf.reduce_max(x, axis=1, keepdims=True), tf.reduce_min(x, axis=1, keepdims=True)
        limits = tf.maximum(tf.maximum(highest, -lowest), 1e-30)  # faster than those of absolute values
        integers = tf.cast(tf.round(x * (_LIMIT / limits)), tf.int8)
        products = _multiply(integers, tf.convert_to_tensor(layer.kernel), tf.convert_to_tensor(layer.kernel_scale))
        outputs = tf.nn.bias_add(products * (limits / _LIMIT), tf.convert_to_tensor(layer.bias))
        outputs = tf.reshape(outputs, tf.concat([tf.shape(inputs)[:-1], [layer.units]], 0))
        return outputs if layer.activation is None else layer.activation(outputs)

    return call


def _multiply(x, kernel, limits):
    """Computes x @ (kernel * limits / 127) in a graph; the integers of x stand for themselves.

    Args:
        x: int8 [rows, inputs].
        kernel: int8 [inputs, outputs].
        limits: float32 [outputs], what 127 stands for in each column of the kernel.

    Returns:
        float32 [rows, outputs].
    """
    largest = tf.constant(float(_LIMIT))
    inputs = {"x": tf.bitcast(x, tf.qint8), "kernel": tf.bitcast(kernel, tf.qint8), "bias": tf.zeros_like(limits),
              "lowest": -largest, "largest": largest, "limits": limits}
    node = tf.compat.v1.NodeDef(
        name="product", op=OPERATION, input=["x", "kernel", "bias", "lowest", "largest", "limits", "limits"])
    float32, qint8 = tf.float32.as_datatype_enum, tf.qint8.as_datatype_enum
    for name, dtype in {"T1": qint8, "T2": qint8, "Tbias": float32, "Tout": float32, "U": float32}.items():
        node.attr[name].type = dtype
    for name, dtypes in {"Tdevice_inputs": [qint8, qint8, float32], "Thost_inputs": [float32] * 4,
                         "Tdevice_outputs": [float32], "Thost_outputs": []}.items():
        node.attr[name].list.type.extend(dtypes)
    for name in ("is_weight_const", "is_bias_const"):  # the operation keeps the weights in the order of its kernel
        node.attr[name].b = True
    node.attr["fused_ops"].list.s.extend([b"BiasAdd", b"Dequantize"])
    node.attr["input_quant_mode"].s = node.attr["output_quant_mode"].s = b"SCALED"
    return tf.graph_util.import_graph_def(
        tf.compat.v1.GraphDef(node=[node]), inputs, ["product:0"], name="int8")[0]
