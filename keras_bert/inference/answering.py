"""Loads models of every kind of folder, and what those that answer examples have in common."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeAlias

from keras_bert.errors import InputError
from keras_bert.files.paths import SAVED_MODEL, is_saved_model
from keras_bert.inference.served_model import ServedModel
from keras_bert.inference.task_model import TaskModel
from keras_bert.litert import FILE, is_litert

if TYPE_CHECKING:  # it needs TensorFlow
    from keras_bert.inference.saved_model import Exported

AnsweringModel: TypeAlias = "TaskModel | Exported"  # what answers the examples of a task


def load_answering_model(path: str, threads: int | None = None, normalization: str | None = None) -> AnsweringModel:
    """Returns the `Exported` of a SavedModel, whose normalization is fixed, or another folder's `load_task_model`."""
    if is_saved_model(path):
        from keras_bert.inference.saved_model import Exported

        return Exported(path)
    return load_task_model(path, threads, normalization)


def load_task_model(path: str, threads: int | None = None, normalization: str | None = None) -> TaskModel:
    """Returns the `LiteModel` of a folder of `export litert`, with this number of threads, or another folder's
    `FineTuned`; with this normalization, or its own if it is None. Only one of them is imported: a `LiteModel` needs no
    TensorFlow."""
    if is_litert(path):
        from keras_bert.inference.lite_model import LiteModel

        return LiteModel.load(path, threads).with_normalization(normalization)
    from keras_bert.inference.fine_tuned import FineTuned

    return FineTuned.load(path).with_normalization(normalization)


def load_served_model(folder: str, threads: int, row_wise: Iterable[str] = (), timeout_s: float | None = None,
                      warm_up: bool = False) -> ServedModel:
    """Returns the `SavedModel` or the `LiteRTModel` of a folder, as the server runs it; see these for the arguments. If
    the folder has the files of both, it is a SavedModel. Raises an InputError if it is neither, or cannot be loaded."""
    if is_saved_model(folder):
        from keras_bert.inference.saved_model import SavedModel

        return SavedModel(folder, threads, row_wise, timeout_s, warm_up)
    if is_litert(folder):
        from keras_bert.inference.lite_model import LiteRTModel

        return LiteRTModel(folder, threads, timeout_s, warm_up)
    raise InputError(f"{folder}: must be a SavedModel or a LiteRT folder; there is neither {SAVED_MODEL} nor {FILE}")
