"""`BertRegressor`: one number a text or pair of texts."""

import keras

from keras_bert.models.base import DropoutTask


@keras.saving.register_keras_serializable("keras_bert")
class BertRegressor(DropoutTask):
    """Dropout and a dense layer of width 1 on the pooled output, as for STS-B (Devlin et al., 2018, section 4.1).

    Args:
        bert: a `BertLayer`.
        dropout: dropout rate of the pooled output.

    Call arguments:
        inputs: as for `BertLayer`.
        training: whether to drop out.
        seed: int32 [2], see `BertLayer`.

    Returns:
        numbers [batch, 1], float32.
    """

    def __init__(self, bert, dropout=0.1, **kwargs):
        super().__init__(bert, dropout, **kwargs)
        self.regressor = self.make_dense("regressor", 1)
        self.build()

    def call(self, inputs, training=False, seed=None):
        seed = self.bert.dropout_seed(inputs, training, seed)
        pooled = self.bert.pool(inputs, training=training, seed=seed)
        return self.regressor(self.drop(pooled, seed))
