"""TensorFlow operations that pack the token ids of one to four texts into the three inputs of an encoder."""

from collections.abc import Sequence

import tensorflow as tf

from keras_bert.errors import InputError
from keras_bert.text.tokenizer import Tokenizer

MAX_SEGMENTS = 4


def round_robin(lengths: list[tf.Tensor], limit: tf.Tensor) -> list[tf.Tensor]:
    """Computes how many tokens of each segment to keep, int32 [batch], if they take turns, one token per turn, until
    `limit` tokens, int32 scalar, or all tokens are kept."""
    # Each of the n segments keeps min(length, level) tokens. For any m, the m shortest lengths and (n - m) times the
    # level sum to at least the number of tokens kept, and for the right m to exactly this number. So the level is the
    # maximum over all m of the highest level for which the sum is within the limit.
    in_order = tf.unstack(tf.sort(tf.stack(lengths), axis=0))
    level, shorter = tf.zeros_like(lengths[0]), tf.zeros_like(lengths[0])
    for longer in range(len(lengths), 0, -1):
        level = tf.maximum(level, (limit - shorter) // longer)
        shorter += in_order[-longer]
    kept = [tf.minimum(length, level) for length in lengths]
    left = limit - tf.add_n(kept)
    for index, length in enumerate(lengths):  # the last round may end before each segment's turn
        takes = tf.cast((length > level) & (left > 0), tf.int32)
        kept[index] += takes
        left -= takes
    return kept


def waterfall(lengths: list[tf.Tensor], limit: tf.Tensor) -> list[tf.Tensor]:
    """Computes how many tokens of each segment to keep, int32 [batch], if each one gets as many as it needs of those
    that the earlier ones leave."""
    kept: list[tf.Tensor] = []
    for length in lengths:
        kept.append(tf.minimum(length, limit))
        limit -= kept[-1]
    return kept


TRUNCATORS = {"round_robin": round_robin, "waterfall": waterfall}


def flatten(tokens: tf.RaggedTensor) -> tf.RaggedTensor:
    """Flattens a ragged [batch, (tokens)] or [batch, (words), (tokens)] to [batch, (tokens)]."""
    return tokens.merge_dims(1, -1) if tokens.shape.rank > 2 else tokens


def pack_segments(segments: Sequence[tf.RaggedTensor], seq_length: int | tf.Tensor, tokenizer: Tokenizer,
                  truncator: str) -> dict[str, tf.Tensor]:
    """Packs segments as [CLS] a [SEP] b [SEP] …, truncated and padded to `seq_length`.

    Args:
        segments: one to four, int32 [batch, (tokens)].
        seq_length: at least the number of special tokens.
        tokenizer: has the special tokens, their number and the side at which segments are cut.
        truncator: a key of `TRUNCATORS`.

    Returns:
        int32 [batch, seq_length]: input_word_ids; input_mask; input_type_ids, the number of the segment from 0, or 0
        for all if the tokenizer has no segments.
    """
    if not 1 <= len(segments) <= MAX_SEGMENTS:
        raise InputError(f"bert_pack_inputs takes 1 to {MAX_SEGMENTS} segments; got {len(segments)}")
    batch = segments[0].nrows(out_type=tf.int32)
    added = tokenizer.special_tokens(len(segments))
    limit = seq_length - added
    with tf.control_dependencies([tf.debugging.assert_non_negative(
            limit, f"seq_length must be at least {added} for {len(segments)} segments")]):
        kept = TRUNCATORS[truncator]([tf.cast(segment.row_lengths(), tf.int32) for segment in segments], limit)

    column = tf.range(seq_length)
    begin = tf.ones_like(kept[0])[:, None]  # after [CLS]
    word_ids = tf.fill([batch, seq_length], tokenizer.cls_id)
    type_ids = tf.zeros_like(word_ids)
    for segment, length, separators in zip(segments, kept, [*[tokenizer.separators] * (len(segments) - 1), 1]):
        end = begin + length[:, None]  # the position of [SEP]
        start = tf.cast(segment.row_starts() if tokenizer.truncation_side == "right" else
                        segment.row_limits() - tf.cast(length, tf.int64), tf.int32)
        source = start[:, None] + column - begin
        values = tf.concat([segment.values, [tokenizer.sep_id]], 0)  # one value more, because there may be none
        tokens = tf.gather(values, tf.clip_by_value(source, 0, tf.size(segment.values)))
        tokens = tf.where(column < end, tokens, tokenizer.sep_id)
        word_ids = tf.where(column < begin, word_ids, tokens)
        begin = end + separators
        if tokenizer.has_segments:
            type_ids += tf.cast(column >= begin, tf.int32)
    mask = column < begin
    outputs = {"input_word_ids": tf.where(mask, word_ids, tokenizer.pad_id), "input_mask": tf.cast(mask, tf.int32),
               "input_type_ids": tf.where(mask, type_ids, 0)}
    # Restore the shape of the batch, which is lost in ragged tensors.
    return {name: tf.reshape(tensor, [batch, seq_length]) for name, tensor in outputs.items()}
