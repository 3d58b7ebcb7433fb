"""What an exported model loses: scores and answers of two models on the same labelled data."""

import dataclasses
import operator
from typing import Any

import numpy as np

from keras_bert.inference.task_model import TaskModel
from keras_bert.tasks import Encoded


@dataclasses.dataclass(frozen=True)
class Comparison:
    """A model's main score before and after it was exported.

    Args:
        metric: name of the score.
        original, exported: the score of both.
        examples: number of examples.
        equal: share of the examples with the same answer, scores aside; None if answers are numbers.
        percent: if True, the score is in percent, as SQuAD's.
    """

    metric: str
    original: float
    exported: float
    examples: int
    equal: float | None
    percent: bool = False

    @property
    def loss(self) -> float:
        """The loss in percentage points; negative if the exported model is better."""
        return (1 if self.percent else 100) * (self.original - self.exported)

    def __str__(self) -> str:
        equal = "" if self.equal is None else f"; {self.equal:.2%} of the answers are equal"
        return (f"{self.metric} {self.exported:.4f}, and {self.original:.4f} before the export, on {self.examples:,} "
                f"examples{equal}")


def compare(original: TaskModel, exported: TaskModel, encoded: Encoded) -> Comparison:
    """Compares two models of the same task on labelled examples that either of them encoded."""
    task, metric = original.task, original.task.main_score(encoded.examples)
    outputs = [model.outputs(encoded) for model in (original, exported)]
    before, after = (task.score(encoded, part)[metric] for part in outputs)
    return Comparison(metric, before, after, len(encoded.examples),
                      equal_answers(*(task.answers(encoded, part) for part in outputs)), task.percent)


def equal_answers(one: list | np.ndarray, other: list | np.ndarray) -> float | None:
    """Returns the share of equal answers in two lists, scores aside; None if they are numbers or there are none."""
    first, second = (list(map(_without_scores, answers)) for answers in (one, other))
    return None if not first or first[0] is None else sum(map(operator.eq, first, second)) / len(first)


def _without_scores(answer: Any) -> Any:
    """Returns an answer of a task, with None in place of its numbers that are not positions."""
    if isinstance(answer, float | np.ndarray):
        return None
    if dataclasses.is_dataclass(answer):
        answer = list(vars(answer).values())
    return [_without_scores(part) for part in answer] if isinstance(answer, list | tuple) else answer
