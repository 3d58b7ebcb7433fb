"""Writes a fine-tuned model for ONNX Runtime or OpenVINO, runs it there and compares the outputs.

    pip install "keras-bert-hub[onnx]"
    python examples/other_engines.py --model=model --output=model.onnx
    pip install "keras-bert-hub[openvino]"
    python examples/other_engines.py --model=model --output=model.xml

Keras writes the ONNX file, and the SavedModel that OpenVINO converts (`keras.Model.export`). The inputs are those of
`BertLayer`, int32 [batch, seq] of any size, as `BertTokenizer` makes them; the outputs are those of the Keras model,
for a classifier the logits.
"""

import argparse
import os
import tempfile

from keras_bert import startup

startup.quiet_tensorflow()

import keras
import numpy as np
import tensorflow as tf

import keras_bert
from keras_bert.models import load_model

TEXTS = ["play some music", "turn the light off, please", "what time is it?"] * 3
INPUTS = ("input_word_ids", "input_mask", "segment_ids")


def write_onnx(model, path, signature):
    from tf2onnx import utils
    from tf2onnx.handler import tf_op

    @tf_op("Erfc")  # of the GELU; tf2onnx has Erf alone
    class Erfc:
        @classmethod
        def version_9(cls, ctx, node, **_):
            node.type, erf = "Erf", node.output[0]
            one = ctx.make_const(utils.make_name("one"), np.array(1, np.float32)).output[0]
            ctx.insert_new_node_on_output("Sub", erf, inputs=[one, erf])

    model.export(path, format="onnx", input_signature=signature, verbose=False)


def run_onnx(path, inputs):
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return session.run(None, inputs)


def write_openvino(model, path, signature):
    import openvino

    with tempfile.TemporaryDirectory() as folder:
        model.export(folder, input_signature=signature, verbose=False)
        openvino.save_model(openvino.convert_model(folder), path, compress_to_fp16=False)


def run_openvino(path, inputs):
    import openvino

    compiled = openvino.Core().compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return list(compiled(inputs).to_tuple())


ENGINES = {".onnx": (write_onnx, run_onnx), ".xml": (write_openvino, run_openvino)}


def main(model, output):
    suffix = os.path.splitext(output)[1]
    if suffix not in ENGINES:
        raise keras_bert.InputError(f"output must end in {' or '.join(ENGINES)}; got {output}")
    write, run = ENGINES[suffix]
    loaded = load_model(model, layout="padded")  # the engines lack operations that leave out padding
    tokenizer = keras_bert.BertTokenizer.from_folder(model)
    write(loaded, output, [{name: tf.TensorSpec([None, None], tf.int32, name) for name in INPUTS}])
    inputs = {name: array for name, array in tokenizer(TEXTS, max_length=32).items() if name in INPUTS}
    pairs = zip(keras.tree.flatten(loaded(inputs)), run(output, inputs), strict=True)
    difference = max(float(np.abs(wanted - found).max()) for wanted, found in pairs)
    print(f"{output}: largest difference from the Keras model {difference:.1e}")
    return difference


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for flag in ("--model", "--output"):
        parser.add_argument(flag, required=True)
    try:
        main(**vars(parser.parse_args()))
    except keras_bert.InputError as error:
        parser.exit(1, f"{parser.prog}: {error}\n")
