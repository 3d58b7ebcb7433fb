"""SHA-256 of files."""

import hashlib
import os
from collections.abc import Collection

from keras_bert.arguments import Path
from keras_bert.errors import InputError
from keras_bert.files.json_files import read_object, write_json
from keras_bert.files.paths import reading

# The files of the digests, in a LiteRT folder and in a SavedModel, whose `assets.extra` is not copied into a model that
# contains the export.
DIGESTS, EXTRA_DIGESTS = "sha256.json", "assets.extra/sha256.json"


def file_digest(path: Path) -> str:
    """Returns the SHA-256 of a file's content, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def folder_digest(path: Path) -> str:
    """Returns the SHA-256 of the names and contents of all files in a folder."""
    digest = hashlib.sha256()
    with reading(path):
        for name in _files(path):
            digest.update(f"{name}\0".encode(errors="surrogateescape"))
            digest.update(bytes.fromhex(file_digest(os.path.join(path, name))))
    return digest.hexdigest()


def _files(folder: Path) -> list[str]:
    """Returns the paths in a folder of all files, also those in folders in it."""
    found = []
    for parent, folders, names in os.walk(os.fspath(folder)):
        folders.sort()
        found += [os.path.relpath(os.path.join(parent, name), folder) for name in sorted(names)]
    return found


def write_digests(folder: Path, digests: str = DIGESTS, names: Collection[str] | None = None) -> None:
    """Writes the digests of files in a folder, by default of all, to the file `digests` in it."""
    write_json(os.path.join(folder, digests),
               {name: file_digest(os.path.join(folder, name)) for name in names or _files(folder) if name != digests})


def renew_digest(folder: Path, name: str) -> None:
    """Writes the digest of a changed file to `DIGESTS`, if a folder has that, with one of it."""
    path = os.path.join(folder, DIGESTS)
    if name in (digests := read_object(path) if os.path.exists(path) else {}):
        write_json(path, digests | {name: file_digest(os.path.join(folder, name))})


def check_files(folder: Path, names: Collection[str] | None = None, added: bool = False) -> str | None:
    """Compares the files of a model, all or those in `names`, with their digests. Returns the name of the file of
    the digests; None, without any comparison, if there is none. Raises an InputError that names the files that are
    missing or differ, and if `added`, also those without a digest."""
    file = next((name for name in (EXTRA_DIGESTS, DIGESTS) if os.path.exists(os.path.join(folder, name))), None)
    if file is None:
        return None
    digests, problems = read_object(os.path.join(folder, file)), []
    for name in digests.keys() & (digests.keys() if names is None else names):
        with reading(path := os.path.join(folder, name)):
            if not os.path.isfile(path) or file_digest(path) != digests[name]:
                problems.append(f"{name} must be as it was written" + "; it is missing" * (not os.path.lexists(path)))
    # In LiteRT folders of version 0.3, settings.json has no digest.
    # In folders of models, which are not exported, only the vocabulary has one.
    others = {*_files(folder)} - digests.keys() - {file, "settings.json"} if added and len(digests) > 1 else ()
    problems += [f"{name} must be removed: it was added after the export" for name in others
                 if not os.path.basename(name).startswith(".")]  # as macOS adds them
    if problems:
        raise InputError(f"{os.fspath(folder)}: {'; '.join(sorted(problems))}; copy or write the folder again, or "
                         f"remove {file} if the change is right")
    return file
