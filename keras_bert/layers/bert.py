"""`BertLayer`: embeddings, encoder blocks, pooler."""

import functools

import keras
from keras import ops

from keras_bert import kernels
from keras_bert.layers.base import ConfiguredLayer
from keras_bert.layers.embeddings import BertEmbeddings
from keras_bert.layers.encoder import EncoderBlock
from keras_bert.layers.layout import PackedLayout, PaddedLayout


def standardize_inputs(inputs):
    """The three int32 tensors of an encoder call, (word_ids, mask, segment_ids), from a dict or a list of three.

    A dict needs `input_word_ids`, `input_mask`, and `segment_ids` or `input_type_ids`; other keys are ignored.
    """
    if isinstance(inputs, dict):
        segments = "segment_ids" if "segment_ids" in inputs else "input_type_ids"
        missing = [key for key in ("input_word_ids", "input_mask", segments) if key not in inputs]
        if missing:
            raise ValueError("inputs need input_word_ids, input_mask, and segment_ids or input_type_ids; "
                             f"missing {', '.join(missing)}, got {', '.join(sorted(inputs))}")
        inputs = [inputs["input_word_ids"], inputs["input_mask"], inputs[segments]]
    if len(inputs) != 3:
        raise ValueError(f"inputs need three tensors, input_word_ids, input_mask, segment_ids; got {len(inputs)}")
    return tuple(ops.cast(tensor, "int32") for tensor in inputs)


