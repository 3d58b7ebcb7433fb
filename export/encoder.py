"""The encoder SavedModel: what `hub.KerasLayer`, `HubLayer` and TF Serving load.

The root object is callable with one positional argument, int32 tensors [batch, seq], and `training` (a Python bool,
default False):

    {"input_word_ids", "input_mask", "input_type_ids" or "segment_ids"}
        -> {"pooled_output": float32 [batch, hidden], "default": the same, "sequence_output": float32
            [batch, seq, hidden], "encoder_outputs": a list of one float32 [batch, seq, hidden] a block}
    [input_word_ids, input_mask, segment_ids] -> [pooled_output, sequence_output]

Attributes: `variables`, `trainable_variables`, `regularization_losses`, `vocab_file` and `bert_config` (assets),
`do_lower_case`. Signature `serving_default`: input_word_ids, input_mask, input_type_ids to pooled_output and
sequence_output.
"""

import keras
import tensorflow as tf

from keras_bert.files import check_free
from keras_bert.layers import BertLayer, standardize_inputs

from .writing import check_dtype, needs_tensorflow, save, variable_name


class EncoderModule(tf.Module):
    """The root object.

    Args:
        bert: the `BertLayer` to export; its variables are copied.
        dtype: `float32`, or `bfloat16` for serving: half the size, float32 outputs, nothing trainable.
        jit_compile: compile the encoder with XLA wherever it runs, once a shape.
    """

    # tf.Module has properties of these names, which have no setter.
    variables = None
    trainable_variables = None

    def __init__(self, bert, dtype, jit_compile):
        super().__init__()
        self.variables = [
            tf.Variable(tf.cast(source.value, dtype), trainable=dtype == "float32", name=variable_name(source))
            for source in bert.weights
        ]
        self.trainable_variables = [variable for variable in self.variables if variable.trainable]
        self.regularization_losses = []
        self._encode = tf.function(_stateless_encode(bert.config, dtype, self.variables), jit_compile=jit_compile)

    @tf.function
    def __call__(self, inputs, training=False):
        # The op draws afresh after each load: tf.random.uniform would bake a global seed in. It stands outside the
        # compiled function, whose own random numbers follow from this seed.
        seed = tf.raw_ops.RandomUniformInt(shape=[2], minval=tf.int32.min, maxval=tf.int32.max) if training else None
        outputs = self._encode(*standardize_inputs(inputs), seed)
        if isinstance(inputs, dict):
            return outputs | {"default": outputs["pooled_output"]}
        return [outputs["pooled_output"], outputs["sequence_output"]]

    @tf.function
    def serve(self, input_word_ids, input_mask, input_type_ids):
        """The signature `serving_default`."""
        pooled, sequence = self([input_word_ids, input_mask, input_type_ids])
        return {"pooled_output": pooled, "sequence_output": sequence}


def _stateless_encode(config, dtype, variables):
    """The encoder as a function of its inputs and a seed (None outside training) that reads `variables`. The layer
    stays out of the module's sight, which would save its weights once more."""
    bert = BertLayer(config, dtype=dtype)

    def encode(word_ids, mask, segment_ids, seed):
        with keras.StatelessScope(state_mapping=list(zip(bert.weights, variables))):
            outputs = bert.encode([word_ids, mask, segment_ids], training=seed is not None, seed=seed)
        return tf.nest.map_structure(lambda tensor: tf.cast(tensor, tf.float32), outputs)

    return encode


def export_encoder(bert, path, tokenizer, *, dtype="float32", jit_compile=False, overwrite=False):
    """Writes a Hub-style SavedModel of an encoder; it stands at `path` whole or not at all.

    Args:
        bert: a `BertLayer`.
        path: folder to write.
        tokenizer: the `BertTokenizer` of the encoder; its vocabulary and casing go along.
        dtype, jit_compile: see `EncoderModule`.
        overwrite: whether to replace what stands at `path`.

    Raises:
        InputError: `path` is taken or cannot be written, `dtype` unknown, or Keras does not run on TensorFlow.
    """
    needs_tensorflow()
    check_dtype(dtype)
    check_free(path, overwrite)
    module = EncoderModule(bert, dtype, jit_compile)
    assets = {"bert_config": ("bert_config.json", bert.config.to_json)}
    save(module, path, {"serving_default": _trace(module)}, tokenizer, assets, overwrite)


def _trace(module):
    """Traces every form of the call, so that all of them are saved; returns the serving signature."""
    def tokens(name):
        return tf.TensorSpec([None, None], tf.int32, name)

    for training in (False, True):
        for segments in ("input_type_ids", "segment_ids"):
            names = ("input_word_ids", "input_mask", segments)
            module.__call__.get_concrete_function({name: tokens(name) for name in names}, training=training)
        module.__call__.get_concrete_function([tokens(name) for name in names], training=training)
    return module.serve.get_concrete_function(
        tokens("input_word_ids"), tokens("input_mask"), tokens("input_type_ids"))
