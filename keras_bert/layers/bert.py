"""`BertLayer`, the BERT encoder, with its embeddings and outputs."""

import functools
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, Self

import keras
from keras import ops
from keras.src.backend import set_keras_mask  # private: `compute_mask` cannot know a call's `outputs` and `positions`

from keras_bert import kernels
from keras_bert.arguments import Path, check_value
from keras_bert.config import BertConfig
from keras_bert.kernels.layout import Layout, PackedLayout
from keras_bert.layers.attention import EncoderBlock
from keras_bert.layers.base import ConfiguredLayer, FreezableLayer, freeze
from keras_bert.types import Tensor

Inputs = dict[str, Tensor] | Sequence[Tensor]
LayoutName = Literal["padded", "packed", "unpadded"]
OutputName = Literal["pair", "pooled", "all", "attention"]


def standardize_inputs(inputs: Inputs, axes: Sequence[str] = ("batch", "seq")) -> tuple[Tensor, ...]:
    """Returns the inputs of an encoder call, see `BertLayer`, as int32 tensors (word_ids, mask, segment_ids)."""
    return tuple(ops.cast(tensor, "int32") for tensor in check_inputs(inputs, axes))


def check_inputs(inputs: Inputs, axes: Sequence[str] = ("batch", "seq")) -> Sequence[Tensor]:
    """Returns the inputs of an encoder call in the order word_ids, mask, segment_ids, unchanged."""
    if isinstance(inputs, dict):
        segments = "segment_ids" if "segment_ids" in inputs or "input_type_ids" not in inputs else "input_type_ids"
        if missing := [key for key in ("input_word_ids", "input_mask", segments) if key not in inputs]:
            raise ValueError("inputs need input_word_ids, input_mask, and segment_ids or input_type_ids; "
                             f"missing {', '.join(missing)}, got {', '.join(sorted(inputs))}")
        inputs = [inputs["input_word_ids"], inputs["input_mask"], inputs[segments]]
    if not isinstance(inputs, (list, tuple)) or len(inputs) != 3:
        got = len(inputs) if isinstance(inputs, (list, tuple)) else f"{type(inputs).__name__}, not a list or dict"
        raise ValueError(f"inputs need three tensors, input_word_ids, input_mask, segment_ids; got {got}")
    shapes = [tuple(tensor.shape) for tensor in inputs]
    known_sizes = [{*sizes} - {None} for sizes in zip(*shapes)]
    if any(len(shape) != len(axes) for shape in shapes) or any(len(sizes) > 1 for sizes in known_sizes):
        raise ValueError(f"input_word_ids, input_mask and segment_ids must have one shape, [{', '.join(axes)}]; got "
                         f"{', '.join(map(str, shapes))}")
    return inputs


def check_ids(name: str, ids: Tensor, count: int) -> None:
    """Checks that ids are below `count`, outside a graph: in a graph and on JAX, tensors have no values yet."""
    if hasattr(ids, "numpy") and ids.shape.num_elements() and not 0 <= ids.numpy().min() <= ids.numpy().max() < count:
        raise ValueError(f"{name} must be from 0 to {count - 1}; got {ids.numpy().min()} to {ids.numpy().max()}")


def _refused_if_negative(ids: Tensor, count: int) -> Tensor:
    """Moves negative ids so far down that a lookup in a table of `count` rows treats them like ids that are too large:
    TensorFlow raises an error on CPUs, JAX returns NaN. Keras counts ids from -`count` to -1 from the end."""
    return ops.where(ids < 0, ids - count, ids)


class BertOutput(NamedTuple):
    """All outputs of the encoder, in the compute dtype.

    If `positions` [batch, n] were given, the last block computes only these and the pooled token: `sequence_output` and
    the last of `encoder_outputs` are [batch, n, hidden], and the last of `attention_probabilities` is
    [batch, heads, 1 + n, seq], first the pooled token.
    """

    pooled_output: Tensor  # [batch, hidden]
    sequence_output: Tensor  # [batch, seq, hidden]
    embedding_output: Tensor  # [batch, seq, hidden]
    encoder_outputs: list[Tensor]  # one [batch, seq, hidden] per block
    attention_probabilities: list[Tensor]  # one [batch, heads, seq, seq] per block; empty unless requested


