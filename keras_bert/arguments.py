"""Options that are declared once: by the annotations, defaults and docstring of a function.

`check` checks the values of a function's arguments against the annotations. `read` and `read_source` give the command
line the arguments' names, types, defaults and help.
"""

import ast
import builtins
import collections
import dataclasses
import difflib
import inspect
import numbers
import os
import re
import types
import typing
from collections.abc import Callable, Iterable
from typing import Annotated, Literal

from keras_bert.errors import InputError


@dataclasses.dataclass(frozen=True)
class Rule:
    """A condition on a value.

    Args:
        text: the condition in words, to follow a name and "must be".
        holds: function that returns True if a value meets the condition.
    """

    text: str
    holds: Callable

    def __repr__(self):  # in the signatures that `help` shows
        return self.text


Count = Annotated[int, Rule("at least 1", lambda value: value >= 1)]
Length = Annotated[int, Rule("at least 3", lambda value: value >= 3)]  # [CLS], a token, [SEP]
Seed = Annotated[int, Rule(f"from 0 to {2**31 - 1}", lambda value: 0 <= value < 2**31)]  # an int32 in each batch
Positive = Annotated[float, Rule("positive", lambda value: value > 0)]
PositiveOrZero = Annotated[float, Rule("at least 0", lambda value: value >= 0)]
Share = Annotated[float, Rule("at least 0 and below 1", lambda value: 0 <= value < 1)]
Port = Annotated[int, Rule("from 0 to 65535", lambda value: 0 <= value < 2**16)]
Delimiter = Annotated[str, Rule("one character, no quote or white space",
                                lambda value: len(value) == 1 and value != '"' and not value.isspace())]
AggregationStrategy = Literal["none", "simple", "first", "average", "max"]  # of a tagger
Path = str | os.PathLike
Data = str | os.PathLike | Iterable  # a file; or rows in memory, see `keras_bert.data.tables.Rows`
Repeated = Annotated[list[str], "one value each time the flag is given, instead of several between commas"]

_SURROGATE = re.compile("[\ud800-\udfff]")
_CLASSES = {bool: bool, int: numbers.Integral, float: numbers.Real}
NAMES = {bool: "True or False", int: "a whole number", float: "a number", str: "a string", os.PathLike: "a path",
          Iterable: "rows"}


def check(function, values, *rules):
    """Checks values against the annotations of a function's arguments, and then `rules`, see `check_rules`.

    Args:
        function: the function.
        values: dict of argument names to values; names that are not arguments are ignored.

    Raises:
        InputError: a value does not fit; the message names the first one and what it must be.
    """
    for name, parameter in inspect.signature(function).parameters.items():
        if name in values and parameter.annotation is not parameter.empty:
            check_value(name, values[name], parameter.annotation)
    check_rules(*rules)


def check_value(name, value, annotation):
    """Checks the value of one argument against its annotation, see `check`."""
    rule = _broken_rule(value, annotation)
    if rule is not None:
        choices = [choice for kind in _alternatives(annotation) if typing.get_origin(kind) is Literal
                   for choice in typing.get_args(kind)]
        raise InputError(f"{name} must be {rule}; got {value!r:.200}{did_you_mean(value, choices)}")


def check_rules(*rules):
    """Checks conditions that annotations cannot express.

    Args:
        rules: tuples of the name, the given value, what it must be, and True if it is.

    Raises:
        InputError: a value breaks its rule; the message names the first one.
    """
    for name, value, rule, holds in rules:
        if not holds:
            raise InputError(f"{name} must be {rule}; got {value!r}")


# Names in other libraries and in older versions, and what they are called here.
_OTHER_NAMES = {
    "accumulate": "gradient_accumulation_steps", "clip_norm": "global_clipnorm", "data": ("train", "input"),
    "data_dir": ("train", "input"), "early_stopping": "early_stopping_patience", "format": "output_format",
    "from": "model", "init_checkpoint": "model", "init_from": "model", "label": "label_column", "layout": "data_format",
    "lr": "learning_rate", "max_seq_length": "max_length", "model_name_or_path": "model",
    "num_train_epochs": "epochs", "out_of_scope": "out_of_scope_label", "output_dir": "output",
    "per_device_train_batch_size": "batch_size", "recompute": "gradient_checkpointing", "seq_length": "max_length",
    "serving_dir": "output", "size": "vocab_size", "strategy": "distribution_strategy", "text": "text_column",
    "text_pair": "text_pair_column", "to": "output", "train_file": "train", "validation_file": "valid",
    "classification": "classify", "embedding": "embed", "embeddings": "embed", "korquad": "span",
    "multi_label": "multilabel", "multi_label_classification": "multilabel", "multiple_choice": "choice", "ner": "tag",
    "nli": "classify", "pos": "tag", "qa": "span", "regression": "regress", "sentiment": "classify",
    "squad": "span", "sts": "regress", "swag": "choice", "token_classification": "tag", "fine-tune": "finetune",
    "test": "evaluate", "train": "finetune",
    "bf16": ("bfloat16", "mixed_bfloat16"), "fp16": ("mixed_float16", "mixed_bfloat16", "bfloat16"),
}


