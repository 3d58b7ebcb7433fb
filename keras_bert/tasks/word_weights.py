"""How much each word counts for an answer: the answer without the word is compared with the answer (occlusion; Zeiler
and Fergus, 2014; Li et al., 2016, https://arxiv.org/abs/1612.08220). In NumPy here, in a graph in
word_weights_graph.py; tests/test_word_weights.py compares both with one prediction for each word.

A word is a run of characters that are not `SPACES`. A variant of an input has the same texts without one word. The
weight of a word is an output for the input minus the same output for the variant. It is positive if the word speaks for
the output. A text's words after the first `Task.tokens_read`, or before the last ones if it is truncated on the left,
are not read by the model. They have the weight 0. This takes each word for at least one token, but a word of characters
that the tokenizer removes has none."""

import dataclasses
import re
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from keras_bert.tasks.base import Encoded, Outputs, Task
from keras_bert.text import Tokenizer

SIGNATURE = "word_weights"  # of SavedModels and of LiteRT folders
# The outputs of the signature, as in `Task.exported_outputs`: W words, padded, and L outputs, see `output_size`.
OUTPUTS: dict[str, tuple[type, str]] = {"word_start": (np.int32, "BW"), "word_end": (np.int32, "BW"),
                                        "word_segment": (np.int32, "BW"), "word_weight": (np.float32, "BWL")}
# What the rules of tokenizers take for a space, by the number of bytes in UTF-8.
SPACES = {1: r" \t\n\r", 2: "\u00a0", 3: "\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"}
_CHARACTERS = 2**18  # of the variants that are answered at a time
_WORD = re.compile(f"[^{''.join(SPACES.values())}]+")


@dataclasses.dataclass(frozen=True)
class WordWeight:
    """How much a word of an input counts for an answer. `start` and `end`, exclusive, are its characters in the `text`
    of this name, one of the task's `inputs`."""

    word: str
    start: int
    end: int
    weight: float
    text: str


def output_size(task: Task) -> int:
    """Returns the number of outputs that have weights: one for each label, or 1 if the answer is a number."""
    _, axes = task.exported_outputs[task.weighed]
    return len(cast(Any, task).labels) if "L" in axes else 1


def find_words(text: str) -> list[tuple[int, int]]:
    """Returns the start and the end of each word of a text."""
    return [match.span() for match in _WORD.finditer(text)]


def weigh(task: Task, tokenizer: Tokenizer, texts: Sequence[str],
          outputs: Callable[[Encoded], Outputs]) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Computes the weights of the words of an input, one text for each of the task's `inputs`.

    Args:
        outputs: returns the model's output for each row of encoded examples.

    Returns:
        a row of `OUTPUTS`, without the axis B; and the input's own outputs, float32 [outputs].
    """
    words, read, most = [], [], task.tokens_read(tokenizer)
    for segment, text in enumerate(texts):
        found = find_words(text)
        skipped = max(len(found) - most, 0) if tokenizer.truncation_side == "left" else 0
        words += [(start, end, segment) for start, end in found]
        read += [skipped <= number < skipped + most for number in range(len(found))]
    variants = [[part[:start] + part[end:] if number == segment else part for number, part in enumerate(texts)]
                for (start, end, segment), is_read in zip(words, read) if is_read]
    found, size = [], max(1, _CHARACTERS // max(1, sum(map(len, texts))))
    for begin in range(0, len(variants) + 1, size):
        encoded = task.encode([task.example(*parts) for parts in [texts, *variants][begin:begin + size]], tokenizer)
        found += [row[task.weighed] for row in task.exported_rows(encoded, outputs(encoded))]
    values = np.array(found, np.float32).reshape(len(variants) + 1, output_size(task))
    weights = np.zeros((len(words), values.shape[1]), np.float32)
    weights[np.array(read, bool)] = values[0] - values[1:]
    positions: Any = np.array(words, np.int32).reshape(-1, 3).T
    return dict(zip(OUTPUTS, [*positions, weights])), values[0]
