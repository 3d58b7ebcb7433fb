"""`GraphTokenizer`, a tokenizer in core TensorFlow operations, for SavedModels that accept strings; and
`GraphWordPiece`, that of `BertTokenizer`."""

import functools
import unicodedata
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from keras_bert.text import graph_tables
from keras_bert.text.graph_tables import ALONE, CODE_POINTS, DROPPED, IN_CONTEXT, MULTIPLE, SPACE, SYMBOL, tabulate
from keras_bert.text.rules import Rules, is_deleted
from keras_bert.text.wordpiece import BertTokenizer

# Code points or cells, and the first and the last index of what each came from: three int32 [n].
Traced = tuple[tf.Tensor, tf.Tensor, tf.Tensor]


class InContext(tf.Module):
    """The rules that depend on context: rewrites code points so that the result for each no longer depends on its
    neighbours. For `cells`, see `graph_tables`."""

    def __init__(self, rules: Rules, cells: np.ndarray) -> None:
        super().__init__(name="in_context")
        self._lower_case = rules.lower_case
        self._composes = rules.normalization == "NFC"
        self._decomposes = self._composes or rules.strip_accents
        if self._lower_case:
            self._unseen, self._cased = map(_bools, graph_tables.sigma_context())
        if self._decomposes:
            self._decomposition, self._parts = map(tf.constant, graph_tables.decompositions(rules))
            self._class = tf.constant(tabulate(unicodedata.combining, np.uint8))
            # Marks are sorted across deleted characters, so these are removed first. Stripped marks, in contrast, can
            # separate other marks, except with NFC, which is applied after stripping.
            self._is_deleted = _bools(cells & DROPPED != 0 if self._composes else tabulate(is_deleted, bool))
        if self._composes:
            self._pairs, self._composites = map(tf.constant, graph_tables.compositions())

    def __call__(self, code_point: tf.Tensor) -> Traced:
        """Rewrites code points, int32 [characters]."""
        if self._lower_case:
            code_point = self._with_final_sigmas(code_point)
        index = tf.range(tf.size(code_point))
        characters = code_point, index, index
        if self._decomposes:
            characters = self._in_order(*self._decomposed(code_point))
        return self._composed(*characters) if self._composes else characters

    def _with_final_sigmas(self, code_point: tf.Tensor) -> tf.Tensor:
        """Replaces each capital sigma after a cased letter and not before one, ignoring case-ignorable characters, by
        the final small sigma, like `str.lower`."""
        is_seen = ~_is_in(self._unseen, code_point)
        cased = _is_in(self._cased, tf.boolean_mask(code_point, is_seen))
        cased = tf.concat([[False], cased, [False]], 0)
        rank = tf.cumsum(tf.cast(is_seen, tf.int32))  # index in `cased` of each character that is seen
        before, after = tf.maximum(rank - 1, 0), tf.minimum(rank + 1, tf.size(cased) - 1)
        is_final = tf.equal(code_point, ord("Σ")) & tf.gather(cased, before) & ~tf.gather(cased, after)
        return tf.where(is_final, ord("ς"), code_point)

    def _decomposed(self, code_point: tf.Tensor) -> Traced:
        row = tf.cast(tf.gather(self._decomposition, code_point), tf.int32)
        parts = tf.gather(self._parts, tf.maximum(row, 0))
        alone = tf.concat([code_point[:, None], tf.fill(tf.shape(parts[:, 1:]), -1)], 1)
        parts = tf.where(row[:, None] >= 0, parts, alone)
        at = tf.where((parts >= 0) & ~_is_in(self._is_deleted, tf.maximum(parts, 0)))
        index = tf.cast(at[:, 0], tf.int32)
        return tf.gather_nd(parts, at), index, index

    def _combining(self, code_point: tf.Tensor) -> tf.Tensor:
        return tf.cast(tf.gather(self._class, code_point), tf.int32)

    def _in_order(self, code_point: tf.Tensor, first: tf.Tensor, last: tf.Tensor) -> Traced:
        """Sorts the marks between two starters by combining class, stably. A mark that moves gets the first and the
        last character of all marks in its run."""
        combining = self._combining(code_point)
        run = tf.cumsum(tf.cast(tf.equal(combining, 0), tf.int64))
        order = run * 256 + tf.cast(combining, tf.int64)

        def sorted_runs() -> Traced:
            count = tf.size(order, tf.int64)
            index = tf.range(count)
            source = tf.sort(order * count + index) % count
            is_mark = tf.gather(combining, source) > 0
            moved = tf.math.unsorted_segment_max(tf.cast(source != index, tf.int32), run, count + 1)
            moves = is_mark & (tf.gather(moved, run) > 0)
            mark_run = tf.where(combining > 0, run, count)  # starters form a segment that nothing reads
            lowest = tf.gather(tf.math.unsorted_segment_min(first, mark_run, count + 1), run)
            highest = tf.gather(tf.math.unsorted_segment_max(last, mark_run, count + 1), run)
            return (tf.gather(code_point, source), tf.where(moves, lowest, tf.gather(first, source)),
                    tf.where(moves, highest, tf.gather(last, source)))

        return tf.cond(tf.reduce_any(order[1:] < order[:-1]), sorted_runs, lambda: (code_point, first, last))

    def _composed(self, *characters: tf.Tensor) -> Traced:
        """Composes each starter with the first mark or starter that it composes with, until nothing composes."""
        def step(_: tf.Tensor, code_point: tf.Tensor, first: tf.Tensor, last: tf.Tensor) -> tuple[tf.Tensor, ...]:
            combining = self._combining(code_point)
            is_starter = tf.equal(combining, 0)
            index = tf.range(tf.size(code_point))
            starters = tf.concat([[-1], where(is_starter)], 0)
            starter = tf.gather(starters, tf.cumsum(tf.cast(is_starter, tf.int32), exclusive=True))
            before = tf.concat([[0], combining[:-1]], 0)[:tf.size(combining)]
            is_reachable = (starter >= 0) & (tf.equal(starter, index - 1) | (before > 0) & (before < combining))
            starter = tf.maximum(starter, 0)
            pair = tf.cast(tf.gather(code_point, starter), tf.int64) * CODE_POINTS + tf.cast(code_point, tf.int64)
            pair_index = tf.minimum(tf.searchsorted(self._pairs, pair), tf.size(self._pairs) - 1)
            composes = is_reachable & tf.equal(tf.gather(self._pairs, pair_index), pair)
            count = tf.cumsum(tf.cast(composes, tf.int32))
            composes &= tf.equal(count - tf.gather(count, starter), 1) & ~tf.gather(composes, starter)

            at = tf.boolean_mask(starter, composes)[:, None]
            composites = tf.gather(self._composites, tf.boolean_mask(pair_index, composes))
            code_point = tf.tensor_scatter_nd_update(code_point, at, composites)
            last = tf.tensor_scatter_nd_max(last, at, tf.boolean_mask(last, composes))
            # The marks between a starter and the mark that it was composed with end where that mark ends.
            last = tf.where(is_starter, last, tf.maximum(last, tf.gather(last, starter)))
            return (tf.reduce_any(composes),
                    *(tf.boolean_mask(values, ~composes) for values in (code_point, first, last)))

        any_length = tf.TensorShape([None])
        return tf.while_loop(lambda continues, *_: continues, step, (True, *characters),
                             shape_invariants=(tf.TensorShape([]), any_length, any_length, any_length))[1:]


def _bools(array: np.ndarray) -> tf.Tensor:
    """Returns a constant of bytes, because TensorFlow writes bool constants one value at a time."""
    return tf.constant(array.view("uint8"))


def _is_in(bools: tf.Tensor, code_point: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.gather(bools, code_point), tf.bool)


_STEPS = 3  # characters that each word reads between two checks for finished tokens; measured
_LARGE = 64  # minimum number of texts for which two parallel halves are faster; measured


class GraphTokenizer(tf.Module):
    """A tokenizer in the TensorFlow graph: computes the ids of a `Tokenizer`, and the bytes of the text that each id
    came from. Skips invalid UTF-8. A kind of vocabulary is a subclass, which computes `_tokenize`."""

    def __init__(self, cells: np.ndarray, multiple: np.ndarray) -> None:
        super().__init__(name="tokenizer")
        self._cells, self._multiple = tf.constant(cells), tf.constant(multiple)
        # One function for all calls, because tracing it takes a second. It is not inlined, so that only the branch
        # taken, whole or in halves, is computed. The partial hides it from `tf.Module`, which would save it once more.
        texts = tf.TensorSpec([None], tf.string)
        self._ragged = functools.partial(tf.function(
            self._tokenize, [texts], autograph=False, experimental_attributes={"_noinline": True}))

    def tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Converts string [batch] to ids: int32 ragged [batch, (words), (tokens)]."""
        return self.tokenize_with_offsets(texts)[0]

    def tokenize_with_offsets(self, texts: tf.Tensor) -> tuple[tf.RaggedTensor, tf.RaggedTensor, tf.RaggedTensor]:
        """Converts string [batch] to three ragged [batch, (words), (tokens)]: the ids, int32, and the start and the end
        of each token in its original text, int64, in bytes."""
        return _in_halves(self._ragged, texts)

    def _tokenize(self, texts: tf.Tensor) -> tuple[tf.RaggedTensor, tf.RaggedTensor, tf.RaggedTensor]:
        """Computes the results of `tokenize_with_offsets`."""
        raise NotImplementedError

    def _rewritten(self, code_point: tf.Tensor, cell: tf.Tensor) -> Traced:
        """Returns the cells of code points after the rules that depend on neighbours; `cell` are those before."""
        raise NotImplementedError

    def _cells_of(self, code_point: tf.Tensor, byte: tf.Tensor) -> Traced:
        """Returns the cells of the code points, without dropped characters, and the bytes at which the source of each
        cell starts and ends: three int32 [cells]. The last cell is a space."""
        cell = gather(self._cells, code_point)

        def rare() -> Traced:
            index = tf.range(tf.size(code_point))
            rewritten = tf.cond(has_any(cell, IN_CONTEXT), lambda: self._rewritten(code_point, cell),
                                lambda: (cell, index, index))
            expanded = tf.cond(has_any(rewritten[0], MULTIPLE), lambda: self._expanded(*rewritten), lambda: rewritten)
            kept = where(expanded[0] & DROPPED == 0)
            cells, first, last = (tf.gather(values, kept) for values in expanded)
            return cells, tf.gather(byte, first), tf.gather(byte, last + 1)

        return tf.cond(tf.reduce_max(cell) >= DROPPED, rare, lambda: (cell, byte[:-1], byte[1:]))

    def _expanded(self, cell: tf.Tensor, first: tf.Tensor, last: tf.Tensor) -> Traced:
        multiple = cell & MULTIPLE != 0
        row = tf.gather(self._multiple, tf.where(multiple, cell & SYMBOL, 0))
        row = tf.where(multiple[:, None], row, tf.concat([cell[:, None], tf.fill(tf.shape(row[:, 1:]), -1)], 1))
        at = tf.where(row >= 0)
        return tf.gather_nd(row, at), tf.gather(first, at[:, 0]), tf.gather(last, at[:, 0])


class GraphWordPiece(GraphTokenizer):
    """`BertTokenizer` in the graph.

    All texts of a batch are one array of characters; the trie is walked for all words in parallel. Steps that few texts
    need are in branches that only batches with such texts execute."""

    def __init__(self, tokenizer: BertTokenizer) -> None:
        symbols = graph_tables.number_symbols(tokenizer.vocabulary)
        cells, multiple = graph_tables.cells(tokenizer.rules, symbols)
        super().__init__(cells, multiple)
        self._word_starts = len(symbols) + 1  # symbols >= this start a word, or are not part of one
        self._unknown, self._max_word_length = tokenizer.unk_id, tokenizer.max_word_length
        trie = graph_tables.vocabulary_trie(tokenizer.vocabulary, symbols)
        self._base, self._parent = tf.constant(trie.base), tf.constant(trie.parent)
        self._stops = tf.stack([trie.depth, trie.match, trie.behind], 1)
        self._in_context = InContext(tokenizer.rules, cells)

    def _tokenize(self, texts: tf.Tensor) -> tuple[tf.RaggedTensor, tf.RaggedTensor, tf.RaggedTensor]:
        code_point, byte, text_ends = decode(texts)
        cell, start, limit = self._cells_of(code_point, byte)
        alone = cell >= ALONE  # True for spaces too
        is_cut = tf.concat([[True], alone[:-1]], 0) | alone
        starts_word = is_cut & (cell < SPACE)
        word_at = where(starts_word)
        symbol = (cell & SYMBOL) + self._word_starts * tf.cast(is_cut, tf.int32)
        token_of = self._longest_matches(symbol, starts_word, word_at)

        token_at = where(token_of > 0)
        end_at = where((token_of > 0) | (cell >= SPACE))  # a token ends before a token or a space
        end_at = tf.boolean_mask(end_at[1:], gather(token_of, end_at[:-1]) > 0)
        starts, limits = (tf.cast(gather(*at), tf.int64) for at in ((start, token_at), (limit, end_at - 1)))
        token_splits = tf.concat([tf.where(gather(starts_word, token_at))[:, 0], tf.shape(token_at, tf.int64)], 0)
        return by_text(gather(token_of, token_at) - 1, starts, limits, token_splits, gather(start, word_at), text_ends)

    def _rewritten(self, code_point: tf.Tensor, cell: tf.Tensor) -> Traced:
        code_point, first, last = self._in_context(code_point)
        return tf.gather(self._cells, code_point) & ~IN_CONTEXT, first, last

    def _longest_matches(self, symbol: tf.Tensor, starts_word: tf.Tensor, word_at: tf.Tensor) -> tf.Tensor:
        """Returns 1 + the id of the token that starts at each character, 0 if none does: int32 [characters]."""
        next_at = tf.concat([word_at[1:], tf.shape(symbol)], 0)
        last = tf.minimum(word_at + self._max_word_length, tf.size(symbol) - 1)
        # A word is too long if it continues at `last`; the distance to the next word is not enough: it includes spaces.
        is_long = (next_at - word_at > self._max_word_length) & (tf.gather(symbol, last) < self._word_starts)
        at, token = self._walk(symbol, tf.boolean_mask(word_at, ~is_long))
        token_of = tf.math.unsorted_segment_sum(token + 1, at, tf.size(symbol))  # ten times as fast as scatter_nd
        unknown_at = tf.concat([tf.boolean_mask(at, token < 0), tf.boolean_mask(word_at, is_long)], 0)

        def without_unknown_words() -> tf.Tensor:
            word = tf.searchsorted(word_at, unknown_at, side="right") - 1
            at = tf.ragged.range(tf.gather(word_at, word), tf.gather(next_at, word)).flat_values
            tokens = tf.where(tf.gather(starts_word, at), self._unknown + 1, 0)
            return tf.tensor_scatter_nd_update(token_of, at[:, None], tokens)

        return tf.cond(tf.size(unknown_at) > 0, without_unknown_words, lambda: token_of)

    def _walk(self, symbol: tf.Tensor, word_at: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Finds the greedy longest matches of all words at once: int32 [words], their starts, in symbols, int32
        [characters], of which the last is not part of a word. Returns the starts of the tokens and their ids, -1 if the
        rest of a word cannot be spelled: two int32 [tokens], in no particular order."""
        def step(node: tf.Tensor, position: tf.Tensor, at: tf.Tensor, token: tf.Tensor) -> tuple[tf.Tensor, ...]:
            for _ in range(_STEPS):
                following = tf.gather(self._base, node) + tf.gather(symbol, position)
                continues = tf.equal(tf.gather(self._parent, following), node)
                node = tf.where(continues, following, node)
                position += tf.cast(continues, tf.int32)
            continues = tf.cast(continues, tf.int32)
            stopped, node = tf.dynamic_partition(node, continues, 2)
            stopped_at, position = tf.dynamic_partition(position, continues, 2)
            depth, match, behind = tf.unstack(tf.gather(self._stops, stopped), axis=1)
            again = stopped_at - behind
            again = tf.boolean_mask(again, (match >= 0) & (tf.gather(symbol, again) < self._word_starts))
            node, position = tf.concat([node, tf.zeros_like(again)], 0), tf.concat([position, again], 0)
            return node, position, tf.concat([at, stopped_at - depth], 0), tf.concat([token, match], 0)

        none = tf.zeros([0], tf.int32)
        return tf.while_loop(
            lambda node, *_: tf.size(node) > 0, step, (tf.zeros_like(word_at), word_at, none, none),
            shape_invariants=4 * (tf.TensorShape([None]),), parallel_iterations=1)[2:]


