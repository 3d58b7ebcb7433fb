"""The options of `finetune`, and the rules that several of them must obey together."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, Self

import keras

from keras_bert import kernels
from keras_bert.arguments import LabelColumns, Path, Requirement, not_none
from keras_bert.data.tables import Rows
from keras_bert.errors import InputError, Option
from keras_bert.tasks import TASKS, Task, find_task, tasks_with
from keras_bert.tasks.windows import WindowTask
from keras_bert.training.run import RunOptions

IN_MEMORY = "rows in memory"  # in place of the path of a file
BALANCED = "balanced"  # class weights, which no file has
_RESUMES = ["leave it out: finetune resumes, and keeps the best epoch, by itself"]
_RATE: list[str] = ["pass ", Option("learning_rate"), " and ", Option("warmup_ratio"), " instead"]
# Keras callbacks that change the training, and what to do instead.
_NO_OBSERVERS: dict[type[keras.callbacks.Callback], list[str]] = {
    keras.callbacks.BackupAndRestore: _RESUMES,
    keras.callbacks.EarlyStopping: ["pass ", Option("early_stopping_patience"), " instead"],
    keras.callbacks.LearningRateScheduler: _RATE,
    keras.callbacks.ModelCheckpoint: _RESUMES,
    keras.callbacks.ReduceLROnPlateau: _RATE,
    keras.callbacks.SwapEMAWeights: ["leave it out: finetune averages no weights"],
}
# Options that exclude each other, and why.
_EXCLUSIVE = (("lora_rank", "freeze_blocks", ""), ("lora_rank", "features", ", whose encoder is frozen"),
              ("devices", "pack", ""), ("pack", "few_shot", ", which trains on pairs of texts"),
              ("devices", "few_shot", ", whose loss compares all texts of a batch"),
              *((name, "teacher", "") for name in (
                  "model", "max_length", *WindowTask.fields, "pack", "few_shot", "class_weights")))
# Arguments that the model's folder stores, see `TaskModel.columns`.
REMEMBERED = tuple(LabelColumns.__annotations__)


@dataclasses.dataclass(frozen=True)
class Options(RunOptions):
    """The arguments of `finetune`, which documents them. Data in memory are `Rows`."""

    data: ClassVar = ("train", "valid")

    train: str | Rows
    valid: str | Rows | None
    model: Path | None
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
    gradient_accumulation_steps: int
    learning_rate: float | None
    warmup_ratio: float
    weight_decay: float
    dropout: float | None
    max_length: int | None
    doc_stride: int | None
    aggregate: str | None
    max_windows: int | None
    features: str | None
    few_shot: bool
    loss: str | None
    pooling: str | None
    normalize: bool | None
    normalization: str | None
    query_prompt: str | None
    document_prompt: str | None
    mine_negatives: Path | None
    teacher: Path | None
    layers: int | None
    unlabelled: str | None
    early_stopping_patience: int | None
    class_weights: str | dict[str, float] | None
    freeze_blocks: int | None
    lora_rank: int | None
    dtype: str
    pack: bool
    devices: list[str] | None
    seed: int
    save_steps: int
    log_dir: Path | None
    callbacks: list[keras.callbacks.Callback] | None
    deterministic: bool
    overwrite: bool
    given_task: Task | None = None  # with all its fields, instead of those that the arguments and the data determine

    @classmethod
    def checked(cls, function: Callable, arguments: dict[str, Any]) -> Self:
        """Returns the arguments of `finetune` as options, see `RunOptions.checked`. Also raises an InputError if data
        in memory are not rows."""
        task: Any = arguments["task"]
        name = getattr(task, "name", task)  # of a task or its class
        if find_task(name) not in (type(task), task) and not isinstance(task, str):
            raise InputError(Option("task"), f" must be registered, see keras_bert.register_task; got {task!r:.100}")
        given_task = task if isinstance(task, Task) else None
        options = super().checked(function, arguments | {"task": name, "given_task": given_task})
        opened: dict[str, Any] = {name: TASKS[options.task].open(arguments[name], name, **options.given(REMEMBERED))
                                  for name in cls.data if arguments[name] is not None}
        return dataclasses.replace(options, devices=options.devices or None, **opened)

    def rules(self) -> list[Requirement]:
        task, devices, batches = TASKS[self.task], self.devices, self.gradient_accumulation_steps
        on_tensorflow, values = kernels.BACKEND == "tensorflow", vars(self)
        return [
            *self._rules_of_callbacks(), *self._rules_of_task(task),
            ("valid_share", self.valid_share, ["left out with ", Option("valid")],
             self.valid is None or self.valid_share is None),
            ("valid_share", self.valid_share, "above 0", self.valid_share != 0),
            ("out_of_scope_label", self.out_of_scope_label, ["left out without ", Option("valid")],
             self.valid is not None or self.out_of_scope_label is None),
            ("devices", devices, "left out on the JAX backend", not devices or on_tensorflow),
            *((name, values[name], ["left out with ", Option(other), why], not (values[name] and values[other]))
              for name, other, why in _EXCLUSIVE),
            ("model", self.model, ["given, or ", Option("teacher")], bool(self.model or self.teacher)),
            ("task", self.task, ["the name of a task with ", Option("teacher")],
             self.given_task is None or self.teacher is None),
            ("layers", self.layers, ["given with ", Option("teacher"), ", and left out otherwise"],
             (self.layers is None) == (self.teacher is None)),
            ("unlabelled", self.unlabelled, ["left out without ", Option("teacher")],
             self.unlabelled is None or self.teacher is not None),
            ("gradient_accumulation_steps", batches, ["1 on the JAX backend and with ", Option("devices")],
             batches == 1 or on_tensorflow and not devices),
            ("devices", devices, f"left out for the task {self.task}, whose losses compare all texts of a batch",
             not (devices and task.compares_batch)),
            ("batch_size", self.batch_size, ["at least 2 for the task embed and with ", Option("few_shot"),
                                             ", whose losses compare the examples of a batch"],
             self.batch_size != 1 or not (self.few_shot or task.compares_batch))]

    def _rules_of_callbacks(self) -> Iterator[Requirement]:
        for callback in self.callbacks or ():
            yield "callbacks", callback, "Keras callbacks", isinstance(callback, keras.callbacks.Callback)
            for kind, instead in _NO_OBSERVERS.items():
                yield ("callbacks", [type(callback).__name__], ["observers; ", *instead],
                       not isinstance(callback, kind))

    def _rules_of_task(self, task: type[Task]) -> Iterator[Requirement]:
        values = vars(self)
        for name in ("max_length", *task.fields) if self.given_task else ():
            yield name, values[name], "left out with a task that has its fields", values[name] is None
        for name in dict.fromkeys(name for each in TASKS.values() for name in each.options):
            yield (name, values[name], ["left out unless ", Option("task"), f" is {' or '.join(tasks_with(name))}"],
                   values[name] in (None, False) or name in task.options)
        for name in ("aggregate", "max_windows") if issubclass(task, WindowTask) else ():
            yield (name, values[name], ["left out without ", Option("doc_stride"), ", which splits texts into windows"],
                   values[name] is None or self.doc_stride is not None)
        without = " and ".join(name for name, each in TASKS.items() if each.dropout is None)
        yield ("dropout", self.dropout, [f"left out for the tasks {without} and with ", Option("few_shot"),
                                         ", whose heads have no dropout"],
               self.dropout is None or not (self.few_shot or task.dropout is None))

    def given(self, names: Iterable[str]) -> dict[str, Any]:
        """Returns those of these arguments that are not None."""
        return not_none(**{name: getattr(self, name) for name in names})

    def files(self) -> list[str]:
        paths = self.train, self.valid, self.weights_file, self.unlabelled, self.teacher
        return [path for path in paths if isinstance(path, str)]

    @property
    def pretrained(self) -> Path:
        """Where the weights with which the training begins are from."""
        return self.teacher or self.model  # type: ignore[return-value]  # one of them is given, see `rules`

    @property
    def weights_file(self) -> str | None:
        return self.class_weights if self.class_weights != BALANCED and isinstance(self.class_weights, str) else None

    def as_json(self) -> dict[str, Any]:
        """Returns the arguments as JSON holds them, `IN_MEMORY` for data without a file. Callbacks are left out."""
        return {name: IN_MEMORY if isinstance(value, Rows) else value for name, value in vars(self).items()
                if name not in ("callbacks", "given_task")}
