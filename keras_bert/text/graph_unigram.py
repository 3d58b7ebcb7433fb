"""`GraphUnigram`, which is `UnigramTokenizer` in core TensorFlow operations."""

import numpy as np
import tensorflow as tf

from keras_bert.text.charsmap import META
from keras_bert.text.graph_tables import DROPPED, IN_CONTEXT, SPACE, number_symbols
from keras_bert.text.graph_tokenizer import GraphTokenizer, Traced, by_text, decode, gather, where
from keras_bert.text.unigram import UnigramTokenizer
from keras_bert.text.unigram_tables import piece_trie, rule_tables

_ANY = tf.TensorShape([None])


class GraphUnigram(GraphTokenizer):
    """`UnigramTokenizer` in the graph.

    All texts of a batch are one array of characters. The trie is walked from all characters at once; then the best
    pieces of all words are chosen at once, character by character (Viterbi)."""

    def __init__(self, tokenizer: UnigramTokenizer) -> None:
        symbols = number_symbols([form for index, form in enumerate(tokenizer.forms) if index not in tokenizer.hidden])
        rules = rule_tables(tokenizer.rules, symbols)
        super().__init__(rules.cells, rules.rows)
        self._unknown, self._meta = tokenizer.unk_id, symbols[META]
        trie, *of_pieces = piece_trie(tokenizer, symbols)
        self._base, self._parent, self._piece, self._scores = map(tf.constant, (trie.base, trie.parent, *of_pieces))
        self._rule_symbols, self._results = tf.constant(rules.symbols), tf.constant(rules.results)
        self._rule_base, self._rule_parent = tf.constant(rules.trie.base), tf.constant(rules.trie.parent)
        self._rule_stops = tf.stack([rules.trie.match, rules.trie.depth - rules.trie.behind], 1)
        self._longest_rule = tokenizer.rules.longest

    def _tokenize(self, texts: tf.Tensor) -> tuple[tf.RaggedTensor, tf.RaggedTensor, tf.RaggedTensor]:
        code_point, byte, text_ends = decode(texts)
        # A space before the first text begins its first word.
        cell, start, limit = self._cells_of(tf.concat([[ord(" ")], code_point], 0), tf.concat([[0], byte], 0))
        is_space = tf.equal(cell, SPACE)
        kept = where(~(is_space & tf.concat([is_space[1:], [True]], 0)))  # of several spaces, the last
        cell, start, limit, is_space = (gather(values, kept) for values in (cell, start, limit, is_space))
        symbol, word_at, count = tf.where(is_space, self._meta, cell), where(is_space), tf.size(cell)
        steps, rank = _in_steps(word_at, count)
        scores, ids = self._edges(symbol, rank)
        size = gather(_best_sizes(scores, steps), rank)
        end = where(_token_ends(size, word_at))
        size = gather(size, end)
        first = end - size + 1
        token = gather(ids, (tf.shape(scores)[0] - size) * count + gather(rank, end))
        starts_word = gather(is_space, first)

        # Unknown tokens that follow each other in a word become one.
        is_unknown = tf.equal(token, self._unknown)
        kept = where(~(is_unknown & tf.concat([[False], is_unknown[:-1]], 0) & ~starts_word))
        last = gather(end, tf.concat([kept, tf.shape(end)], 0)[1:] - 1)
        token, first, starts_word = (gather(values, kept) for values in (token, first, starts_word))
        # A token does not include the space that begins its word; this space alone has the word's first character.
        first += tf.cast(starts_word, tf.int32)
        starts = tf.cast(gather(start, first), tf.int64)
        limits = tf.cast(gather(limit, tf.maximum(first, last)), tf.int64)

        token_splits = tf.concat([tf.where(starts_word)[:, 0], tf.shape(token, tf.int64)], 0)
        return by_text(token, starts, limits, token_splits, gather(start, word_at + 1), text_ends)

    def _rewritten(self, code_point: tf.Tensor, cell: tf.Tensor) -> Traced:
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
            (where(continues[1:] & ~continues[:-1]), tf.zeros([0], tf.int32), tf.zeros([0, 2], tf.int32)),
            shape_invariants=(_ANY, _ANY, tf.TensorShape([None, 2])), parallel_iterations=1)
        applies = stops[:, 0] >= 0
        at, (match, size) = tf.boolean_mask(starts, applies), tf.unstack(tf.boolean_mask(stops, applies), axis=1)
        later = tf.ragged.range(at + 1, at + size).flat_values[:, None]
        cell = tf.tensor_scatter_nd_update(cell & ~IN_CONTEXT, later, tf.fill(tf.shape(later)[:1], DROPPED))
        cell = tf.tensor_scatter_nd_update(cell, at[:, None], tf.gather(self._results, match))
        return cell, tf.range(count), tf.tensor_scatter_nd_add(tf.range(count), at[:, None], size - 1)

    def _edges(self, symbol: tf.Tensor, rank: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Finds the pieces at all characters. Row r of the results is for those that have width - r characters, where
        width is the size of the longest; column c for those that end with the character of rank c. Returns the scores,
        float64 [width, characters], the lowest number if there is no piece; and the ids, int32 [width * characters]."""
        count = tf.size(symbol)
        symbol = tf.concat([symbol, [0]], 0)
        node = gather(self._base, tf.zeros_like(symbol[:-1])) + symbol[:-1]
        exists = tf.equal(gather(self._parent, node), 0)
        alone = tf.where(exists, gather(self._piece, node), -1)
        alone = tf.where(alone >= 0, alone, self._unknown)
        at = where(exists)

        def step(size: tf.Tensor, at: tf.Tensor, node: tf.Tensor, *found: tf.Tensor) -> tuple[tf.Tensor, ...]:
            following = gather(self._base, node) + gather(symbol, at)
            goes_on = where(tf.equal(gather(self._parent, following), node))
            node, at = gather(following, goes_on), gather(at, goes_on)
            added = at, tf.fill(tf.shape(at), size), gather(self._piece, node)
            return size + 1, at + 1, node, *(tf.concat(both, 0) for both in zip(found, added))

        none = tf.zeros([0], tf.int32)
        ends, sizes, ids = tf.while_loop(
            lambda size, at, *_: tf.size(at) > 0, step, (2, at + 1, gather(node, at), none, none, none),
            shape_invariants=(tf.TensorShape([]), *5 * (_ANY,)), parallel_iterations=1)[3:]
        kept = where(ids >= 0)
        ends, sizes, ids = (gather(values, kept) for values in (ends, sizes, ids))
        width = tf.reduce_max(tf.concat([sizes, [1]], 0))
        slots = tf.concat([rank + (width - 1) * count, gather(rank, ends) + (width - sizes) * count], 0)
        ids = tf.concat([alone, ids], 0)
        scores = tf.math.unsorted_segment_max(gather(self._scores, ids + 1), slots, count * width)
        return tf.reshape(scores, [width, count]), tf.math.unsorted_segment_max(ids, slots, count * width)


def _in_steps(word_at: tf.Tensor, count: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Orders the characters by their place in their word, those of long words first, so that each step of `_best_sizes`
    is a slice. Returns the rank at which each step begins, int32 [steps + 1], and the rank of each character, int32
    [characters]."""
    lengths = tf.concat([word_at[1:], [count]], 0) - word_at
    longest = tf.reduce_max(tf.concat([lengths, [0]], 0))
    order = tf.argsort(lengths, direction="DESCENDING")
    reaching = tf.searchsorted(-tf.gather(lengths, order), -tf.range(longest))  # words with more characters
    steps = tf.concat([[0], tf.cumsum(reaching)], 0)
    step = tf.repeat(tf.range(longest), reaching)
    character = gather(tf.gather(word_at, order), tf.range(count) - gather(steps, step)) + step
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
        longest = tf.reduce_max(tf.where(tf.equal(sums, highest), size, 0), 0)  # an arg-max takes three times as long
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
        return tf.reduce_any(more > marked), more, gather(before, before)

    marked = tf.while_loop(lambda goes_on, *_: goes_on, step, (True, marked, before),
                           shape_invariants=(tf.TensorShape([]), _ANY, _ANY), parallel_iterations=1)[1]
    return marked[1:] > 0
