"""TensorFlow checkpoints: `PREFIX.index` with names and shapes, `PREFIX.data-…` with the arrays."""

import os
import re

from keras_bert.errors import InputError


class Bundle:
    """A checkpoint opened.

    Args:
        prefix: path without `.index`.

    Raises:
        InputError: it is not whole; the message names the file, of a broken array its name too.
    """

    def __init__(self, prefix):
        import tensorflow as tf  # only the formats that are TensorFlow's need it

        self.prefix = prefix
        self._errors = (tf.errors.OpError, ValueError, RuntimeError, LookupError)
        try:
            self._reader = tf.train.load_checkpoint(prefix)
            self.shapes = {name: tuple(shape) for name, shape in self._reader.get_variable_to_shape_map().items()}
        except self._errors as error:
            raise InputError(f"{prefix}.index: not a whole TensorFlow checkpoint: {_reason(error)}") from None

    def get(self, name):
        try:
            return self._reader.get_tensor(name)
        except self._errors as error:
            raise InputError(f"{self.prefix}: {name} cannot be read: {_reason(error)}") from None

    def is_of_objects(self):
        """Whether `tf.train.Checkpoint` wrote it, and not TensorFlow 1."""
        return _GRAPH in self.shapes

    def variables(self):
        """Of a checkpoint of objects: dict of each model variable's full name to its key, and dict of the keys of an
        optimizer's variables to that reason."""
        from tensorflow.core.protobuf.trackable_object_graph_pb2 import TrackableObjectGraph

        nodes = TrackableObjectGraph.FromString(self.get(_GRAPH)).nodes
        full_names = {attribute.checkpoint_key: attribute.full_name for node in nodes for attribute in node.attributes}
        keys, aside = {}, {}
        for key in sorted(self.shapes):
            name = full_names.get(key)
            if not name or key.startswith(_NO_WEIGHTS):
                continue
            if ".OPTIMIZER_SLOT/" in key or _OPTIMIZER.match(key):
                aside[key] = "an optimizer's"
            elif name in keys:
                raise InputError(f"{self.prefix}: two variables have the name {name}: {keys[name]} and {key}")
            else:
                keys[name] = key
        return keys, aside


_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
_NO_WEIGHTS = ("save_counter/", "do_lower_case/", "calls_in_training/", "keras_api/")
_OPTIMIZER = re.compile(r"(.*/)?(optimizer|global_step|step)/")


def find_checkpoint(path):
    """The prefix of the checkpoint at `path`: a prefix, or a folder that holds one; None where there is none.

    Raises:
        InputError: a folder holds several and its file `checkpoint` does not say which.
    """
    path = os.fspath(path)
    if os.path.exists(f"{path}.index"):
        return path
    if not os.path.isdir(path):
        return None
    prefixes = sorted(os.path.join(path, name.removesuffix(".index")) for name in os.listdir(path)
                      if name.endswith(".index"))
    if len(prefixes) > 1:
        import tensorflow as tf

        latest = tf.train.latest_checkpoint(path)
        if latest is None:
            raise InputError(f"{path}: holds several checkpoints, name one: {', '.join(prefixes)}")
        return latest
    return prefixes[0] if prefixes else None


def _reason(error):
    return str(getattr(error, "message", error)).splitlines()[0]


def write_bundle(prefix, arrays):
    """Writes a checkpoint of names, as TensorFlow 1 does.

    Args:
        prefix: path without `.index`.
        arrays: pairs of a name and an array.
    """
    import tensorflow as tf

    tensors = {name: tf.constant(array) for name, array in arrays}
    names = sorted(tensors)  # the index wants them so
    tf.raw_ops.SaveV2(prefix=prefix, tensor_names=names, shape_and_slices=[""] * len(names),
                      tensors=[tensors[name] for name in names])


def write_objects(prefix, arrays, paths, aliases):
    """Writes a checkpoint of objects, as `tf.train.Checkpoint` does.

    Args:
        prefix: path without `.index`.
        arrays: dict of full names to arrays.
        paths: dict of full names to attributes from the root, separated by slashes; digits are places in a list.
        aliases: dict of further paths to the paths of objects.
    """
    import tensorflow as tf

    nodes = {"": tf.train.Checkpoint()}

    def place(path, value):
        parent, _, attribute = path.rpartition("/")
        if parent not in nodes:
            place(parent, tf.Module())
        setattr(nodes[parent], attribute, value)
        nodes[path] = value

    for full_name, array in arrays.items():
        place(paths[full_name], tf.Variable(array, name=full_name))
    for alias, path in aliases.items():
        place(alias, nodes[path])
    nodes[""].save(prefix)
