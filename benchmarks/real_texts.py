"""The real texts, vocabularies and task data that the benchmarks read.

They are read from `tests/data/real` in this repository or, if the environment variable `KERAS_BERT_DATA` is set, from
that folder, which has the same layout. The published results use complete data sets; the README of `tests/data/real`
names the source of each one.
"""

import os
import pathlib

DATA = pathlib.Path(os.environ.get("KERAS_BERT_DATA", pathlib.Path(__file__).parents[1] / "tests/data/real"))


def find(name):
    """Returns the path of a file.

    Args:
        name: path relative to the data folder.

    Raises:
        SystemExit: the file does not exist.
    """
    path = DATA / name
    if not path.exists():
        raise SystemExit(f"{path} does not exist; set KERAS_BERT_DATA to a folder that holds {name}, which may not be "
                         "part of this repository")
    return path


def announce(path, count, what="texts"):
    """Prints the source and the number of texts."""
    print(f"{count:,} {what} from {path}", flush=True)
