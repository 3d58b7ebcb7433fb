"""`BertFeatures` and `BertFeatureTagger`: vectors and labels of tokens from a frozen encoder."""

import operator
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_bert.errors import InputError, Option
from keras_bert.layers.bert import BertLayer, Inputs, standardize_inputs
from keras_bert.models.base import BertTask, DropoutTask
from keras_bert.types import Tensor

CONCATENATED, WEIGHTED = "concat-last-4", "weighted-all"


def features_of(blocks: int) -> dict[str, tuple[int, Any]]:
    """Returns the features of an encoder of that many blocks. By name: how many times as wide as the encoder they are,
    and a function of the list of outputs of the embeddings and of each block; None for `ScalarMix`."""
    numbers = range(1, blocks + 1)
    return {
        "embeddings": (1, operator.itemgetter(0)), "last": (1, operator.itemgetter(-1)),
        **({"second-to-last": (1, operator.itemgetter(-2))} if blocks > 1 else {}),
        "sum-all": (1, lambda outputs: sum(outputs[1:])), WEIGHTED: (1, None),
        **{f"layer-{n}": (1, operator.itemgetter(n)) for n in (0, *numbers)},
        **{f"sum-last-{n}": (1, lambda outputs, n=n: sum(outputs[-n:])) for n in numbers},
        **{f"concat-last-{n}": (n, lambda outputs, n=n: ops.concatenate(outputs[-n:], axis=-1)) for n in numbers}}


@keras.saving.register_keras_serializable("keras_bert")
class ScalarMix(keras.layers.Layer):
    """A weighted sum of `count` tensors of one shape, multiplied by a scalar. The weights are a softmax of trained
    values and start equal; the scalar is trained, too, and starts at 1 (ELMo: Peters et al., 2018, equation 1,
    https://arxiv.org/abs/1802.05365)."""

    def __init__(self, count: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.count = count
        self.mix = self.add_weight(name="mix", shape=(self.count,), initializer="zeros")
        self.scale = self.add_weight(name="scale", shape=(), initializer="ones")
        self.built = True

    def call(self, tensors: Sequence[Tensor]) -> Tensor:
        return self.scale * sum(map(operator.mul, ops.unstack(ops.softmax(self.mix)), tensors))

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"count": self.count}


def frozen_copy(bert: BertLayer) -> BertLayer:
    """Returns `bert`, or a frozen copy of it if it has trainable variables."""
    return bert.rebuild(trainable=False) if bert.trainable_variables else bert


@keras.saving.register_keras_serializable("keras_bert")
class BertFeatures(BertTask):
    """Vectors of tokens for a model that does not train BERT (Devlin et al., 2018, section 5.3, table 7).

    Args:
        bert: a `BertLayer`; if it is trainable, the model uses a frozen copy.
        features: `embeddings`, `last`, `second-to-last`, `sum-all`, `sum-last-N`, `concat-last-N` (default:
            `concat-last-4`): the output of the embeddings, or the output, the sum or the concatenation of the outputs
            of these blocks; `weighted-all`: the `ScalarMix` of all blocks, which is trainable; `layer-N`: the output of
            block N, counted from 1, or of the embeddings for 0.

    Call arguments:
        inputs: as for `BertLayer`.
        training: has no effect, as there is no dropout.

    Returns:
        [batch, seq, width], float32; the vectors of padding are meaningless.

    Raises:
        InputError: the encoder has no such features.
    """

    def __init__(self, bert: BertLayer, features: str = CONCATENATED, **kwargs: Any) -> None:
        super().__init__(frozen_copy(bert), **kwargs)
        blocks = bert.config.num_hidden_layers
        table = features_of(blocks)
        if features not in table:
            raise InputError(Option("features"), " must be one of embeddings, last, second-to-last, sum-all, "
                             f"{WEIGHTED}, layer-N, sum-last-N, concat-last-N, of an encoder with {blocks} blocks; "
                             f"got {features!r}")
        times, self.combine = table[features]
        self.features = features
        self.mix = ScalarMix(blocks, dtype="float32", name="mix") if features == WEIGHTED else None
        self.width = times * bert.config.hidden_size
        self.build()

    def call(self, inputs: Inputs, training: bool | None = False) -> Tensor:
        encoded = self.bert.encode(inputs, training=False)
        # Otherwise TensorFlow would also trace a backward pass through the encoder, where no variable is trained.
        outputs = [ops.stop_gradient(ops.cast(output, "float32"))
                   for output in (encoded.embedding_output, *encoded.encoder_outputs)]
        return self.combine(outputs) if self.mix is None else self.mix(outputs[1:])

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"features": self.features}


@keras.saving.register_keras_serializable("keras_bert")
class BertFeatureTagger(DropoutTask):
    """Two bidirectional LSTMs, dropout and a dense layer on `BertFeatures` (Devlin et al., 2018, section 5.3).

    Args:
        bert: a `BertLayer`; if it is trainable, the model uses a frozen copy.
        num_classes: number of labels.
        features: see `BertFeatures`.
        units: width of an LSTM in one direction; the default gives 768 for both directions, as in the paper.
        dropout: dropout rate of the LSTMs' output.

    Call arguments:
        inputs, training, seed: as for `BertLayer`; padding must come after the real tokens of a text, and there is no
            dropout in the encoder.

    Returns:
        logits [batch, seq, num_classes], float32; those of padding are meaningless.
    """

    def __init__(self, bert: BertLayer, num_classes: int, features: str = CONCATENATED, units: int = 384,
                 dropout: float = 0.1, **kwargs: Any) -> None:
        super().__init__(frozen_copy(bert), dropout, num_classes, **kwargs)
        self.units = units
        self.features = BertFeatures(self.bert, features, name="features")
        self.first, self.second = (self._make_lstm(name) for name in ("first", "second"))
        self.add_dense()

    def _make_lstm(self, name: str) -> keras.layers.Bidirectional:
        # With cuDNN's operation, an export would run only on GPUs, and XLA does not have this operation.
        lstm = keras.layers.LSTM(self.units, return_sequences=True, dtype="float32", use_cudnn=False, name="lstm")
        return keras.layers.Bidirectional(lstm, dtype="float32", name=name)

    def build(self, *_: Any) -> None:
        self.first.build((None, None, self.features.width))
        for layer in (self.second, self.classifier):
            layer.build((None, None, 2 * self.units))
        super().build()

    def encoder_output(self, inputs: Inputs, **options: Any) -> Tensor:
        is_real = ops.cast(standardize_inputs(inputs)[1], "bool")
        x = self.first(self.features(inputs), mask=is_real)
        return self.second(x, mask=is_real)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"features": self.features.features, "units": self.units}
