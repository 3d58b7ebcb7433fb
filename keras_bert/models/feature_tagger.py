"""`BertFeatureTagger`: one label a token, from an encoder that stays as it is."""

import operator

import keras
from keras import ops

from keras_bert.errors import InputError
from keras_bert.layers import standardize_inputs
from keras_bert.models.base import BertTask, DropoutTask

CONCATENATED, LEARNED = "concat-last-4", "weighted-all"
# For each name how many blocks it needs, and what it makes of the outputs of the embeddings and of all blocks.
FEATURES = {
    "embeddings": (0, operator.itemgetter(0)),
    "last": (1, operator.itemgetter(-1)),
    "second-to-last": (2, operator.itemgetter(-2)),
    "sum-last-4": (4, lambda outputs: sum(outputs[-4:])),
    CONCATENATED: (4, lambda outputs: ops.concatenate(outputs[-4:], axis=-1)),
    "sum-all": (1, lambda outputs: sum(outputs[1:])),
    LEARNED: (1, None),  # `ScalarMix`
}


@keras.saving.register_keras_serializable("keras_bert")
class ScalarMix(keras.layers.Layer):
    """A weighted sum of tensors times a number. The weights are a softmax; both are learned, from equal weights and
    from 1 (ELMo: Peters et al., 2018, equation 1, https://arxiv.org/abs/1802.05365).

    Args:
        count: number of tensors.

    Call arguments:
        tensors: list of `count` tensors of one shape, compute dtype.

    Returns:
        a tensor of that shape and dtype.
    """

    def __init__(self, count, **kwargs):
        super().__init__(**kwargs)
        self.count = count
        self.build()

    def build(self, *_):
        self.mix = self.add_weight(name="mix", shape=(self.count,), initializer="zeros")
        self.scale = self.add_weight(name="scale", shape=(), initializer="ones")
        self.built = True

    def call(self, tensors):
        return self.scale * sum(map(operator.mul, ops.unstack(ops.softmax(self.mix)), tensors))

    def get_config(self):
        return super().get_config() | {"count": self.count}


def frozen(bert):
    """An encoder that does not train: `bert`, or a frozen copy of it."""
    return bert.rebuild(trainable=False) if bert.trainable_variables else bert


@keras.saving.register_keras_serializable("keras_bert")
class BertFeatures(BertTask):
    """Vectors of tokens for a model that leaves BERT as it is (Devlin et al., 2018, section 5.3, table 7).

    Args:
        bert: a `BertLayer`; of one that is trainable the model has a frozen copy.
        features: `embeddings`, `last`, `second-to-last`, `sum-last-4`, `concat-last-4`, `sum-all`: the output of the
            embeddings, or those of the blocks named; `weighted-all`: the `ScalarMix` of all blocks, which is trainable;
            `layer-N`: the output of block N, counted from 1, or of the embeddings, 0.

    Call arguments:
        inputs: as for `BertLayer`.
        training: does nothing, as nothing drops out.

    Returns:
        [batch, seq, width], float32; those of padding mean nothing.

    Raises:
        InputError: there are no such features, or of no encoder with so few blocks.
    """

    def __init__(self, bert, features=CONCATENATED, **kwargs):
        super().__init__(frozen(bert), **kwargs)
        blocks = bert.config.num_hidden_layers
        table = FEATURES | {f"layer-{n}": (n, operator.itemgetter(n)) for n in range(blocks + 1)}
        if features not in table:
            raise InputError(f"features must be one of {', '.join(FEATURES)}, or layer-N with N from 0 to {blocks}; "
                             f"got {features!r}")
        least, self.combine = table[features]
        if blocks < least:
            raise InputError(f"{features} needs an encoder of at least {least} blocks; this one has {blocks}")
        self.features = features
        self.mix = ScalarMix(blocks, dtype="float32", name="mix") if features == LEARNED else None
        self.width = bert.config.hidden_size * (4 if features == CONCATENATED else 1)
        self.build()

    def call(self, inputs, training=False):
        encoded = self.bert.encode(inputs, training=False)
        # TensorFlow would trace a backward pass through the encoder, too, for no variable.
        outputs = [ops.stop_gradient(ops.cast(output, "float32"))
                   for output in (encoded.embedding_output, *encoded.encoder_outputs)]
        return self.combine(outputs) if self.mix is None else self.mix(outputs[1:])

    def get_config(self):
        return super().get_config() | {"features": self.features}


@keras.saving.register_keras_serializable("keras_bert")
class BertFeatureTagger(DropoutTask):
    """Two bidirectional LSTMs, dropout and a dense layer on `BertFeatures` (Devlin et al., 2018, section 5.3).

    Args:
        bert: a `BertLayer`; of one that is trainable the model has a frozen copy.
        num_classes: number of labels.
        features: see `BertFeatures`.
        units: width of an LSTM; two of the default one, one a direction, have the 768 of the paper.
        dropout: dropout rate of the LSTMs' output.

    Call arguments:
        inputs: as for `BertLayer`; the real tokens of a text stand before its padding.
        training: whether to drop out; nothing in the encoder does.
        seed: int32 [2], see `BertLayer`.

    Returns:
        logits [batch, seq, num_classes], float32; those of padding mean nothing.
    """

    def __init__(self, bert, num_classes, features=CONCATENATED, units=384, dropout=0.1, **kwargs):
        super().__init__(frozen(bert), dropout, **kwargs)
        self.num_classes = num_classes
        self.units = units
        self.features = BertFeatures(self.bert, features, name="features")
        self.first, self.second = (self._make_lstm(name) for name in ("first", "second"))
        self.classifier = self.make_dense("classifier", num_classes)
        self.build()

    def _make_lstm(self, name):
        # cuDNN's operation would bind an export to GPUs, and XLA has none.
        lstm = keras.layers.LSTM(self.units, return_sequences=True, dtype="float32", use_cudnn=False)
        return keras.layers.Bidirectional(lstm, dtype="float32", name=name)

    def build(self, *_):
        self.first.build((None, None, self.features.width))
        for layer in (self.second, self.classifier):
            layer.build((None, None, 2 * self.units))
        self.freeze_layers()

    def call(self, inputs, training=False, seed=None):
        seed = self.bert.dropout_seed(inputs, training, seed)
        is_real = ops.cast(standardize_inputs(inputs)[1], "bool")
        x = self.first(self.features(inputs), mask=is_real)
        x = self.second(x, mask=is_real)
        return self.classifier(self.drop(x, seed))

    def get_config(self):
        return super().get_config() | {
            "num_classes": self.num_classes, "features": self.features.features, "units": self.units}
