"""`HubLayer`, which runs a Hub-style SavedModel as a Keras 3 layer; the counterpart of `hub.KerasLayer`."""

import inspect
import os
from typing import Any, Self

import keras
import tensorflow as tf
from keras.src.saving.serialization_lib import in_safe_mode  # private: Keras has no public name for it

from keras_bert.arguments import Path
from keras_bert.errors import InputError, first_line


@keras.saving.register_keras_serializable("keras_bert")
class HubLayer(keras.layers.Layer):
    """A reusable SavedModel (https://www.tensorflow.org/hub/reusable_saved_models), of any exporter, as a Keras 3 layer
    on the TensorFlow backend. It can be trained, saved in `.keras` files and checkpoints, and exported.

    A `.keras` file holds the layer's weights and the absolute path of the SavedModel, whose graph the loaded layer
    runs. As this graph can do anything, Keras loads the file only with `safe_mode=False`, or after
    `keras.config.enable_unsafe_deserialization()`; the same holds for `keras.models.clone_model`.

    Args:
        path: folder of the SavedModel, or a URL that TensorFlow can read, e.g. of `gs://`.
        trainable: If True, the SavedModel's `trainable_variables` are trained, and dropout is applied in training.

    Call arguments:
        inputs: what the SavedModel accepts; for encoders, the dict or the list of three tensors of `BertLayer`.
        training: If True, applies dropout, but only if the layer is trainable. With exports of this package, the same
            Keras seed (`keras.utils.set_random_seed`) and the same calls give the same dropout.

    Returns:
        what the SavedModel returns, e.g. [pooled_output, sequence_output] for a list.
    """

    def __init__(self, path: Path, trainable: bool = False, **kwargs: Any) -> None:
        if keras.backend.backend() != "tensorflow":
            raise InputError(f"HubLayer runs a TensorFlow SavedModel: set KERAS_BACKEND=tensorflow; "
                             f"got {keras.backend.backend()}")
        super().__init__(trainable=trainable, **kwargs)
        self.saved_model_path = _absolute(path)
        if not _holds_saved_model(self.saved_model_path):
            raise InputError(f"{path}: a SavedModel is a folder that holds saved_model.pb; there is none")
        try:
            self._loaded = tf.saved_model.load(self.saved_model_path)
        except Exception as error:  # a damaged file can raise anything
            raise InputError(f"{path}: cannot be loaded: {first_line(error)}") from None
        if not callable(self._loaded):
            raise InputError(f"{path}: a reusable SavedModel has a callable root object; this one has none")
        if hasattr(self._loaded, "calls_in_training"):  # the counter seeds the dropout, see docs/hub_contract.md
            seed = int(keras.ops.convert_to_numpy(keras.random.SeedGenerator().state)[0])
            self._loaded.calls_in_training.assign(seed << 32)
        trainable_refs = {variable.ref() for variable in getattr(self._loaded, "trainable_variables", ())}
        for variable in getattr(self._loaded, "variables", ()):
            self._track_variable(keras.Variable(
                variable, trainable=variable.ref() in trainable_refs, dtype=variable.dtype.name,
                name=variable.name.split(":")[0].replace("/", ".")))
        self.built = True

    def call(self, inputs: Any, training: bool | None = False) -> Any:
        takes_training = "training" in inspect.signature(self._loaded.__call__).parameters
        arguments = {"training": bool(training and self.trainable)} if takes_training else {}
        if self.trainable:
            for loss in getattr(self._loaded, "regularization_losses", ()):
                self.add_loss(loss())
        return self._loaded(inputs, **arguments)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"path": self.saved_model_path}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Creates the layer from its config. Raises an InputError in Keras's safe mode, which is the default, or if
        there is no SavedModel at the config's path."""
        path = _absolute(config["path"])
        if in_safe_mode() is not False:
            raise InputError(
                f"{path}: a HubLayer runs the graph of this SavedModel, which can do anything; if you trust it, pass "
                "safe_mode=False to load_model, or call keras.config.enable_unsafe_deserialization()")
        if not _holds_saved_model(path):
            raise InputError(f"{path}: must be the folder of the SavedModel that this HubLayer was made from; move it "
                             "there, or build the model with HubLayer of another folder and call its load_weights")
        return cls(**config)


def _absolute(path: Path) -> str:
    """Returns the absolute path; a URL is returned unchanged."""
    if not isinstance(path, str | os.PathLike):
        raise InputError(f"path must be that of a SavedModel's folder, whose root a HubLayer calls; got a "
                         f"{type(path).__name__}; call a function of a loaded SavedModel itself, without HubLayer")
    path = os.fspath(path)
    return path if "://" in path else os.path.abspath(path)


def _holds_saved_model(path: str) -> bool:
    try:
        return tf.saved_model.contains_saved_model(path)
    except tf.errors.OpError as error:
        raise InputError(f"{path}: cannot be read: {first_line(error)}; download it, and pass the path of its folder"
                         ) from None
