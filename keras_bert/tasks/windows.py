"""Windows: texts that are longer than the encoder's inputs are read as several inputs, which overlap.

keras_bert/tasks/graph.py has the same windows as TensorFlow operations."""

import dataclasses
import itertools
import sys
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from keras_bert.arguments import Aggregate, Count
from keras_bert.errors import InputError, Option
from keras_bert.tasks.base import Answers, Reader, Task, Windows
from keras_bert.text import Tokenizer
from keras_bert.text.packing import truncate_pair
from keras_bert.types import Tensor

Row = tuple[list[int], int]  # the result of `Tokenizer.pack` for one text


def windows(tokens: int, size: int, stride: int, most: int | None = None) -> list[tuple[int, int]]:
    """Returns the begin and the end of each window of a text of `tokens` tokens; one empty window if there are none.
    Windows of at most `size` tokens start at 0, `stride`, 2 * `stride`, … until one reaches the end, or there are
    `most`. A `stride` above `size` is reduced to it, so that no token is skipped."""
    stride = min(stride, size)
    begins = range(0, max(tokens - size, 0) + stride, stride)[:most]
    return [(begin, min(begin + size, tokens)) for begin in begins]


def needed_tokens(size: int, stride: int, most: int | None) -> int:
    """Returns the number of tokens of a text that its `windows` depend on, plus one, which shows if there are more."""
    return sys.maxsize if most is None else size + (most - 1) * min(stride, size) + 1


def default_stride(max_length: int) -> int:
    """Returns the recommended `doc_stride`, with which each token is in about two windows."""
    return max_length // 2


