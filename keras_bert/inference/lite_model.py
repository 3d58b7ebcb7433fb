"""`LiteModel`: the folder that `export litert` writes, which answers without TensorFlow."""

import dataclasses
import itertools
import os
from collections.abc import Collection, Sequence
from typing import Any, Self

import numpy as np

from keras_bert.arguments import Count, Path, check
from keras_bert.config import BertConfig
from keras_bert.data.batches import ChoiceBatches
from keras_bert.errors import InputError
from keras_bert.files.digests import DIGESTS, changed_files
from keras_bert.inference.task_model import TaskModel
from keras_bert.litert import FILE, Arrays, LiteRunner
from keras_bert.tasks import Encoded, Task, read_settings
from keras_bert.text import BertTokenizer, pad

_BATCH = 8  # rows; larger batches are not faster
_TOKENS = 1024  # of a batch
_LOADS = 10  # attempts
_SMALLEST = np.finfo(np.float32).tiny
_HALF_STEP = 2.0**-25  # half of the distance from 1 to the next lower float32


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
    def load(cls, folder: Path, threads: Count | None = None, one_core_per_call: bool = False) -> Self:
        """Reads the folder that `export litert` wrote.

        Args:
            threads: number of cores to use. If None, all.
            one_core_per_call: If False, a call that is alone uses all cores. If True, each call uses one, which takes
                less memory, and less time if there are as many calls at the same time as cores.

        Raises:
            InputError: the folder was not written by `export litert`, or `ai-edge-litert` is not installed.
        """
        check(cls.load, locals())
        for _ in range(_LOADS):
            before = _identity(folder)
            config = BertConfig.from_json(os.path.join(folder, "bert_config.json"))
            task, columns = read_settings(folder)
            runner = LiteRunner(os.fspath(folder), config, threads, one_core_per_call)
            model = cls(runner, BertTokenizer.from_folder(folder), task, columns)
            if _identity(folder) == before:
                model._check(folder)
                return model
        raise InputError(f"{os.fspath(folder)}: was replaced again and again while it was read; load it again")

    def _check(self, folder: Path) -> None:
        """Raises an InputError if the files of a folder do not belong together."""
        found, wanted = (", ".join(sorted(names)) for names in (self.runner.outputs, self.task.lite_outputs))
        if found != wanted:
            raise InputError(f"{os.fspath(folder)}: {FILE} must have the outputs of the task {self.task.name}, "
                             f"{wanted}; got {found}; export the model again")
        labels, size = getattr(self.task, "labels", []), self.runner.config.vocab_size
        for name, axes in self.task.lite_outputs.items():
            if axes[-1] == "L" and (count := self.runner.outputs[name]["shape_signature"][-1]) != len(labels):
                raise InputError(f"{os.fspath(folder)}: labels.json must have a label for each of the {name} of {FILE} "
                                 f"({count}); got {len(labels)}; export the model again")
        if len(self.tokenizer.vocabulary) > size:
            raise InputError(f"{os.fspath(folder)}: vocab.txt must have at most vocab_size ({size}) tokens; "
                             f"got {len(self.tokenizer.vocabulary)}; export the model again")
        check_files(folder, ("labels.json", "vocab.txt", "tokenizer_config.json", "bert_config.json"))

    def outputs(self, encoded: Encoded, batch_size: int | None = None) -> list:
        return group_outputs(encoded, self.outputs_of_rows(rows_of(encoded), batch_size or _BATCH))

    def outputs_of_rows(self, rows: Sequence[tuple[list[int], int]], batch_size: int) -> list:
        """Returns the output of the Keras model for each row of `BertTokenizer.pack`. Batches are of rows of the same
        length, because LiteRT computes padding too; and small, because each interpreter keeps the memory of its largest
        batch."""
        by_length: dict[int, list[int]] = {}
        for index, (ids, _) in enumerate(rows):
            by_length.setdefault(len(ids), []).append(index)
        batches = []
        for length, same in by_length.items():
            size = max(1, min(batch_size, _TOKENS // length))
            batches += [same[begin:begin + size] for begin in range(0, len(same), size)]
        outputs: list = [None] * len(rows)
        for indices, batch in zip(batches, self.runner.map([self._inputs(rows, indices) for indices in batches])):
            for index, row in zip(indices, self._logits(batch)):
                outputs[index] = row
        return outputs

    def output_of_row(self, row: tuple[list[int], int]) -> Any:
        """Returns the output of the Keras model for a row, computed alone."""
        output, = self._logits(self.runner(self._inputs([row], [0])))
        return output

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
                array = np.log(np.maximum(array, _SMALLEST)) - np.log(np.maximum(1 - array, _HALF_STEP))
        return list(array)


def check_files(folder: Path, names: Collection[str] | None = None) -> None:
    """Raises an InputError if a file of a folder, or one of `names`, is not as it was exported."""
    for name in changed_files(folder, names):
        raise InputError(f"{os.fspath(folder)}: {name} must be as it was exported: it decides the answers; copy "
                         f"the folder again, or remove {DIGESTS} if the change is right")


def rows_of(encoded: Encoded) -> Sequence[tuple[list[int], int]]:
    """Returns the rows of `BertTokenizer.pack` that are computed, one after the other."""
    return list(itertools.chain.from_iterable(encoded.rows)) if _has_groups(encoded) else encoded.rows


def group_outputs(encoded: Encoded, outputs: list) -> list:
    """Returns the output for each element of `encoded.rows` from those of `rows_of`."""
    following = iter(outputs)
    return [np.stack([next(following) for _ in group]) for group in encoded.rows] if _has_groups(encoded) else outputs


def _has_groups(encoded: Encoded) -> bool:
    return issubclass(encoded.batches, ChoiceBatches)


def _identity(folder: Path) -> list[tuple[int, int, int, int]]:
    """Returns what changes if a folder, or its model file, is replaced. Raises an InputError if it is none."""
    if not os.path.exists(path := os.path.join(folder, FILE)):
        found = f"{FILE} is missing" if os.path.isdir(folder) else "there is no such folder"
        raise InputError(f"{os.fspath(folder)}: must be a folder that export litert wrote; {found}")
    entries = os.stat(folder), os.stat(path)
    return [(entry.st_dev, entry.st_ino, entry.st_size, entry.st_mtime_ns) for entry in entries]
