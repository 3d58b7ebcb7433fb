"""The functions that the checks of all contracts share."""

import contextlib
import dataclasses
import importlib.util
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from keras_bert.arguments import Path
from keras_bert.errors import first_line

Loaded = Any  # the root object of a SavedModel of any exporter
Check = Callable[[Loaded, Path], str | None]  # returns what to report, or raises; its docstring is the rule
PASSED, FAILED, NOT_APPLICABLE = "passed", "failed", "not applicable"


@dataclasses.dataclass(frozen=True)
class Result:
    """The result for one line of the contract: its number, its rule, its status and what was observed."""

    line: int
    rule: str
    status: str
    seen: str


class NotApplicable(Exception):
    """The exception of a check that does not apply to this SavedModel."""


def expect(condition: object, seen: str) -> None:
    """Fails a check unless the condition holds; `seen` says what was observed."""
    if not condition:
        raise ValueError(seen)


def run_check(line: int, check: Check, loaded: Loaded, path: Path) -> Result:
    rule = check.__doc__ or check.__name__  # `python -OO` has no docstrings
    try:
        return Result(line, rule, PASSED, check(loaded, path) or "")
    except NotApplicable as reason:
        return Result(line, rule, NOT_APPLICABLE, str(reason))
    except Exception as error:  # another exporter's SavedModel may raise anything
        return Result(line, rule, FAILED, first_line(error))


def keras_layer(path: Path, **arguments: Any) -> Any:
    """Returns `hub.KerasLayer(path, **arguments)`."""
    if not importlib.util.find_spec("tensorflow_hub"):
        raise NotApplicable("tensorflow-hub is not installed")
    import tensorflow_hub as hub

    return hub.KerasLayer(os.fspath(path), **arguments)


def static_shapes(call: Callable, inputs: Any, **arguments: Any) -> Any:
    """Returns the static shapes of what `call(inputs, **arguments)` returns, in the same structure. `inputs` is a
    structure of `tf.TypeSpec`s."""
    outputs = tf.function(lambda inputs: call(inputs, **arguments)).get_concrete_function(inputs).structured_outputs
    return tf.nest.map_structure(lambda spec: spec.shape, outputs)


@contextlib.contextmanager
def saved_again(path: Path) -> Iterator[str]:
    """Loads a copy of a SavedModel, saves it again, removes the copy, and yields the path of what was saved."""
    with tempfile.TemporaryDirectory() as folder:
        first, second = os.path.join(folder, "first"), os.path.join(folder, "second")
        shutil.copytree(path, first)
        tf.saved_model.save(tf.saved_model.load(first), second)
        shutil.rmtree(first)
        yield second
