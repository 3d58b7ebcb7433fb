"""`BertFeatureTagger`: one label a token, from an encoder that stays as it is."""

import keras
from keras import ops

from keras_bert.layers import standardize_inputs
from keras_bert.models.base import DropoutTask
from keras_bert.models.features import CONCATENATED, BertFeatures, frozen


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
