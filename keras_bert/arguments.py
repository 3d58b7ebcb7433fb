"""Options that are declared once: by the annotations, defaults and docstring of a function.

`check` checks values against the annotations; `flags.py` makes flags of the arguments.
"""

import dataclasses
import difflib
import functools
import inspect
import numbers
import os
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypedDict

from keras_bert.errors import InputError, Option


@dataclasses.dataclass(frozen=True)
class Rule:
    """A condition on a value, and its `text`, which follows a name and "must be"."""

    text: str
    holds: Callable[[Any], bool]

    def __repr__(self) -> str:  # in the signatures that `help` shows
        return self.text


# What annotations cannot express: the name of an argument, its value, what it must be, as the parts of an InputError
# if there are several, and True if it is.
Requirement = tuple[str, object, str | list[str], bool]
Count = Annotated[int, Rule("at least 1", lambda value: value >= 1)]
Length = Annotated[int, Rule("at least 3", lambda value: value >= 3)]  # [CLS], a token, [SEP]
Seed = Annotated[int, Rule(f"from 0 to {2**31 - 1}", lambda value: 0 <= value < 2**31)]  # an int32 in each batch
Positive = Annotated[float, Rule("positive", lambda value: value > 0)]
PositiveOrZero = Annotated[float, Rule("at least 0", lambda value: value >= 0)]
Share = Annotated[float, Rule("at least 0 and below 1", lambda value: 0 <= value < 1)]
MaxError = Annotated[float, Rule("above 0 and below 1", lambda value: 0 < value < 1)]  # see `TaskModel.calibrate`
Probability = Annotated[float, Rule("from 0 to 1", lambda value: 0 <= value <= 1)]
Port = Annotated[int, Rule("from 0 to 65535", lambda value: 0 <= value < 2**16)]
Delimiter = Annotated[str, Rule("one character, no quote or white space",
                                lambda value: len(value) == 1 and value != '"' and not value.isspace())]
AggregationStrategy = Literal["none", "simple", "first", "average", "max"]  # of a tagger
Pooling = Literal["mean", "cls", "max"]  # how the vectors of tokens become one
Aggregate = Literal["mean", "max"]  # how the outputs of the windows of a text become one
Normalization = Literal["none", "NFC"]  # of texts, see `BertTokenizer`
Activation = Literal["sigmoid", "identity"]  # what turns the logit of a re-ranker into the score
Path = str | os.PathLike
Data = str | os.PathLike | Iterable  # a file; or rows in memory, see `keras_bert.data.tables.Rows`
# Weights of classes: a name, or weights by label, as a dict or as the path of a JSON object.
Weights = str | os.PathLike | dict
Repeated = Annotated[list[str], "one value each time the flag is given, instead of several between commas"]


class TextColumns(TypedDict, total=False):
    """How the texts of a file are read, see `finetune`. None is the same as left out."""

    data_format: str | None
    text_column: str | None
    text_pair_column: str | None


class LabelColumns(TextColumns, total=False):
    """How a labelled file is read."""

    label_column: str | None
    label_columns: list[str] | None
    label_delimiter: Delimiter | None


class ScoreColumns(LabelColumns, total=False):
    """How a labelled file is read and scored."""

    out_of_scope_label: str | None


_SURROGATE = re.compile("[\ud800-\udfff]")
_CLASSES = {bool: bool, int: numbers.Integral, float: numbers.Real}
NAMES = {bool: "True or False", int: "a whole number", float: "a number", str: "a string", os.PathLike: "a path",
          Iterable: "rows", Sequence: "a list", list: "a list", Callable: "a function", dict: "an object"}


def check(function: Callable, values: Mapping[str, Any], *rules: Requirement) -> None:
    """Raises an InputError that names the first value that does not fit the annotation of its argument, and then checks
    `rules`, see `check_rules`. Names that are not arguments are ignored."""
    for name, parameter in _parameters(function).items():
        if name in values and parameter.annotation is not parameter.empty:
            check_value(name, values[name], parameter.annotation)
    check_rules(*rules)


@functools.lru_cache(256)  # which takes a tenth of the time of an answer to one text
def _parameters(function: Callable) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(function).parameters


