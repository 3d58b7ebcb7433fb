"""Errors of the system, of TensorFlow and of Python about a file, as `InputError`s that name it."""

import contextlib
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager

from keras_bert.arguments import Path
from keras_bert.errors import InputError, first_line


def reading(path: Path) -> AbstractContextManager[None]:
    """Turns an error of the system, for example a missing file, into an InputError that names `path`."""
    return _naming_errors(path, "cannot be read")


def writing(path: Path) -> AbstractContextManager[None]:
    """Turns an error of the system, for example a full disk, into an InputError that names `path`."""
    return _naming_errors(path, "cannot be written")


@contextlib.contextmanager
def _naming_errors(path: Path, problem: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(f"{path}: {problem}: {os.strerror(error.errno) if error.errno else error}") from None


@contextlib.contextmanager
def saving() -> Iterator[None]:
    """Turns an error of TensorFlow, for example about a full disk, into an OSError, for `writing`."""
    import tensorflow as tf

    try:
        yield
    except tf.errors.OpError as error:
        raise OSError(error.message.rpartition("; ")[2].partition(" [Op:")[0]) from None


@contextlib.contextmanager
def at(place: object) -> Iterator[None]:
    """Puts a place, for example a path, before the message of an InputError."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{place}: ", *error.parts) from None


@contextlib.contextmanager
def naming_damage(path: Path) -> Iterator[None]:
    """Turns Python's errors about values of another type or form into an InputError that names `path`, for values in a
    file that no other check names."""
    try:
        yield
    except InputError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise InputError(f"{path}: must be whole and of its format: {type(error).__name__}: {first_line(error):.200}"
                         ) from error
