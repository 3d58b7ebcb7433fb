"""The flags of a command: the arguments of a function, with their help from its docstring."""

import ast
import builtins
import collections
import dataclasses
import inspect
import re
import typing
from collections.abc import Callable
from typing import Annotated, Any, Literal

from keras_bert import arguments
from keras_bert.arguments import Repeated, alternatives, split_lists


@dataclasses.dataclass(frozen=True)
class Argument:
    """An argument of a function, as a flag or, if `is_positional`, as the words after the flags."""

    name: str
    default: Any  # `inspect.Parameter.empty` if it is required
    help: str
    annotation: object = dataclasses.field(compare=False)
    kind: type  # bool, int, float or str
    choices: tuple | None  # None if any value is allowed
    is_list: bool
    is_repeated: bool  # the flag is given once for each value
    is_single: bool  # a single value is passed as it is, not as a list
    is_positional: bool

    @property
    def is_required(self) -> bool:
        return self.default is inspect.Parameter.empty

    @property
    def spelling(self) -> str:
        """The flag with its value: `--name=N`, `--name=first|second`, `--name=TEXT,...`, `--[no]name`."""
        value = "|".join(self.choices or ()) or {bool: "", int: "N", float: "X", str: "TEXT"}[self.kind]
        many = ",..." if self.is_list and not self.is_repeated else ""
        return f"--[no]{self.name}" if self.kind is bool else f"--{self.name}={value}{many}"

    @property
    def shown_default(self) -> str:
        """The default, or "" if help need not say it."""
        is_shown = self.default not in (None, (), inspect.Parameter.empty) and self.default is not False
        return str(self.default) if is_shown else ""


def read(function: Callable) -> list[Argument]:
    """Returns the arguments of a function, in the order of the section "Args:" of its docstring, which has the help of
    each. Those of `**name` are the keys of its TypedDict, or none."""
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            parameters += [inspect.Parameter(name, parameter.KEYWORD_ONLY, default=None, annotation=annotation)
                           for keys in typing.get_args(parameter.annotation)  # of Unpack
                           for name, annotation in keys.__annotations__.items()]
        else:
            parameters.append(parameter)
    section = re.search(r"^Args:\n((?:    .*\n?|\n)*)", inspect.getdoc(function) or "", re.M)
    helps = dict(re.findall(r"^    (\w+): (.*\n?(?:^ {8}.*\n?)*)", section[1] if section else "", re.M))
    places = {name: place for place, name in enumerate(helps)}
    return [_argument(parameter, " ".join(helps.get(parameter.name, "").replace("`", "").split()))
            for parameter in sorted(parameters, key=lambda parameter: places.get(parameter.name, len(places)))]


def read_source(path: str, name: str) -> list[Argument]:
    """Returns the arguments of a function in a file, without importing the file, because TensorFlow's import takes
    seconds: only the function's signature and docstring are run. Functions and other objects, which no flag can give,
    are left out."""
    with open(path, encoding="utf-8") as file:
        tree = ast.parse(file.read())
    (function,) = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]
    function.body = function.body[:1]
    # The names in a signature: builtins and those of `arguments.py`. All others stand for any object.
    names: dict[str, Any] = collections.defaultdict(lambda: object, vars(builtins) | vars(arguments))
    exec(compile(ast.Module([function], []), path, "exec", optimize=0), {}, names)
    return [argument for argument in read(names[name]) if argument.kind in (bool, int, float, str)]


def _argument(parameter: inspect.Parameter, help: str) -> Argument:
    lists, others = split_lists(alternatives(parameter.annotation))
    is_repeated = Repeated in lists
    kind = str if is_repeated else alternatives(typing.get_args(lists[0])[0])[0] if lists else others[0]
    kind = typing.get_args(kind)[0] if typing.get_origin(kind) is Annotated else kind
    choices = typing.get_args(kind) if typing.get_origin(kind) is Literal else None
    return Argument(parameter.name, parameter.default, help, parameter.annotation,
                    type(choices[0]) if choices else kind, choices, bool(lists), is_repeated, bool(others),
                    parameter.kind is parameter.VAR_POSITIONAL)
