"""A SavedModel as its users load it: by Keras, with static shapes, and after it was saved again."""

import contextlib
import importlib.util
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from keras_bert.arguments import Path

from .checking import NotApplicable


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
