"""`GraphTokenizer`: `BertTokenizer` as a TensorFlow function of core operations, for SavedModels that take strings."""

import tensorflow as tf

from keras_bert.text import code_points
from keras_bert.text.code_points import ALONE, DROPPED, IN_CONTEXT, SEVERAL, SPACE, SYMBOL
from keras_bert.text.in_context import InContext
from keras_bert.text.tokenizer import MAX_WORD_LENGTH

_STEPS = 3  # characters read between two looks at which words are done; measured


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
        self._word_starts = symbols.count  # symbols from here on stand at the start of a word
        self._unknown = tokenizer.unk_id
        trie = symbols.trie()
        self._base, self._parent = tf.constant(trie.base), tf.constant(trie.parent)
        self._depth, self._match, self._behind = map(tf.constant, (trie.depth, trie.match, trie.behind))
        cells, several = code_points.cells(tokenizer.rules, symbols)
        self._cells, self._several = tf.constant(cells), tf.constant(several)
        self._in_context = InContext(tokenizer.rules, cells)

    def tokenize(self, texts):
        """string [batch] to ids: int32 ragged [batch, (words), (pieces)]."""
        return self.tokenize_with_offsets(texts)[0]

    def tokenize_with_offsets(self, texts):
        """string [batch] to three ragged tensors [batch, (words), (pieces)]: ids, int32; where each piece starts and
        ends in its text, int64, in bytes of the original."""
        code_point, byte, text_ends = _decode(texts)
        cell, first, last = self._cells_of(code_point)
        kept = _where(cell < SPACE)
        cell, first, last = (tf.gather(values, kept) for values in (cell, first, last))
        starts_word = _starts_word(kept, cell >= ALONE)
        word_at = _where(starts_word)
        piece_of = self._longest_matches(cell & SYMBOL, starts_word, word_at)

        piece_at = _where(piece_of > 0)
        piece_ends = tf.concat([piece_at[1:], tf.shape(kept)], 0)
        starts = tf.gather(byte, tf.gather(first, piece_at))
        limits = tf.gather(byte, tf.gather(last, piece_ends - 1) + 1)
        piece_splits = tf.concat([tf.searchsorted(piece_at, word_at, out_type=tf.int64),
                                  tf.shape(piece_at, tf.int64)], 0)
        words = tf.searchsorted(tf.gather(byte, tf.gather(first, word_at)), text_ends, out_type=tf.int64)
        word_splits = tf.concat([[0], words], 0)
        text_start = tf.gather(tf.concat([[0], text_ends], 0), tf.searchsorted(text_ends, starts, side="right"))

        def ragged(values):
            words = tf.RaggedTensor.from_row_splits(values, piece_splits, validate=False)
            return tf.RaggedTensor.from_row_splits(words, word_splits, validate=False)

        return (ragged(tf.gather(piece_of, piece_at) - 1), ragged(starts - text_start), ragged(limits - text_start))

    def _cells_of(self, code_point):
        """The cells that are left of some code points, and for each the first and last of the code points that it came
        from, by index: int32 [cells]."""
        cell = tf.gather(self._cells, code_point)
        index = tf.range(tf.size(code_point))

        def rare():
            rewritten = tf.cond(_any(cell, IN_CONTEXT), lambda: self._rewritten(code_point),
                                lambda: (cell, index, index))
            expanded = tf.cond(_any(cell, SEVERAL), lambda: self._expanded(*rewritten), lambda: rewritten)
            left = _where(expanded[0] & DROPPED == 0)
            return tuple(tf.gather(values, left) for values in expanded)

        return tf.cond(tf.reduce_max(cell) >= DROPPED, rare, lambda: (cell, index, index))

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
        symbol = tf.concat([tf.where(starts_word, symbol + self._word_starts, symbol), [self._word_starts]], 0)
        at, piece = self._walk(symbol, word_at)
        piece_of = tf.scatter_nd(at[:, None], piece + 1, tf.shape(starts_word))
        length = tf.concat([word_at[1:], tf.shape(starts_word)], 0) - word_at
        unknown_at = tf.concat([tf.boolean_mask(at, piece < 0),
                                tf.boolean_mask(word_at, length > MAX_WORD_LENGTH)], 0)

        def without_unknown_words():
            word = tf.searchsorted(word_at, unknown_at, side="right")  # from 1
            word_of = tf.cumsum(tf.cast(starts_word, tf.int32))
            is_unknown = tf.scatter_nd(word[:, None], tf.ones_like(word), tf.shape(word_at) + 1) > 0
            return tf.where(tf.gather(is_unknown, word_of), tf.where(starts_word, self._unknown + 1, 0), piece_of)

        return tf.cond(tf.size(unknown_at) > 0, without_unknown_words, lambda: piece_of)

    def _walk(self, symbol, word_at):
        """Greedy longest match for all words at once.

        Args:
            symbol: int32 [characters + 1], the last one a word start.
            word_at: int32 [words].

        Returns:
            where pieces start and their ids, int32 [pieces], in no order; -1 where a word cannot be spelt further.
        """
        def step(node, position, found, count):
            for _ in range(_STEPS):
                following = tf.gather(self._base, node) + tf.gather(symbol, position)
                goes_on = tf.equal(tf.gather(self._parent, following), node)
                node = tf.where(goes_on, following, node)
                position += tf.cast(goes_on, tf.int32)
            stop = _where(~goes_on)
            stopped, stopped_at = tf.gather(node, stop), tf.gather(position, stop)
            match = tf.gather(self._match, stopped)
            found = found.write(count, tf.stack([stopped_at - tf.gather(self._depth, stopped), match], 1))
            again = stopped_at - tf.gather(self._behind, stopped)
            again = tf.boolean_mask(again, (match >= 0) & (tf.gather(symbol, again) < self._word_starts))
            on = _where(goes_on)
            node = tf.concat([tf.gather(node, on), tf.zeros_like(again)], 0)
            position = tf.concat([tf.gather(position, on), again], 0)
            return node, position, found, count + 1

        found = tf.TensorArray(tf.int32, 0, dynamic_size=True, infer_shape=False, element_shape=[None, 2])
        any_length = tf.TensorShape([None])
        *_, found, _ = tf.while_loop(
            lambda node, *_: tf.size(node) > 0, step, (tf.zeros_like(word_at), word_at, found, 0),
            shape_invariants=(any_length, any_length, None, tf.TensorShape([])), parallel_iterations=1)
        return tf.unstack(found.concat(), axis=1)


def _decode(texts):
    """string [batch] to code points, int32 [characters], the byte that each starts at, int64, counted over all texts,
    and where each text ends, int64 [batch]. A space after each text ends its last word."""
    ended = tf.strings.join([texts, " "])
    joined = tf.strings.reduce_join(ended)
    raw = tf.io.decode_raw(joined, tf.uint8)

    def ascii():  # five times as fast
        return tf.cast(raw, tf.int32), tf.range(tf.size(raw, tf.int64))

    def utf8():
        return tf.raw_ops.UnicodeDecodeWithOffsets(input=[joined], input_encoding="UTF-8", errors="replace")[1:]

    code_point, byte = tf.cond(tf.reduce_all(raw < 128), ascii, utf8)
    return code_point, byte, tf.cumsum(tf.cast(tf.strings.length(ended), tf.int64))


def _starts_word(kept, alone):
    """Whether each character that is left is the first of a word: bool [kept]."""
    gap = kept[1:] - kept[:-1] > 1
    return tf.concat([tf.ones_like(alone[:1]), gap | alone[1:] | alone[:-1]], 0)


def _where(condition):
    return tf.cast(tf.where(condition)[:, 0], tf.int32)


def _any(cell, flag):
    return tf.reduce_any(cell & flag != 0)
