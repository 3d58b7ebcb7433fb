"""`BertClassifier`: one label a text or pair of texts."""

import keras

from keras_bert.models.base import DropoutTask


@keras.saving.register_keras_serializable("keras_bert")
class BertClassifier(DropoutTask):
    """Dropout and a dense layer on the pooled output (Devlin et al., 2018, section 4.1).

    Args:
        bert: a `BertLayer`.
        num_classes: number of labels.
        dropout: dropout rate of the pooled output.

    Call arguments:
        inputs: as for `BertLayer`.
        training: whether to drop out.
        seed: int32 [2], see `BertLayer`.

    Returns:
        logits [batch, num_classes], float32.
    """

    def __init__(self, bert, num_classes, dropout=0.2, **kwargs):
        super().__init__(bert, dropout, **kwargs)
        self.num_classes = num_classes
        self.classifier = self.make_dense("classifier", num_classes)
        self.build()

    def call(self, inputs, training=False, seed=None):
        seed = self.bert.dropout_seed(inputs, training, seed)
        pooled = self.bert.pool(inputs, training=training, seed=seed)
        return self.classifier(self.drop(pooled, seed))

    def get_config(self):
        return super().get_config() | {"num_classes": self.num_classes}
