"""The options of `finetune`, and the rules that several of them must obey together."""

import dataclasses
import os
from collections.abc import Callable
from typing import Any, Self

from keras_bert import kernels
from keras_bert.arguments import Path, given, plain
from keras_bert.data.tables import Rows
from keras_bert.tasks import TASKS, Task, tasks_with
from keras_bert.training.loop import check_run
from keras_bert.training.report import IN_MEMORY

# Arguments that say where and how to save, but do not define the result: they may differ in a resumed run.
_NOT_PART_OF_RUN = ("output", "overwrite", "save_steps", "log_dir")
# Arguments that the model's folder stores, see `FineTuned.columns`.
REMEMBERED = ("data_format", "text_column", "text_pair_column", "label_column", "label_columns", "label_delimiter")


@dataclasses.dataclass(frozen=True)
class Options:
    """The arguments of `finetune`, which documents them. Data in memory are `Rows`."""

    train: str | Rows
    valid: str | Rows | None
    model: Path
    output: str
    task: str
    valid_share: float | None
    data_format: str | None
    text_column: str
    text_pair_column: str | None
    label_column: str
    label_columns: list[str] | None
    label_delimiter: str | None
    out_of_scope_label: str | None
    epochs: int
    batch_size: int
    learning_rate: float | None
    warmup_ratio: float
    weight_decay: float
    dropout: float | None
    max_length: int | None
    doc_stride: int | None
    features: str | None
    few_shot: bool
    loss: str | None
    pooling: str | None
    normalize: bool | None
    early_stopping_patience: int | None
    class_weights: str | None
    freeze_blocks: int | None
    lora_rank: int | None
    dtype: str
    pack: bool
    devices: list[str] | None
    seed: int
    save_steps: int
    log_dir: Path | None
    deterministic: bool
    overwrite: bool

    @classmethod
    def checked(cls, function: Callable, arguments: dict[str, Any]) -> Self:
        """Returns the arguments of `finetune` as options.

        Raises:
            InputError: an argument is out of its range, does not fit the task or the others, or data in memory are not
                rows.
        """
        check_run(function, arguments, *cls(**arguments)._rules())
        options = cls(**{name: plain(value) if name not in ("train", "valid") else value
                         for name, value in arguments.items()})
        output = os.path.normpath(options.output)  # a slash at the end would put the checkpoints into the folder
        opened: dict[str, Any] = {name: TASKS[options.task].open(arguments[name], name, **options.columns())
                                  for name in ("train", "valid") if arguments[name] is not None}
        return dataclasses.replace(options, output=output, devices=options.devices or None, **opened)

    def _rules(self) -> list[tuple[str, Any, str, bool]]:
        """Returns the rules that annotations cannot express, see `arguments.check_rules`."""
        task = next((task for name, task in TASKS.items() if name == self.task), Task)
        few_shot, devices = self.few_shot, self.devices
        compares = few_shot or task.compares_batch
        of_some_tasks = dict.fromkeys(name for task in TASKS.values() for name in task.options)
        with_dropout = " and ".join(name for name, task in TASKS.items() if task.dropout is None)
        return [
            ("lora_rank", self.lora_rank, "left out with freeze_blocks", not (self.lora_rank and self.freeze_blocks)),
            ("lora_rank", self.lora_rank, "left out with features, whose encoder is frozen",
             not (self.lora_rank and self.features)),
            *((name, value, f"left out unless task is {' or '.join(tasks_with(name))}",
               value in (None, False) or name in task.options)
              for name in of_some_tasks for value in [getattr(self, name)]),
            ("valid_share", self.valid_share, "left out with valid", self.valid is None or self.valid_share is None),
            ("valid_share", self.valid_share, "above 0", self.valid_share != 0),
            ("out_of_scope_label", self.out_of_scope_label, "left out without valid",
             self.valid is not None or self.out_of_scope_label is None),
            ("devices", devices, "left out on the JAX backend", not devices or kernels.BACKEND == "tensorflow"),
            ("devices", devices, "left out with pack", not (devices and self.pack)),
            ("pack", self.pack, "left out with few_shot, which trains on pairs of texts", not (few_shot and self.pack)),
            ("devices", devices, "left out with few_shot, whose loss compares all texts of a batch",
             not (few_shot and devices)),
            ("devices", devices, f"left out for the task {self.task}, whose losses compare all texts of a batch",
             not (devices and compares)),
            ("dropout", self.dropout, f"left out for the tasks {with_dropout} and with few_shot, whose heads have no "
             "dropout", self.dropout is None or not (few_shot or task.dropout is None)),
            ("batch_size", self.batch_size, "at least 2 for the task embed and with few_shot, whose losses compare the "
             "examples of a batch", self.batch_size != 1 or not compares)]

    def columns(self) -> dict[str, Any]:
        """Returns the arguments with which a task reads its files."""
        return given(**{name: getattr(self, name) for name in REMEMBERED})

    def fields_of(self, task: type[Task]) -> dict[str, Any]:
        """Returns the arguments of the task's `from_examples`."""
        return given(**{name: getattr(self, name) for name in task.fields})

    def files(self) -> list[str]:
        """Returns the files of the data."""
        return [data for data in (self.train, self.valid) if isinstance(data, str)]

    def as_json(self) -> dict[str, Any]:
        """Returns the arguments as JSON holds them, `IN_MEMORY` for data without a file."""
        return {name: IN_MEMORY if isinstance(value, Rows) else value for name, value in vars(self).items()}

    def of_run(self) -> dict[str, Any]:
        """Returns the arguments that decide the result."""
        return {name: value for name, value in self.as_json().items() if name not in _NOT_PART_OF_RUN}
