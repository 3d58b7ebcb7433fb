"""What is at a path, which paths a pattern means, and errors that name the path of what failed."""

import contextlib
import functools
import glob
import os
from collections.abc import Collection, Iterator

from keras_bert.arguments import Path
from keras_bert.errors import InputError, Option, first_line

MODELS = "sentencepiece.bpe.model", "spiece.model", "tokenizer.model"  # of SentencePiece, as transformers names them
SAVED_MODEL = "saved_model.pb"


def find_texts(patterns: Collection[Path], option: str = "input") -> list[str]:
    """Returns the files that match an option's glob patterns, sorted. Raises an InputError if one matches none."""
    if not patterns:
        raise InputError(Option(option), " must name at least one text file; got none")
    paths: set[str] = set()
    for pattern in [os.fspath(pattern) for pattern in patterns]:
        found = [path for path in glob.glob(pattern, recursive=True) or [pattern] if os.path.isfile(path)]
        if not found:
            if glob.escape(pattern) == pattern:
                check_readable(pattern)
            folder, problem = (pattern, "it is a folder") if os.path.isdir(pattern) else ("folder", "it names none")
            examples = [os.path.join(folder, name) for name in ("*.txt", "*.tsv")]
            raise InputError(f"{pattern}: must name files, as in '{examples[0]}' or '{examples[1]}'; {problem}")
        paths.update(found)
    return sorted(paths)


def check_readable(*paths: Path) -> None:
    """Raises an InputError if nothing is at a path, before TensorFlow's import, which takes seconds."""
    for path in paths:
        with reading(path):
            os.stat(path)


def check_model_folder(path: Path) -> None:
    if not os.path.isdir(path):
        found = "it is a file" if os.path.isfile(path) else (
            "there is no such folder; to write one, keras-bert finetune --train=FILE --model=minilm --output=FOLDER")
        raise InputError(f"{path}: must be a folder that finetune wrote; {found}")


def version_number(name: str) -> int | None:
    """Returns the number of a model's version, int64, from the name of its folder in TensorFlow Serving's structure."""
    number = int(name) if name.isascii() and name.isdecimal() else 2**63
    return number if number < 2**63 else None


def is_saved_model(folder: str) -> bool:
    return os.path.isfile(os.path.join(folder, SAVED_MODEL))


@contextlib.contextmanager
def _naming_errors(path: Path, problem: str) -> Iterator[None]:
    """Turns an error of the system, for example a missing file or a full disk, into an InputError that names `path`."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{path}: {problem}: {os.strerror(error.errno) if error.errno else error}") from None


reading = functools.partial(_naming_errors, problem="cannot be read")
writing = functools.partial(_naming_errors, problem="cannot be written")


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
        raise InputError(f"{path}: is damaged or has another format: {type(error).__name__}: {first_line(error):.200}"
                         ) from error
