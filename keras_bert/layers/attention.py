"""Multi-head self-attention and the encoder block that contains it."""

import functools
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_bert import kernels
from keras_bert.config import BertConfig
from keras_bert.kernels.layout import Layout
from keras_bert.layers.base import ConfiguredLayer
from keras_bert.types import Tensor


def attend(query: Tensor, key: Tensor, value: Tensor, bias: Tensor,
           drop: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """Computes softmax(Q Kᵀ + bias) V (Vaswani et al., 2017, equation 1) for n queries per row; `kernels.layout` names
    the other dimensions. The query is [R, N, n, D], scaled by D**-0.5; key and value are [R, N, L, D]; the bias
    broadcasts to [R, N, n, L]; `drop` zeroes some probabilities, see `kernels.drop`. Returns the context [R, N, n, D]
    and the probabilities [R, N, n, L] before dropout."""
    # Not `ops.add`, here and below: in a batch without rows, it takes what it adds for a bias vector.
    probabilities = ops.softmax(kernels.matmul_transposed(query, key) + bias)
    return ops.matmul(drop(probabilities), value), probabilities


@keras.saving.register_keras_serializable("keras_bert")
class SelfAttention(ConfiguredLayer):
    """Scaled dot-product attention over `num_attention_heads` heads, with its output projection (Vaswani et al., 2017,
    section 3.2).

    Call arguments:
        x: hidden states […, H] in the layout's arrangement, compute dtype.
        seed: int32 [2], or None for no dropout.
        queries: the tokens to compute outputs for, as returned by `layout.queries`; None for all tokens.

    Returns:
        (output, in the shape of x, or of `layout.select(x, queries)` if there are `queries`; probabilities [R, N, n, L]
        before dropout), both in the compute dtype.
    """

    def __init__(self, config: BertConfig | dict[str, Any], **kwargs: Any) -> None:
        super().__init__(config, **kwargs)
        hidden = self.config.hidden_size
        self.query = self.make_dense("query", hidden)
        self.key = self.make_dense("key", hidden)
        self.value = self.make_dense("value", hidden)
        self.output_dense = self.make_dense("output_dense", hidden)

    def call(self, x: Tensor, layout: Layout, seed: Tensor | None = None,
             queries: Tensor | None = None) -> tuple[Tensor, Tensor]:
        query = self.query(x if queries is None else layout.select(x, queries))
        query = ops.multiply(query, self.config.head_size**-0.5)
        key, rate = self.key(x), self.config.attention_probs_dropout_prob
        value = kernels.scale_kept(self.value(x), rate, seed)  # instead of the probabilities, which are many more
        drop = functools.partial(kernels.drop, rate=rate, seed=seed)
        if queries is not None and layout.attend_pooled:
            context, probabilities = layout.attend_pooled(query, key, value, drop)
        else:
            query, key, value = map(layout.split_heads, (query, key, value))
            context, probabilities = attend(query, key, value, layout.select_bias(queries), drop)
            context = layout.merge_heads(context)
        return self.output_dense(context), probabilities


@keras.saving.register_keras_serializable("keras_bert")
class EncoderBlock(ConfiguredLayer):
    """An encoder block: attention, add and norm, feed-forward, add and norm (Vaswani et al., 2017, figure 1, left).
    For call arguments and return values see `SelfAttention`."""

    def __init__(self, config: BertConfig | dict[str, Any], **kwargs: Any) -> None:
        super().__init__(config, **kwargs)
        self.attention = SelfAttention(self.config, dtype=self.dtype_policy, name="attention")
        self.attention_norm = self.make_norm("attention_norm")
        self.intermediate = self.make_dense("intermediate", self.config.intermediate_size)
        self.output_dense = self.make_dense("output_dense", self.config.hidden_size)
        self.output_norm = self.make_norm("output_norm")

    def build(self, *_: Any) -> None:
        self.output_dense.build((None, None, self.config.intermediate_size))
        super().build()

    def call(self, x: Tensor, layout: Layout, seed: Tensor | None = None,
             queries: Tensor | None = None) -> tuple[Tensor, Tensor]:
        rate = self.config.hidden_dropout_prob
        attended, probabilities = self.attention(x, layout=layout, seed=kernels.fold_in(seed, 0), queries=queries)
        x = x if queries is None else layout.select(x, queries)
        attended = kernels.dropout(attended, rate, kernels.fold_in(seed, 1))
        x = layout.normalize(x + attended, self.attention_norm)
        expanded = self.activate(self.intermediate(x))
        output = kernels.dropout(self.output_dense(expanded), rate, kernels.fold_in(seed, 2))
        return layout.normalize(x + output, self.output_norm), probabilities
