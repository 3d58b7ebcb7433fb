"""What `FineTuned`, `LiteModel` and `Exported` have in common."""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, Self

import numpy as np

from keras_bert.arguments import AggregationStrategy, Path
from keras_bert.data.tables import Rows
from keras_bert.inference.task_model import TaskModel
from keras_bert.litert import is_litert
from keras_bert.tasks import Task


class AnsweringModel(Protocol):
    """A model that answers the examples of a task."""

    @property
    def task(self) -> Task: ...

    def with_prompt(self, prompt_name: str | None) -> Self:
        """Returns a copy that puts this prompt before the texts to embed, or itself if it is None."""

    def iterate(self, path: Path | Rows, **columns: Any) -> Iterator:
        """Yields the examples of the task's `iterate`."""

    def answer_with_cuts(self, examples: Sequence, *, top_k: int = 1,
                         aggregation_strategy: AggregationStrategy | None = None) -> tuple[list | np.ndarray, Counter]:
        """Returns the answers to examples, and the numbers of these that were `cut`, and `split` into windows."""


def load_answering_model(path: str, threads: int | None = None) -> AnsweringModel:
    """Returns the `Exported` of a SavedModel, or another folder's `load_task_model`."""
    if os.path.isfile(os.path.join(path, "saved_model.pb")):
        from keras_bert.inference.exported import Exported

        return Exported(path)
    return load_task_model(path, threads)


def load_task_model(path: str, threads: int | None = None) -> TaskModel:
    """Returns the `LiteModel` of a folder of `export litert`, with this number of threads, or another folder's
    `FineTuned`. Only one of them is imported: a `LiteModel` needs no TensorFlow."""
    if is_litert(path):
        from keras_bert.inference.lite_model import LiteModel

        return LiteModel.load(path, threads)
    from keras_bert.inference.fine_tuned import FineTuned

    return FineTuned.load(path)