@keras.saving.register_keras_serializable("keras_bert")
class BertEmbeddings(ConfiguredLayer):
    """The sum of word, position and segment embeddings, then layer normalization and dropout (Devlin et al., 2018,
    section 3); if they have a width of their own, then a dense layer (google-research/electra `modeling.py`).

    Call arguments:
        word_ids, segment_ids: int32, in the layout's arrangement.
        seed: int32 [2], or None for no dropout.

    Returns:
        hidden states […, H], compute dtype.
    """

    def __init__(self, config: BertConfig | dict[str, Any], **kwargs: Any) -> None:
        super().__init__(config, **kwargs)
        self.word_embeddings = self.make_embedding("word_embeddings", self.config.vocab_size)
        self.position_embeddings = self.make_embedding("position_embeddings", self.config.max_position_embeddings)
        self.segment_embeddings = self.make_embedding("segment_embeddings", self.config.type_vocab_size)
        self.norm = self.make_norm("norm")
        self.projection = self.make_dense("projection", self.config.hidden_size) if self.config.embedding_size else None

    def build(self, *_: Any) -> None:
        for layer in (self.norm, self.projection):
            if layer is not None:
                layer.build((None, None, self.config.embedding_width))
        super().build()

    def call(self, word_ids: Tensor, segment_ids: Tensor, layout: Layout, seed: Tensor | None = None) -> Tensor:
        x = (self.word_embeddings(_refused_if_negative(word_ids, self.config.vocab_size))
             + self.segment_embeddings(_refused_if_negative(segment_ids, self.config.type_vocab_size)))
        x = layout.normalize(x + self.position_embeddings(layout.position_ids), self.norm)
        x = kernels.dropout(x, self.config.hidden_dropout_prob, seed)
        return x if self.projection is None else self.projection(x)

    def word_table(self) -> Tensor:
        """Returns the word embeddings, [vocab, embedding width]."""
        if self.word_embeddings.quantization_mode:  # the variable holds quantized integers without their scales
            return self.word_embeddings(ops.arange(self.config.vocab_size))
        return ops.convert_to_tensor(self.word_embeddings.embeddings)


