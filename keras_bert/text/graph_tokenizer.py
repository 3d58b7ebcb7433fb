"""`GraphTokenizer`: `BertTokenizer` as a TensorFlow function of core operations, for SavedModels that take strings."""

import tensorflow as tf

from keras_bert.text import code_points
from keras_bert.text.code_points import ALONE, DROPPED, IN_CONTEXT, SEVERAL, SPACE, SYMBOL
from keras_bert.text.in_context import InContext
from keras_bert.text.tokenizer import MAX_WORD_LENGTH

_STEPS = 3  # characters read between two looks at which words are done; measured
_LARGE = 64  # texts from which on two halves at once are faster; measured


class GraphTokenizer(tf.Module):
    """The ids of `BertTokenizer`, and the bytes of the text that each came from. Invalid UTF-8 is left out.

    All texts of a batch are one array of characters, on which every operation works at once; the trie is walked for all
    words in step. What few texts need stands in branches that only they take.

    Args:
        tokenizer: the `BertTokenizer` whose vocabulary and rules to take over.
    """

    def __init__(self, tokenizer):
        super().__init__(name="tokenizer")
        symbols = code_points.Symbols(tokenizer.vocabulary)
        self._word_starts = symbols.count  # symbols from here on stand at the start of a word, or are no part of any
        self._unknown = tokenizer.unk_id
        trie = symbols.trie()
        self._base, self._parent = tf.constant(trie.base), tf.constant(trie.parent)
        self._stops = tf.stack([trie.depth, trie.match, trie.behind], 1)
        cells, several = code_points.cells(tokenizer.rules, symbols)
        self._cells, self._several = tf.constant(cells), tf.constant(several)
        self._in_context = InContext(tokenizer.rules, cells)

    def tokenize(self, texts):
        """string [batch] to ids: int32 ragged [batch, (words), (pieces)]."""
        return _in_halves(lambda texts: self._tokenize(texts)[0], texts)

    def tokenize_with_offsets(self, texts):
        """string [batch] to three ragged tensors [batch, (words), (pieces)]: ids, int32; where each piece starts and
        ends in its text, int64, in bytes of the original."""
        return _in_halves(self._tokenize, texts)

    def _tokenize(self, texts):
        code_point, byte, text_ends = _decode(texts)
        cell, start, limit = self._cells_of(code_point, byte)
        alone = cell >= ALONE  # or a space
        is_cut = tf.concat([[True], alone[:-1]], 0) | alone
        starts_word = is_cut & (cell < SPACE)
        word_at = _where(starts_word)
        symbol = (cell & SYMBOL) + self._word_starts * tf.cast(is_cut, tf.int32)
        piece_of = self._longest_matches(symbol, starts_word, word_at)

        piece_at = _where(piece_of > 0)
        end_at = _where((piece_of > 0) | (cell >= SPACE))  # a piece ends where a piece or a space comes next
        end_at = tf.boolean_mask(end_at[1:], _gather(piece_of, end_at[:-1]) > 0)
        starts, limits = (tf.cast(_gather(*at), tf.int64) for at in ((start, piece_at), (limit, end_at - 1)))
        piece_splits = tf.concat([tf.where(_gather(starts_word, piece_at))[:, 0], tf.shape(piece_at, tf.int64)], 0)
        words = tf.searchsorted(word_at, tf.searchsorted(start, text_ends), out_type=tf.int64)
        word_splits = tf.concat([[0], words], 0)
        text_ends = tf.cast(text_ends, tf.int64)
        text_start = tf.gather(tf.concat([[0], text_ends], 0), tf.searchsorted(text_ends, starts, side="right"))

        def ragged(values):
            words = tf.RaggedTensor.from_row_splits(values, piece_splits, validate=False)
            return tf.RaggedTensor.from_row_splits(words, word_splits, validate=False)

        return (ragged(_gather(piece_of, piece_at) - 1), ragged(starts - text_start), ragged(limits - text_start))

    def _cells_of(self, code_point, byte):
        """The cells that are left of some code points, and the bytes where what each came from starts and ends: int32
        [cells]. The last one is a space."""
        cell = _gather(self._cells, code_point)

        def rare():
            index = tf.range(tf.size(code_point))
            rewritten = tf.cond(_any(cell, IN_CONTEXT), lambda: self._rewritten(code_point),
                                lambda: (cell, index, index))
            expanded = tf.cond(_any(cell, SEVERAL), lambda: self._expanded(*rewritten), lambda: rewritten)
            left = _where(expanded[0] & DROPPED == 0)
            left, first, last = (tf.gather(values, left) for values in expanded)
            return left, tf.gather(byte, first), tf.gather(byte, last + 1)

        return tf.cond(tf.reduce_max(cell) >= DROPPED, rare, lambda: (cell, byte[:-1], byte[1:]))

    def _rewritten(self, code_point):
        code_point, first, last = self._in_context(code_point)
        return tf.gather(self._cells, code_point) & ~IN_CONTEXT, first, last

    def _expanded(self, cell, first, last):
        several = cell & SEVERAL != 0
        row = tf.gather(self._several, tf.where(several, cell & SYMBOL, 0))
        row = tf.where(several[:, None], row, tf.concat([cell[:, None], tf.fill(tf.shape(row[:, 1:]), -1)], 1))
        at = tf.where(row >= 0)
        return tf.gather_nd(row, at), tf.gather(first, at[:, 0]), tf.gather(last, at[:, 0])

    def _longest_matches(self, symbol, starts_word, word_at):
        """1 + the id of the piece that starts at each character, 0 where none does: int32 [characters]."""
        next_at = tf.concat([word_at[1:], tf.shape(symbol)], 0)
        last = tf.minimum(word_at + MAX_WORD_LENGTH, tf.size(symbol) - 1)
        is_long = (next_at - word_at > MAX_WORD_LENGTH) & (tf.gather(symbol, last) < self._word_starts)  # and no space
        at, piece = self._walk(symbol, tf.boolean_mask(word_at, ~is_long))
        piece_of = tf.math.unsorted_segment_sum(piece + 1, at, tf.size(symbol))  # ten times as fast as scatter_nd
        unknown_at = tf.concat([tf.boolean_mask(at, piece < 0), tf.boolean_mask(word_at, is_long)], 0)

        def without_unknown_words():
            word = tf.searchsorted(word_at, unknown_at, side="right") - 1
            at = tf.ragged.range(tf.gather(word_at, word), tf.gather(next_at, word)).flat_values
            pieces = tf.where(tf.gather(starts_word, at), self._unknown + 1, 0)
            return tf.tensor_scatter_nd_update(piece_of, at[:, None], pieces)

        return tf.cond(tf.size(unknown_at) > 0, without_unknown_words, lambda: piece_of)

    def _walk(self, symbol, word_at):
        """Greedy longest match for all words at once.

        Args:
            symbol: int32 [characters], the last one part of no word.
            word_at: int32 [words].

        Returns:
            where pieces start and their ids, int32 [pieces], in no order; -1 where a word cannot be spelt further.
        """
        def step(node, position, at, piece):
            for _ in range(_STEPS):
                following = tf.gather(self._base, node) + tf.gather(symbol, position)
                goes_on = tf.equal(tf.gather(self._parent, following), node)
                node = tf.where(goes_on, following, node)
                position += tf.cast(goes_on, tf.int32)
            goes_on = tf.cast(goes_on, tf.int32)
            stopped, node = tf.dynamic_partition(node, goes_on, 2)
            stopped_at, position = tf.dynamic_partition(position, goes_on, 2)
            depth, match, behind = tf.unstack(tf.gather(self._stops, stopped), axis=1)
            again = stopped_at - behind
            again = tf.boolean_mask(again, (match >= 0) & (tf.gather(symbol, again) < self._word_starts))
            node, position = tf.concat([node, tf.zeros_like(again)], 0), tf.concat([position, again], 0)
            return node, position, tf.concat([at, stopped_at - depth], 0), tf.concat([piece, match], 0)

        none = tf.zeros([0], tf.int32)
        return tf.while_loop(
            lambda node, *_: tf.size(node) > 0, step, (tf.zeros_like(word_at), word_at, none, none),
            shape_invariants=4 * (tf.TensorShape([None]),), parallel_iterations=1)[2:]


