"""The code points that Unicode 14 assigns, except surrogates: those that Python 3.11's `unicodedata` knows.

Later versions of Python know more code points. Rules that only use the ones listed here give the same ids in all
versions, because Python 3.12 (Unicode 15.0) and 3.13 (15.1) did not change their properties. `unicode14.txt` has the
ranges in hexadecimal.
"""

import os
from collections.abc import Iterable, Iterator

with open(os.path.join(os.path.dirname(__file__), "unicode14.txt"), encoding="ascii") as _file:
    _SPANS = [span.split("-") for span in _file.read().split()]

# Pairs of (first, last).
ASSIGNED: list[tuple[int, int]] = [(int(ends[0], 16), int(ends[-1], 16)) for ends in _SPANS]


def code_points(spans: Iterable[tuple[int, int]] = ASSIGNED) -> Iterator[int]:
    for first, last in spans:
        yield from range(first, last + 1)
