"""SHA-256 of files."""

import hashlib
import os

from keras_bert.arguments import Path
from keras_bert.files.failures import reading


def file_digest(path: Path) -> str:
    """Returns the SHA-256 of a file's content, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def folder_digest(path: Path) -> str:
    """Returns the SHA-256 of the names and contents of all files in a folder."""
    digest = hashlib.sha256()
    with reading(path):
        for parent, folders, names in os.walk(os.fspath(path)):
            folders.sort()
            for name in sorted(names):
                file = os.path.join(parent, name)
                digest.update(f"{os.path.relpath(file, path)}\0".encode(errors="surrogateescape"))
                digest.update(bytes.fromhex(file_digest(file)))
    return digest.hexdigest()
