"""Readers of labelled texts from tables, and the columns of published datasets."""

import dataclasses
import math
import os
import re
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from keras_bert.arguments import Path, as_list, is_missing, plural
from keras_bert.data.rows import parquet_classes
from keras_bert.data.tables import PUBLISHED, TEST_FILE, Rows, T, check_columns, escaped, look, read_table
from keras_bert.errors import InputError, InputWarning, Option
from keras_bert.files.json_files import Record

# float() would also read 1_0, nan and the digits of other scripts.
_NUMBER = re.compile(r"\s*[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[-+]?[0-9]+)?\s*", re.ASCII | re.IGNORECASE)


@dataclasses.dataclass(frozen=True)
class Columns:
    """The columns of a table that hold its texts and labels.

    Args:
        text, text_pair, label: columns, the last perhaps several; those that are None are not read.
        kind: suffix that selects the reader of a published file, see `read_table`.
        header: names of all columns, for a file without a header, see `read_table`.
        index: column of the numbers that GLUE's server expects beside the predictions.
        skips_short_rows: rows with too few columns are skipped, with a warning.
        skipped_label: rows with this label are skipped, with a warning.
    """

    text: str
    text_pair: str | None = None
    label: Any = "label"
    kind: str = ".tsv"
    header: tuple[str, ...] | None = None
    index: str | None = None
    skips_short_rows: bool = False
    skipped_label: str | None = None


# Rows that the official loaders skip:
# - The line breaks in some questions of QQP split their rows (github.com/nyu-mll/GLUE-baselines/issues/5).
# - The label - in MultiNLI, SNLI and their translations means that the annotators did not agree.
FORMATS = {
    # GLUE (Wang et al., 2018): train, dev and test files; CoLA's train and dev files have no header. MultiNLI's and
    # SNLI's own .txt files have the columns of mnli.
    "cola": Columns("sentence", header=("source", "label", "mark", "sentence"), index="index"),
    "sst2": Columns("sentence", index="index"),
    "mrpc": Columns("#1 String", "#2 String", "Quality", index="index"),
    "qqp": Columns("question1", "question2", "is_duplicate", index="id", skips_short_rows=True),
    "stsb": Columns("sentence1", "sentence2", "score", index="index"),
    "mnli": Columns("sentence1", "sentence2", "gold_label", index="index", skipped_label="-"),
    "qnli": Columns("question", "sentence", index="index"),
    "rte": Columns("sentence1", "sentence2", index="index"),
    "wnli": Columns("sentence1", "sentence2", index="index"),
    "ax": Columns("sentence1", "sentence2", index="index"),  # the diagnostic file, without labels
    # Naver sentiment movie corpus, .txt files (github.com/e9t/nsmc).
    "nsmc": Columns("document"),
    # KorNLU (Ham et al., 2020).
    "kornli": Columns("sentence1", "sentence2", "gold_label", skips_short_rows=True, skipped_label="-"),
    "korsts": Columns("sentence1", "sentence2", "score"),
    # KLUE (Park et al., 2021), JSON arrays of objects.
    "klue-tc": Columns("title", kind=".json"),
    "klue-nli": Columns("premise", "hypothesis", "gold_label", kind=".json", skipped_label="-"),
    "klue-sts": Columns("sentence1", "sentence2", "labels.label", kind=".json"),
    # Intents of ATIS and SNIPS (Goo et al., 2018), folders of seq.in and label.
    "snips": Columns("text", kind="snips"),
}


def choose(path: Path | Rows, data_format: str, formats: Mapping[str, T]) -> T:
    """Returns the format of this name; raises an InputError if there is none."""
    if data_format not in formats:
        raise InputError(f"{path}: ", Option("data_format"),
                         f" must be one of {', '.join(formats)}; got {data_format!r}")
    return formats[data_format]


@dataclasses.dataclass(frozen=True)
class Example:
    """One text or pair of texts. `text_pair` and `label` are None if the file has none. `label` is a str, a float for a
    regression, or a sorted tuple of any number of str. `row` is the number of the line or record, from 1, the header
    included. `index` is the number that a file of GLUE gives the example."""

    text: str
    text_pair: str | None
    label: Any
    row: int | None
    index: str | None = None


