"""The encoder SavedModel, which `hub.KerasLayer`, `HubLayer` and TF Serving can load.

The root object is callable with one positional argument, int32 tensors [batch, seq], and `training` (a Python bool,
default False):

    {"input_word_ids", "input_mask", "input_type_ids" or "segment_ids"}
        -> {"pooled_output" and "default": float32 [batch, hidden], "sequence_output": float32 [batch, seq, hidden],
            "encoder_outputs": a list of one float32 [batch, seq, hidden] per block}
    [input_word_ids, input_mask, segment_ids] -> [pooled_output, sequence_output]

Attributes: `variables`, `trainable_variables`, `regularization_losses`, `vocab_file` and `bert_config` (assets),
`do_lower_case`. An exported `BertPretrainer` also has `mlm`. It is called like the root, with a dict that also contains
`masked_lm_positions`, int32 [batch, n], and returns `mlm_logits`, float32 [batch, n, vocab], in place of `default`. Its
variables are those of the root and of the masked language model head. Signature `serving_default`: input_word_ids,
input_mask, input_type_ids -> pooled_output, sequence_output.
"""

import functools
from collections.abc import Callable, Iterable
from typing import Any, Literal

import keras
import tensorflow as tf

from keras_bert.arguments import Path, check
from keras_bert.errors import InputError, Option
from keras_bert.layers import BertLayer, standardize_inputs
from keras_bert.models import BertPretrainer
from keras_bert.text import Tokenizer

from . import writing

_Inputs = dict[str, tf.Tensor] | list[tf.Tensor]
_Outputs = dict[str, Any]  # tensors, or a list of one tensor per block


class _Reusable(tf.Module):
    """Base class of the parts of a reusable SavedModel, `bert` and `mlm`; sets the attributes that a part must have.
    The dtype is `float32`, or `bfloat16` for serving: half the size, float32 outputs, nothing trainable. `shared` are
    the variables that belong to another part."""

    # Override tf.Module's properties of these names, which have no setter.
    variables: list[tf.Variable] = []
    trainable_variables: list[tf.Variable] = []

    def __init__(self, part: Literal["bert", "mlm"], sources: list[keras.Variable], dtype: str,
                 shared: Iterable[tf.Variable] = ()) -> None:
        super().__init__()
        copies = [writing.copy_variable(source, dtype, dtype == "float32", part) for source in sources]
        self.variables = [*shared, *copies]
        self.trainable_variables = [variable for variable in self.variables if variable.trainable]
        self.regularization_losses: list[Callable] = []


class EncoderModule(_Reusable):
    """The root object of the SavedModel.

    Args:
        model: the `BertLayer` to export, or a `BertPretrainer`, to export `mlm` as well, without LoRA or gradient
            checkpointing; its variables are copied.
        dtype: see `_Reusable`; the encoder's dtype.
        jit_compile: If True, XLA compiles the encoder wherever it runs, once per shape.
    """

    def __init__(self, model: BertLayer | BertPretrainer, dtype: str, jit_compile: bool) -> None:
        bert = writing.encoder_of(model)
        super().__init__("bert", bert.weights, dtype)
        run = writing.with_variables(bert, self.variables, bert.encode)

        def encode(word_ids: tf.Tensor, mask: tf.Tensor, segment_ids: tf.Tensor, seed: tf.Tensor | None,
                   unpadded: bool) -> _Outputs:  # the seed is None outside training
            outputs = run([word_ids, mask, segment_ids], training=seed is not None, seed=seed,
                          layout="unpadded" if unpadded else "padded")
            return {name: tf.nest.map_structure(lambda tensor: tf.cast(tensor, tf.float32), getattr(outputs, name))
                    for name in ("pooled_output", "sequence_output", "encoder_outputs")}

        # Concrete functions, because saving traces every tf.function again, together with each tf.function that it
        # calls. The partials hide them from the module, which would otherwise save them as parts of its interface.
        traced = tf.function(encode, jit_compile=jit_compile, autograph=False)
        tokens, seed = [tf.TensorSpec([None, None], tf.int32)] * 3, tf.TensorSpec([2], tf.int32)
        self._predict = functools.partial(traced.get_concrete_function(*tokens, None, False))
        self._train = functools.partial(traced.get_concrete_function(*tokens, seed, False))
        # The signature skips padding; the root cannot, as the program that loads it may compile its calls with XLA.
        serve = functools.partial(traced.get_concrete_function(*tokens, None, not jit_compile))
        self._serve = (lambda *inputs: serve(*writing.checked(inputs, bert.config))) if jit_compile else serve
        # The seed of the dropout is the number of calls in training, not one from TensorFlow's random operations:
        # without a seed, these fail under op determinism; with one, they repeat themselves for each new shape. Each
        # replica has its own count, so all replicas drop out the same units. `HubLayer` starts the count from Keras's
        # seed.
        self.calls_in_training = tf.Variable(
            0, trainable=False, dtype=tf.int64, name="calls_in_training",
            synchronization=tf.VariableSynchronization.ON_READ, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)
        if model is not bert:
            self.mlm = MaskedLMModule(model, self, dtype)

    @tf.function(autograph=False)
    def __call__(self, inputs: _Inputs, training: bool = False) -> _Outputs | list[tf.Tensor]:
        outputs = self.encode(inputs, training)
        if isinstance(inputs, dict):
            return outputs | {"default": outputs["pooled_output"]}
        return [outputs["pooled_output"], outputs["sequence_output"]]

    def encode(self, inputs: _Inputs, training: bool) -> _Outputs:
        """Returns all outputs of the encoder."""
        arguments = standardize_inputs(inputs)
        if not training:
            return self._predict(*arguments)
        calls = self.calls_in_training.assign_add(1, read_value=True)
        return self._train(*arguments, tf.bitcast(calls, tf.int32))

    @tf.function(autograph=False)
    def serve(self, input_word_ids: tf.Tensor, input_mask: tf.Tensor, input_type_ids: tf.Tensor) -> _Outputs:
        """Computes the signature `serving_default`."""
        outputs = self._serve(input_word_ids, input_mask, input_type_ids)
        return {name: outputs[name] for name in ("pooled_output", "sequence_output")}


