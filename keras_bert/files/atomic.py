"""Atomic writing of files and folders: output is written completely or not at all. A symbolic link is followed, as
`open` does. What replaces something keeps its permissions and its owner.

Unfinished output is written in a workspace, a folder `.keras_bert.NAME.XXXXXXXX` in the same folder as the output NAME.
Once the output is complete and on disk, it is moved to its name. Replacing a folder takes two renames: the old output
moves into the workspace, then the new output moves to its name. If something fails between the two, the old output is
moved back. If the process is killed between them, both outputs are in its workspace, and the next process that writes
to the same path moves the old one back.

Each process locks its workspace, so that other processes can recognise and remove the workspaces of killed processes.
On file systems without locks, workspaces of killed processes stay until somebody removes them."""

import contextlib
import errno
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator

from keras_bert.arguments import Path
from keras_bert.errors import InputError, Option
from keras_bert.files.paths import writing

NEW, OLD, _LOCK = "new", "old", "lock"  # the names inside a workspace


def check_free(path: Path, overwrite: bool = False, inputs: Iterable[Path | None] = ()) -> None:
    """Raises an InputError if `path` cannot be written. First moves back what a killed process had moved away.

    Args:
        overwrite: If True, `path` may exist. An empty folder may always exist.
        inputs: what will be read. It must not be `path` or inside it, because the contents of `path` will be removed.
    """
    target = _target(path)
    folder = parent = os.path.dirname(target)
    while not os.path.lexists(folder):
        folder = os.path.dirname(folder)
    if not os.path.isdir(folder) or not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        raise InputError(f"{os.fspath(path)}: {folder} must be a writable folder")
    if folder == parent:
        with writing(path), locked(parent):
            clean_up(target)
            _check_not_occupied(path, overwrite)
    for given in inputs:
        if given and _contains(path, given):
            raise InputError(f"{os.fspath(path)}: must not be or contain {given}, which ", Option("overwrite=True"),
                             " would remove")


def _target(path: Path) -> str:
    """Returns the path that `path` names, which may be a link. Raises an InputError for a link that another user has
    made in a folder where everybody may: as Linux does if `fs.protected_symlinks` is set."""
    parent, name = os.path.split(os.fspath(path).rstrip(os.sep))
    link = os.path.join(parent, name)
    if os.path.islink(link):
        folder = os.stat(parent or os.curdir)
        is_shared = folder.st_mode & stat.S_ISVTX and folder.st_mode & stat.S_IWOTH
        if is_shared and os.lstat(link).st_uid not in (os.geteuid(), folder.st_uid):
            raise InputError(f"{os.fspath(path)}: is a symbolic link of another user in a shared folder; pass another "
                             "path")
    return os.path.realpath(path)


def _contains(path: Path, other: Path) -> bool:
    """Returns True if `path` exists and is, or contains, `other`."""
    return os.path.lexists(path) and os.path.join(os.path.realpath(other), "").startswith(
        os.path.join(os.path.realpath(path), ""))


def _check_not_occupied(path: Path, overwrite: bool) -> None:
    occupied = os.listdir(path) if os.path.isdir(path) else os.path.exists(path)
    if occupied and not overwrite:
        raise InputError(f"{os.fspath(path)}: exists already; pass another path or ", Option("overwrite=True"))
    if os.path.isdir(path) and not os.access(path, os.W_OK):
        raise InputError(f"{os.fspath(path)}: must be a writable folder, to be replaced; pass another path")
    problem = ("is a mount point" if os.path.ismount(os.path.realpath(path)) else
               "is or contains the working directory" if _contains(path, os.curdir) else "")
    if problem:
        raise InputError(f"{os.fspath(path)}: {problem}, which cannot be replaced; pass a path in it")


@contextlib.contextmanager
def atomic_folder(path: Path, overwrite: bool = False) -> Iterator[str]:
    """Yields a new folder, which is moved to `path` when the block ends. If the block fails, it is removed and `path`
    is unchanged. Raises an InputError if `path` exists, without `overwrite`, or cannot be written."""
    check_free(path, overwrite)
    target = _target(path)
    with writing(path):
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with workspace_of(target) as workspace:
            new = os.path.join(workspace, NEW)
            os.mkdir(new)
            yield new
            _sync_tree(new)
            with locked(os.path.dirname(target)):
                _check_not_occupied(path, overwrite)  # another process may have written it in the meantime
                try:
                    if os.path.lexists(target):
                        os.rename(target, old := os.path.join(workspace, OLD))
                        sync_folder(workspace)
                        _copy_permissions(old, new)
                    os.rename(new, target)
                    sync_folder(os.path.dirname(target))
                finally:
                    move_back(workspace, target)


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[str]:
    """Yields the path of a new file to write, which replaces `path` when the block ends. If the block fails, the file
    is removed and `path` is unchanged. Raises an InputError if the file cannot be written."""
    target = _target(path)
    with writing(path), workspace_of(target) as workspace:
        new = os.path.join(workspace, NEW)
        yield new
        sync_file(new)
        _copy_permissions(target, new)  # perhaps without that to read
        os.replace(new, target)
        sync_folder(os.path.dirname(target))


