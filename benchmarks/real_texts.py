"""The real texts, vocabularies and task data that the benchmarks read.

They are read from `tests/data/real` in this repository or, if the environment variable `KERAS_BERT_DATA` is set, from
that folder, which has the same layout. The README of `tests/data/real` names the source of each file, and says which
ones are samples; `fetch` downloads some complete files.
"""

import csv
import hashlib
import http.client
import os
import pathlib
import urllib.request

ROOT = pathlib.Path(__file__).parents[1]
BUNDLED, DOWNLOADS = ROOT / "tests/data/real", ROOT / "build/data"
DATA = pathlib.Path(os.environ.get("KERAS_BERT_DATA", BUNDLED))

# Complete files, by their names for `find`: address and SHA-256.
with open(pathlib.Path(__file__).with_name("downloads.tsv"), encoding="utf-8") as _file:
    OFFICIAL = {name: (address, digest) for name, address, digest in csv.reader(_file, delimiter="\t")}


def find(name, folder=DATA):
    """Returns the path of a file.

    Args:
        name: path relative to the data folder.

    Raises:
        SystemExit: the file does not exist.
    """
    path = folder / name
    if not path.exists():
        raise SystemExit(f"{path} does not exist; set KERAS_BERT_DATA to a folder that holds {name}, which may not be "
                         "part of this repository")
    return path


def fetch(name, folder=DOWNLOADS):
    """Returns the path of a complete file. Downloads it if it is missing or has another checksum.

    Raises:
        SystemExit: there is no address for the file, or it cannot be downloaded.
    """
    if name not in OFFICIAL:
        raise SystemExit(f"{name} cannot be downloaded; set KERAS_BERT_DATA to a folder that holds it. Files that can: "
                         f"{', '.join(OFFICIAL)}")
    (address, expected), path = OFFICIAL[name], folder / name
    if path.exists() and hashlib.sha256(path.read_bytes()).hexdigest() == expected:
        return path
    try:
        with urllib.request.urlopen(address, timeout=60) as response:
            content = response.read()
    except (OSError, http.client.HTTPException) as error:
        raise SystemExit(f"{address}: cannot be downloaded: {error}") from None
    if (found := hashlib.sha256(content).hexdigest()) != expected:
        raise SystemExit(f"{address}: the SHA-256 must be {expected}; got {found}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def announce(path, count, what="texts"):
    """Prints the source and the number of texts."""
    print(f"{count:,} {what} from {path}", flush=True)
