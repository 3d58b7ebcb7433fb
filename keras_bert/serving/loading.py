"""Loads a version of a model: a SavedModel, or a LiteRT folder, which needs no TensorFlow."""

from collections.abc import Iterable

from keras_bert.serving.served_model import ServedModel
from keras_bert.serving.settings import check_version, is_saved_model


def load_model(folder: str, threads: int, row_wise: Iterable[str] = (), timeout_s: float | None = None,
               warm_up: bool = False) -> ServedModel:
    """Returns the `SavedModel` or the `LiteRTModel` of a folder; see these for the arguments. If the folder has the
    files of both, it is a SavedModel.

    Raises:
        InputError: it is neither, or it cannot be loaded.
    """
    check_version(folder)
    if is_saved_model(folder):
        from keras_bert.serving.saved_model import SavedModel

        return SavedModel(folder, threads, row_wise, timeout_s, warm_up)
    from keras_bert.serving.litert_model import LiteRTModel

    return LiteRTModel(folder, threads, timeout_s, warm_up)
