"""The unigram tokenizer in core TensorFlow operations, for SavedModels that accept strings."""

import functools

import numpy as np
import tensorflow as tf

from keras_bert.text.charsmap import Charsmap
from keras_bert.text.graph_tables import DROPPED, IN_CONTEXT, MULTIPLE, SPACE, SYMBOL, number_symbols
from keras_bert.text.graph_tokenizer import _any, _decode, _gather, _in_halves, _Traced, _where
from keras_bert.text.unigram import META, Unigram
from keras_bert.text.unigram_tables import piece_tables, rule_tables

_ANY = tf.TensorShape([None])


class GraphUnigram(tf.Module):
    """Computes the ids of a `Unigram` model, and the bytes of the text that each id came from.

    All texts of a batch are one array of characters. The trie is walked from all characters at once, then the best
    pieces of all words are chosen at once, character by character (Viterbi). Steps that few texts need are in branches
    that only batches with such texts execute."""

    def __init__(self, charsmap: Charsmap, model: Unigram) -> None:
        super().__init__(name="tokenizer")
        symbols = number_symbols([piece for index, piece in enumerate(model.pieces) if index not in model.hidden])
        pieces, rules = piece_tables(model, symbols), rule_tables(charsmap, symbols)
        self._unknown, self._meta = model.unk_id, symbols[META]
        self._base, self._parent, self._piece, self._scores = map(
            tf.constant, (pieces.base, pieces.parent, pieces.piece, pieces.scores))
        self._cells, self._rows = tf.constant(rules.cells), tf.constant(rules.rows)
        self._rule_symbols, self._results = tf.constant(rules.symbols), tf.constant(rules.results)
        self._rule_base, self._rule_parent = tf.constant(rules.base), tf.constant(rules.parent)
        self._rule_stops, self._longest_rule = tf.stack([rules.match, rules.size], 1), rules.longest
        texts = tf.TensorSpec([None], tf.string)
        self._ragged = functools.partial(tf.function(
            self._tokenize, [texts], autograph=False, experimental_attributes={"_noinline": True}))

    def tokenize_with_offsets(self, texts: tf.Tensor) -> tuple[tf.RaggedTensor, tf.RaggedTensor, tf.RaggedTensor]:
        """Converts string [batch] to three ragged [batch, (words), (tokens)]: the ids, int32, and the start and the end
        of each token in its original text, int64, in bytes."""
        return _in_halves(self._ragged, texts)

    def _tokenize(self, texts: tf.Tensor) -> tuple[tf.RaggedTensor, tf.RaggedTensor, tf.RaggedTensor]:
        code_point, byte, text_ends = _decode(texts)
        # A space before the first text begins its first word.
        cell, start, limit = self._cells_of(tf.concat([[ord(" ")], code_point], 0), tf.concat([[0], byte], 0))
        is_space = tf.equal(cell, SPACE)
        kept = _where(~(is_space & tf.concat([is_space[1:], [True]], 0)))  # of several spaces, the last
        cell, start, limit, is_space = (_gather(values, kept) for values in (cell, start, limit, is_space))
        symbol, word_at, count = tf.where(is_space, self._meta, cell), _where(is_space), tf.size(cell)
        steps, rank = _in_steps(word_at, count)
        scores, ids = self._edges(symbol, rank)
        size = _gather(_best_sizes(scores, steps), rank)
        end = _where(_token_ends(size, word_at))
        size = _gather(size, end)
        first = end - size + 1
        token = _gather(ids, (tf.shape(scores)[0] - size) * count + _gather(rank, end))
        starts_word = _gather(is_space, first)

        # Unknown tokens that follow each other in a word become one.
        is_unknown = tf.equal(token, self._unknown)
        kept = _where(~(is_unknown & tf.concat([[False], is_unknown[:-1]], 0) & ~starts_word))
        last = _gather(end, tf.concat([kept, tf.shape(end)], 0)[1:] - 1)
        token, first, starts_word = (_gather(values, kept) for values in (token, first, starts_word))
        # A token does not include the space that begins its word; one that is this space alone is empty.
        limits = tf.cast(_gather(limit, last), tf.int64)
        starts = tf.cast(_gather(start, tf.minimum(first + tf.cast(starts_word, tf.int32), count - 1)), tf.int64)
        limits = tf.where(starts_word & tf.equal(first, last), starts, limits)

        word_start = _gather(start, word_at + 1)
        words = tf.searchsorted(word_start, text_ends, out_type=tf.int64)
        word_splits = tf.concat([[0], words], 0)
        token_splits = tf.concat([tf.where(starts_word)[:, 0], tf.shape(token, tf.int64)], 0)
        text_ends = tf.cast(text_ends, tf.int64)
        text_start = tf.gather(tf.concat([[0], text_ends], 0), tf.searchsorted(text_ends, starts, side="right"))

        def ragged(values: tf.Tensor) -> tf.RaggedTensor:
            return tf.RaggedTensor.from_nested_row_splits(values, [word_splits, token_splits], validate=False)

        return ragged(token), ragged(starts - text_start), ragged(limits - text_start)

    def _cells_of(self, code_point: tf.Tensor, byte: tf.Tensor) -> _Traced:
        cell = _gather(self._cells, code_point)

        def rare() -> _Traced:
            index = tf.range(tf.size(code_point))
            rewritten = tf.cond(_any(cell, IN_CONTEXT), lambda: self._rewritten(code_point, cell),
                                lambda: (cell, index, index))
            expanded = tf.cond(_any(cell, MULTIPLE) | _any(rewritten[0], MULTIPLE), lambda: self._expanded(*rewritten), lambda: rewritten)
            kept = _where(expanded[0] & DROPPED == 0)
            cells, first, last = (tf.gather(values, kept) for values in expanded)
            return cells, tf.gather(byte, first), tf.gather(byte, last + 1)

        return tf.cond(tf.reduce_max(cell) >= DROPPED, rare, lambda: (cell, byte[:-1], byte[1:]))

    def _expanded(self, cell: tf.Tensor, first: tf.Tensor, last: tf.Tensor) -> _Traced:
        multiple = cell & MULTIPLE != 0
        row = tf.gather(self._rows, tf.where(multiple, cell & SYMBOL, 0))
        row = tf.where(multiple[:, None], row, tf.concat([cell[:, None], tf.fill(tf.shape(row[:, 1:]), -1)], 1))
        at = tf.where(row >= 0)
        return tf.gather_nd(row, at), tf.gather(first, at[:, 0]), tf.gather(last, at[:, 0])

    def _rewritten(self, code_point: tf.Tensor, cell: tf.Tensor) -> _Traced:
        """Applies the rules of several characters. They begin with a character before one that is IN_CONTEXT, or after
        the end of another rule there: all such runs are read at once, rule by rule."""
        count = tf.size(cell)
        continues = tf.concat([cell & IN_CONTEXT != 0, [False]], 0)
        symbol = tf.cast(tf.gather(self._rule_symbols, code_point), tf.int32)
        symbol = tf.concat([symbol, tf.zeros([self._longest_rule], tf.int32)], 0)

        def step(at: tf.Tensor, starts: tf.Tensor, stops: tf.Tensor) -> tuple[tf.Tensor, ...]:
            node, goes_on = tf.zeros_like(at), tf.ones_like(at, tf.bool)
            for behind in range(self._longest_rule):
                following = tf.gather(self._rule_base, node) + tf.gather(symbol, at + behind)
                goes_on &= tf.equal(tf.gather(self._rule_parent, following), node)
                node = tf.where(goes_on, following, node)
            stop = tf.gather(self._rule_stops, node)
            after = at + tf.where(stop[:, 0] >= 0, stop[:, 1], 1)
            return (tf.boolean_mask(after, tf.gather(continues, after)), tf.concat([starts, at], 0),
                    tf.concat([stops, stop], 0))

        _, starts, stops = tf.while_loop(
            lambda at, *_: tf.size(at) > 0, step,
            (_where(continues[1:] & ~continues[:-1]), tf.zeros([0], tf.int32), tf.zeros([0, 2], tf.int32)),
            shape_invariants=(_ANY, _ANY, tf.TensorShape([None, 2])), parallel_iterations=1)
        applies = stops[:, 0] >= 0
        at, (match, size) = tf.boolean_mask(starts, applies)[:, None], tf.unstack(tf.boolean_mask(stops, applies), axis=1)
        index = tf.range(count)
        last = tf.tensor_scatter_nd_add(index, at, size - 1)
        # The characters after the first of a rule are dropped.
        covered = tf.scatter_nd(at + 1, tf.ones_like(size), [count + 1]) - tf.scatter_nd(at + size[:, None], tf.ones_like(size), [count + 1])
        cell = tf.where(tf.cumsum(covered)[:count] > 0, DROPPED, cell & ~IN_CONTEXT)
        return tf.tensor_scatter_nd_update(cell, at, tf.gather(self._results, match)), index, last

    def _edges(self, symbol: tf.Tensor, rank: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Finds the pieces at all characters. Row r of the results is for those that have width - r characters, where
        width is the size of the longest; column c for those that end with the character of rank c. Returns the scores,
        float64 [width, characters], the lowest number if there is no piece; and the ids, int32 [width * characters]."""
        count = tf.size(symbol)
        symbol = tf.concat([symbol, [0]], 0)
        node = _gather(self._base, tf.zeros_like(symbol[:-1])) + symbol[:-1]
        exists = tf.equal(_gather(self._parent, node), 0)
        alone = tf.where(exists, _gather(self._piece, node), -1)
        alone = tf.where(alone >= 0, alone, self._unknown)
        at = _where(exists)

        def step(size: tf.Tensor, at: tf.Tensor, node: tf.Tensor, *found: tf.Tensor) -> tuple[tf.Tensor, ...]:
            following = _gather(self._base, node) + _gather(symbol, at)
            goes_on = _where(tf.equal(_gather(self._parent, following), node))
            node, at = _gather(following, goes_on), _gather(at, goes_on)
            added = at, tf.fill(tf.shape(at), size), _gather(self._piece, node)
            return size + 1, at + 1, node, *(tf.concat(both, 0) for both in zip(found, added))

        none = tf.zeros([0], tf.int32)
        ends, sizes, ids = tf.while_loop(
            lambda size, at, *_: tf.size(at) > 0, step, (2, at + 1, _gather(node, at), none, none, none),
            shape_invariants=(tf.TensorShape([]), *5 * (_ANY,)), parallel_iterations=1)[3:]
        kept = _where(ids >= 0)
        ends, sizes, ids = (_gather(values, kept) for values in (ends, sizes, ids))
        width = tf.reduce_max(tf.concat([sizes, [1]], 0))
        slots = tf.concat([rank + (width - 1) * count, _gather(rank, ends) + (width - sizes) * count], 0)
        ids = tf.concat([alone, ids], 0)
        scores = tf.math.unsorted_segment_max(_gather(self._scores, ids + 1), slots, count * width)
        return tf.reshape(scores, [width, count]), tf.math.unsorted_segment_max(ids, slots, count * width)


def _in_steps(word_at: tf.Tensor, count: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Orders the characters by their place in their word, those of long words first, so that each step of `_best_sizes`
    is a slice. Returns the rank at which each step begins, int32 [steps + 1], and the rank of each character, int32
    [characters]."""
    lengths = tf.concat([word_at[1:], [count]], 0) - word_at
    longest = tf.reduce_max(tf.concat([lengths, [0]], 0))
    order = tf.argsort(lengths, direction="DESCENDING")
    reaching = tf.searchsorted(-tf.gather(lengths, order), -tf.range(longest), side="left")  # words with more characters
    steps = tf.concat([[0], tf.cumsum(reaching)], 0)
    step = tf.repeat(tf.range(longest), reaching)
    character = _gather(tf.gather(word_at, order), tf.range(count) - _gather(steps, step)) + step
    return steps, tf.math.unsorted_segment_sum(tf.range(count), character, count)


def _best_sizes(scores: tf.Tensor, steps: tf.Tensor) -> tf.Tensor:
    """Returns the number of characters of the last piece of the best way to spell what is up to a character of a word,
    by the rank of the character: int32 [characters]. `scores` are those of `_edges`."""
    width, words = tf.shape(scores)[0], tf.gather(steps, tf.minimum(1, tf.size(steps) - 1))
    size = tf.range(width, 0, -1)[:, None]

    def step(index: tf.Tensor, best: tf.Tensor, sizes: tf.TensorArray) -> tuple:
        """`best` has the sums of the last `width` characters of each word."""
        first, last = steps[index], steps[index + 1]
        best = best[:, :last - first]
        sums = best + scores[:, first:last]
        highest = tf.reduce_max(sums, 0, keepdims=True)
        longest = tf.reduce_max(tf.where(tf.equal(sums, highest), size, 0), 0)  # an arg-max would be three times as slow
        return index + 1, tf.concat([best[1:], highest], 0), sizes.write(index, longest)

    before = tf.concat([tf.fill([width - 1, words], tf.constant(-np.inf, tf.float64)),
                        tf.zeros([1, words], tf.float64)], 0)
    sizes = tf.TensorArray(tf.int32, tf.size(steps) - 1, infer_shape=False, element_shape=[None])
    sizes = tf.while_loop(
        lambda index, *_: index < tf.size(steps) - 1, step, (0, before, sizes),
        shape_invariants=(tf.TensorShape([]), tf.TensorShape([None, None]), tf.TensorShape(None)),
        parallel_iterations=1)[2]
    return tf.ensure_shape(sizes.concat(), [None])


def _token_ends(size: tf.Tensor, word_at: tf.Tensor) -> tf.Tensor:
    """Marks the characters that end a token, bool [characters], from the ends of the words backwards: in each step, the
    marks cover twice as many tokens."""
    count = tf.size(size)
    before = tf.concat([[0], tf.range(1, count + 1) - size], 0)  # the border before the token that ends at a border
    borders = tf.concat([word_at, [count]], 0)
    marked = tf.minimum(tf.math.unsorted_segment_sum(tf.ones_like(borders), borders, count + 1), 1)

    def step(_: tf.Tensor, marked: tf.Tensor, before: tf.Tensor) -> tuple[tf.Tensor, ...]:
        more = tf.maximum(marked, tf.math.unsorted_segment_max(marked, before, count + 1))
        return tf.reduce_any(more > marked), more, _gather(before, before)

    marked = tf.while_loop(lambda goes_on, *_: goes_on, step, (True, marked, before),
                           shape_invariants=(tf.TensorShape([]), _ANY, _ANY), parallel_iterations=1)[1]
    return marked[1:] > 0
