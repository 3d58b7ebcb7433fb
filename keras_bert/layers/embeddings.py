"""Word, position and segment embeddings."""

import keras
from keras import ops

from keras_bert import kernels
from keras_bert.layers.base import ConfiguredLayer


@keras.saving.register_keras_serializable("keras_bert")
class BertEmbeddings(ConfiguredLayer):
    """The sum of the three embeddings, normalised and dropped out (Devlin et al., 2018, section 3).

    Args:
        config: a `BertConfig`.

    Call arguments:
        word_ids: int32 [batch, seq], or as the layout has them.
        segment_ids: int32, the same.
        layout: a `PaddedLayout`, or one like it.
        seed: int32 [2], or None for no dropout.

    Returns:
        [batch, seq, hidden], compute dtype.
    """

    def __init__(self, config, **kwargs):
        super().__init__(config, **kwargs)
        config = self.config
        self.word_embeddings = self.make_embedding("word_embeddings", config.vocab_size)
        self.position_embeddings = self.make_embedding("position_embeddings", config.max_position_embeddings)
        self.segment_embeddings = self.make_embedding("segment_embeddings", config.type_vocab_size)
        self.norm = self.make_norm("norm")

    def build(self, *_):
        for table in (self.word_embeddings, self.position_embeddings, self.segment_embeddings):
            table.build()
        self.norm.build((None, None, self.config.hidden_size))
        self.built = True

    def call(self, word_ids, segment_ids, layout, seed=None):
        x = ops.add(self.word_embeddings(word_ids), self.segment_embeddings(segment_ids))
        x = layout.normalize(ops.add(x, self.position_embeddings(layout.positions)), self.norm)
        return kernels.dropout(x, self.config.hidden_dropout_prob, seed)
