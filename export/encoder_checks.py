"""The checks of the contract of a Hub-style encoder (docs/hub_contract.md)."""

import os

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

from keras_bert.arguments import Path
from keras_bert.errors import first_line

from .checking import Loaded, NotApplicable, expect
from .loaded_again import keras_layer, static_shapes

_KEYS = ("input_word_ids", "input_mask", "input_type_ids")
_DRAWS = 20
_IS_ENCODER = ("it was checked as an encoder, because it has no tokenize, as a preprocessor has, and its "
               "serving_default returns no embedding, as that of a text embedding does")


def _inputs(batch: int, length: int) -> dict[str, tf.Tensor]:
    """Returns inputs of real tokens, with small ids that every vocabulary has."""
    word_ids = np.random.default_rng(0).integers(1, 5, (batch, length))
    return dict(zip(_KEYS, (tf.constant(a, tf.int32) for a in (word_ids, np.ones_like(word_ids), word_ids * 0))))


def _needs_training(loaded: Loaded) -> None:
    if not loaded.trainable_variables:
        raise NotApplicable("nothing is trainable: an export for serving")


def _dict_call(loaded: Loaded, _: Path) -> None:
    """the root takes a dict of input_word_ids, input_mask and input_type_ids, all int32 [batch, seq]"""
    for batch, length in ((1, 2), (3, 7)):
        try:
            pooled = loaded(_inputs(batch, length))["pooled_output"]
        except Exception as error:  # another exporter's SavedModel may raise anything
            raise ValueError(f"{first_line(error)}; {_IS_ENCODER}") from None
        expect(pooled.shape[0] == batch, f"a batch of {batch} gave pooled_output {pooled.shape}")


def _list_call(loaded: Loaded, _: Path) -> None:
    """for a list of these three tensors, the root returns the list [pooled_output, sequence_output]"""
    inputs = _inputs(2, 5)
    try:
        outputs = loaded(list(inputs.values()))
    except (TypeError, ValueError):
        raise NotApplicable("the root accepts only dicts") from None
    expect(isinstance(outputs, (list, tuple)) and len(outputs) == 2, f"returned {type(outputs).__name__}")
    wanted = loaded(inputs)
    for got, key in zip(outputs, ("pooled_output", "sequence_output")):
        shape = wanted[key].shape
        expect(got.shape == shape, f"{key} has shape {got.shape} for a list, {shape} for a dict")
        difference = float(tf.reduce_max(tf.abs(got - wanted[key])))
        expect(difference < 1e-5, f"{key} for a list differs from that for a dict by {difference:.1e}")


def _training_is_traced(loaded: Loaded, _: Path) -> None:
    """the argument training is False by default, may be True or False, and both are traced"""
    inputs = _inputs(2, 5)
    default, off = loaded(inputs), loaded(inputs, training=False)
    loaded(inputs, training=True)
    difference = float(tf.reduce_max(tf.abs(default["pooled_output"] - off["pooled_output"])))
    expect(difference < 1e-6, f"without `training` the output differs from training=False by {difference:.1e}")


def _outputs(loaded: Loaded, _: Path) -> str:
    """for a dict, the root returns pooled_output (also as default), sequence_output and encoder_outputs, all float32"""
    outputs = loaded(_inputs(2, 5))
    expected = {"pooled_output", "default", "sequence_output", "encoder_outputs"}
    expect(set(outputs) == expected, f"the keys are {', '.join(sorted(outputs))}")
    dtypes = {tensor.dtype.name for tensor in tf.nest.flatten(dict(outputs))}
    expect(dtypes == {"float32"}, f"dtypes are {', '.join(sorted(dtypes))}")
    expect(bool(tf.reduce_all(outputs["default"] == outputs["pooled_output"])), "default is not pooled_output")
    hidden = outputs["pooled_output"].shape[-1]
    for tensor in (outputs["sequence_output"], *outputs["encoder_outputs"]):
        expect(tensor.shape == (2, 5, hidden), f"an output has shape {tensor.shape}; pooled_output has [2, {hidden}]")
    return f"{len(outputs['encoder_outputs'])} blocks, hidden size {hidden}"


def _hub_layer(loaded: Loaded, path: Path) -> str:
    """the trainable weights of hub.KerasLayer(path, trainable=True) are the root's trainable variables, in order"""
    _needs_training(loaded)
    weights = keras_layer(path, trainable=True).trainable_weights
    variables = loaded.trainable_variables
    expect(len(weights) == len(variables) and all(map(np.array_equal, weights, variables)),
           f"{len(weights)} weights, {len(variables)} trainable_variables, or their order differs")
    return f"{len(weights)} weights"


