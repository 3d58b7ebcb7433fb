"""`BertEmbedder`: one vector per text."""

from typing import Any, Literal

import keras
from keras import ops

from keras_bert.arguments import check_value
from keras_bert.errors import InputError
from keras_bert.layers import BertLayer, standardize_inputs
from keras_bert.models.base import BertTask

Pooling = Literal["mean", "cls", "max"]
# Functions of the tokens' vectors [batch, seq, hidden] and the mask [batch, seq, 1], both float32, that return
# [batch, hidden].
POOLING = {
    "mean": lambda vectors, mask: ops.sum(vectors * mask, axis=1) / ops.maximum(ops.sum(mask, axis=1), 1.0),
    "cls": lambda vectors, mask: vectors[:, 0],
    "max": lambda vectors, mask: ops.max(ops.where(mask == 0, float("-inf"), vectors), axis=1),
}


@keras.saving.register_keras_serializable("keras_bert")
class BertEmbedder(BertTask):
    """The embedding of a text: the vectors of its tokens pooled to one, as in Sentence-BERT (Reimers and Gurevych,
    2019, section 3, https://arxiv.org/abs/1908.10084).

    Args:
        bert: a `BertLayer`, whose layout is not `packed`.
        pooling: `mean`, the mean of the tokens' vectors; `cls`, the vector of [CLS]; `max`, the maximum over the
            tokens in each dimension. [CLS] and [SEP] count as tokens.
        normalize: If True, embeddings are divided by their L2 norm.

    Call arguments:
        inputs: as for `BertLayer`; or int32 [batch, texts, seq], with several texts per example, which one call of the
            encoder embeds.
        training: If True, applies dropout.
        seed: int32 [2], see `BertLayer`.

    Returns:
        embeddings [batch, hidden], or [batch, texts, hidden], float32.

    Raises:
        InputError: `pooling` is unknown, or the layout is `packed`.
    """

    def __init__(self, bert: BertLayer, pooling: Pooling, normalize: bool = False, **kwargs) -> None:
        check_value("pooling", pooling, Pooling)
        if bert.layout == "packed":
            raise InputError("the layout of an embedder must be padded or unpadded; got packed")
        super().__init__(bert, **kwargs)
        self.pooling = pooling
        self.normalize = normalize
        self.build()

    def call(self, inputs: Any, training: bool | None = False, seed: Any = None) -> Any:
        seed = self.bert.dropout_seed(inputs, training, seed)
        has_groups = any(len(tensor.shape) == 3 for tensor in keras.tree.flatten(inputs))
        tensors = standardize_inputs(inputs, ("batch", "texts", "seq") if has_groups else ("batch", "seq"))
        *groups, length = ops.shape(tensors[0])
        rows = [ops.reshape(tensor, (-1, length)) for tensor in tensors]
        _, sequence = self.bert(rows, training=training, seed=seed)
        mask = ops.expand_dims(ops.cast(rows[1], "float32"), 2)
        embeddings = POOLING[self.pooling](ops.cast(sequence, "float32"), mask)
        embeddings = ops.normalize(embeddings, epsilon=1e-12) if self.normalize else embeddings
        return ops.reshape(embeddings, (-1, *groups[1:], self.bert.config.hidden_size))

    def get_config(self) -> dict:
        return super().get_config() | {"pooling": self.pooling, "normalize": self.normalize}
