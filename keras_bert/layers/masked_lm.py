"""The masked language model head."""

import dataclasses
from typing import Any

import keras
from keras import ops

from keras_bert.config import BertConfig
from keras_bert.layers.base import ConfiguredLayer
from keras_bert.types import Tensor


@keras.saving.register_keras_serializable("keras_bert")
class MaskedLMHead(ConfiguredLayer):
    """A dense layer and a layer normalization, then the product with every word embedding (Devlin et al., 2018, section
    3.1; google-research/bert `run_pretraining.py`, `get_masked_lm_output`). The constructor creates the variables.

    Args:
        config: a `BertConfig`, or its dict.
        activation: activation of the dense layer, one of the values of `hidden_act`. Defaults to the config's.
        layer_norm_eps: epsilon of the layer normalization. Defaults to the config's.

    Call arguments:
        x: [..., hidden], the encoder's outputs at the masked positions.
        embeddings: [vocab, embedding width], the word embeddings.

    Returns:
        logits [..., vocab], float32; the product is computed in the compute dtype.
    """

    def __init__(self, config: BertConfig | dict[str, Any], activation: str | None = None,
                 layer_norm_eps: float | None = None, **kwargs: Any) -> None:
        super().__init__(config, **kwargs)
        # KerasHub's head uses the erf GELU and an epsilon of 1e-5, whatever its encoder uses. The changed values go
        # into the head's own config, which validates and saves them.
        changes: dict[str, Any] = {"hidden_act": activation, "layer_norm_eps": layer_norm_eps}
        self.config = dataclasses.replace(
            self.config, **{field: value for field, value in changes.items() if value is not None})
        self.dense = self.make_dense("dense", self.config.embedding_width)
        self.norm = self.make_norm("norm")
        self.bias = self.add_weight(name="bias", shape=(self.config.vocab_size,), initializer="zeros", autocast=False)
        self.build()

    def build(self, *_: Any) -> None:
        self.norm.build((None, None, self.config.embedding_width))
        super().build()

    def call(self, x: Tensor, embeddings: Tensor) -> Tensor:
        x = self.norm(self.activate(self.dense(x)))
        logits = ops.cast(ops.matmul(x, ops.transpose(embeddings)), "float32")
        return ops.add(logits, ops.cast(self.bias, "float32"))