@keras.saving.register_keras_serializable("keras_bert")
class BertLayer(ConfiguredLayer):
    """The BERT encoder (Devlin et al., 2018, https://arxiv.org/abs/1810.04805).

    `pooled_output, sequence_output = BertLayer(config)([input_word_ids, input_mask, segment_ids])`

    Padding (a mask of 0) never changes the output of a real token. The variables exist once the layer is made.

    Args:
        config: a `BertConfig`, or the dict of one.
        dtype: float32 (default), bfloat16, float16, mixed_bfloat16, mixed_float16 or a `keras.DTypePolicy`.

    Call arguments:
        inputs: int32 tensors [batch, seq], seq at most `max_position_embeddings`: the list above, or a dict with
            `input_word_ids`, `input_mask` (1 for real tokens), and `segment_ids` or `input_type_ids`. A dict may also
            hold `dropout_seed`, int32 [batch, 2], its rows alike, so that devices can share the batch out.
        training: whether to drop out.
        seed: int32 [2]; the same seed gives the same dropout. Drawn anew at each call where none is given.

    Returns:
        (pooled_output [batch, hidden], sequence_output [batch, seq, hidden]) in the compute dtype. The pooled output
        is of [CLS], or of the last real token where a token sees those before it alone (`directionality` of `ltr`).

    Attributes:
        recompute: whether training keeps of each block its input alone, and computes the rest again for the gradients
            (Chen et al., 2016, https://arxiv.org/abs/1604.06174).
        unpadded: whether calls leave padding out of the work; what they return for it is 0 then. On TensorFlow alone,
            and not under XLA, as the shapes depend on the values.
    """

    def __init__(self, config, **kwargs):
        super().__init__(config, **kwargs)
        config = self.config
        self.embeddings = BertEmbeddings(config, dtype=self.dtype_policy, name="embeddings")
        self.blocks = [
            EncoderBlock(config, dtype=self.dtype_policy, name=f"block_{i}") for i in range(config.num_hidden_layers)
        ]
        self.pooler = self.make_dense("pooler", config.hidden_size, activation="tanh")
        self.seeds = kernels.SeedSource()
        self.recompute = False
        self.unpadded = False
        self.build()

    @classmethod
    def from_pretrained(cls, folder, **kwargs):
        """The encoder in `folder`, as `keras_bert.convert.load_pretrained` finds it."""
        from keras_bert.convert import load_pretrained  # the one door that opens against the arrows, when called

        return load_pretrained(folder, **kwargs)

    def build(self, *_):
        if self.built:
            return
        for layer in (self.embeddings, *self.blocks):
            layer.build()
        self.pooler.build((None, self.config.hidden_size))
        self.built = True

    def call(self, inputs, training=False, seed=None):
        outputs = self.encode(inputs, training=training, seed=seed)
        return outputs["pooled_output"], outputs["sequence_output"]

    def pool(self, inputs, training=False, seed=None):
        """The pooled output alone, arguments as in a call; the last block computes no other token's."""
        layout, outputs, _ = self._run(inputs, training, seed, self.unpadded, positions=[])
        return self.pooler(layout.split(outputs[-1])[0])

    def encode(self, inputs, training=False, seed=None, return_attention=False, positions=None, unpadded=None):
        """Every output as a dict; arguments as in a call, and

        Args:
            return_attention: whether to return it; takes padded rows.
            positions: int32 [batch, n], the tokens whose output is wanted. The last block computes theirs and that of
                the pooled one alone, and its outputs have n in place of seq. Takes padded rows.
            unpadded: see the attribute, which stands where this is None.

        Returns:
            `pooled_output` [batch, hidden], `sequence_output` and `embedding_output` [batch, seq, hidden],
            `encoder_outputs`, a list of one [batch, seq, hidden] a block, and with `return_attention`
            `attention_probabilities`, a list of one [batch, heads, seq, seq] a block.
        """
        unpadded = self.unpadded if unpadded is None else unpadded
        layout, outputs, attention_probabilities = self._run(
            inputs, training, seed, unpadded, None if positions is None else [positions])
        if positions is None:
            pooled = layout.pooled(outputs[-1])
        else:
            pooled, outputs[-1] = layout.split(outputs[-1])
        embedding_output, *encoder_outputs = map(layout.rows, outputs)
        outputs = {"pooled_output": self.pooler(pooled), "sequence_output": encoder_outputs[-1],
                   "embedding_output": embedding_output, "encoder_outputs": encoder_outputs}
        return outputs | {"attention_probabilities": attention_probabilities} if return_attention else outputs

    def _run(self, inputs, training, seed, unpadded, positions):
        """The layout of the tokens; the outputs of the embeddings and of each block, as the tokens lie, the last one's
        as `layout.places(*positions)` do where that is not None; the attention probabilities of each block."""
        word_ids, mask, segment_ids = standardize_inputs(inputs)
        self._check_length(word_ids.shape[1])
        seed = self.dropout_seed(inputs, training, seed)
        layout = self._layout(mask, inputs, unpadded, training)
        x = self.embeddings(layout.lay(word_ids), layout.lay(segment_ids), layout=layout, seed=kernels.fold_in(seed, 0))
        outputs, attention_probabilities = [x], []
        for index, block in enumerate(self.blocks):
            is_last = index + 1 == len(self.blocks)
            places = layout.places(*positions) if is_last and positions is not None else None
            run = functools.partial(block, layout=layout, seed=kernels.fold_in(seed, index + 1), places=places)
            x, probabilities = (kernels.recompute(run) if self.recompute and training else run)(x)
            outputs.append(x)
            attention_probabilities.append(probabilities)
        return layout, outputs, attention_probabilities

    def _layout(self, mask, inputs, unpadded, training):
        settings = self.config.num_attention_heads, self.config.directionality, self.compute_dtype
        if isinstance(inputs, dict) and "pooled_positions" in inputs:
            return PackedLayout(mask, inputs["pooled_positions"], *settings)
        return kernels.UnpaddedLayout(mask, *settings, training) if unpadded else PaddedLayout(mask, *settings)

    def _check_length(self, length):
        if length is not None and length > self.config.max_position_embeddings:
            raise ValueError("a sequence can be at most max_position_embeddings "
                             f"({self.config.max_position_embeddings}) long; got {length}")

    def dropout_seed(self, inputs, training, seed=None):
        """The seed of one call: None outside training, else `seed`, the inputs' own, or a fresh one."""
        if not training:
            return None
        if seed is None and isinstance(inputs, dict) and "dropout_seed" in inputs:
            # The maximum of equal rows; a device that got none of the batch has one too.
            seed = kernels.per_replica(ops.max(inputs["dropout_seed"], axis=0))
        return self.seeds.next() if seed is None else seed

    def freeze(self, num_blocks):
        """Keeps the embeddings and the first `num_blocks` blocks as they are in training; 0 freezes nothing."""
        if not 0 <= num_blocks <= len(self.blocks):
            raise ValueError(f"the blocks to freeze must be 0 to {len(self.blocks)}; got {num_blocks}")
        for layer in (self.embeddings, *self.blocks)[:num_blocks and num_blocks + 1]:
            layer.trainable = False

    def enable_lora(self, rank):
        """Trains low-rank additions to the query and value projections, and nothing else of the encoder (LoRA: Hu et
        al., 2021, https://arxiv.org/abs/2106.09685). A `.keras` file holds the sums, as a plain encoder."""
        for block in self.blocks:
            block.attention.query.enable_lora(rank)
            block.attention.value.enable_lora(rank)
        for variable in self.variables:
            variable.trainable = variable.name.startswith("lora")

    def compute_output_shape(self, input_shape):
        batch, length = (input_shape["input_word_ids"] if isinstance(input_shape, dict) else input_shape[0])[:2]
        return (batch, self.config.hidden_size), (batch, length, self.config.hidden_size)
