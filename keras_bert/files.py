"""Atomic writing of files and folders: output is written completely or not at all.

Unfinished output is written to a workspace, a folder `.keras_bert.NAME.XXXXXXXX` in the same folder as the output NAME,
and moved to its name once it is complete and on disk. Replacing a folder takes two renames: the old output moves into
the workspace, then the new output moves to its name. If something fails between the two, the old output is moved back.
If the process is killed between them, both outputs are in its workspace, and the next call of this module for the same
path moves the old one back.

Each process locks its workspace, so that other processes can recognise and remove the workspaces of killed processes.
On file systems without locks, workspaces of killed processes stay until somebody removes them.
"""

import codecs
import contextlib
import errno
import glob
import hashlib
import json
import math
import os
import re
import shutil
import tempfile
from collections.abc import Collection, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from keras_bert.arguments import Path
from keras_bert.errors import InputError, Option


def check_free(path: Path, overwrite: bool = False, inputs: Iterable[Path | None] = ()) -> None:
    """Raises an InputError if `path` cannot be written. First moves back what a killed process had moved away.

    Args:
        overwrite: If True, `path` may exist. An empty folder may always exist.
        inputs: what will be read. It must not be `path` or inside it, because the contents of `path` will be removed.
    """
    parent = os.path.dirname(os.path.abspath(path))
    folder = parent
    while not os.path.lexists(folder):
        folder = os.path.dirname(folder)
    if not os.path.isdir(folder) or not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        raise InputError(f"{os.fspath(path)}: {folder} must be a writable folder")
    if folder == parent:
        with writing(path), _locked(parent):
            _clean_up(os.path.abspath(path))
            _check_not_occupied(path, overwrite)
    for given in inputs:
        if given and _contains(path, given):
            raise InputError(f"{os.fspath(path)}: must not be or contain {given}, which ", Option("overwrite=True"),
                             " would remove")


def _contains(path: Path, other: Path) -> bool:
    """Returns True if `path` exists and is, or contains, `other`."""
    return os.path.lexists(path) and os.path.join(os.path.realpath(other), "").startswith(
        os.path.join(os.path.realpath(path), ""))


def _check_not_occupied(path: Path, overwrite: bool) -> None:
    occupied = os.listdir(path) if os.path.isdir(path) and not os.path.islink(path) else os.path.lexists(path)
    if occupied and not overwrite:
        raise InputError(f"{os.fspath(path)}: exists already; pass another path or ", Option("overwrite=True"))
    if os.path.ismount(path):
        raise InputError(f"{os.fspath(path)}: is a mount point, which cannot be replaced; pass a path in it")
    if _contains(path, os.curdir):
        raise InputError(f"{os.fspath(path)}: is or contains the working directory, which cannot be replaced; pass a "
                         "path in it")


