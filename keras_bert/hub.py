"""`HubLayer`: a Hub-style SavedModel as a Keras 3 layer, the counterpart of `hub.KerasLayer`."""

import inspect
import os

import keras
import tensorflow as tf

from keras_bert.errors import InputError


@keras.saving.register_keras_serializable("keras_bert")
class HubLayer(keras.layers.Layer):
    """A reusable SavedModel (https://www.tensorflow.org/hub/reusable_saved_models), ours or any other exporter's, as a
    layer of Keras 3 on the TensorFlow backend. It trains, saves in `.keras` files (which name the SavedModel's path)
    and checkpoints, and exports.

    Args:
        path: folder of the SavedModel.
        trainable: whether its `trainable_variables` train, and its dropout runs in training.

    Call arguments:
        inputs: what the SavedModel takes; for encoders the dict or the list of three of `BertLayer`.
        training: whether to drop out; only a trainable layer does.

    Returns:
        what the SavedModel returns, e.g. [pooled_output, sequence_output] for a list.
    """

    def __init__(self, path, trainable=False, **kwargs):
        if keras.backend.backend() != "tensorflow":
            raise InputError(f"HubLayer runs a TensorFlow SavedModel: set KERAS_BACKEND=tensorflow; "
                             f"got {keras.backend.backend()}")
        super().__init__(trainable=trainable, **kwargs)
        self.saved_model_path = os.fspath(path)
        if not tf.saved_model.contains_saved_model(self.saved_model_path):
            raise InputError(f"{path}: a SavedModel is a folder that holds saved_model.pb; there is none")
        self._loaded = tf.saved_model.load(self.saved_model_path)
        if not callable(self._loaded):
            raise InputError(f"{path}: a reusable SavedModel has a callable root object; this one has none")
        trainable_refs = {variable.ref() for variable in getattr(self._loaded, "trainable_variables", ())}
        for variable in getattr(self._loaded, "variables", ()):
            self._track_variable(keras.Variable(
                variable, trainable=variable.ref() in trainable_refs, dtype=variable.dtype.name,
                name=variable.name.split(":")[0].replace("/", ".")))
        self.built = True

    def call(self, inputs, training=False):
        arguments = {"training": bool(training and self.trainable)} if self._takes_training else {}
        if self.trainable:
            for loss in getattr(self._loaded, "regularization_losses", ()):
                self.add_loss(loss())
        return self._loaded(inputs, **arguments)

    @property
    def _takes_training(self):
        return "training" in inspect.signature(self._loaded.__call__).parameters

    def get_config(self):
        return super().get_config() | {"path": self.saved_model_path}
