"""Atomic writing of files and folders: output is written completely or not at all, see `workspaces`. A symbolic link is
followed, as `open` does. What replaces something keeps its permissions and its owner."""

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator

from keras_bert.arguments import Path
from keras_bert.errors import InputError, Option
from keras_bert.files.failures import writing
from keras_bert.files.workspaces import NEW, OLD, clean_up, locked, move_back, sync_file, sync_folder, workspace_of


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
    if os.path.ismount(os.path.realpath(path)):
        raise InputError(f"{os.fspath(path)}: is a mount point, which cannot be replaced; pass a path in it")
    if _contains(path, os.curdir):
        raise InputError(f"{os.fspath(path)}: is or contains the working directory, which cannot be replaced; pass a "
                         "path in it")


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