@keras.saving.register_keras_serializable("keras_bert")
class BertLayer(FreezableLayer, ConfiguredLayer):
    """The BERT encoder (Devlin et al., 2018, https://arxiv.org/abs/1810.04805).

    `pooled_output, sequence_output = BertLayer(config)([input_word_ids, input_mask, segment_ids])`

    Padding (a mask of 0) never changes the output of a real token. The constructor creates the variables.

    Args:
        config: a `BertConfig`, or its dict.
        layout: how the tokens of a batch are arranged inside the encoder, see `Layout`. `padded`: as in the inputs.
            `unpadded`: padding tokens are skipped, and their outputs are 0; only on the TensorFlow backend without XLA.
            `packed`: each row of the inputs holds multiple texts, see `inputs`.
        frozen: paths of the layers that are not trained: `embeddings`, `block_0`, …, `pooler`, or sublayers of these,
            e.g. `embeddings/word_embeddings`.
        lora_rank: rank of the low-rank additions that are trained instead of the weights, see `enable_lora`. None
            (default) for no LoRA.
        gradient_checkpointing: If True, training stores only the input of each block and recomputes the rest for the
            gradients (Chen et al., 2016, https://arxiv.org/abs/1604.06174).
        output_mask: If True, `sequence_output` has `input_mask` as its Keras mask, so that Keras layers such as
            `GlobalAveragePooling1D` and `LSTM` skip padding. The heads of this package, and their losses, ignore it.
        trainable: If False, the whole encoder is frozen. When set to True again, `frozen` and `lora_rank` apply again.
        dtype: float32 (default), bfloat16, float16, mixed_bfloat16, mixed_float16 or a `keras.DTypePolicy`.

    Call arguments:
        inputs: int32 tensors [batch, seq], seq at most `max_position_embeddings`: the list above, or a dict with
            `input_word_ids`, `input_mask` (1 for real tokens), and `segment_ids` or `input_type_ids`. A dict may also
            hold `dropout_seed`, int32 [batch, 2], the same seed in every row, so that the batch can be sharded. With
            the layout `packed`, the dict must also hold `sequence_ids`, int32 [batch, seq], the number of the text that
            each token belongs to, from 1 (0 for padding), and `pooled_positions`, int32 [texts], the index of each
            text's [CLS] among all batch * seq tokens, or of its last token if `directionality` is `ltr`; the pooled
            output is then [texts, hidden].
        training: If True, applies dropout.
        seed: int32 [2]; the same seed gives the same dropout. If None, a new seed is drawn at each call.
        layout: overrides the layer's `layout` for this call.
        outputs: `pair` (default); `pooled`, see `pool`; `all` or `attention`, see `encode`.
        positions: see `encode`.

    Returns:
        (pooled_output [batch, hidden], sequence_output [batch, seq, hidden]) in the compute dtype. The pooled output is
        computed from [CLS]; or, if `directionality` is `ltr`, where no token attends to later ones, from the last real
        token.

    Raises:
        ValueError: an argument or an input is invalid; the message gives the rule and the value.
    """

    def __init__(self, config: BertConfig | dict[str, Any], layout: LayoutName = "padded", frozen: Sequence[str] = (),
                 lora_rank: int | None = None, gradient_checkpointing: bool = False, output_mask: bool = False,
                 **kwargs: Any) -> None:
        super().__init__(config, **kwargs)
        self.embeddings = BertEmbeddings(self.config, dtype=self.dtype_policy, name="embeddings")
        self.blocks = [EncoderBlock(self.config, dtype=self.dtype_policy, name=f"block_{i}")
                       for i in range(self.config.num_hidden_layers)]
        self.pooler = self.make_dense("pooler", self.config.hidden_size, self.config.pooler_activation)
        self.seeds = kernels.SeedSource()
        check_value("layout", layout, LayoutName)
        self.layout = layout
        self.supports_jit = layout != "unpadded"
        self.gradient_checkpointing = gradient_checkpointing
        self.output_mask = output_mask
        self.lora_rank: int | None = None
        self.build()
        self.set_trainable(self.trainable, frozen)
        if lora_rank:
            self.enable_lora(lora_rank)

    @classmethod
    def from_pretrained(cls, folder: Path, **kwargs: Any) -> Self:
        """Loads the encoder in `folder`, see `load_pretrained`."""
        from keras_bert.weights import load_pretrained  # imported here, as weights imports layers

        return load_pretrained(folder, **kwargs)

    def call(self, inputs: Inputs, training: bool | None = False, seed: Tensor | None = None,
             layout: LayoutName | None = None, outputs: OutputName = "pair", positions: Tensor | None = None) -> Any:
        check_value("outputs", outputs, OutputName)
        check_value("layout", layout, LayoutName | None)
        word_ids, mask, segment_ids = standardize_inputs(inputs)
        check_ids("input_word_ids", word_ids, self.config.vocab_size)
        check_ids("segment_ids", segment_ids, self.config.type_vocab_size)
        is_whole = outputs == "attention" or positions is not None
        batch_layout = self._lay_out(mask, inputs, layout or self.layout, is_whole, training)
        seed = self.dropout_seed(inputs, training, seed)
        queries = batch_layout.queries(positions) if outputs == "pooled" or positions is not None else None

        word_ids, segment_ids = batch_layout.arrange(word_ids), batch_layout.arrange(segment_ids)
        x = self.embeddings(word_ids, segment_ids, layout=batch_layout, seed=kernels.fold_in(seed, 0))
        states, attention = [x], []
        for index, block in enumerate(self.blocks):
            run = functools.partial(block, layout=batch_layout, seed=kernels.fold_in(seed, index + 1),
                                    queries=queries if block is self.blocks[-1] else None)
            x, probabilities = (kernels.recompute(run) if self.gradient_checkpointing and training else run)(x)
            states.append(x)
            attention.append(probabilities)
        pooled = self.pooler(batch_layout.pooled(x, queries))

        if outputs == "pooled":
            return pooled
        sequence = x if positions is None else x[:, 1:]
        if outputs == "pair":
            return pooled, self._with_mask(batch_layout.restore(sequence), mask, positions)
        embedding, *encoded = map(batch_layout.restore, [*states[:-1], sequence])
        return BertOutput(pooled, self._with_mask(encoded[-1], mask, positions), embedding, encoded,
                          attention if outputs == "attention" else [])

    def pool(self, inputs: Inputs, **options: Any) -> Tensor:
        """Computes only the pooled output, [batch, hidden]; arguments as in a call. The last block computes no other
        tokens, unless the layout is `packed`."""
        return self(inputs, outputs="pooled", **options)

    def encode(self, inputs: Inputs, return_attention: bool = False, positions: Tensor | None = None,
               **options: Any) -> BertOutput:
        """Computes all outputs; arguments as in a call. Attention probabilities and `positions` refer to the rows of
        the inputs, padding included, whatever the layout.

        Args:
            return_attention: If True, also returns the attention probabilities.
            positions: int32 [batch, n], the positions to return the last hidden states of; the last block computes only
                these and the pooled token. Not available for the layout `packed`.
        """
        return self(inputs, outputs="attention" if return_attention else "all", positions=positions, **options)

    def compute_output_spec(self, inputs: Any, training: bool | None = False, seed: Tensor | None = None,
                            layout: LayoutName | None = None, outputs: OutputName = "pair",
                            positions: Tensor | None = None) -> Any:
        # Keras would trace all blocks, which takes a second for BERT-base.
        _, mask, _ = check_inputs(inputs)
        batch, length = mask.shape
        texts = inputs["pooled_positions"].shape[0] if (layout or self.layout) == "packed" else batch
        last = length if positions is None else positions.shape[1]
        queries = last if positions is None or last is None else last + 1  # one more, for the pooled token
        rows = [length] * (len(self.blocks) - 1)
        hidden, heads = self.config.hidden_size, self.config.num_attention_heads
        spec = functools.partial(keras.KerasTensor, dtype=self.compute_dtype)
        every = BertOutput(
            spec((texts, hidden)), self._with_mask(spec((batch, last, hidden)), mask, positions),
            spec((batch, length, hidden)),
            [spec((batch, n, hidden)) for n in (*rows, last)],
            [spec((batch, heads, n, length)) for n in (*rows, queries)] if outputs == "attention" else [])
        return {"pooled": every.pooled_output, "pair": every[:2]}.get(outputs, every)

    @property
    def output(self) -> Any:
        """The symbolic outputs of the call that returned the most tensors. When Keras checks the graph of a model, it
        assumes this number of outputs for every call."""
        return max((node.output_tensors for node in self._inbound_nodes), key=len, default=None) or super().output

    def _with_mask(self, sequence: Tensor, mask: Tensor, positions: Tensor | None) -> Tensor:
        """Returns the sequence output, with a Keras mask if `output_mask` is True and it has all tokens."""
        if self.output_mask and positions is None:
            set_keras_mask(sequence, ops.greater(mask, 0))
        return sequence

    def _lay_out(self, mask: Tensor, inputs: Any, layout: LayoutName, is_whole: bool, training: bool | None) -> Layout:
        """Returns the `Layout` of a call; if `is_whole`, one that keeps the rows of the inputs."""
        length, longest = mask.shape[1], self.config.max_position_embeddings
        if length is not None and length > longest:
            raise ValueError(f"a sequence must be at most max_position_embeddings ({longest}) long; got {length}")
        names = list(inputs) if isinstance(inputs, dict) else ["a list"]
        if any((name in names) != (layout == "packed") for name in ("sequence_ids", "pooled_positions")):
            raise ValueError("layout='packed', and no other, needs inputs with sequence_ids and pooled_positions; got "
                             f"layout={layout!r} and {', '.join(names)}")
        settings = mask, self.config.num_attention_heads, self.config.directionality, self.compute_dtype
        if layout == "packed":
            return PackedLayout(*settings, inputs["sequence_ids"], inputs["pooled_positions"])
        if layout == "padded" or is_whole:
            return Layout(*settings)
        from keras_bert.kernels.unpadded import UnpaddedLayout  # imported here, as it needs TensorFlow

        return UnpaddedLayout(*settings, training)

    def dropout_seed(self, inputs: Inputs, training: bool | None, seed: Tensor | None = None) -> Tensor | None:
        """Returns the seed of a call: None outside training; otherwise `seed`, the inputs' own or a new one."""
        if not training:
            return None
        if seed is None and isinstance(inputs, dict) and "dropout_seed" in inputs:
            # All rows are equal. Their maximum is defined even on a device that got no rows of the batch.
            seed = kernels.per_replica(ops.max(inputs["dropout_seed"], axis=0))
        return self.seeds.next() if seed is None else seed

    def set_trainable(self, value: bool, frozen: Sequence[str]) -> None:
        super().set_trainable(value, frozen)
        if self.lora_rank:
            for variable in self.trainable_variables:
                variable.trainable = variable.name.startswith("lora")

    def freeze(self, num_blocks: int) -> None:
        """Freezes the embeddings and the first `num_blocks` blocks; 0 freezes nothing."""
        if not 0 <= num_blocks <= len(self.blocks):
            raise ValueError(f"the blocks to freeze must be 0 to {len(self.blocks)}; got {num_blocks}")
        freeze(self, first_parts(num_blocks))

    def enable_lora(self, rank: int) -> None:
        """Adds low-rank matrices to the query and value projections; only these are trained then (LoRA: Hu et al.,
        2021, https://arxiv.org/abs/2106.09685). A `.keras` file holds the sums of kernels and additions; in a layer
        that is reloaded or made by `rebuild`, new additions start at zero."""
        for block in self.blocks:
            block.attention.query.enable_lora(rank)
            block.attention.value.enable_lora(rank)
        self.lora_rank = rank
        self.set_trainable(self.trainable, self.frozen)  # `self.trainable = self.trainable` has no effect in Keras

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"layout": self.layout, "frozen": list(self.frozen), "lora_rank": self.lora_rank,
                                       "gradient_checkpointing": self.gradient_checkpointing,
                                       **({"output_mask": True} if self.output_mask else {})}


def first_parts(num_blocks: int) -> tuple[str, ...]:
    """Returns the names of the embeddings and the first `num_blocks` blocks, for `frozen`; an empty tuple for 0."""
    return ("embeddings", *(f"block_{i}" for i in range(num_blocks))) if num_blocks else ()
