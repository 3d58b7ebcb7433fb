"""The real texts, vocabularies and task data that the benchmarks read.

They are those of the repository, `tests/data/real`, or of the folder `KERAS_BERT_DATA`, which has the same layout. The
published figures are from complete data sets; the README of `tests/data/real` says where each is from.
"""

import os
import pathlib

DATA = pathlib.Path(os.environ.get("KERAS_BERT_DATA", pathlib.Path(__file__).parents[1] / "tests/data/real"))


def find(name):
    """The path of a file.

    Args:
        name: its path below the folder.

    Raises:
        SystemExit: there is no such file.
    """
    path = DATA / name
    if not path.exists():
        raise SystemExit(f"{path} does not exist; set KERAS_BERT_DATA to a folder that holds {name}, which may not be "
                         "part of this repository")
    return path


def announce(path, count, what="texts"):
    """Prints where texts come from and how many there are."""
    print(f"{count:,} {what} from {path}", flush=True)