def _in_halves(function: Callable[[tf.Tensor], tuple[tf.RaggedTensor, ...]],
               texts: tf.Tensor) -> tuple[tf.RaggedTensor, ...]:
    """Returns `function(texts)`. Computes two halves of a large batch in parallel."""
    def halves() -> tuple[tf.RaggedTensor, ...]:
        half = tf.size(texts) // 2
        return tf.nest.map_structure(lambda *parts: tf.concat(parts, 0), function(texts[:half]), function(texts[half:]))

    def with_static_batch(tokens: tf.RaggedTensor) -> tf.RaggedTensor:  # which the results of the branches lack
        splits = tf.concat([[0], tf.reshape(tokens.row_splits[1:], tf.shape(texts))], 0)
        return tf.RaggedTensor.from_row_splits(tokens.values, splits, validate=False)

    return tf.nest.map_structure(with_static_batch, tf.cond(tf.size(texts) >= _LARGE, halves, lambda: function(texts)))


def decode(texts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Decodes string [batch]. A space after each text ends its last word. Returns the code points, int32 [characters];
    the byte at which each one starts, counted over all texts, and the end of the last one, int32 [characters + 1]; and
    the end of each text, int32 [batch]."""
    joined = tf.strings.join([tf.strings.reduce_join(texts, separator=" "), " "])
    raw = tf.io.decode_raw(joined, tf.uint8)

    def utf8() -> tuple[tf.Tensor, tf.Tensor]:
        _, code_point, byte = tf.raw_ops.UnicodeDecodeWithOffsets(
            input=[joined], input_encoding="UTF-8", errors="replace")
        return code_point, tf.concat([tf.cast(byte, tf.int32), tf.shape(raw)], 0)

    code_point, byte = tf.cond(  # for ASCII, five times as fast
        tf.reduce_all(raw < 128), lambda: (tf.cast(raw, tf.int32), tf.range(tf.size(raw) + 1)), utf8)
    return code_point, byte, tf.cumsum(tf.strings.length(texts) + 1)


def by_text(token: tf.Tensor, starts: tf.Tensor, limits: tf.Tensor, token_splits: tf.Tensor, word_starts: tf.Tensor,
            text_ends: tf.Tensor) -> tuple[tf.RaggedTensor, tf.RaggedTensor, tf.RaggedTensor]:
    """Returns the results of `tokenize_with_offsets` from the tokens of all texts, with their bytes as `decode` counts
    them; the row splits of the words, int64; and the bytes at which the words start and the texts end, int32."""
    word_splits = tf.concat([[0], tf.searchsorted(word_starts, text_ends, out_type=tf.int64)], 0)
    text_ends = tf.cast(text_ends, tf.int64)
    text_start = tf.gather(tf.concat([[0], text_ends], 0), tf.searchsorted(text_ends, starts, side="right"))

    def ragged(values: tf.Tensor) -> tf.RaggedTensor:
        return tf.RaggedTensor.from_nested_row_splits(values, [word_splits, token_splits], validate=False)

    return ragged(token), ragged(starts - text_start), ragged(limits - text_start)


def gather(values: tf.Tensor, index: tf.Tensor) -> tf.Tensor:
    return tf.gather_nd(values, index[:, None])  # faster than tf.gather on a CPU if there are many indices


def where(condition: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.where(condition)[:, 0], tf.int32)


def has_any(cell: tf.Tensor, flag: int) -> tf.Tensor:
    return tf.reduce_any(cell & flag != 0)
