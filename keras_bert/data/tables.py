"""Readers of tables in TSV, CSV, JSON and Parquet files, as streams."""

import ast
import collections
import contextlib
import contextvars
import dataclasses
import functools
import itertools
import json
import os
import re
import unicodedata
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from keras_bert.arguments import Data, Path, is_table, replace_surrogates
from keras_bert.data.rows import NO_QUOTING, ROW_FORMATS, RowFormat, class_of, json_rows, paired_lines, suffix_of
from keras_bert.errors import InputError, InputWarning, MissingColumn, Option, UnknownSuffix
from keras_bert.files.json_files import Record

T = TypeVar("T")
Row = tuple[int, dict[str, Any]]  # the number of the line or record, from 1, the header included; the values
_Unchecked = tuple[list[str], Iterator[Row]]
Table = tuple[list[str], Iterator[Record]]  # the columns; the rows, each with all columns
# Another way to say how to read a file, for callers that know published data sets.
PUBLISHED = ", or be of a published data set, which ", Option("data_format"), " must name"
TEST_FILE = "; this is a test file without labels, for predict alone"

_BLANK = re.compile("[ \u034f\u115f\u1160\u180b-\u180d\ufe00-\ufe0f\U000e0100-\U000e01ef]")  # though `isprintable`
_UNREAD: contextvars.ContextVar[list[str] | None] = contextvars.ContextVar("unread columns", default=None)


@dataclasses.dataclass(frozen=True)
class Rows:
    """A table in memory, which readers accept in place of a path."""

    name: str  # in error messages
    rows: list[dict[str, Any]]  # the values by the names of their columns
    numbers: list[int] | None = None  # of the rows; None if they count from 1
    classes: tuple[list[str], ...] = ()  # the names of each `ClassLabel`, in its order, first of the labels'

    def __str__(self) -> str:
        return self.name


def open_data(data: Data, name: str, tuples: Sequence[Sequence[str]] = (), names_classes: bool = False) -> str | Rows:
    """Returns a data set as readers accept it: the path of a file, or `Rows`.

    Args:
        data: a path; a DataFrame; or an iterable of dicts from column names to values, or of tuples. In a `Dataset` of
            Hugging Face, the class -1, which marks a missing label, becomes None.
        name: what error messages call rows in memory.
        tuples: the column names of a tuple of values, for each allowed length.
        names_classes: if True, the numbers of classes in a `Dataset` become their names.

    Raises:
        InputError: a row has another form, or there is none, and the message names the row, counted from 1; or two
            columns of a DataFrame have the same name.
    """
    if isinstance(data, str | os.PathLike):
        return os.fspath(data)
    if not isinstance(data, Iterable) or isinstance(data, dict):
        raise InputError(Option(name), f" must be a path, a DataFrame or a list of rows; got {data!r:.40}")
    table: Any = data
    if is_table(table):
        check_columns(name, list(map(str, table.columns)), required=())
        table = table.to_dict("records") if hasattr(table, "iloc") else table.to_dicts()  # pandas; Polars
    features = getattr(data, "features", None)  # of a Dataset: a dict of a ClassLabel or a list of them, and others
    classes = {column: names for column, feature in (features.items() if isinstance(features, dict) else ())
               if (names := getattr(getattr(feature, "feature", feature), "names", None))}
    rows, columns, first = [], {len(names): names for names in tuples}, None
    for row, values in enumerate(table, 1):
        if isinstance(values, list | tuple) and len(values) in columns:
            if len(values) != (first := first or len(values)):
                raise InputError(f"{name}: row {row}: must have {first} values as the first row; got {values!r:.40}")
            values = dict(zip(columns[len(values)], values))
        if not isinstance(values, dict):
            forms = " or ".join(["a dict", *(f"({', '.join(names)})" for names in tuples)])
            raise InputError(f"{name}: row {row}: must be {forms}; got {values!r:.40}")
        values = {str(column): _native(value) for column, value in values.items()}
        for column, names in classes.items():
            values[column] = class_of(values.get(column), names, f"{name}: row {row}: {column!r}", names_classes)
        rows.append(values)
    if not rows:
        raise InputError(f"{name}: holds no rows")
    labels = {names[-1] for names in tuples}
    return Rows(name, rows, classes=tuple(classes[column] for column in sorted(
        classes, key=lambda column: column not in labels)))


