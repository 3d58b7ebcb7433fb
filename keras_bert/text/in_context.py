"""The rules that look at neighbours, as TensorFlow operations: the final sigma, marks that change places, characters
that compose (The Unicode Standard, 3.11 and 3.13). Few texts need them."""

import tensorflow as tf

from keras_bert.text import code_points
from keras_bert.text.code_points import CODE_POINTS, DROPPED


class InContext(tf.Module):
    """Rewrites code points so that what becomes of each one no longer depends on its neighbours.

    Args:
        rules: the `Rules` to follow.
        cells: int32 [CODE_POINTS], see `code_points.cells`.
    """

    def __init__(self, rules, cells):
        super().__init__(name="in_context")
        self._lower_case = rules.lower_case
        self._composes = rules.normalization == "NFC"
        self._decomposes = self._composes or rules.strip_accents
        if self._lower_case:
            self._unseen, self._cased = map(_bools, code_points.sigma_context())
        if self._decomposes:
            self._decomposition, self._parts = map(tf.constant, code_points.decompositions(rules))
            self._class = tf.constant(code_points.combining_classes())
            # What is deleted stands between no two marks. What is stripped does, but for NFC, which comes after it.
            self._is_gone = _bools(cells & DROPPED != 0 if self._composes else code_points.deleted())
        if self._composes:
            self._pairs, self._composites = map(tf.constant, code_points.compositions())

    def __call__(self, code_point):
        """int32 [characters] to the rewritten code points and the first and last character that each came from, by
        index: three of int32 [rewritten]."""
        if self._lower_case:
            code_point = self._with_final_sigmas(code_point)
        index = tf.range(tf.size(code_point))
        characters = code_point, index, index
        if self._decomposes:
            characters = self._in_order(*self._decomposed(code_point))
        return self._composed(*characters) if self._composes else characters

    def _with_final_sigmas(self, code_point):
        """A capital sigma that ends a word becomes the small letter for that place, as in `str.lower`: after a cased
        letter and before none, case-ignorable characters aside."""
        is_seen = ~_is_in(self._unseen, code_point)
        cased = _is_in(self._cased, tf.boolean_mask(code_point, is_seen))
        cased = tf.concat([[False], cased, [False]], 0)
        rank = tf.cumsum(tf.cast(is_seen, tf.int32))  # of a character that is seen: its place in `cased`
        before, after = tf.maximum(rank - 1, 0), tf.minimum(rank + 1, tf.size(cased) - 1)
        is_final = tf.equal(code_point, ord("Σ")) & tf.gather(cased, before) & ~tf.gather(cased, after)
        return tf.where(is_final, ord("ς"), code_point)

    def _decomposed(self, code_point):
        row = tf.cast(tf.gather(self._decomposition, code_point), tf.int32)
        parts = tf.gather(self._parts, tf.maximum(row, 0))
        alone = tf.concat([code_point[:, None], tf.fill(tf.shape(parts[:, 1:]), -1)], 1)
        parts = tf.where(row[:, None] >= 0, parts, alone)
        is_left = (parts >= 0) & ~_is_in(self._is_gone, tf.maximum(parts, 0))
        at = tf.where(is_left)
        index = tf.cast(at[:, 0], tf.int32)
        return tf.gather_nd(parts, at), index, index

    def _combining(self, code_point):
        return tf.cast(tf.gather(self._class, code_point), tf.int32)

    def _in_order(self, code_point, first, last):
        """Marks between two starters by combining class, in their old order where it is the same. Who changes places
        comes from the whole of the run."""
        combining = self._combining(code_point)
        run = tf.cumsum(tf.cast(tf.equal(combining, 0), tf.int64))
        order = run * 256 + tf.cast(combining, tf.int64)

        def sorted_runs():
            count = tf.size(order, tf.int64)
            index = tf.range(count)
            source = tf.sort(order * count + index) % count
            is_mark = tf.gather(combining, source) > 0
            moved = tf.math.unsorted_segment_max(tf.cast(source != index, tf.int32), run, count + 1)
            moves = is_mark & (tf.gather(moved, run) > 0)
            mark_run = tf.where(combining > 0, run, 0)
            lowest = tf.gather(tf.math.unsorted_segment_min(first, mark_run, count + 1), run)
            highest = tf.gather(tf.math.unsorted_segment_max(last, mark_run, count + 1), run)
            return (tf.gather(code_point, source), tf.where(moves, lowest, tf.gather(first, source)),
                    tf.where(moves, highest, tf.gather(last, source)))

        return tf.cond(tf.reduce_any(order[1:] < order[:-1]), sorted_runs, lambda: (code_point, first, last))

    def _composed(self, *characters):
        """Composes each starter with the first mark, or starter, that it can, until there is none."""
        def step(_, code_point, first, last):
            combining = self._combining(code_point)
            is_starter = tf.equal(combining, 0)
            index = tf.range(tf.size(code_point))
            starters = tf.concat([[-1], tf.cast(tf.where(is_starter)[:, 0], tf.int32)], 0)
            starter = tf.gather(starters, tf.cumsum(tf.cast(is_starter, tf.int32), exclusive=True))
            before = tf.concat([[0], combining[:-1]], 0)[:tf.size(combining)]
            is_reachable = (starter >= 0) & (
                tf.equal(starter, index - 1) | (before > 0) & (before < combining))
            starter = tf.maximum(starter, 0)
            pair = tf.cast(tf.gather(code_point, starter), tf.int64) * CODE_POINTS + tf.cast(code_point, tf.int64)
            place = tf.minimum(tf.searchsorted(self._pairs, pair), tf.size(self._pairs) - 1)
            composes = is_reachable & tf.equal(tf.gather(self._pairs, place), pair)
            count = tf.cumsum(tf.cast(composes, tf.int32))
            composes &= tf.equal(count - tf.gather(count, starter), 1) & ~tf.gather(composes, starter)

            at = tf.boolean_mask(starter, composes)[:, None]
            composites = tf.gather(self._composites, tf.boolean_mask(place, composes))
            code_point = tf.tensor_scatter_nd_update(code_point, at, composites)
            last = tf.tensor_scatter_nd_max(last, at, tf.boolean_mask(last, composes))
            last = tf.where(is_starter, last, tf.maximum(last, tf.gather(last, starter)))  # of marks it reached over
            return (tf.reduce_any(composes),
                    *(tf.boolean_mask(values, ~composes) for values in (code_point, first, last)))

        any_length = tf.TensorShape([None])
        return tf.while_loop(lambda goes_on, *_: goes_on, step, (True, *characters),
                             shape_invariants=(tf.TensorShape([]), any_length, any_length, any_length))[1:]


def _bools(array):
    """A bool array as a constant of bytes: TensorFlow writes those of bool one value at a time."""
    return tf.constant(array.view("uint8"))


def _is_in(bools, code_point):
    return tf.cast(tf.gather(bools, code_point), tf.bool)
