"""TensorFlow checkpoints: `PREFIX.index` with the names and shapes, `PREFIX.data-…` with the arrays."""

import glob
import os
import re
from collections.abc import Iterable

import numpy as np

from keras_bert.errors import InputError, first_line
from keras_bert.files.paths import saving


class Bundle:
    """An open TensorFlow checkpoint; `prefix` is its path without `.index`. If it is damaged, an InputError names the
    file, and the array if one cannot be read."""

    def __init__(self, prefix: str) -> None:
        import tensorflow as tf  # only TensorFlow's formats need it

        self.prefix = prefix
        self._errors = (tf.errors.OpError, ValueError, RuntimeError, LookupError)
        try:
            self._reader = tf.train.load_checkpoint(prefix)
            self.shapes = {name: tuple(shape) for name, shape in self._reader.get_variable_to_shape_map().items()}
        except self._errors as error:
            raise InputError(f"{prefix}.index: not a complete TensorFlow checkpoint: {first_line(error)}") from None

    def get(self, name: str) -> np.ndarray:
        try:
            return self._reader.get_tensor(name)
        except self._errors as error:
            raise InputError(f"{self.prefix}: {name} cannot be read: {first_line(error)}") from None

    def variables(self) -> tuple[dict[str, str], dict[str, str]]:
        """Returns the keys of a checkpoint of objects by the full names of the model's variables, and the reasons why
        other keys, of optimizer variables, are skipped."""
        from google.protobuf.message import DecodeError
        from tensorflow.core.protobuf.trackable_object_graph_pb2 import TrackableObjectGraph

        try:
            nodes = TrackableObjectGraph.FromString(self.get(_GRAPH)).nodes
        except (DecodeError, TypeError) as error:
            raise InputError(f"{self.prefix}: {_GRAPH} cannot be read: {error}") from None
        full_names = {attribute.checkpoint_key: attribute.full_name for node in nodes for attribute in node.attributes}
        keys: dict[str, str] = {}
        skipped = {}
        for key in sorted(self.shapes):
            name = full_names.get(key)
            if not name or key.startswith(_NOT_WEIGHTS):
                continue
            if ".OPTIMIZER_SLOT/" in key or _OPTIMIZER.match(key):
                skipped[key] = "optimizer variable"
            elif (other := keys.setdefault(name, key)) != key:
                raise InputError(f"{self.prefix}: two variables have the name {name}: {other} and {key}")
        return keys, skipped


_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
_NOT_WEIGHTS = ("save_counter/", "do_lower_case/", "calls_in_training/", "keras_api/")
_OPTIMIZER = re.compile(r"(.*/)?(optimizer|global_step|step)/")


def find_checkpoint(path: str) -> str | None:
    """Returns the prefix of the checkpoint at `path`, which is a prefix or a folder; None if there is no checkpoint.
    Raises an InputError if there are several, and the file `checkpoint` does not say which one to use."""
    if os.path.exists(f"{path}.index"):
        return path
    prefixes = sorted(index.removesuffix(".index") for index in glob.glob(os.path.join(glob.escape(path), "*.index")))
    if len(prefixes) < 2:
        return prefixes[0] if prefixes else None
    import tensorflow as tf

    if latest := tf.train.latest_checkpoint(path):
        return latest
    raise InputError(f"{path}: has multiple checkpoints; pass the path of one: {', '.join(prefixes)}")


def has_checkpoint(path: str, of_objects: bool) -> bool:
    """Tells whether a checkpoint is at `path`: of `tf.train.Checkpoint` if `of_objects`, otherwise of TensorFlow 1."""
    return (prefix := find_checkpoint(path)) is not None and (_GRAPH in Bundle(prefix).shapes) is of_objects


def write_bundle(prefix: str, arrays: Iterable[tuple[str, np.ndarray]]) -> None:
    """Writes a checkpoint of named arrays, as TensorFlow 1 does."""
    import tensorflow as tf

    tensors = {name: tf.identity(array) for name, array in arrays}  # tf.constant would also keep the array
    names = sorted(tensors)  # the index requires sorted names
    with saving():
        tf.raw_ops.SaveV2(prefix=prefix, tensor_names=names, shape_and_slices=[""] * len(names),
                          tensors=[tensors[name] for name in names])


def write_objects(prefix: str, arrays: Iterable[tuple[str, np.ndarray]], paths: dict[str, str],
                  aliases: dict[str, str]) -> None:
    """Writes a checkpoint of objects, as `tf.train.Checkpoint` does. `paths` maps full names to attributes from the
    root, `a/0/b`, with indices of lists; `aliases` maps additional paths to paths of the same objects."""
    import tensorflow as tf

    nodes = {"": tf.train.Checkpoint()}

    def attach(path: str, value: tf.Module | tf.Variable) -> None:
        parent, _, attribute = path.rpartition("/")
        if parent not in nodes:
            attach(parent, tf.Module())
        setattr(nodes[parent], attribute, value)
        nodes[path] = value

    for full_name, array in arrays:
        attach(paths[full_name], tf.Variable(array, name=full_name))
    for alias, path in aliases.items():
        attach(alias, nodes[path])
    with saving():
        nodes[""].save(prefix)
