"""Files and folders that are written whole or not at all.

Unfinished output is written in a workspace, a folder `.keras_bert.NAME.XXXXXXXX` in the same folder as the output NAME,
and moved to its name once it is complete and on the disk. To replace a folder takes two renames: the old output moves
into the workspace, the new one to its name. A failure between them moves the old output back. A process killed between
them leaves both in its workspace, and the next call of this module for the same path moves the old one back.

Each process locks its workspace, so that others can tell those of killed processes, which they remove. Where the file
system has no locks, workspaces of killed processes stay until somebody removes them.
"""

import contextlib
import errno
import json
import os
import re
import shutil
import tempfile

from keras_bert.errors import InputError


def check_free(path, overwrite=False):
    """Checks that `path` can be written, after moving back what a killed process had moved away.

    Args:
        path: file or folder to write.
        overwrite: whether `path` may exist; an empty folder always may.

    Raises:
        InputError: `path` exists, or its folder cannot be written to.
    """
    parent = os.path.dirname(os.path.abspath(path))
    folder = parent
    while not os.path.lexists(folder):
        folder = os.path.dirname(folder)
    if not os.path.isdir(folder) or not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        raise InputError(f"{os.fspath(path)}: {folder} must be a folder that can be written to")
    if folder == parent:
        with writing(path), _locked(parent):
            _clean_up(os.path.abspath(path))
    _check_not_taken(path, overwrite)


def _check_not_taken(path, overwrite):
    taken = os.listdir(path) if os.path.isdir(path) and not os.path.islink(path) else os.path.lexists(path)
    if taken and not overwrite:
        raise InputError(f"{os.fspath(path)}: exists already; name another path or pass --overwrite")


@contextlib.contextmanager
def written_beside(path, overwrite=False):
    """Context manager that gives a new folder to write into. At the end of the block the folder is moved to `path`; if
    the block fails, it is removed and `path` is as before.

    Args:
        path: folder to write.
        overwrite: whether to replace what is at `path`.

    Raises:
        InputError: `path` exists or cannot be written, a full disk included.
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
                _check_not_taken(path, overwrite)  # another process may have written it meanwhile
                try:
                    if os.path.lexists(path):
                        os.rename(path, os.path.join(workspace, _OLD))
                        _sync_folder(workspace)
                    os.rename(new, path)
                    _sync_folder(os.path.dirname(path))
                finally:
                    _move_back(workspace, path)


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
    """Context manager that gives the path of a new file to write. At the end of the block the file replaces `path`; if
    the block fails, it is removed and `path` is as before.

    Raises:
        InputError: the file cannot be written, a full disk included.
    """
    target = os.path.abspath(path)
    with writing(path), _workspace(target) as workspace:
        new = os.path.join(workspace, _NEW)
        yield new
        _sync_file(new)
        os.replace(new, target)
        _sync_folder(os.path.dirname(target))


def write_json(path, value):
    """Writes a JSON file that a person can read, whole or not at all: a list of numbers takes one line."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    with replacing(path) as new, open(new, "w", encoding="utf-8") as file:
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


# What a workspace holds.
_NEW, _OLD, _LOCK = "new", "old", "lock"


@contextlib.contextmanager
def _workspace(path):
    """A new, locked workspace for `path`; those of killed processes are removed first."""
    parent, name = os.path.split(path)
    with contextlib.ExitStack() as stack:
        with _locked(parent):  # or another process could take the workspace for abandoned before it is locked
            _clean_up(path)
            workspace = tempfile.mkdtemp(prefix=f".keras_bert.{name}.", dir=parent)
            try:
                stack.enter_context(_locked(os.path.join(workspace, _LOCK)))
            finally:
                stack.callback(_remove, workspace)
        yield workspace


def _clean_up(path):
    """Moves back what killed processes have moved away from `path`, and removes their workspaces."""
    parent, name = os.path.split(path)
    pattern = re.compile(rf"\.keras_bert\.{re.escape(name)}\.[a-z0-9_]{{8}}")  # as `mkdtemp` names them
    for entry in os.listdir(parent):
        if pattern.fullmatch(entry):
            workspace = os.path.join(parent, entry)
            # A process at work holds the lock, one that has just ended removes the workspace; a file is not ours.
            with contextlib.suppress(BlockingIOError, FileNotFoundError, NotADirectoryError):
                with _locked(os.path.join(workspace, _LOCK), wait=False):
                    _move_back(workspace, path)
                    _remove(workspace)


def _move_back(workspace, path):
    """Moves the old output back to `path` if it was moved away and nothing has replaced it."""
    if _holds_both(workspace) and not os.path.lexists(path):
        os.rename(os.path.join(workspace, _OLD), path)
        _sync_folder(os.path.dirname(path))


def _remove(workspace):
    """Removes a workspace, unless its old output could not be moved back."""
    if not _holds_both(workspace):
        shutil.rmtree(workspace, ignore_errors=True)


def _holds_both(workspace):
    """Whether the process stopped between the two renames."""
    return all(os.path.lexists(os.path.join(workspace, name)) for name in (_NEW, _OLD))


@contextlib.contextmanager
def _locked(path, wait=True):
    """Holds the lock of a folder, or of a file that is created if need be. It ends with the process at the latest.

    Args:
        path: the file or folder.
        wait: whether to wait for the lock; on a file system without locks the block then runs without it.

    Raises:
        BlockingIOError: without `wait`, another process holds the lock, or the file system has no locks.
    """
    try:
        import fcntl
    except ImportError:  # Windows, whose locks are others
        if not wait:
            raise BlockingIOError(errno.ENOTSUP, "no locks on this system") from None
        yield
        return
    # NFS locks only files that are open for writing.
    is_lock = os.path.basename(path) == _LOCK
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT if is_lock else os.O_RDONLY, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except OSError as error:
            if not wait:
                raise BlockingIOError(error.errno, str(error)) from None
        yield
    finally:
        os.close(descriptor)


def _sync_tree(folder):
    """Waits until the files and folders in `folder` are on the disk."""
    for parent, _, files in os.walk(folder):
        for file in files:
            _sync_file(os.path.join(parent, file))
        _sync_folder(parent)


def _sync_file(path):
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_folder(path):
    """Waits until the names in a folder are on the disk, where the file system can."""
    try:
        _sync_file(path)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