def _native(value: Any) -> Any:
    """Converts tuples to lists, and NumPy's values and arrays to Python's; replaces surrogates in texts."""
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, dict):
        return {name: _native(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_native(part) for part in value]
    return replace_surrogates(value) if isinstance(value, str) else value


def read_table(path: Path | Rows, required: Iterable[str | None] = (), kind: str | None = None,
               header: Sequence[str] | None = None, may_be_short: bool = False, other: Iterable[str] = ()) -> Table:
    """Opens a table; see `Table` for what it returns.

    A `.tsv` file has a header line and no quoting. A `.csv` file has a header and RFC 4180 quoting. If another one of
    comma, semicolon and tab alone divides all their rows alike, it is read so, with a warning. A `.jsonl` file has one
    object per line; it is read twice, first for the names of its columns. A `.json` file has an array of objects or
    one object after the other, and is not streamed; the values of its nested objects become columns `outer.inner`.
    Blank lines and a byte order mark are skipped; but in a `.tsv` file of one column, a blank line before the last row
    is an empty text. Text files but `.json` may be compressed with gzip: `.tsv.gz`.

    Args:
        path: the file, UTF-8; or `Rows`, for which `kind` and `header` have no effect.
        required: columns that the table must have, or None.
        kind: suffix that selects the reader. If None, the file's own suffix.
        header: names of the columns, for a `.tsv` or `.csv` file without a header. A first line with one of these names
            is a header all the same.
        may_be_short: if True, a row of a `.tsv` or `.csv` file with too few columns has the first ones alone; if False,
            it is an error. Values that a row of JSON lacks are None.
        other: see `choose_reader`.

    Raises:
        InputError: the file is invalid (the message names it and the row), or pyarrow is missing, which Parquet needs.
    """
    columns, rows = choose_reader(path, _READERS, "a data file", kind, other)(path, header, may_be_short)
    if not columns:
        raise InputError(f"{path}: must have columns and rows; it is empty")
    check_columns(path, columns, required)
    records = at_least_one(itertools.starmap(functools.partial(Record, path), rows),
                           f"{path}: must have rows; it has only a header: {', '.join(columns)}")
    if "_task_hash" in columns:  # an export of Prodigy, with the answers of annotators
        cure = "; leave out the others by prodigy db-out --answer accept"
        records = (row for row in records if row.one_of("answer", ["accept"], "accept", cure))
    may_be_quoted = not kind and not isinstance(path, Rows) and suffix_of(path) == ".tsv"  # no published format
    records = _watch_for_quotes(path, records) if may_be_quoted else records
    return columns, records if (unread := _UNREAD.get()) is None else _watch_columns(columns, records, unread)


def at_least_one(items: Iterable[T], message: str) -> Iterator[T]:
    """Yields the items; if there is none, raises an InputError with this message."""
    item = None
    for item in items:
        yield item
    if item is None:
        raise InputError(message)


def choose_reader(path: Path | Rows, readers: Mapping[str | None, Callable[..., T]], what: str, kind: str | None = None,
                  other: Iterable[str] = ()) -> Callable[..., T]:
    """Returns the reader for a path's suffix, or for `kind` instead; the one for `Rows` is under None. `what` is what
    error messages call the file, `other` the parts that name another way to say how to read it."""
    suffix = None if isinstance(path, Rows) else kind or suffix_of(path)
    if suffix not in readers:
        suffixes = ", ".join(name for name in readers if name and name[0] == ".")
        is_folder = not isinstance(path, Rows) and os.path.isdir(path)
        found = ["a folder; pass one of its files" if is_folder else suffix or "no suffix"]
        if is_folder and os.path.exists(f"{path}/seq.in"):
            found = ["a folder of SNIPS or ATIS; pass ", Option("data_format=snips")]
        raise UnknownSuffix(f"{path}: {what} must end in {suffixes}", *(() if is_folder else other), "; got ", *found)
    return readers[suffix]


@contextlib.contextmanager
def unread_columns() -> Iterator[list[str]]:
    """Context manager of a list, which gets the unread columns of the tables that are read in the block."""
    unread: list[str] = []
    token = _UNREAD.set(unread)
    try:
        yield unread
    finally:
        _UNREAD.reset(token)


class _WatchedRow(collections.UserDict):
    """The values of a row, and the names of those that were `read`."""

    read: set[str]

    def __getitem__(self, name: str) -> Any:
        self.read.add(name)
        return super().__getitem__(name)


def _watch_columns(columns: list[str], rows: Iterator[Record], unread: list[str]) -> Iterator[Record]:
    for row in itertools.islice(rows, 1):  # the others are read alike
        watched: Any = _WatchedRow(row.values)
        watched.read = set()
        yield Record(row.file, row.place, watched)
        unread += [name for name in columns if name not in {*unread, *watched.read}]
    yield from rows


def _watch_for_quotes(path: Path | Rows, rows: Iterator[Record]) -> Iterator[Record]:
    """Warns after the last row of a `.tsv` file if its cells are quoted as pandas and `csv` do it by default: if all
    cells that have quotes are in quotes themselves, with two quotes for one inside."""
    quoted, others, first = 0, 0, 0
    for row in rows:
        yield row
        for cell in () if others else row.values.values():
            if '"' in cell:
                inner = cell[1:-1].replace('""', "")
                if cell[0] == cell[-1] == '"' and '"' not in inner and len(inner) < len(cell) - 2:
                    quoted, first = quoted + 1, first or row.place
                else:
                    others += 1
    if quoted and not others:
        warnings.warn(f"{path}: quoted cells: {quoted:,}, the first in row {first}, whose quotes are read as part of "
                      f"their texts; {NO_QUOTING}", InputWarning, stacklevel=2)


@functools.lru_cache(1000)  # of labels, which files repeat
def look(name: str) -> str:
    """Returns a text that is equal for names that look alike: those that differ by Unicode form, case, white space, or
    characters that cannot be seen."""
    return _BLANK.sub("", "".join(filter(str.isprintable, unicodedata.normalize("NFKC", name)))).casefold()


def escaped(name: str) -> str:
    """Returns a name in quotes, with escapes for what cannot be seen in it; for all but ASCII if it is not in NFKC."""
    is_clear = unicodedata.is_normalized("NFKC", name) and not _BLANK.search(name.replace(" ", ""))
    return repr(name) if is_clear else ascii(name)


def shown(name: str) -> str:
    """Returns a name in a list as it is, or `escaped` if one could take it for another."""
    return name if escaped(name)[1:-1] == name == " ".join(name.split()) != "" and "," not in name else escaped(name)


def check_columns(path: Path | Rows, columns: Sequence[str], required: Iterable[str | None], *cure: str) -> None:
    """Raises an InputError if two columns have the same name, or a required one that is not None is missing. `cure`
    ends the message about that, by default with the argument that names another column."""
    names = ", ".join(map(shown, columns)) or "none"
    if len(set(columns)) < len(columns):
        raise InputError(f"{path}: column names must differ; got {names}")
    for name in filter(None, required):
        if name not in columns:
            if alike := [column for column in columns if look(column) == look(name)]:
                cure = f"; rename {escaped(alike[0])}, which looks like it",
            elif {"annotations", "data"} <= {*columns}:
                cure = "; of Label Studio, export JSON-MIN",
            elif not cure and (parts := [each for each in ",;\t" if name in each.join(columns).split(each)]):
                cure = f"; the cells seem to be separated by {parts[0]!r}: save them with ',' as .csv, in quotes",
            elif not cure and name in ("text", "text_pair", "label"):
                cure = "; pass ", Option(f"{name}_column=…"), (
                    "; the first line must have the columns' names" if f"{path}".endswith(("csv", "tsv")) else "")
            raise MissingColumn(f"{path}: there is no column {escaped(name)}; the columns are {names}", *cure)


def printed_list(text: str) -> Any:
    """Returns the list that a text is as JSON or Python prints it; any other text stays."""
    text = text.strip()
    if not text or text[0] + text[-1] not in ("[]", "{}", "()"):
        return text
    with contextlib.suppress(ValueError, RecursionError):
        return json.loads(text)
    with contextlib.suppress(ValueError, SyntaxError, RecursionError, MemoryError):
        value = ast.literal_eval(text)
        # NumPy prints no commas, without which Python joins the texts.
        if re.sub(r"\s", "", str(value)).replace('"', "'") == re.sub(r"\s", "", text).replace('"', "'"):
            return list(value) if isinstance(value, tuple) else value
    return text


def _read_rows(form: RowFormat, path: Path, header: Sequence[str] | None, may_be_short: bool) -> _Unchecked:
    columns, rows = form.open(path, header)

    def parsed(rows: Iterable[tuple[int, float, Any]]) -> Iterator[Row]:
        return ((number, form.parse(path, number, row, columns, may_be_short)) for number, _, row in rows)

    if columns is None:  # the file is read twice, as the columns are those of all rows
        return _read_objects(lambda: parsed(form.open(path, header)[1]))
    return columns, parsed(rows)


def _read_json(path: Path, *_: Any) -> _Unchecked:
    """Reads objects; adds the values of nested ones under the keys `outer.inner`."""
    rows = [(row, values | {f"{key}.{name}": value for key, inner in values.items() if isinstance(inner, dict)
                            for name, value in inner.items()}) for row, values in json_rows(path)]
    return _read_objects(lambda: rows)


def _read_memory(table: Rows, *_: Any) -> _Unchecked:
    return _read_objects(lambda: zip(table.numbers or itertools.count(1), table.rows))


def _read_folder(folder: Path, *_: Any) -> _Unchecked:
    """Reads the folder of a data set of intents and slots (Goo et al., 2018)."""
    return ["text", "label"], ((row, {"text": text, "label": label})
                               for row, (text, label) in paired_lines(folder, "seq.in", "label"))


def _read_objects(objects: Callable[[], Iterable[Row]]) -> _Unchecked:
    """Reads the rows that each call of `objects` returns."""
    columns: dict[str, Any] = dict.fromkeys(name for _, values in objects() for name in values)  # in constant memory
    return list(columns), ((row, columns | values) for row, values in objects())


_READERS: dict[str | None, Callable[..., _Unchecked]] = {
    None: _read_memory, **{suffix: functools.partial(_read_rows, form) for suffix, form in ROW_FORMATS.items()},
    ".json": _read_json, "snips": _read_folder}
