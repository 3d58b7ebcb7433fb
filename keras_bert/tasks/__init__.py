"""Downstream tasks: reading data files, encoding inputs and targets, decoding answers, and scoring."""

import importlib
import inspect
import os
import sys
from collections.abc import Container
from typing import Any, TypeVar, get_args

from keras_bert.arguments import Path, check, did_you_mean
from keras_bert.data.tables import Rows
from keras_bert.errors import InputError, MissingColumn, Option
from keras_bert.files.digests import renew_digest
from keras_bert.files.json_files import Record, read_json, read_object, write_json
from keras_bert.files.paths import at
from keras_bert.lazy import moved
from keras_bert.tasks.base import Answers, Card, Display, Encoded, Task, run_model
from keras_bert.tasks.choice import Choice, MultipleChoice
from keras_bert.tasks.classify import Classify, Intent, Prediction, TextTask
from keras_bert.tasks.embed import Embed, EmbedExample
from keras_bert.tasks.joint import Frame, Joint
from keras_bert.tasks.multilabel import LabelSet, MultiLabel
from keras_bert.tasks.regress import Regress
from keras_bert.tasks.rerank import Rerank
from keras_bert.tasks.squad import Answer, Span
from keras_bert.tasks.tag import Entity, Tag
from keras_bert.tasks.word_weights import WordWeight

# Of tasks whose models have the same weights, the first is what a model without settings is for.
_ALL: tuple[type[Task], ...] = (Classify, Intent, MultiLabel, Regress, Tag, Joint, Span, MultipleChoice, Embed,
                                Rerank)
TASKS = {task.name: task for task in _ALL}
SETTINGS, _LABELS = "settings.json", "labels.json"
IMPORT = "KERAS_BERT_IMPORT"  # tells the processes of a command which modules --import names
__getattr__ = moved(__name__, {"run": "keras_bert.tasks:run_model"})  # its name in version 0.2
_NEEDED = ("name", "main", "output", "lite_outputs", "exported_outputs", "heads", "iterate", "example", "encode",
           "new_head", "loss_arguments", "answers", "answer_of", "exported_rows", "score", "record", "cells")
T = TypeVar("T", bound=type[Task])


def register_task(task: T) -> T:
    """Decorates a subclass of `Task`, a frozen dataclass. From then on, everything in this package takes it as one of
    its own tasks: `finetune`, the folders that it writes and, after `--import=MODULE`, the command line.

    Raises:
        InputError: another task has its name or its `output`, the class is no such dataclass, or lacks a member.
    """
    if not (isinstance(task, type) and issubclass(task, Task) and "__dataclass_fields__" in vars(task)):
        raise InputError(f"a task must be a subclass of Task and a dataclass itself; got {task!r:.100}")
    defined = inspect.getattr_static
    if missing := [name for name in _NEEDED if defined(task, name, None) is defined(Task, name, None)]:
        raise InputError(f"a task must define {', '.join(missing)}; {task.__qualname__} does not")
    if task.display not in (displays := get_args(Display)):
        raise InputError(f"the display of a task must be one of {', '.join(displays)}; got {task.display!r:.100}")
    others = [other for other in TASKS.values() if (other.__module__, other.__qualname__) != (
        task.__module__, task.__qualname__)]  # a module may be run again
    if used := [other for other in others if task.name == other.name or task.output == other.output]:
        raise InputError(f"a task must have a name and an output of its own; {task.name} and {task.output} are those "
                         f"of {used[0].__module__}.{used[0].__qualname__}")
    TASKS[task.name] = task
    return task


def find_task(name: object) -> type[Task]:
    """Returns the class of a task; raises an InputError if none of this name is registered."""
    if not isinstance(name, str) or name not in TASKS:
        raise InputError(Option("task"), f" must be one of {', '.join(TASKS)}; got {name!r:.100}"
                         f"{did_you_mean(name, TASKS)}; for a task of your own, import its module first, a "
                         "command by --import=MODULE")
    return TASKS[name]


def task_with(outputs: Container[str]) -> type[Task] | None:
    """Returns the task of a SavedModel with these outputs; one of joint has those of two other tasks, too."""
    found = [task for task in TASKS.values() if task.output in outputs]
    return max(found, key=lambda task: len(task.lite_outputs), default=None)


def import_tasks() -> None:
    """Imports the modules that the variable `IMPORT` names, which register tasks. The command line sets it."""
    names = list(filter(None, os.environ.get(IMPORT, "").split(",")))
    if names and (folder := os.getcwd()) not in sys.path:
        sys.path.append(folder)
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise InputError(Option(f"import={name}"), f" must be a module that Python finds: {error}") from None


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
    """Writes a task's labels, and its other fields with the columns of its training data, see `TaskModel`."""
    write_settings(task.settings() | ({"columns": columns} if columns else {}), folder)
    renew_digest(folder, SETTINGS)


def write_settings(settings: dict[str, Any], folder: Path, file: str = SETTINGS) -> None:
    """Writes the `labels` among settings to labels.json, unless they are None, and the others, if any, to `file`."""
    if (labels := settings.get("labels")) is not None:
        write_json(os.path.join(folder, _LABELS), labels)
    if others := {name: value for name, value in settings.items() if name != "labels"}:
        write_json(os.path.join(folder, file), others)


def read_settings(folder: Path) -> tuple[Task, dict[str, Any]]:
    """Returns the task and the columns that `save_settings` wrote."""
    if not os.path.exists(path := os.path.join(folder, SETTINGS)):
        raise InputError(f"{os.fspath(folder)}: must be a folder that finetune wrote; {SETTINGS} is missing")
    return restored(read_object(path) | read_labels(folder), f"{path} and {_LABELS}")


def read_labels(folder: Path) -> dict[str, Any]:
    """Returns the `labels` in labels.json, unchecked; an empty dict if there is no such file."""
    path = os.path.join(folder, _LABELS)
    return {"labels": read_json(path)} if os.path.exists(path) else {}


def restored(settings: dict[str, Any], path: str) -> tuple[Task, dict[str, Any]]:
    """Returns the task and the columns from settings as `save_settings` writes them, with the labels. Raises an
    InputError that names the `path` if the task is unknown, or a setting is unknown, missing or of another type."""
    settings = {"task": None, "columns": {}} | settings
    columns = Record(path, "", settings).get("columns", dict)
    task, _ = settings.pop("task"), settings.pop("columns")
    with at(path):
        task_class = find_task(task)
    try:
        inspect.signature(task_class).bind(**settings)
        check(task_class, settings)
        return task_class(**settings), columns
    except (InputError, TypeError) as error:
        raise InputError(f"{path}: the settings of the task {task}: {error}") from None


import_tasks()

__all__ = ["TASKS", "Answer", "Answers", "Card", "Choice", "Classify", "Embed", "EmbedExample", "Encoded", "Entity",
           "Frame", "Intent", "Joint", "LabelSet", "MultiLabel", "MultipleChoice", "Prediction",
           "Regress", "Rerank", "Span", "Tag", "Task", "TextTask", "WordWeight", "find_task", "read_examples",
           "read_settings", "register_task", "restored", "run_model", "save_settings", "task_with", "tasks_with"]