def did_you_mean(value, choices):
    """Returns a question for the end of a message, `; did you mean tag?`, or "" if none of the choices is similar."""
    others = as_list(_OTHER_NAMES.get(str(value).lower(), ()))
    close = [name for name in others if name in choices] if others else difflib.get_close_matches(
        str(value).lower(), choices, 1)
    return f"; did you mean {close[0]}?" if close else ""


def changed(function, values):
    """Returns the values of a function's arguments that are not the defaults, a dict in the order of the arguments."""
    return {name: values[name] for name, parameter in inspect.signature(function).parameters.items()
            if values[name] != parameter.default}


def as_flags(values):
    """Returns the flags of the command line for a dict of arguments."""
    return [f"--{name}={','.join(value) if isinstance(value, list) else value}" for name, value in values.items()]


def with_flags(message, names):
    """Replaces arguments in a message for Python by flags: `overwrite=True` by `--overwrite`, `overwrite=False` by
    `--nooverwrite`. Quoted values stay."""
    name = rf"({'|'.join(names)})"
    parts = re.split(r"""('[^']*'|"[^"]*")""", message)  # those with odd numbers are quoted
    for i in range(0, len(parts), 2):
        parts[i] = re.sub(rf"(?:^|(?<= )){name}=(?:True\b|…)", r"--\1", parts[i])
        parts[i] = re.sub(rf"(?<= ){name}=False\b", r"--no\1", parts[i])
        parts[i] = re.sub(rf"(?<= ){name}=", r"--\1=", parts[i])
        parts[i] = re.sub(rf"^{name}(?= must )", r"--\1", parts[i])  # elsewhere it may be a key of a file
    return "".join(parts)


def plain(value):
    """Converts an argument to what JSON holds: a path to str, a number of NumPy to int or float, a tuple to a list."""
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return os.fspath(value) if isinstance(value, os.PathLike) else value
    return int(value) if isinstance(value, numbers.Integral) else float(value)


def is_table(data: object) -> bool:
    """Returns True for a DataFrame or a dict of columns."""
    return isinstance(data, dict) or hasattr(data, "columns")


def as_texts(name: str, texts: Iterable[str]) -> list[str]:
    """Returns the texts of a list, tuple, Series, array or generator as a list, without looking at them.

    Args:
        name: name of the argument.
        texts: the iterable.

    Raises:
        InputError: it is one text, a table or a set, or no iterable; the message says what to pass.
    """
    if isinstance(texts, list):
        return texts
    rule = f"{name} must be a list of texts"
    if is_table(texts):
        raise InputError(f"{rule}; got a {type(texts).__name__}; pass one of its columns: table['text']")
    if isinstance(texts, str | bytes):
        raise InputError(f"{rule}; got {texts[:60]!r}; pass [{texts[:60]!r}]")
    if not isinstance(texts, Iterable) or isinstance(texts, set | frozenset) or getattr(texts, "ndim", 1) == 0:
        raise InputError(f"{rule}; got {texts!r:.60}")
    return list(texts)


def check_texts(name: str, texts: list, unit: str = "row") -> None:
    """Raises an InputError that names the first element of a list, from 1, that is not a str."""
    for number, text in enumerate(texts, 1):
        if not isinstance(text, str):
            is_missing = text is None or str(text) in ("nan", "<NA>", "NaT")
            cure = f"leave out the {unit}s without a text" if is_missing else "pass a str"
            raise InputError(f"{name}: {unit} {number}: must be a text; got {' '.join(repr(text).split()):.60}; {cure}")


def replace_surrogates(text: str) -> str:
    """Replaces each surrogate, which UTF-8 cannot encode, by U+FFFD, so that positions in the text stay the same.

    Surrogates are half a character of UTF-16, cut by another program, or an invalid byte on the command line."""
    return _SURROGATE.sub("\ufffd", text)


def as_list(value):
    """Returns a list of one value, or of the items of a list or tuple."""
    return list(value) if isinstance(value, (list, tuple)) else [value]