def _dropout(loaded: Loaded, _: Path) -> None:
    """dropout is off with training=False and on with training=True"""
    _needs_training(loaded)
    callables = {"": (loaded, _inputs(2, 5))}
    if hasattr(loaded, "mlm"):
        callables[".mlm "] = (loaded.mlm, _inputs(2, 5) | {"masked_lm_positions": tf.constant([[1, 2], [0, 1]])})
    for name, (call, inputs) in callables.items():
        for training in (False, True):
            draws = np.stack([call(inputs, training=training)["pooled_output"] for _ in range(_DRAWS)])
            deviation = float(draws.std(axis=0).mean())
            expect(deviation > 1e-3 if training else deviation < 1e-6,
                   f"{name}pooled_output deviates by {deviation:.1e} over {_DRAWS} calls with training={training}")


def _static_shapes(loaded: Loaded, _: Path) -> None:
    """for inputs of static length, only the batch size of pooled_output and sequence_output is unknown"""
    shapes = static_shapes(loaded, dict.fromkeys(_KEYS, tf.TensorSpec([None, 10], tf.int32)))
    pooled, sequence = (str(shapes[name]) for name in ("pooled_output", "sequence_output"))
    hidden = loaded(_inputs(1, 2))["pooled_output"].shape[-1]
    expect((pooled, sequence) == (f"(None, {hidden})", f"(None, 10, {hidden})"),
           f"inputs (None, 10) gave pooled_output {pooled}, sequence_output {sequence}")


def _variables(loaded: Loaded, _: Path) -> None:
    """the root's variables include trainable_variables, and regularization_losses are callables that return scalars"""
    variables = {variable.ref() for variable in loaded.variables}
    expect(variables, "variables is empty")
    stray = [v.name for v in loaded.trainable_variables if v.ref() not in variables or not v.trainable]
    expect(not stray, f"not in variables, or not trainable: {', '.join(stray)}")
    for loss in loaded.regularization_losses:
        expect(callable(loss), f"regularization_losses contains a {type(loss).__name__}")
        expect(loss().shape == (), f"a regularization loss has shape {loss().shape}")


def _nothing_else(_: Loaded, path: Path) -> None:
    """the SavedModel has no optimizer and no Lambda layer of Keras"""
    with open(os.path.join(path, "saved_model.pb"), "rb") as file:
        nodes = SavedModel.FromString(file.read()).meta_graphs[0].object_graph_def.nodes
    for node in nodes:
        children = {child.local_name for child in node.children}
        expect("optimizer" not in children and node.user_object.identifier != "optimizer", "an optimizer is saved")
        expect('"class_name": "Lambda"' not in node.user_object.metadata, "a Lambda layer, Python bytecode, is saved")
    metadata = os.path.join(path, "keras_metadata.pb")  # newer releases of Keras 2 describe layers here
    if os.path.exists(metadata):
        with open(metadata, "rb") as file:
            expect(b'"class_name": "Lambda"' not in file.read(), "a Lambda layer, Python bytecode, is saved")


def _assets(loaded: Loaded, _: Path) -> str:
    """vocab_file is a readable asset, and do_lower_case is a non-trainable variable"""
    if hasattr(loaded, "sp_model_file"):
        raise NotApplicable("the tokenizer is SentencePiece")
    with open(loaded.vocab_file.asset_path.numpy(), "rb") as file:
        tokens = file.read().count(b"\n")
    lower_case = loaded.do_lower_case
    expect(lower_case.dtype == tf.bool and not lower_case.trainable, f"do_lower_case is {lower_case}")
    return f"{tokens} tokens, do_lower_case {bool(lower_case.numpy())}"


def _mlm(loaded: Loaded, _: Path) -> None:
    """.mlm also takes masked_lm_positions, returns mlm_logits, not default, and trains the root's variables and more"""
    if not hasattr(loaded, "mlm"):
        raise NotApplicable("no .mlm")
    outputs = loaded.mlm(_inputs(2, 5) | {"masked_lm_positions": tf.constant([[1, 2, 3], [0, 1, 2]])})
    expected = {"pooled_output", "sequence_output", "encoder_outputs", "mlm_logits"}
    expect(set(outputs) == expected, f"the keys are {', '.join(sorted(outputs))}")
    expect(outputs["mlm_logits"].shape[:2] == (2, 3), f"mlm_logits has shape {outputs['mlm_logits'].shape}")
    root, head = ({v.name for v in part.trainable_variables} for part in (loaded, loaded.mlm))
    expect(root < head or not (root or head), "the root's trainable_variables must be a part of those of .mlm")


# The numbers are those of the rules in docs/hub_contract.md. The missing ones are rules for the exporter, which a
# SavedModel does not show.
CHECKS = ((1, _dict_call), (1, _list_call), (2, _training_is_traced), (3, _outputs), (5, _hub_layer), (6, _dropout),
          (7, _static_shapes), (8, _variables), (9, _nothing_else), (10, _assets), (11, _mlm))
