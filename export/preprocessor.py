"""The preprocessor SavedModel, which converts strings to encoder inputs with only TensorFlow's core operations (the
common text API, https://www.tensorflow.org/hub/common_saved_model_apis/text).

    root                   string [batch] -> dict of input_word_ids, input_mask, input_type_ids, int32 [batch, length]
    .tokenize              string [batch] -> int32 ragged [batch, (words), (tokens)]
    .tokenize_with_offsets string [batch] -> the same, and int64 starts and limits of each token, in bytes of the text
    .bert_pack_inputs      a list of one to four results of tokenize, or of ragged [batch, (tokens)], and seq_length ->
                           the same as the root
    .tokenize.get_special_tokens_dict() -> int32 padding_id, start_of_sequence_id, end_of_segment_id, vocab_size, and
                           mask_id if the vocabulary has [MASK]

Attributes: `vocab_file` (asset), `do_lower_case`. Signature `serving_default`: `sentences` -> the three tensors.
"""

from typing import Literal

import tensorflow as tf

from keras_bert.arguments import Length, Path, check
from keras_bert.text import Tokenizer
from keras_bert.text.graph_packing import MAX_SEGMENTS, flatten, pack_segments

from .writing import CallablePart, save

_TEXTS = tf.TensorSpec([None], tf.string, "sentences")


class Preprocessor(CallablePart):
    """The root object of the SavedModel.

    Args:
        tokenizer: the `Tokenizer` to export.
        max_length: the length to which the root pads and truncates its outputs.
        truncator: how `bert_pack_inputs` divides the length among the segments: `round_robin` or `waterfall`.
    """

    def __init__(self, tokenizer: Tokenizer, max_length: int, truncator: str) -> None:
        def preprocess(texts: tf.Tensor) -> dict[str, tf.Tensor]:
            return pack_segments([flatten(self.tokenize(texts))], max_length, tokenizer, truncator)

        def bert_pack_inputs(inputs: list[tf.RaggedTensor],
                             seq_length: int | tf.Tensor = max_length) -> dict[str, tf.Tensor]:
            return pack_flat([flatten(segment) for segment in inputs], tf.convert_to_tensor(seq_length))

        pack_flat = tf.function(
            lambda segments, length: pack_segments(segments, length, tokenizer, truncator), autograph=False)
        graph = tokenizer.graph()
        super().__init__(tf.function(preprocess, input_signature=[_TEXTS], autograph=False))
        special_tokens = CallablePart(tf.function(lambda: _special_tokens(tokenizer), input_signature=[]))
        for name in ("tokenize", "tokenize_with_offsets"):
            function = CallablePart(tf.function(getattr(graph, name), input_signature=[_TEXTS], autograph=False))
            function.get_special_tokens_dict = special_tokens
            setattr(self, name, function)
        packing = tf.function(bert_pack_inputs, autograph=False)
        self.bert_pack_inputs = CallablePart(packing)
        for segments in range(1, MAX_SEGMENTS + 1):
            for rank in (2, 3):
                tokens = tf.RaggedTensorSpec([None] * rank, tf.int32)
                packing.get_concrete_function([tokens] * segments, seq_length=tf.TensorSpec([], tf.int32))


def export_preprocessor(tokenizer: Tokenizer, path: Path, *, max_length: Length = 128,
                        truncator: Literal["round_robin", "waterfall"] = "round_robin",
                        overwrite: bool = False) -> None:
    """Writes a preprocessor SavedModel. Output is written atomically.

    Args:
        tokenizer: a `Tokenizer`.
        path: folder to write.
        max_length, truncator: see `Preprocessor`.
        overwrite: If True, replaces an existing `path`.

    Raises:
        InputError: `path` exists or cannot be written, or an argument is out of its range.
    """
    check(export_preprocessor, {"max_length": max_length, "truncator": truncator})
    module = Preprocessor(tokenizer, max_length, truncator)
    save(module, path, {"serving_default": module.__call__}, tokenizer, {}, overwrite)


def _special_tokens(tokenizer: Tokenizer) -> dict[str, tf.Tensor]:
    ids = {"padding_id": tokenizer.pad_id, "start_of_sequence_id": tokenizer.cls_id,
           "end_of_segment_id": tokenizer.sep_id, "mask_id": tokenizer.mask_id,
           "vocab_size": len(tokenizer.vocabulary)}
    return {name: tf.constant(value, tf.int32) for name, value in ids.items() if value is not None}
