"""SHA-256 of files."""

import hashlib
import os
from collections.abc import Collection, Iterable

from keras_bert.arguments import Path
from keras_bert.files.json_files import read_object, write_json
from keras_bert.files.paths import reading

DIGESTS = "sha256.json"


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


def write_digests(folder: Path, names: Iterable[str]) -> None:
    """Writes the digests of files in a folder to a file, `DIGESTS`."""
    write_json(os.path.join(folder, DIGESTS), {name: file_digest(os.path.join(folder, name)) for name in sorted(names)})


def changed_files(folder: Path, names: Collection[str] | None = None) -> list[str]:
    """Returns which files of a folder are missing or differ from the digests that `write_digests` wrote, all of them or
    of `names`; none if there are no digests."""
    digests = read_object(os.path.join(folder, DIGESTS))
    return [name for name, digest in digests.items() if name in (names or digests) and not (
        os.path.exists(path := os.path.join(folder, name)) and file_digest(path) == digest)]


def added_files(folder: Path) -> list[str]:
    """Returns the files of a folder that have no digest, without the file of the digests itself."""
    return sorted({*os.listdir(folder)} - read_object(os.path.join(folder, DIGESTS)).keys() - {DIGESTS})
