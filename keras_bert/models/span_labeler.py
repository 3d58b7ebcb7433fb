"""`BertSpanLabeler`: where in a text the answer to a question starts and ends."""

import keras
from keras import ops

from keras_bert.layers import standardize_inputs
from keras_bert.models.base import BertTask


@keras.saving.register_keras_serializable("keras_bert")
class BertSpanLabeler(BertTask):
    """A start and an end vector, multiplied with the sequence output (Devlin et al., 2018, section 4.2); no dropout
    between them, as in google-research/bert `run_squad.py`.

    Args:
        bert: a `BertLayer`.

    Call arguments:
        inputs: as for `BertLayer`.
        training: whether to drop out.
        seed: int32 [2], see `BertLayer`.

    Returns:
        dict of `start_logits` and `end_logits`, each [batch, seq], float32; -1e9 for padding, where no answer is.
    """

    def __init__(self, bert, **kwargs):
        super().__init__(bert, **kwargs)
        self.span = self.make_dense("span", 2)
        self.build()

    def call(self, inputs, training=False, seed=None):
        _, sequence = self.bert(inputs, training=training, seed=seed)
        is_padding = ops.equal(standardize_inputs(inputs)[1], 0)
        logits = ops.where(ops.expand_dims(is_padding, 2), -1e9, self.span(sequence))
        return {"start_logits": logits[..., 0], "end_logits": logits[..., 1]}