def check_value(name: str, value: Any, annotation: Any) -> None:
    """Checks the value of one argument against its annotation, see `check`."""
    if rule := broken_rule(value, annotation):
        choices = [choice for kind in alternatives(annotation) if typing.get_origin(kind) is Literal
                   for choice in typing.get_args(kind)]
        raise InputError(Option(name), f" must be {rule}; got {value!r:.200}{did_you_mean(value, choices)}")


def check_rules(*rules: Requirement) -> None:
    """Raises an InputError that names the first value that breaks its rule."""
    for name, value, rule, holds in rules:
        if not holds:
            raise InputError(Option(name), " must be ", *as_list(rule), f"; got {value!r}")


# Names in other libraries and in older versions, and the names here, where difflib does not find these.
_OTHER_NAMES = {"accumulate": "gradient_accumulation_steps", "data": ("train", "input"), "data_dir": ("train", "input"),
                "format": "output_format", "from": "model", "init_checkpoint": "model", "init_from": "model",
                "label": "label_column", "layout": "data_format", "lr": "learning_rate", "model_name_or_path": "model",
                "num_train_epochs": "epochs", "output_dir": "output", "per_device_train_batch_size": "batch_size",
                "recompute": "gradient_checkpointing", "serving_dir": "output", "size": "vocab_size",
                "strategy": "distribution_strategy", "text": "text_column", "text_pair": "text_pair_column",
                "to": "output", "train_file": "train", "validation_file": "valid", "embeddings": "embed",
                "korquad": "span", "multi_label_classification": "multilabel", "multiple_choice": "choice",
                "ner": "tag", "nli": "classify", "pos": "tag", "qa": "span", "regression": "regress",
                "sentiment": "classify", "squad": "span", "sts": "regress", "swag": "choice",
                "token_classification": "tag", "test": "evaluate", "train": "finetune",
                "bf16": ("bfloat16", "mixed_bfloat16"), "fp16": ("mixed_float16", "mixed_bfloat16", "bfloat16")}


def did_you_mean(value: object, choices: Iterable[str]) -> str:
    """Returns the end of a message, `; did you mean tag?`, or "" if none of the choices is similar. Values that belong
    to another command get a hint."""
    if str(value) == "int8":
        return "; keras-bert export litert writes models in int8"
    others = as_list(_OTHER_NAMES.get(str(value).lower(), ()))
    close = [name for name in others if name in choices] if others else difflib.get_close_matches(
        str(value).lower(), choices, 1)
    return f"; did you mean {close[0]}?" if close else ""


