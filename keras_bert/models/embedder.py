"""`BertEmbedder`: one vector per text; `BertEmbeddingClassifier`: one label per text, from its vector."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras import ops

from keras_bert.arguments import Pooling, check_value
from keras_bert.errors import InputError
from keras_bert.layers.bert import BertLayer, Inputs, standardize_inputs
from keras_bert.models.base import BertTask, DropoutTask
from keras_bert.types import Tensor

# Functions of the tokens' vectors [batch, seq, hidden] and the mask [batch, seq, 1], both float32, that return
# [batch, hidden].
POOLING: dict[Pooling, Callable[[Tensor, Tensor], Tensor]] = {
    "mean": lambda vectors, mask: ops.sum(vectors * mask, axis=1) / ops.maximum(ops.sum(mask, axis=1), 1.0),
    "cls": lambda vectors, mask: vectors[:, 0],
    "max": lambda vectors, mask: ops.max(ops.where(mask == 0, -1e9, vectors), axis=1),
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
        inputs: as for `BertLayer`; or int32 [batch, texts, seq], whose texts are embedded by one call of the encoder.
        training, seed: as for `BertLayer`.

    Returns:
        embeddings [batch, hidden], or [batch, texts, hidden], float32.

    Raises:
        InputError: `pooling` is unknown, or the layout is `packed`.
    """

    def __init__(self, bert: BertLayer, pooling: Pooling, normalize: bool = False, **kwargs: Any) -> None:
        _check_arguments(bert, pooling)
        super().__init__(bert, **kwargs)
        self.pooling = pooling
        self.normalize = normalize
        self.build()

    def call(self, inputs: Inputs, training: bool | None = False, seed: Tensor | None = None) -> Tensor:
        seed = self.bert.dropout_seed(inputs, training, seed)
        has_groups = any(len(tensor.shape) == 3 for tensor in keras.tree.flatten(inputs))
        tensors = standardize_inputs(inputs, ("batch", "texts", "seq") if has_groups else ("batch", "seq"))
        *groups, length = ops.shape(tensors[0])
        rows = [ops.reshape(tensor, (-1, length)) for tensor in tensors]
        embeddings = _embed(self.bert, rows, self.pooling, self.normalize, training=training, seed=seed)
        return ops.reshape(embeddings, (-1, *groups[1:], self.bert.config.hidden_size))

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"pooling": self.pooling, "normalize": self.normalize}


@keras.saving.register_keras_serializable("keras_bert")
class BertEmbeddingClassifier(DropoutTask):
    """A dense layer on the embedding of a text, divided by its L2 norm: the model of SetFit (Tunstall et al., 2022,
    section 3, https://arxiv.org/abs/2209.11055), which `finetune` trains with `few_shot`.

    Args:
        bert: a `BertLayer`, whose layout is not `packed`.
        num_classes: number of labels.
        pooling: see `BertEmbedder`.
        dropout: dropout rate of the embedding.

    Call arguments:
        inputs, training, seed: as for `BertLayer`.

    Returns:
        logits [batch, num_classes], float32.

    Raises:
        InputError: `pooling` is unknown, or the layout is `packed`.
    """

    def __init__(self, bert: BertLayer, num_classes: int, pooling: Pooling = "mean", dropout: float = 0.0,
                 **kwargs: Any) -> None:
        _check_arguments(bert, pooling)
        super().__init__(bert, dropout, num_classes, **kwargs)
        self.pooling = pooling
        self.add_dense()

    def encoder_output(self, inputs: Inputs, **options: Any) -> Tensor:
        return _embed(self.bert, standardize_inputs(inputs), self.pooling, True, **options)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"pooling": self.pooling}


def _check_arguments(bert: BertLayer, pooling: Pooling) -> None:
    check_value("pooling", pooling, Pooling)
    if bert.layout == "packed":
        raise InputError("the layout of an embedder must be padded or unpadded; got packed")


def _embed(bert: BertLayer, inputs: Sequence[Tensor], pooling: Pooling, normalize: bool, **options: Any) -> Tensor:
    """Returns the embeddings [batch, hidden] of word ids, mask and segment ids [batch, seq]."""
    _, sequence = bert(inputs, **options)
    mask = ops.expand_dims(ops.cast(inputs[1], "float32"), 2)
    embeddings = POOLING[pooling](ops.cast(sequence, "float32"), mask)
    return ops.normalize(embeddings, epsilon=1e-12) if normalize else embeddings
