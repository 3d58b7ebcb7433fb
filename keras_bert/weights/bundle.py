"""TensorFlow checkpoints: `PREFIX.index` with the names and shapes, `PREFIX.data-…` with the arrays."""

import glob
import os
import re

from keras_bert.errors import InputError
from keras_bert.files import saving


class Bundle:
    """An open TensorFlow checkpoint.

    Args:
        prefix: path without `.index`.

    Raises:
        InputError: the checkpoint is incomplete or corrupt; the message names the file, and the array if one cannot be
            read.
    """

    def __init__(self, prefix):
        import tensorflow as tf  # only TensorFlow's formats need it

        self.prefix = prefix
        self._errors = (tf.errors.OpError, ValueError, RuntimeError, LookupError)
        try:
            self._reader = tf.train.load_checkpoint(prefix)
            self.shapes = {name: tuple(shape) for name, shape in self._reader.get_variable_to_shape_map().items()}
        except self._errors as error:
            raise InputError(f"{prefix}.index: not a complete TensorFlow checkpoint: {_reason(error)}") from None

    def get(self, name):
        try:
            return self._reader.get_tensor(name)
        except self._errors as error:
            raise InputError(f"{self.prefix}: {name} cannot be read: {_reason(error)}") from None

    def is_of_objects(self):
        """Returns True if `tf.train.Checkpoint` wrote the checkpoint, False if TensorFlow 1 did."""
        return _GRAPH in self.shapes

    def variables(self):
        """Returns the variables of a checkpoint of objects: a dict of each model variable's full name to its key, and a
        dict of the keys of optimizer variables to the reason why they are skipped."""
        from google.protobuf.message import DecodeError
        from tensorflow.core.protobuf.trackable_object_graph_pb2 import TrackableObjectGraph

        try:
            nodes = TrackableObjectGraph.FromString(self.get(_GRAPH)).nodes
        except (DecodeError, TypeError) as error:
            raise InputError(f"{self.prefix}: {_GRAPH} cannot be read: {error}") from None
        full_names = {attribute.checkpoint_key: attribute.full_name for node in nodes for attribute in node.attributes}
        keys, skipped = {}, {}
        for key in sorted(self.shapes):
            name = full_names.get(key)
            if not name or key.startswith(_NOT_WEIGHTS):
                continue
            if ".OPTIMIZER_SLOT/" in key or _OPTIMIZER.match(key):
                skipped[key] = "optimizer variable"
            elif name in keys:
                raise InputError(f"{self.prefix}: two variables have the name {name}: {keys[name]} and {key}")
            else:
                keys[name] = key
        return keys, skipped


_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
_NOT_WEIGHTS = ("save_counter/", "do_lower_case/", "calls_in_training/", "keras_api/")
_OPTIMIZER = re.compile(r"(.*/)?(optimizer|global_step|step)/")


def find_checkpoint(path):
    """Returns the prefix of the checkpoint at `path`, which is a prefix or a folder; None if there is no checkpoint.

    Raises:
        InputError: the folder has multiple checkpoints, and its file `checkpoint` does not say which one to use.
    """
    path = os.fspath(path)
    if os.path.exists(f"{path}.index"):
        return path
    indices = sorted(glob.glob(os.path.join(glob.escape(path), "*.index")))
    prefixes = [index.removesuffix(".index") for index in indices]
    if len(prefixes) > 1:
        import tensorflow as tf

        latest = tf.train.latest_checkpoint(path)
        if latest is None:
            raise InputError(f"{path}: has multiple checkpoints; pass the path of one: {', '.join(prefixes)}")
        return latest
    return prefixes[0] if prefixes else None


def _reason(error):
    return str(getattr(error, "message", error)).splitlines()[0]


def write_bundle(prefix, arrays):
    """Writes a checkpoint of named arrays, as TensorFlow 1 does.

    Args:
        prefix: path without `.index`.
        arrays: iterable of (name, array).
    """
    import tensorflow as tf

    tensors = {name: tf.identity(array) for name, array in arrays}  # tf.constant would also keep the array
    names = sorted(tensors)  # the index requires sorted names
    with saving():
        tf.raw_ops.SaveV2(prefix=prefix, tensor_names=names, shape_and_slices=[""] * len(names),
                          tensors=[tensors[name] for name in names])


def write_objects(prefix, arrays, paths, aliases):
    """Writes a checkpoint of objects, as `tf.train.Checkpoint` does.

    Args:
        prefix: path without `.index`.
        arrays: iterable of (full name, array).
        paths: dict of full names to paths of attributes from the root, separated by slashes. Digits are indices of a
            list.
        aliases: dict of additional paths to the existing paths of the same objects.
    """
    import tensorflow as tf

    nodes = {"": tf.train.Checkpoint()}

    def attach(path, value):
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