def _copy_permissions(old: str, new: str) -> None:
    """Gives `new` the owner, the group and the permissions of `old`, if that exists and is of its kind, as far as this
    process may and the file system has them. The workspace, which nobody else can enter, contains `new` until then."""
    try:
        before, after = os.lstat(old), os.lstat(new)
    except FileNotFoundError:
        return
    if stat.S_IFMT(before.st_mode) != stat.S_IFMT(after.st_mode):
        return
    mode = stat.S_IMODE(before.st_mode)
    for user in (before.st_uid, -1):  # who may not give files away may still give them to one of their groups
        try:
            os.chown(new, user, before.st_gid)
            break
        except OSError:
            mode &= ~stat.S_ISUID if user != -1 else ~stat.S_ISGID
    with contextlib.suppress(OSError):
        os.chmod(new, mode)


def _sync_tree(folder: str) -> None:
    for parent, _, files in os.walk(folder):
        for file in files:
            sync_file(os.path.join(parent, file))
        sync_folder(parent)


@contextlib.contextmanager
def workspace_of(path: Path, alone: bool = False) -> Iterator[str]:
    """Yields a new, locked workspace for `path`. First removes the workspaces of killed processes. If `alone`, raises
    an InputError if there are others."""
    parent, name = os.path.split(path)
    with contextlib.ExitStack() as stack:
        with locked(parent):  # otherwise another process could remove the workspace before it is locked
            clean_up(path)
            if alone and (others := _workspaces(path)):
                raise InputError(f"{parent}: another process writes to it; wait until that has ended, or pass another "
                                 f"path; if there is no such process, remove {others[0]}")
            workspace = tempfile.mkdtemp(prefix=f".keras_bert.{name}.", dir=parent)
            try:
                stack.enter_context(locked(os.path.join(workspace, _LOCK)))
            finally:
                stack.callback(_remove, workspace)
        yield workspace


@contextlib.contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Lets only one process at a time write to a folder; raises an InputError in another. If there is no folder, it is
    created, and removed at the end if it is still empty."""
    with contextlib.ExitStack() as stack:
        with writing(folder):
            if not os.path.isdir(folder):
                os.makedirs(folder)
                stack.callback(_remove_empty, folder)
            stack.enter_context(workspace_of(os.path.join(os.path.abspath(folder), "writer"), alone=True))
        yield


def _remove_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):  # it is not empty
        os.rmdir(folder)


def is_empty(folder: Path) -> bool:
    """Returns True if a folder has nothing but workspaces."""
    return all(entry.startswith(".keras_bert.") for entry in os.listdir(folder))


def clean_up(path: Path) -> None:
    """Moves back what killed processes have moved away from `path`, and removes their workspaces."""
    for workspace in _workspaces(path):
        # A running process holds the lock; one that has just ended removes its workspace; a file is no workspace.
        with contextlib.suppress(BlockingIOError, FileNotFoundError, NotADirectoryError):
            with locked(os.path.join(workspace, _LOCK), wait=False):
                move_back(workspace, path)
                _remove(workspace)


def _workspaces(path: Path) -> list[str]:
    parent, name = os.path.split(path)
    pattern = re.compile(rf"\.keras_bert\.{re.escape(name)}\.[a-z0-9_]{{8}}")  # as `mkdtemp` names them
    return [os.path.join(parent, entry) for entry in os.listdir(parent) if pattern.fullmatch(entry)]


def remove_workspaces(folder: Path) -> None:
    """Removes what killed processes have left in a folder, if there is one."""
    if os.path.isdir(folder):
        found = (re.fullmatch(r"\.keras_bert\.(.+)\.[a-z0-9_]{8}", entry) for entry in os.listdir(folder))
        with writing(folder), locked(folder):
            for name in {match[1] for match in found if match}:
                clean_up(os.path.join(os.path.abspath(folder), name))


def move_back(workspace: str, path: Path) -> None:
    """Moves the old output back to `path` if it was moved away and nothing has replaced it."""
    if _holds_both(workspace) and not os.path.lexists(path):
        os.rename(os.path.join(workspace, OLD), path)
        sync_folder(os.path.dirname(path))


def _remove(workspace: str) -> None:
    """Removes a workspace, unless its old output could not be moved back."""
    if not _holds_both(workspace):
        shutil.rmtree(workspace, ignore_errors=True)


def _holds_both(workspace: str) -> bool:
    """Returns True if the process stopped between the two renames."""
    return all(os.path.lexists(os.path.join(workspace, name)) for name in (NEW, OLD))


@contextlib.contextmanager
def locked(path: Path, wait: bool = True) -> Iterator[None]:
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


def sync_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(path: Path) -> None:
    """Waits until the names in a folder are on disk, if the file system supports that."""
    try:
        sync_file(path)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
