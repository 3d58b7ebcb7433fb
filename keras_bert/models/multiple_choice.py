"""`BertMultipleChoice`: the best of several continuations."""

import keras
from keras import ops

from keras_bert.layers import standardize_inputs
from keras_bert.models.base import DropoutTask


@keras.saving.register_keras_serializable("keras_bert")
class BertMultipleChoice(DropoutTask):
    """The product of one vector with the pooled output of each choice (Devlin et al., 2018, section 4.4).

    Args:
        bert: a `BertLayer`.
        dropout: dropout rate of the pooled output.

    Call arguments:
        inputs: as for `BertLayer`, but int32 [batch, choices, seq].
        training: whether to drop out.
        seed: int32 [2], see `BertLayer`.

    Returns:
        logits [batch, choices], float32.
    """

    def __init__(self, bert, dropout=0.1, **kwargs):
        super().__init__(bert, dropout, **kwargs)
        self.classifier = self.make_dense("classifier", 1)
        self.build()

    def call(self, inputs, training=False, seed=None):
        seed = self.bert.dropout_seed(inputs, training, seed)
        tensors = standardize_inputs(inputs)
        _, choices, length = ops.shape(tensors[0])
        one_a_row = [ops.reshape(tensor, (-1, length)) for tensor in tensors]
        pooled = self.bert.pool(one_a_row, training=training, seed=seed)
        return ops.reshape(self.classifier(self.drop(pooled, seed)), (-1, choices))
