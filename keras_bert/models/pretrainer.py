"""`BertPretrainer`: masked tokens and next sentences."""

import keras

from keras_bert.layers import MaskedLMHead
from keras_bert.models.base import BertTask


@keras.saving.register_keras_serializable("keras_bert")
class BertPretrainer(BertTask):
    """The two heads of pretraining, without dropout (Devlin et al., 2018, section 3.1).

    Args:
        bert: a `BertLayer`.
        next_sentence: whether there is a next-sentence head; `next_sentence` is None without it.
        mlm_activation: see `MaskedLMHead`.
        mlm_layer_norm_eps: see `MaskedLMHead`.

    Call arguments:
        inputs: as for `BertLayer`; a dict may also hold `masked_lm_positions`, int32 [batch, n].
        training: whether to drop out.
        seed: int32 [2], see `BertLayer`.

    Returns:
        dict of `mlm_logits` [batch, n, vocab], at every position where none were given, and with its head
        `next_sentence_logits` [batch, 2], where 0 says that the second text follows the first; float32.
    """

    def __init__(self, bert, next_sentence=True, mlm_activation=None, mlm_layer_norm_eps=None, **kwargs):
        super().__init__(bert, **kwargs)
        self.mlm = MaskedLMHead(
            bert.config, mlm_activation, mlm_layer_norm_eps, dtype=self.part_dtype(bert.dtype_policy), name="mlm")
        self.next_sentence = self.make_dense("next_sentence", 2) if next_sentence else None
        self.build()

    def call(self, inputs, training=False, seed=None):
        positions = inputs.get("masked_lm_positions") if isinstance(inputs, dict) else None
        outputs = self.bert.encode(inputs, training=training, seed=seed, positions=positions)
        logits = {"mlm_logits": self.mlm(outputs.sequence_output, self.bert.embeddings.word_table())}
        if self.next_sentence is not None:
            logits["next_sentence_logits"] = self.next_sentence(outputs.pooled_output)
        return logits

    def get_config(self):
        return super().get_config() | {
            "next_sentence": self.next_sentence is not None,
            "mlm_activation": self.mlm.config.hidden_act,
            "mlm_layer_norm_eps": self.mlm.config.layer_norm_eps,
        }