def _in_halves(function, texts):
    """function(texts), of ragged tensors; the two halves of a large batch at once. As a call is not inlined, the branch
    that is not taken costs nothing."""
    function = tf.function(function, autograph=False, experimental_attributes={"_noinline": True})

    def halves():
        half = tf.size(texts) // 2
        return tf.nest.map_structure(lambda *parts: tf.concat(parts, 0), function(texts[:half]), function(texts[half:]))

    def with_static_batch(tokens):  # which the branches have lost
        splits = tf.concat([[0], tf.reshape(tokens.row_splits[1:], tf.shape(texts))], 0)
        return tf.RaggedTensor.from_row_splits(tokens.values, splits, validate=False)

    return tf.nest.map_structure(with_static_batch,
                                 tf.cond(tf.size(texts) >= _LARGE, halves, lambda: function(texts)))


def _decode(texts):
    """string [batch] to code points, int32 [characters]; the byte that each starts at, counted over all texts, and
    where the last one ends, int32 [characters + 1]; where each text ends, int32 [batch]. A space after each text ends
    its last word."""
    joined = tf.strings.join([tf.strings.reduce_join(texts, separator=" "), " "])
    raw = tf.io.decode_raw(joined, tf.uint8)

    def ascii():  # five times as fast
        return tf.cast(raw, tf.int32), tf.range(tf.size(raw) + 1)

    def utf8():
        _, code_point, byte = tf.raw_ops.UnicodeDecodeWithOffsets(
            input=[joined], input_encoding="UTF-8", errors="replace")
        return code_point, tf.concat([tf.cast(byte, tf.int32), tf.shape(raw)], 0)

    code_point, byte = tf.cond(tf.reduce_all(raw < 128), ascii, utf8)
    return code_point, byte, tf.cumsum(tf.strings.length(texts) + 1)


def _gather(values, index):  # for many indices faster than tf.gather on a CPU
    return tf.gather_nd(values, index[:, None])


def _where(condition):
    return tf.cast(tf.where(condition)[:, 0], tf.int32)


def _any(cell, flag):
    return tf.reduce_any(cell & flag != 0)
