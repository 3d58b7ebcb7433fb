"""Files and folders that are either written whole or not at all."""

import contextlib
import os
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
def written_beside(path, overwrite=False):
    """Gives a new folder beside `path` to write into; renames it to `path` when the block ends well, removes it when
    the block fails. What stood at `path` is replaced only then, and only with `overwrite`."""
    path = os.path.abspath(path)
    check_free(path, overwrite)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    beside = tempfile.mkdtemp(prefix=f".{os.path.basename(path)}.", dir=os.path.dirname(path))
    try:
        yield beside
        os.chmod(beside, 0o777 & ~_umask())
        check_free(path, overwrite)
        if os.path.lexists(path):
            old = tempfile.mkdtemp(prefix=f".{os.path.basename(path)}.old.", dir=os.path.dirname(path))
            os.replace(path, os.path.join(old, "replaced"))
            os.replace(beside, path)
            shutil.rmtree(old)
        else:
            os.replace(beside, path)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask
