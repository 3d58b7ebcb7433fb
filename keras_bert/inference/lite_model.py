"""`LiteModel`: the folder that `export litert` writes, which answers without TensorFlow."""

import dataclasses
import itertools
import os
from collections.abc import Sequence
from typing import Self

import numpy as np

from keras_bert.arguments import Count, Path, check
from keras_bert.config import BertConfig
from keras_bert.data.batches import ChoiceBatches
from keras_bert.errors import InputError
from keras_bert.files.paths import check_model_folder
from keras_bert.inference.task_model import TaskModel
from keras_bert.litert import FILE, Arrays, LiteRunner
from keras_bert.tasks import Encoded, Task, read_settings
from keras_bert.text import BertTokenizer, pad

_BATCH = 8  # rows; larger batches are not faster
_SMALLEST = np.finfo(np.float32).tiny


@dataclasses.dataclass(frozen=True)
class LiteModel(TaskModel):
    """A model that TensorFlow's small runtime LiteRT runs: the interface of `FineTuned`, and its answers. Needs only
    `ai-edge-litert`, `tokenizers` and NumPy. Several threads may use a model at the same time.

    Example: `LiteModel.load(folder).predict(["a text"])[0]`

    Args:
        runner: the model file.
        tokenizer: the model's `BertTokenizer`.
        task: the task that the model was trained for, see `keras_bert.tasks`.
        columns: see `TaskModel`.
    """

    runner: LiteRunner
    tokenizer: BertTokenizer
    task: Task
    columns: dict[str, str | list[str]] = dataclasses.field(default_factory=dict)

    @classmethod
    def load(cls, folder: Path, threads: Count | None = None) -> Self:
        """Reads the folder that `export litert` wrote.

        Args:
            threads: number of cores to use. If None, all.

        Raises:
            InputError: the folder was not written by `export litert`, or `ai-edge-litert` is not installed.
        """
        check(cls.load, locals())
        check_model_folder(folder)
        if not os.path.exists(os.path.join(folder, FILE)):
            raise InputError(f"{folder}: must be a folder that export litert wrote; {FILE} is missing")
        config = BertConfig.from_json(os.path.join(folder, "bert_config.json"))
        task, columns = read_settings(folder)
        return cls(LiteRunner(os.fspath(folder), config, threads), BertTokenizer.from_folder(folder), task, columns)

    def outputs(self, encoded: Encoded, batch_size: int | None = None) -> list:
        has_groups = issubclass(encoded.batches, ChoiceBatches)
        rows = list(itertools.chain.from_iterable(encoded.rows)) if has_groups else encoded.rows
        outputs = iter(self.outputs_of_rows(rows, batch_size or _BATCH))
        return [np.stack([next(outputs) for _ in group]) for group in encoded.rows] if has_groups else list(outputs)

    def with_task(self, task: Task) -> Self:
        return dataclasses.replace(self, task=task)

    def outputs_of_rows(self, rows: Sequence[tuple[list[int], int]], batch_size: int) -> list:
        """Returns the output of the Keras model for each row of `BertTokenizer.pack`. Batches are of rows of the same
        length, because LiteRT computes padding too."""
        by_length: dict[int, list[int]] = {}
        for index, (ids, _) in enumerate(rows):
            by_length.setdefault(len(ids), []).append(index)
        batches = [same[begin:begin + batch_size]
                   for same in by_length.values() for begin in range(0, len(same), batch_size)]
        outputs: list = [None] * len(rows)
        for indices, batch in zip(batches, self.runner.map([self._inputs(rows, indices) for indices in batches])):
            for index, row in zip(indices, self._logits(batch)):
                outputs[index] = row
        return outputs

    def _inputs(self, rows: Sequence[tuple[list[int], int]], indices: Sequence[int]) -> Arrays:
        inputs = pad([rows[index] for index in indices], self.tokenizer.pad_id)
        inputs["input_type_ids"] = inputs.pop("segment_ids")
        return inputs

    def _logits(self, outputs: Arrays) -> list:
        """Returns the output of the Keras model for each row of a batch."""
        if len(outputs) > 1:
            return [dict(zip(outputs, row)) for row in zip(*outputs.values())]
        array, = outputs.values()
        match self.task.activation:
            case "softmax":
                array = np.log(np.maximum(array, _SMALLEST))
            case "sigmoid":
                array = np.log(np.maximum(array, _SMALLEST)) - np.log(np.maximum(1 - array, _SMALLEST))
        return list(array)
