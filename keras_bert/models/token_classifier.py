"""`BertTokenClassifier`: one label a token."""

import keras

from keras_bert.models.base import DropoutTask


@keras.saving.register_keras_serializable("keras_bert")
class BertTokenClassifier(DropoutTask):
    """Dropout and a dense layer on the sequence output (Devlin et al., 2018, section 5.3).

    Args:
        bert: a `BertLayer`.
        num_classes: number of labels.
        dropout: dropout rate of the sequence output.

    Call arguments:
        inputs: as for `BertLayer`.
        training: whether to drop out.
        seed: int32 [2], see `BertLayer`.

    Returns:
        logits [batch, seq, num_classes], float32; those of padding mean nothing.
    """

    def __init__(self, bert, num_classes, dropout=0.1, **kwargs):
        super().__init__(bert, dropout, **kwargs)
        self.num_classes = num_classes
        self.classifier = self.make_dense("classifier", num_classes)
        self.build()

    def call(self, inputs, training=False, seed=None):
        seed = self.bert.dropout_seed(inputs, training, seed)
        _, sequence = self.bert(inputs, training=training, seed=seed)
        return self.classifier(self.drop(sequence, seed))

    def get_config(self):
        return super().get_config() | {"num_classes": self.num_classes}