def changed(function: Callable, values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values that are not the defaults of a function's arguments, in the order of the arguments."""
    return {name: values[name] for name, parameter in inspect.signature(function).parameters.items()
            if name in values and values[name] != parameter.default}


def not_none(**values: Any) -> dict[str, Any]:
    """Returns the values that are not None."""
    return {name: value for name, value in values.items() if value is not None}


def as_flags(values: Mapping[str, Any]) -> list[str]:
    return [f"--{name}={','.join(value) if isinstance(value, list) else value}" for name, value in values.items()]


def to_json(value: Any) -> Any:
    """Converts an argument to what JSON holds: a path to str, a number of NumPy to int or float, a tuple to a list, the
    keys of a dict to str."""
    if isinstance(value, (list, tuple)):
        return [to_json(part) for part in value]
    if isinstance(value, dict):
        return {str(key): to_json(part) for key, part in value.items()}
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return os.fspath(value) if isinstance(value, os.PathLike) else value
    return int(value) if isinstance(value, numbers.Integral) else float(value)


def is_table(data: object) -> bool:
    """Returns True for a DataFrame, of pandas or Polars, or a dict of columns."""
    return isinstance(data, dict) or not hasattr(type(data), "collect") and hasattr(data, "columns")


def as_texts(name: str, texts: Iterable[str]) -> list[str]:
    """Returns the texts of a list, tuple, Series, array or generator as a list, without looking at them. Raises an
    InputError, which says what to pass, for one text, a table, a set, or what is no iterable."""
    if isinstance(texts, list):
        return texts
    rule = f"{name} must be a list of texts"
    if is_table(texts):
        raise InputError(f"{rule}; got a {type(texts).__name__}; pass one of its columns: table['text']")
    if isinstance(texts, str | bytes):
        cure = "this is a file: pass its texts" if os.path.isfile(texts) else f"pass [{texts[:60]!r}]"
        raise InputError(f"{rule}; got {texts[:60]!r}; {cure}")
    if not isinstance(texts, Iterable) or isinstance(texts, set | frozenset) or getattr(texts, "ndim", 1) == 0:
        raise InputError(f"{rule}; got {texts!r:.60}")
    return list(texts)


def check_texts(name: str, texts: list, unit: str = "row") -> None:
    """Raises an InputError that names the first element of a list, from 1, that is not a str."""
    for number, text in enumerate(texts, 1):
        if not isinstance(text, str):
            cure = f"leave out the {unit}s without a text" if is_missing(text) else "pass a str"
            raise InputError(f"{name}: {unit} {number}: must be a text; got {' '.join(repr(text).split()):.60}; {cure}")


def texts_of_argument(name: str, values: Iterable, unit: str = "row") -> list:
    """Returns the texts of an argument of `predict`, or a list of texts for each row of its `choices`."""
    texts = as_texts(name, values)
    if name == "choices":
        rows = [texts_of_argument(f"choices: row {row}", choices, "choice") for row, choices in enumerate(texts, 1)]
        for row, choices in enumerate(rows, 1):
            if len(choices) < 2:
                raise InputError(f"choices: row {row}: must have at least two choices; got {len(choices)}")
        return rows
    check_texts(name, texts, unit)
    return list(map(replace_surrogates, texts))


def is_missing(value: object) -> bool:
    """Returns True for what a cell of a table without a value is: blank, null, NaN, or the NA or NaT of pandas."""
    if isinstance(value, str):
        return not value.strip()
    return value is None or not isinstance(value, list | dict) and str(value) in ("nan", "<NA>", "NaT")


def replace_surrogates(text: str) -> str:
    """Replaces each surrogate, which UTF-8 cannot encode, by U+FFFD, so that positions in the text stay the same.

    Surrogates are half a character of UTF-16, cut by another program, or an invalid byte on the command line."""
    return _SURROGATE.sub("\ufffd", text)


def plural(noun: str, count: int) -> str:
    return noun if count == 1 else f"{noun}s"


def as_list(value: Any) -> list:
    """Returns a list of one value, or of the items of a list or tuple."""
    return list(value) if isinstance(value, (list, tuple)) else [value]


def alternatives(annotation: Any) -> tuple:
    is_union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    return typing.get_args(annotation) if is_union else (annotation,)


def broken_rule(value: Any, annotation: Any) -> str | None:
    """Returns what a value must be to fit an annotation; None if it fits."""
    kinds = alternatives(annotation)
    if value is None and types.NoneType in kinds:
        return None
    is_list = isinstance(value, (list, tuple))
    lists, others = split_lists(kinds)
    if is_list and lists and others and not value:
        return "one value or several"
    rules = [_broken_rule_of_one(value, kind) for kind in (lists if is_list and lists else others or lists)]
    return None if None in rules else " or ".join(dict.fromkeys(filter(None, rules)))


def _broken_rule_of_one(value: Any, kind: Any) -> str | None:
    origin = typing.get_origin(kind)
    if origin is Annotated:
        kind, *rules = typing.get_args(kind)
        broken = (rule.text for rule in rules if isinstance(rule, Rule) and not rule.holds(value))
        return broken_rule(value, kind) or next(broken, None)
    if origin is Literal:
        return None if value in typing.get_args(kind) else f"one of {', '.join(typing.get_args(kind))}"
    if origin is list:
        if not isinstance(value, (list, tuple)):
            return "a list"
        return next(filter(None, (broken_rule(part, typing.get_args(kind)[0]) for part in value)), None)
    kind = origin or kind  # of Callable[[str], None], Callable
    is_no_number = kind in (int, float) and isinstance(value, bool)  # in Python, True is an int
    return NAMES.get(kind, kind.__name__) if is_no_number or not isinstance(value, _CLASSES.get(kind, kind)) else None


def split_lists(kinds: Sequence) -> tuple[list, list]:
    """Returns the alternatives of an annotation that are lists, and the others except None."""
    lists = [kind for kind in kinds if typing.get_origin(kind) is list or kind == Repeated]
    return lists, [kind for kind in kinds if kind not in lists and kind is not types.NoneType]
