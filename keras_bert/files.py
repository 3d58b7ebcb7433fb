"""Files and folders that are either written whole or not at all."""

import contextlib
import json
import os
import re
import shutil
import tempfile

from keras_bert.errors import InputError


def check_free(path, overwrite=False):
    """Refuses a path that cannot be written, or that holds something already unless `overwrite`; an empty folder is
    free."""
    path = os.fspath(path)
    parent = os.path.dirname(os.path.abspath(path))
    while not os.path.lexists(parent):
        parent = os.path.dirname(parent)
    if not os.path.isdir(parent) or not os.access(parent, os.W_OK):
        raise InputError(f"{path}: {parent} must be a folder that can be written to")
    taken = os.listdir(path) if os.path.isdir(path) and not os.path.islink(path) else os.path.lexists(path)
    if taken and not overwrite:
        raise InputError(f"{path}: exists already; name another path or pass --overwrite")


@contextlib.contextmanager
def written_beside(path, overwrite=False, workspace=None):
    """Gives a new folder beside `path` to write into; renames it to `path` when the block ends well, removes it when
    the block fails. What stood at `path` is replaced only then, and only with `overwrite`.

    Args:
        path: folder to write.
        workspace: folder for what is unfinished, on the same disk and removed afterwards; a new one beside `path` where
            None. Who names one finds there what a killed process has left, and this function clears it.

    Raises:
        InputError: `path` is taken or cannot be written, a full disk included.
    """
    path = os.path.abspath(path)
    check_free(path, overwrite)
    with writing(path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if workspace is None:
            workspace = tempfile.mkdtemp(prefix=f".{os.path.basename(path)}.", dir=os.path.dirname(path))
        else:
            shutil.rmtree(workspace, ignore_errors=True)
        new, old = os.path.join(workspace, "new"), os.path.join(workspace, "old")
        try:
            os.makedirs(new)
            yield new
            check_free(path, overwrite)
            if os.path.lexists(path):
                os.replace(path, old)
            os.replace(new, path)
        finally:
            shutil.rmtree(workspace, ignore_errors=True)


@contextlib.contextmanager
def reading(path):
    """Turns a failure of the system, a missing file say, into an InputError that names `path`."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {os.strerror(error.errno) if error.errno else error}") from None


@contextlib.contextmanager
def writing(path):
    """Turns a failure of the system, a full disk say, into an InputError that names `path`."""
    try:
        yield
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else error
        raise InputError(f"{path}: cannot be written: {reason}") from None


@contextlib.contextmanager
def replacing(path):
    """Gives the path of a new file, which takes the place of `path` when the block has written it well."""
    part = f"{path}.part"
    try:
        with writing(path):
            yield part
            with open(part, "rb") as file:
                os.fsync(file.fileno())  # a machine that loses power keeps the old file or the new one
            os.replace(part, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.remove(part)


def write_json(path, value):
    """Writes a JSON file that a person can read, whole or not at all: a list of numbers stands on one line."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    with replacing(path) as part, open(part, "w", encoding="utf-8") as file:
        file.write(re.sub(r"\[[-+.,\d\seE]+\]", lambda numbers: " ".join(numbers[0].split()), text) + "\n")


def read_json(path):
    """The value in a JSON file.

    Raises:
        InputError: names the file, and the line where it stops being JSON.
    """
    with open(path, encoding="utf-8") as file:
        try:
            return json.load(file)
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise InputError(f"{os.fspath(path)}: not a JSON file: {error}") from None