@dataclasses.dataclass(frozen=True)
class Argument:
    """An argument of a function.

    Args:
        name: its name.
        default: its default; `inspect.Parameter.empty` if it is required.
        help: its text in the docstring, as one line.
        annotation: its annotation.
        kind: bool, int, float or str.
        choices: the allowed values; None if any value is allowed.
        is_list: True if there may be multiple values.
        is_repeated: True if its flag is given once for each value.
        is_single: True if a single value is passed as it is, not as a list.
        is_positional: True if it is `*name`.
    """

    name: str
    default: object
    help: str
    annotation: object = dataclasses.field(compare=False)
    kind: type
    choices: tuple | None
    is_list: bool
    is_repeated: bool
    is_single: bool
    is_positional: bool


def read(function):
    """Returns the `Argument`s of a function, except `**name`."""
    helps = _helps(inspect.getdoc(function) or "")
    return [_argument(parameter.name, parameter.annotation, parameter.default, helps,
                      parameter.kind is parameter.VAR_POSITIONAL)
            for parameter in inspect.signature(function).parameters.values()
            if parameter.kind is not parameter.VAR_KEYWORD]


def read_source(path, name):
    """Returns the `Argument`s of a function in a file, without importing the file, because TensorFlow's import takes
    seconds. Defaults must be literals. In an annotation, a class of another module means any object."""
    with open(path, encoding="utf-8") as file:
        tree = ast.parse(file.read())
    (function,) = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]
    helps, given = _helps(ast.get_docstring(function)), function.args
    names = collections.defaultdict(lambda: object, vars(builtins) | globals())
    positional = [*given.posonlyargs, *given.args]
    required = [None] * (len(positional) - len(given.defaults))
    pairs = [*zip(positional, [*required, *given.defaults]), *zip(given.kwonlyargs, given.kw_defaults)]
    return [_argument(argument.arg, eval(ast.unparse(argument.annotation), {}, names),
                      inspect.Parameter.empty if default is None else ast.literal_eval(default), helps, False)
            for argument, default in pairs if argument.annotation is not None]


def _alternatives(annotation):
    is_union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    return typing.get_args(annotation) if is_union else (annotation,)


def _broken_rule(value, annotation):
    """Returns what a value must be to fit an annotation; None if it fits."""
    kinds = _alternatives(annotation)
    if value is None and types.NoneType in kinds:
        return None
    is_list = isinstance(value, (list, tuple))
    lists, others = _split(kinds)
    if is_list and lists and others and not value:
        return "one value or several"
    rules = [_broken_rule_of_one(value, kind) for kind in (lists if is_list and lists else others or lists)]
    return None if None in rules else " or ".join(dict.fromkeys(rules))


def _broken_rule_of_one(value, kind):
    origin = typing.get_origin(kind)
    if origin is Annotated:
        kind, *rules = typing.get_args(kind)
        broken = (rule.text for rule in rules if isinstance(rule, Rule) and not rule.holds(value))
        return _broken_rule(value, kind) or next(broken, None)
    if origin is Literal:
        return None if value in typing.get_args(kind) else f"one of {', '.join(typing.get_args(kind))}"
    if origin is list:
        if not isinstance(value, (list, tuple)):
            return "a list"
        return next(filter(None, (_broken_rule(part, typing.get_args(kind)[0]) for part in value)), None)
    is_no_number = kind in (int, float) and isinstance(value, bool)  # in Python, True is an int
    return NAMES.get(kind, kind.__name__) if is_no_number or not isinstance(value, _CLASSES.get(kind, kind)) else None


def _split(kinds):
    """Returns the alternatives of an annotation that are lists, and the others except None."""
    lists = [kind for kind in kinds if typing.get_origin(kind) is list or kind == Repeated]
    return lists, [kind for kind in kinds if kind not in lists and kind is not types.NoneType]


def _argument(name, annotation, default, helps, is_positional):
    lists, others = _split(_alternatives(annotation))
    is_repeated = Repeated in lists
    kind = str if is_repeated else _alternatives(typing.get_args(lists[0])[0])[0] if lists else others[0]
    kind = typing.get_args(kind)[0] if typing.get_origin(kind) is Annotated else kind
    choices = typing.get_args(kind) if typing.get_origin(kind) is Literal else None
    return Argument(name, default, helps.get(name, ""), annotation, type(choices[0]) if choices else kind, choices,
                    bool(lists), is_repeated, bool(others), is_positional)


def _helps(docstring):
    """Returns the help of each argument from the section "Args:" of a docstring."""
    section = re.search(r"^Args:\n((?:    .*\n?|\n)*)", docstring, re.M)
    entries = re.findall(r"^    (\w+): (.*\n?(?:^ {8}.*\n?)*)", section[1] if section else "", re.M)
    return {name: " ".join(text.replace("`", "").split()) for name, text in entries}