class MaskedLMModule(_Reusable):
    """The attribute `mlm`: the encoder of `root` with the masked language model head of a `BertPretrainer`."""

    def __init__(self, pretrainer: BertPretrainer, root: EncoderModule, dtype: str) -> None:
        super().__init__("mlm", pretrainer.mlm.weights, dtype, shared=root.variables)
        self._encode = root.encode
        paths = [weight.path for weight in pretrainer.bert.weights]
        embeddings = root.variables[paths.index(pretrainer.bert.embeddings.word_embeddings.embeddings.path)]
        predict = writing.with_variables(pretrainer.mlm, self.variables[len(root.variables):], pretrainer.mlm)
        self._predict = lambda x: predict(x, embeddings)

    @tf.function(autograph=False)
    def __call__(self, inputs: dict[str, tf.Tensor], training: bool = False) -> _Outputs:
        outputs = self._encode(inputs, training)
        masked = tf.gather(outputs["sequence_output"], inputs["masked_lm_positions"], batch_dims=1)
        return outputs | {"mlm_logits": self._predict(masked)}


def export_encoder(model: BertLayer | BertPretrainer, path: Path, tokenizer: Tokenizer, *,
                   dtype: Literal["float32", "bfloat16"] = "float32", jit_compile: bool = False,
                   overwrite: bool = False) -> None:
    """Writes a Hub-style SavedModel of an encoder. Output is written atomically.

    Args:
        model, dtype, jit_compile: see `EncoderModule`. LoRA additions are merged into the kernels.
        path: folder to write.
        tokenizer: the `Tokenizer` of the encoder; its vocabulary and casing are exported, too.
        overwrite: If True, replaces an existing `path`.

    Raises:
        InputError: `path` exists or cannot be written, `model` is a model with another head, `dtype` is unknown, the
            vocabulary is larger than the encoder's, or Keras does not run on TensorFlow.
    """
    if not isinstance(model, BertLayer | BertPretrainer):
        raise InputError(Option("model"), f" must be a BertLayer or a BertPretrainer; got {type(model).__name__}; "
                         "to export the encoder of a model with a head, pass model.bert")
    check(export_encoder, {"dtype": dtype})
    writing.check_export(model, tokenizer, path, overwrite)
    bert = writing.encoder_of(model)
    if bert.dtype_policy.name != dtype or bert.lora_rank or bert.gradient_checkpointing:
        model = model.rebuild(dtype=dtype, lora_rank=None, gradient_checkpointing=False)
    module = EncoderModule(model, dtype, jit_compile)
    assets: writing.Assets = {"bert_config": ("bert_config.json", bert.config.to_json)}
    writing.save(module, path, {"serving_default": _trace(module)}, tokenizer, assets, overwrite)


def _trace(module: EncoderModule) -> Callable:
    """Traces every form of a call, so that all forms are saved, and returns the serving signature."""
    def tokens(*names: str) -> dict[str, tf.TensorSpec]:
        return {name: tf.TensorSpec([None, None], tf.int32, name) for name in names}

    for training in (False, True):
        for segments in ("input_type_ids", "segment_ids"):
            inputs = tokens("input_word_ids", "input_mask", segments)
            module.__call__.get_concrete_function(inputs, training=training)
            if hasattr(module, "mlm"):
                module.mlm.__call__.get_concrete_function(inputs | tokens("masked_lm_positions"), training=training)
        module.__call__.get_concrete_function(list(inputs.values()), training=training)
    return module.serve.get_concrete_function(*tokens("input_word_ids", "input_mask", "input_type_ids").values())
