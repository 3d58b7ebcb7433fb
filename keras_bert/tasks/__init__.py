"""Downstream tasks: reading data files, encoding inputs and targets, decoding answers, and scoring."""

import inspect
import os
from typing import Any

from keras_bert.arguments import Path, check
from keras_bert.data.tables import Rows
from keras_bert.errors import InputError, MissingColumn, Option
from keras_bert.files.json_files import read_json, read_object, write_json
from keras_bert.tasks.base import Encoded, Task, run_model
from keras_bert.tasks.choice import Choice, MultipleChoice
from keras_bert.tasks.classify import Classify, Intent, Prediction
from keras_bert.tasks.embed import Embed, EmbedExample
from keras_bert.tasks.multilabel import LabelSet, MultiLabel
from keras_bert.tasks.regress import Regress
from keras_bert.tasks.rerank import Rerank
from keras_bert.tasks.squad import Answer, Span
from keras_bert.tasks.tag import Entity, Tag

# Of tasks whose models have the same weights, the first is what a model without settings is for.
_ALL: tuple[type[Task], ...] = (Classify, Intent, MultiLabel, Regress, Tag, Span, MultipleChoice, Embed, Rerank)
TASKS = {task.name: task for task in _ALL}
run = run_model  # its name in version 0.2


def tasks_with(option: str) -> list[str]:
    """Returns the names of the tasks that accept an argument of `finetune` that others do not."""
    return [name for name, task in TASKS.items() if option in task.options]


def read_examples(task: type[Task], path: Path | Rows, **columns: Any) -> list:
    """Returns what the task's `read` returns; for a file of another task, an error names that task."""
    try:
        return task.read(path, **columns)
    except InputError as error:
        suffix = os.path.splitext(str(path))[1].lower()
        for other in TASKS.values():
            contents, suffixes = other.files
            # A table may be JSON, too: only without the columns is it taken for a file of another task.
            if (not task.files[0] and suffix in suffixes and "data_format" not in columns
                    and (suffix != ".json" or isinstance(error, MissingColumn))):
                raise InputError(*error.parts, f"; for {contents}, pass ", Option(f"task={other.name!r}")) from None
        raise


def save_settings(task: Task, columns: dict[str, Any], folder: Path) -> None:
    """Writes the files of a model's folder that say what it answers: the labels, and the other fields of the task with
    the columns of its training data, see `TaskModel`."""
    settings = task.settings() | ({"columns": columns} if columns else {})
    if "labels" in settings:
        write_json(os.path.join(folder, "labels.json"), settings.pop("labels"))
    write_json(os.path.join(folder, "settings.json"), settings)


def read_settings(folder: Path) -> tuple[Task, dict[str, Any]]:
    """Returns the task and the columns that `save_settings` wrote."""
    if not os.path.exists(path := os.path.join(folder, "settings.json")):
        raise InputError(f"{os.fspath(folder)}: must be a folder that finetune wrote; settings.json is missing")
    settings = read_object(path)
    if os.path.exists(labels := os.path.join(folder, "labels.json")):
        settings["labels"] = read_json(labels)
    return restored(settings, path)


def restored(settings: dict[str, Any], path: str) -> tuple[Task, dict[str, Any]]:
    """Returns the task and the columns from settings as `save_settings` writes them, with the labels. Errors name the
    `path`.

    Raises:
        InputError: the task is unknown; or a setting is unknown, missing or of another type.
    """
    settings = {"task": None, "columns": {}} | settings
    task, columns = settings.pop("task"), settings.pop("columns")
    if task not in list(TASKS):
        raise InputError(f"{path}: task must be one of {', '.join(TASKS)}; got {task!r:.100}")
    if not isinstance(columns, dict):
        raise InputError(f"{path}: columns must be an object; got {columns!r:.100}")
    try:
        inspect.signature(TASKS[task]).bind(**settings)
        check(TASKS[task], settings)
        return TASKS[task](**settings), columns
    except (InputError, TypeError) as error:
        raise InputError(f"{path}: the settings of the task {task}: {error}") from None


__all__ = ["TASKS", "Answer", "Choice", "Classify", "Embed", "EmbedExample", "Encoded", "Entity", "Intent", "LabelSet",
           "MultiLabel", "MultipleChoice", "Prediction", "Regress", "Rerank", "Span", "Tag", "Task", "read_examples",
           "read_settings", "restored", "run_model", "save_settings", "tasks_with"]