def only(value: Any) -> Any:
    """Returns the item of a list of one, as annotation tools write a single label; any other value stays."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def label_of(row: Record, column: str) -> str:
    """Returns a label as str; raises an InputError if it is not a text or a finite number, or a list of one."""
    value = only(row.values[column])
    finite = isinstance(value, str | int) or isinstance(value, float) and math.isfinite(value)
    if isinstance(value, bool) or not finite or is_missing(value):
        several = ("; texts with several labels are for ", Option("task=multilabel"))
        raise row.error(column, "a text or a finite number", *several * isinstance(value, list | tuple))
    return str(value)


def number(row: Record, column: str) -> float:
    """Returns a label as a float; raises an InputError if it is not a finite number in ASCII digits."""
    label = label_of(row, column)
    if not _NUMBER.fullmatch(label) or not math.isfinite(float(label)):
        raise row.error(column, "a number")
    return float(label)


def read_examples(path: Path | Rows, text_column: str = "text", text_pair_column: str | None = None,
                  label_column: str | None = "label", data_format: str | None = None) -> list[Example]:
    """Returns the examples of `iterate_examples` as a list."""
    return list(iterate_examples(path, text_column, text_pair_column, label_column, data_format))


def iterate_examples(path: Path | Rows, text_column: str = "text", text_pair_column: str | None = None,
                     label_column: Any = "label", data_format: str | None = None,
                     read_label: Callable[..., Any] = label_of, formats: Mapping[str, Columns] = FORMATS,
                     other_label: str | None = None) -> Iterator[Example]:
    """Reads a table by its column names, see `read_table`: `.tsv`, `.csv`, `.jsonl`, `.json`, `.parquet`, `Rows`.

    Args:
        path: the file, UTF-8; or `Rows`.
        text_column: column of the text.
        text_pair_column: column of the second text. If None, `text_pair` if there is such a column.
        label_column: column of the label, or a list of columns that have it together. If None, only texts are read.
        data_format: name of a published dataset's format in `formats`. It sets the columns and the reader, whatever
            the file's suffix; of the arguments above, only `label_column=None` is allowed then. Rows that the official
            loaders skip are skipped; one `InputWarning` at the end of the file names them.
        read_label: called with a row and `label_column`, returns the label.
        other_label: column of the label if there is no column `label_column`.

    Yields:
        `Example`s, all with a `text_pair` or all without.

    Raises:
        InputError: the file is invalid; the message names the file, the row and the column.
    """
    if data_format:
        for name, column in ("text", text_column), ("text_pair", text_pair_column), ("label", label_column):
            if column not in (None, name):
                raise InputError(Option(f"{name}_column"), " must be left out with ",
                                 Option(f"data_format={data_format}"), f", which sets the columns; got {column!r}")
        columns = choose(path, data_format, formats)
        columns = columns if label_column else dataclasses.replace(columns, label=None)
        rows = _read_published(path, columns, data_format)
    else:
        names, rows = read_table(path, other=PUBLISHED if label_column else ())
        label = other_label if label_column not in names and other_label in names else label_column
        pair = text_pair_column or ("text_pair" if "text_pair" in map(look, names) else None)
        columns = Columns(text_column, pair, label)
        check_columns(path, names, (text_column, pair, *as_list(label)))
    text, text_pair, label, index = columns.text, columns.text_pair, columns.label, columns.index
    labelled = bool(label) and not data_format  # published files have empty texts
    for row in rows:
        yield Example(row.text(text, labelled), text_pair and row.text(text_pair, labelled),
                      label and read_label(row, label), row.place, index and row.values.get(index))


def _read_published(path: Path | Rows, columns: Columns, data_format: str) -> Iterator[Record]:
    """Yields the rows that the official loaders keep, then warns about those that they skip."""
    names, rows = read_table(path, (), columns.kind, columns.header, columns.skips_short_rows, PUBLISHED)
    label = columns.label
    required = [name for name in (columns.text, columns.text_pair, label) if name]
    cure = [TEST_FILE]
    if [name for name in required if name not in names] != [label]:
        cure = ["; ", Option(f"data_format={data_format}"), f" reads {columns.kind[1:].upper()} files, whatever their "
                f"suffix, with the columns {', '.join(required)}"]
    check_columns(path, names, required, *cure)
    skipped = defaultdict(list)
    count = 0
    for row in rows:
        if len(row.values) < len(names):
            skipped[f"with fewer than {len(names)} columns"].append(row.place)
        elif label and columns.skipped_label and row.values[label] == columns.skipped_label:
            skipped[f"labelled {columns.skipped_label}"].append(row.place)
        else:
            count += 1
            yield row
    kinds = " and ".join(f"{len(numbers)} {plural('row', len(numbers))} {what} ({plural('row', len(numbers))} "
                         f"{', '.join(map(str, numbers[:10]))}{', …' * (len(numbers) > 10)})"
                         for what, numbers in skipped.items())
    if not count:
        raise InputError(f"{path}: must have other rows than {kinds}, which the official loaders skip; the columns are "
                         f"{', '.join(names)}")
    if kinds:
        warnings.warn(f"{path}: skipped {kinds}, as the official loaders do", InputWarning, stacklevel=3)


def in_order(path: Path | Rows, labels: Iterable[str]) -> list[str]:
    """Returns the different labels of training data: in the order of the `ClassLabel` that has them all, or of numbers
    if all are whole numbers, otherwise of texts."""
    found, classes = set(labels), path.classes if isinstance(path, Rows) else ()
    if not isinstance(path, Rows) and os.fspath(path).endswith(".parquet"):
        classes = tuple(parquet_classes(path).values())
    for names in classes:
        if found <= set(names):
            return sorted(found, key=names.index)
    are_numbers = all(re.fullmatch(r"-?[0-9]{1,99}(\.0+)?", label) for label in found)
    return sorted(found, key=lambda label: (int(label.partition(".")[0]) if are_numbers else 0, label))


def warn_of_look_alikes(path: Path | Rows, labels: Iterable[tuple[str, int | None]]) -> None:
    """Warns the caller of `finetune` of labels that look alike. `labels` are those of all rows, with the rows."""
    alike: dict[str, dict[str, int | None]] = defaultdict(dict)
    for label, row in labels:
        alike[look(label)].setdefault(label, row)
    if groups := [group for group in alike.values() if len(group) > 1]:
        names = " and ".join(f"{escaped(label):.60} (row {row})" for label, row in groups[0].items())
        others = f" ({len(groups) - 1:,} more such groups)" * (len(groups) > 1)
        warnings.warn(f"{path}: labels that look alike: {names}{others}; they are different labels; if they should be "
                      "one, write them alike", InputWarning, stacklevel=4)