@contextlib.contextmanager
def atomic_folder(path: Path, overwrite: bool = False) -> Iterator[str]:
    """Yields a new folder to write to, which is moved to `path` when the block ends. If the block fails, the folder is
    removed and `path` is unchanged. Raises an InputError if `path` exists, without `overwrite`, or cannot be written.
    """
    check_free(path, overwrite)
    path = os.path.abspath(path)
    with writing(path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with _workspace(path) as workspace:
            new = os.path.join(workspace, _NEW)
            os.mkdir(new)
            yield new
            _sync_tree(new)
            with _locked(os.path.dirname(path)):
                _check_not_occupied(path, overwrite)  # another process may have written it in the meantime
                try:
                    if os.path.lexists(path):
                        os.rename(path, os.path.join(workspace, _OLD))
                        _sync_folder(workspace)
                    os.rename(new, path)
                    _sync_folder(os.path.dirname(path))
                finally:
                    _move_back(workspace, path)


def find_texts(patterns: Collection[str]) -> list[str]:
    """Returns the files that match the glob patterns, sorted.

    Raises:
        InputError: a pattern matches no file.
    """
    if not patterns:
        raise InputError(Option("input"), " must name at least one text file; got none")
    paths: set[str] = set()
    for pattern in patterns:
        found = [path for path in glob.glob(pattern, recursive=True) or [pattern] if os.path.isfile(path)]
        if not found:
            raise InputError(f"{pattern}: must name files, as in 'folder/*.txt' or 'folder/*.jsonl'; it names none")
        paths.update(found)
    return sorted(paths)


def check_readable(*paths: Path) -> None:
    """Raises an InputError if nothing is at a path. Commands call this before TensorFlow's import, which takes seconds.
    """
    for path in paths:
        with reading(path):
            os.stat(path)


def check_model_folder(path: Path) -> None:
    if not os.path.isdir(path):
        found = "it is a file" if os.path.isfile(path) else "there is no such folder"
        raise InputError(f"{path}: must be a folder that finetune wrote; {found}")


def version_number(name: str) -> int | None:
    """Returns the number of a model's version, int64, from the name of its folder in TensorFlow Serving's structure."""
    number = int(name) if name.isascii() and name.isdecimal() else 2**63
    return number if number < 2**63 else None


def decode(line: bytes, place: Path, is_first: bool) -> str:
    """Returns a line or a file of UTF-8 as str. At the start of a file (`is_first`), a byte order mark is removed.

    Raises:
        InputError: it is not UTF-8; the message names the `place` and how to convert the file.
    """
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        raise InputError(f"{place}: {not_utf8(error)}") from None
    return text.removeprefix("\ufeff") if is_first else text


def not_utf8(error: UnicodeDecodeError) -> str:
    """Returns what is wrong and how to convert the file. The encoding is a guess at most: Chinese and Japanese text can
    be decoded as CP949, too."""
    is_utf16 = error.object[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
    name, hint = ("UTF-16", "") if is_utf16 else ("ENCODING", " (Korean files are often in CP949)")
    return (f"must be UTF-8 text: {error.reason} at byte {error.start + 1}; convert the file: "
            f"iconv -f {name} -t UTF-8 FILE > NEW_FILE{hint}")


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
def naming_damage(path: Path) -> Iterator[None]:
    """Turns Python's errors about values of another type or form into an InputError that names `path`, for values in a
    file that no other check names."""
    try:
        yield
    except InputError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise InputError(f"{path}: must be whole and of its format: {type(error).__name__}: {reason:.200}") from error


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[str]:
    """Yields the path of a new file to write, which replaces `path` when the block ends. If the block fails, the file
    is removed and `path` is unchanged. Raises an InputError if the file cannot be written."""
    target = os.path.abspath(path)
    with writing(path), _workspace(target) as workspace:
        new = os.path.join(workspace, _NEW)
        yield new
        _sync_file(new)
        os.replace(new, target)
        _sync_folder(os.path.dirname(target))


def json_text(value: Any, indent: int | None = None) -> str:
    """Returns a value as JSON, in which a number that is not finite is null: JSON has no NaN."""
    try:
        return json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value), indent=indent, ensure_ascii=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_json(path: Path, value: Any) -> None:
    """Writes a human-readable JSON file atomically, see `json_text`. A list of numbers takes one line."""
    text = json_text(value, indent=2)
    with atomic_file(path) as new, open(new, "w", encoding="utf-8") as file:
        file.write(re.sub(r"\[[-+.,\d\seE]+\]", lambda numbers: " ".join(numbers[0].split()), text) + "\n")


def read_json(path: Path) -> Any:
    with open(path, encoding="utf-8-sig") as file:  # editors on Windows write a byte order mark
        try:
            return json.load(file)
        except (ValueError, RecursionError) as error:  # not JSON, not UTF-8, a number too long, brackets too deep
            raise InputError(f"{os.fspath(path)}: not a JSON file: {error}") from None


def read_object(path: Path) -> dict[str, Any]:
    """Returns the object in a JSON file; empty if there is no such file."""
    if not os.path.exists(path):
        return {}
    with reading(path):
        values = read_json(path)
    if not isinstance(values, dict):
        raise InputError(f"{os.fspath(path)}: must hold one JSON object; got {values!r:.100}")
    return values


def folder_digest(path: Path) -> str:
    """Returns the SHA-256 of the names and contents of all files in a folder."""
    digest = hashlib.sha256()
    with reading(path):
        for parent, folders, names in os.walk(os.fspath(path)):
            folders.sort()
            for name in sorted(names):
                with open(file := os.path.join(parent, name), "rb") as content:
                    digest.update(f"{os.path.relpath(file, path)}\0".encode(errors="surrogateescape"))
                    digest.update(hashlib.file_digest(content, "sha256").digest())
    return digest.hexdigest()


# The names inside a workspace.
_NEW, _OLD, _LOCK = "new", "old", "lock"


@contextlib.contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Lets only one process at a time write to a folder; raises an InputError in another. If there is no folder, it is
    created, and removed at the end if it is still empty."""
    with contextlib.ExitStack() as stack:
        with writing(folder):
            if not os.path.isdir(folder):
                os.makedirs(folder)
                stack.callback(_remove_empty, folder)
            stack.enter_context(_workspace(os.path.join(os.path.abspath(folder), "writer"), alone=True))
        yield


def _remove_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):  # it is not empty
        os.rmdir(folder)


def is_empty(folder: Path) -> bool:
    """Returns True if a folder has nothing but workspaces."""
    return all(entry.startswith(".keras_bert.") for entry in os.listdir(folder))


@contextlib.contextmanager
def _workspace(path: Path, alone: bool = False) -> Iterator[str]:
    """Yields a new, locked workspace for `path`. First removes the workspaces of killed processes. If `alone`, raises
    an InputError if there are others."""
    parent, name = os.path.split(path)
    with contextlib.ExitStack() as stack:
        with _locked(parent):  # otherwise another process could remove the workspace before it is locked
            _clean_up(path)
            if alone and (others := _workspaces(path)):
                raise InputError(f"{parent}: another process writes to it; wait until that has ended, or pass another "
                                 f"path; if there is no such process, remove {others[0]}")
            workspace = tempfile.mkdtemp(prefix=f".keras_bert.{name}.", dir=parent)
            try:
                stack.enter_context(_locked(os.path.join(workspace, _LOCK)))
            finally:
                stack.callback(_remove, workspace)
        yield workspace


def _clean_up(path: Path) -> None:
    """Moves back what killed processes have moved away from `path`, and removes their workspaces."""
    for workspace in _workspaces(path):
        # A running process holds the lock; one that has just ended removes its workspace; a file is no workspace.
        with contextlib.suppress(BlockingIOError, FileNotFoundError, NotADirectoryError):
            with _locked(os.path.join(workspace, _LOCK), wait=False):
                _move_back(workspace, path)
                _remove(workspace)


def _workspaces(path: Path) -> list[str]:
    parent, name = os.path.split(path)
    pattern = re.compile(rf"\.keras_bert\.{re.escape(name)}\.[a-z0-9_]{{8}}")  # as `mkdtemp` names them
    return [os.path.join(parent, entry) for entry in os.listdir(parent) if pattern.fullmatch(entry)]


def remove_workspaces(folder: Path) -> None:
    """Removes what killed processes have left in a folder, if there is one."""
    if os.path.isdir(folder):
        found = (re.fullmatch(r"\.keras_bert\.(.+)\.[a-z0-9_]{8}", entry) for entry in os.listdir(folder))
        with writing(folder), _locked(folder):
            for name in {match[1] for match in found if match}:
                _clean_up(os.path.join(os.path.abspath(folder), name))


def _move_back(workspace: str, path: Path) -> None:
    """Moves the old output back to `path` if it was moved away and nothing has replaced it."""
    if _holds_both(workspace) and not os.path.lexists(path):
        os.rename(os.path.join(workspace, _OLD), path)
        _sync_folder(os.path.dirname(path))


def _remove(workspace: str) -> None:
    """Removes a workspace, unless its old output could not be moved back."""
    if not _holds_both(workspace):
        shutil.rmtree(workspace, ignore_errors=True)


def _holds_both(workspace: str) -> bool:
    """Returns True if the process stopped between the two renames."""
    return all(os.path.lexists(os.path.join(workspace, name)) for name in (_NEW, _OLD))


@contextlib.contextmanager
def _locked(path: Path, wait: bool = True) -> Iterator[None]:
    """Holds the lock of a folder, or of a file, which is created if necessary. The lock ends with the process at the
    latest. On a file system without locks, the block runs without it.

    Raises:
        BlockingIOError: `wait` is False, and another process holds the lock or the file system has no locks.
    """
    try:
        import fcntl
    except ImportError:  # Windows, which has different locks
        if not wait:
            raise BlockingIOError(errno.ENOTSUP, "no locks on this system") from None
        yield
        return
    # NFS locks only files that are open for writing.
    flags = os.O_RDWR | os.O_CREAT if os.path.basename(path) == _LOCK else os.O_RDONLY
    descriptor = os.open(path, flags, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except OSError as error:
            if not wait:
                raise BlockingIOError(error.errno, str(error)) from None
        yield
    finally:
        os.close(descriptor)


def _sync_tree(folder: str) -> None:
    for parent, _, files in os.walk(folder):
        for file in files:
            _sync_file(os.path.join(parent, file))
        _sync_folder(parent)


def _sync_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_folder(path: Path) -> None:
    """Waits until the names in a folder are on disk, if the file system supports that."""
    try:
        _sync_file(path)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
