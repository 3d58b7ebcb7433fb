"""What XLA gets to compile for GPUs and TPUs: JAX lowers for them without one."""

import collections
import re

import keras
import numpy as np
import pytest

from keras_bert.layers import BertLayer
from keras_bert.models import BertClassifier

from conftest import TINY, Peer

jax = Peer("jax")
pytestmark = [pytest.mark.peers, pytest.mark.backend("jax")]
# Products of a block (Vaswani et al., 2017, section 3): query, key, value, scores, context, output, and the two of the
# feed-forward layer.
BLOCK = 8
INPUTS = [np.ones((2, 16), np.int32)] * 3


def operations(function, platform, *arguments):
    """Counts the operations by name, and the products by the types that they multiply."""
    text = jax.export.export(jax.jit(function), platforms=[platform])(*arguments).mlir_module()
    products = re.findall(r"stablehlo\.dot_general.* : \(tensor<[\dx]*x(\w+)>, tensor<[\dx]*x(\w+)>\)", text)
    return collections.Counter(re.findall(r"stablehlo\.(\w+)", text)), collections.Counter(products)


def weights(model):
    return [[variable.value for variable in variables]
            for variables in (model.trainable_variables, model.non_trainable_variables)]


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
@pytest.mark.parametrize("dtype,element", [("float32", "f32"), ("mixed_bfloat16", "bf16")])
def test_products_are_as_few_as_the_paper_needs(platform, dtype, element):
    bert = BertLayer(TINY, dtype=dtype)
    model = BertClassifier(bert, 5)
    model(INPUTS)

    def loss(trainable, others, inputs):
        logits, _ = model.stateless_call(trainable, others, inputs, training=True)
        return keras.ops.sum(keras.ops.square(logits))

    encode = operations(lambda *arguments: bert.stateless_call(*arguments)[0], platform, *weights(bert), INPUTS)
    train = operations(jax.grad(loss), platform, *weights(model), INPUTS)
    forward = BLOCK * TINY.num_hidden_layers + 1  # the pooler
    assert encode[1] == {(element, element): forward}
    # Each product of the forward step, the classifier's too, has a gradient by either side.
    assert sum(train[1].values()) == 3 * (forward + 1)
    assert train[1][element, element] >= 3 * forward  # the classifier computes float32
    for counts, _ in (encode, train):
        assert not counts.keys() & {"infeed", "outfeed", "send", "recv", "custom_call", "while", "case"}
