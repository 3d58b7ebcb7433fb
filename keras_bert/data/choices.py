"""Prompts with several endings, of which one is right."""

import dataclasses
import re

from keras_bert.data.formats import choose
from keras_bert.data.tables import read_table, text_of, texts_of
from keras_bert.errors import InputError


@dataclasses.dataclass(frozen=True)
class ChoiceExample:
    """A prompt and its choices; `label` is the number of the right one, from 0, None where the file does not say. `row`
    is the file's line or record, counted from 1, the header included."""

    prompt: str
    choices: list[str]
    label: int | None
    row: int


@dataclasses.dataclass(frozen=True)
class ChoiceColumns:
    """Where a table has them.

    Args:
        prompt: column of the prompt.
        choice: columns of the choices without their numbers, which begin with 0.
        start: column of the words that all choices begin with.
        kind, header: see `read_table`.
    """

    prompt: str = "prompt"
    choice: str = "choice"
    start: str | None = None
    kind: str | None = None
    header: tuple[str, ...] | None = None


FORMATS = {
    # Zellers et al., 2018: the .csv files, and rows of the same names as JSON.
    "swag": ChoiceColumns("sent1", "ending", start="sent2"),
    # Chen et al., 2019.
    "codah": ChoiceColumns(kind=".tsv", header=("category", "prompt", *(f"choice{i}" for i in range(4)), "label")),
}


def read_choices(path, format=None):
    """Reads a table of `prompt`, `choice0`, `choice1`, …, or in `.jsonl`, `.json` and `.parquet` also a list `choices`,
    and `label`, the number of the right choice.

    Args:
        path: the file, UTF-8, see `read_table`.
        format: name of a published layout in `FORMATS`.

    Yields:
        `ChoiceExample`s, all with as many choices.

    Raises:
        InputError: names the file and the row.
    """
    layout = choose(path, format, FORMATS) if format else ChoiceColumns()
    columns, rows = read_table(path, (layout.prompt, layout.start), layout.kind, layout.header)
    count = None
    for row, values in rows:
        choices = _choices(path, row, values, layout)
        count = count or len(choices)
        if len(choices) < 2 or len(choices) != count:
            rule = f"{count} choices as the first row" if count > 1 else "two choices or more"
            raise InputError(f"{path}: row {row}: must have {rule}; got {len(choices)}")
        label = _label(path, row, values["label"], count) if "label" in columns else None
        yield ChoiceExample(text_of(path, row, values, layout.prompt), choices, label, row)


def _choices(path, row, values, layout):
    if "choices" in values:
        return texts_of(path, row, values, "choices")
    count = sum(bool(re.fullmatch(rf"{layout.choice}\d+", name)) for name in values)
    start = f"{text_of(path, row, values, layout.start)} " if layout.start else ""
    return [start + text_of(path, row, values, f"{layout.choice}{i}") for i in range(count)]


def _label(path, row, value, count):
    if str(value) not in map(str, range(count)):
        raise InputError(f"{path}: row {row}: 'label' must be a number from 0 to {count - 1}; got {value!r}")
    return int(value)