def own_tokens(parts: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Returns the begin and the end of the tokens that each of the `windows` of a text answers: those that have more
    context in it than in the others, where the context of a token is the smaller number of tokens before and after it
    (google-research/bert `run_squad.py`); of two windows with equal contexts, the first. That is, two windows divide
    their overlap in the middle."""
    borders = [(end + begin + 1) // 2 for (_, end), (begin, _) in itertools.pairwise(parts)]
    return list(zip([parts[0][0], *borders], [*borders, parts[-1][1]]))


def aggregated(values: np.ndarray, firsts: np.ndarray | None, aggregate: Aggregate) -> np.ndarray:
    """Returns the mean or the maximum of the values, float [windows, width], of the windows of each text: [texts,
    width]. `firsts`, int [texts], are the indices of their first windows; None if each text is one window."""
    if firsts is None or len(firsts) == len(values):
        return values
    if aggregate == "max":
        return np.maximum.reduceat(values, firsts)
    counts = np.diff(firsts, append=len(values))
    return np.add.reduceat(values, firsts, dtype=np.float64) / counts[:, None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SplittingTask(Task):
    """A task that can read a text longer than `max_length` as several inputs.

    Args:
        doc_stride: number of tokens from the start of one window to the start of the next.
        max_windows: maximum number of windows of a text, which is cut after them. If None, there is no limit.
    """

    doc_stride: Count | None = None
    max_windows: Count | None = None

    options: ClassVar[tuple[str, ...]] = ("doc_stride", "max_windows")
    fields: ClassVar[tuple[str, ...]] = options

    def check_tokenizer(self, tokenizer: Tokenizer) -> None:
        if not self.windows:
            return
        if tokenizer.truncation_side != "right":
            raise InputError("truncation_side in tokenizer_config.json must be right for a model that splits texts "
                             f"into windows; got {tokenizer.truncation_side}")
        texts = len(self.inputs)
        more = tokenizer.special_tokens(texts) - (1 + texts)  # beside [CLS] and a [SEP] after each text
        if more and self.max_length < (shortest := 1 + 2 * texts + more):
            raise InputError(Option("max_length"), f" must be at least {shortest}, for {texts + more + 1} special "
                             f"tokens and a token of each text; got {self.max_length}")

    @property
    def limits(self) -> tuple[str, ...]:
        return ("max_windows",) if self.windows and self.max_windows is not None else super().limits

    def tokens_read(self, tokenizer: Tokenizer) -> int:
        size = super().tokens_read(tokenizer)
        return needed_tokens(size, self.doc_stride or size, self.max_windows) - 1 if self.windows else size

    def settings(self) -> dict[str, Any]:
        left_out = WindowTask.fields if not self.windows else ("max_windows",) if self.max_windows is None else ()
        return {name: value for name, value in super().settings().items() if name not in left_out}


@dataclasses.dataclass(frozen=True, kw_only=True)
class WindowTask(SplittingTask):
    """A task with one answer for a text of any length.

    A text longer than `max_length` is cut, or if there is a `doc_stride`, split into windows. Of a pair, the second
    text is split, and each window has the first one; each window of a text with a prompt begins with the prompt. Both
    get at most half of the input if the text is split. In training, each window is an example with the target of its
    text. The answer is made from the aggregated outputs of the windows.

    Args:
        doc_stride: see `SplittingTask`. If None, texts are cut.
        aggregate: mean or maximum of the outputs of the windows.
    """

    aggregate: Aggregate = "mean"

    options: ClassVar[tuple[str, ...]] = ("doc_stride", "aggregate", "max_windows")
    fields: ClassVar[tuple[str, ...]] = options

    def __post_init__(self) -> None:
        shortest = 1 + 2 * len(self.inputs)
        if self.windows and self.max_length < shortest:
            raise InputError(Option("max_length"), f" must be at least {shortest} with a ", Option("doc_stride"),
                             f", for [CLS], [SEP]s and a token of each text; got {self.max_length}")

    @property
    def windows(self) -> bool:
        return self.doc_stride is not None

    @property
    def limits(self) -> tuple[str, ...]:
        """Also `max_length`, at which the first text of a pair may be cut."""
        limits = super().limits
        return limits if len(self.inputs) == 1 or "max_length" in limits else ("max_length", *limits)

    def answer_in_graph(self, reader: Reader, *inputs: Tensor) -> Answers:
        if not self.windows:
            return super().answer_in_graph(reader, *inputs)
        from keras_bert.tasks.graph import run_windows

        return self.combine_in_graph(*run_windows(self, reader, inputs))

    def combine_in_graph(self, outputs: Tensor, mask: Tensor, parts: Windows) -> Answers:
        """Returns the answers to texts from the outputs of their windows, float32 [windows, width]."""
        return self.encode_in_graph(parts.aggregated(outputs, self.aggregate), mask)

    def split_texts(self, tokenizer: Tokenizer, texts: list[str], text_pairs: list[str] | None = None,
                    prompts: list[str] | None = None) -> tuple[list[list[Row]], list[int]]:
        """Returns the inputs of each text or pair of texts, one for each of its windows, and the indices of the texts
        of which a part is left out. `prompts` are put before single texts; each window begins with its text's."""
        if prompts is not None:
            texts = [prompt + text for prompt, text in zip(prompts, texts)]
        if self.doc_stride is None:
            packed, cut = tokenizer.pack_with_cuts(texts, text_pairs, self.max_length)
            return [[row] for row in packed], cut
        needed = needed_tokens(self.max_length, self.doc_stride, self.max_windows)
        pairs = [None] * len(texts) if text_pairs is None else tokenizer.ids(text_pairs, needed)
        prompt_lengths = [0] * len(texts) if prompts is None else map(len, tokenizer.ids(prompts))
        rows, cut = [], []
        firsts = tokenizer.ids(texts, needed)
        for index, (first, second, prompt_length) in enumerate(zip(firsts, pairs, prompt_lengths)):
            room = self.max_length - tokenizer.special_tokens(1 if second is None else 2)
            if second is None:
                kept = min(prompt_length, room // 2)
                head, text = first[:kept], first[kept:]
            else:
                head, text = truncate_pair(first, second, room)[0], second
            parts = windows(len(text), max(room - len(head), 1), self.doc_stride, self.max_windows)
            inputs = [(head + text[begin:end], None) if second is None else (head, text[begin:end])
                      for begin, end in parts]
            rows.append([tokenizer.pack_ids(a, b, self.max_length) for a, b in inputs])
            if parts[-1][1] < len(text) or second is not None and len(head) < len(first):
                cut.append(index)
        return rows, cut
