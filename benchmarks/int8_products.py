"""Compares dense layers in float32, bfloat16 and int8, by the shape of the kernel and the number of tokens.

    python benchmarks/int8_products.py [--sizes=L6-H384,base --rows=16,128,1024 --turns=15]

The layers are those of an encoder's block: without the activation, with the bias, and in int8 with the scales of the
tokens, as in an export (`keras_bert.export.int8`). A call runs the layer on 20 inputs, so that the time of the call
itself counts little; the table shows the time of one. If int8 is not faster here, an export in int8 will not be either.
Takes two minutes.
"""

import functools
import os

os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")  # as keras_bert does, if it is imported before TensorFlow

import ruler
import tensorflow as tf  # noqa: E402
from peer_models import config_of  # noqa: E402

from keras_bert.export.int8 import quantize_dense  # noqa: E402
from keras_bert.layers.base import Dense  # noqa: E402

INPUTS = 20  # per call


def make(inputs, outputs, dtype):
    """Returns a dense layer as a function of a list of `INPUTS` arrays [rows, inputs]."""
    layer = Dense(outputs, dtype="float32" if dtype == "int8" else dtype)
    layer.build((None, inputs))
    if dtype == "int8":
        quantize_dense(layer)
    signature = [[tf.TensorSpec([None, inputs], layer.compute_dtype)] * INPUTS]
    return tf.function(lambda several: [layer(x) for x in several], input_signature=signature, autograph=False)


def measure(inputs, outputs, counts, turns):
    """Prints the table of one kernel; returns its rows."""
    rows = []
    for count in counts:
        steps = {}
        for dtype in ("float32", "bfloat16", "int8"):
            layer = make(inputs, outputs, dtype)
            several = [tf.cast(tf.random.normal([count, inputs]), layer.input_signature[0][0].dtype)
                       for _ in range(INPUTS)]
            steps[dtype] = functools.partial(layer, several)
        seconds = {dtype: value / INPUTS for dtype, value in ruler.take_turns(steps, turns).items()}
        rows += [{"library": f"{count} tokens, {dtype}", "microseconds": 1e6 * value,
                  "gflops": 2e-9 * count * inputs * outputs / value, "ratio": value / seconds["float32"]}
                 for dtype, value in seconds.items()]
    ruler.print_table(f"kernel {inputs} x {outputs}", rows)
    return [{"kernel": [inputs, outputs]} | row for row in rows]


def main():
    given = ruler.parser(__doc__, sizes=["L6-H384", "base"], rows=[16, 128, 1024], turns=15).parse_args()
    versions, rows = ruler.describe("tensorflow", "keras"), []
    for size in given.sizes:
        hidden, wide = config_of(size).hidden_size, config_of(size).intermediate_size
        for inputs, outputs in (hidden, hidden), (hidden, wide), (wide, hidden):
            rows += measure(inputs, outputs, given.rows, given.turns)
    ruler.finish("int8_products", versions, given, rows)


if __name__ == "__main__":
    main()
