"""Checks a SavedModel of any exporter against the contract of a Hub-style encoder, preprocessor or text embedding
(docs/hub_contract.md)."""

import contextlib
import glob
import importlib.util
import itertools
import os
import pathlib
import shutil
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

from keras_bert.arguments import Path
from keras_bert.errors import InputError, first_line
from keras_bert.litert import INPUTS
from keras_bert.text import BertTokenizer

from .checking import ANY_SAVED_MODEL, FAILED, TEXTS, Check, Loaded, NotApplicable, Result, expect, run_check

_DRAWS = 20
_IS_ENCODER = ("it was checked as an encoder, because it has no tokenize, as a preprocessor has, and its "
               "serving_default returns no embedding, as that of a text embedding does")
_TEXT = "abc d ef"
_ANY_TEXTS = [b"", b" \t\n", b"play " * 10_000, b"x" * 10_000, b"\xff\xfe\0", b"\xe2\x82"]


def verify(path: Path) -> list[Result]:
    """Runs every check of the contract on a SavedModel: the contract of a preprocessor if it has `tokenize`, that of a
    text embedding if `serving_default` returns `embedding`, that of a raw-text model if it has the signature `encode`,
    else that of an encoder. Loads it only if all files have their digests.

    Args:
        path: folder of the SavedModel.

    Returns:
        the results, in the contract's order.

    Raises:
        InputError: there is no SavedModel at `path`, it is damaged, or it needs a library that is missing.
    """
    digests = run_check(*ANY_SAVED_MODEL, None, path)
    if digests.status == FAILED:
        raise InputError(digests.seen)
    if not tf.saved_model.contains_saved_model(path):
        versions = sorted(glob.glob(os.path.join(glob.escape(os.fspath(path)), "*", "saved_model.pb")))
        cure = f"pass one of the folders in it, {os.path.dirname(versions[-1])}" if versions else (
            "to write one: keras-bert export, or for a text embedding keras-bert export text-model --pooling=mean")
        raise InputError(f"{path}: must be a SavedModel, a folder with the file saved_model.pb; it is missing; {cure}")
    loaded = _load(path)
    return [digests, *(run_check(line, check, loaded, path) for line, check in _checks(loaded))]


def _checks(loaded: Loaded) -> tuple[tuple[int, Check], ...]:
    """Returns the checks of the contract that a SavedModel is for."""
    if hasattr(loaded, "tokenize"):
        return PREPROCESSOR
    signatures = loaded.signatures
    if "serving_default" in signatures and "embedding" in signatures["serving_default"].structured_outputs:
        return EMBEDDING
    return RAW_TEXT if {"serving_default", "encode"} <= signatures.keys() else ENCODER


def _load(path: Path) -> Loaded:
    try:
        return tf.saved_model.load(path)
    except Exception as error:  # a damaged file can raise anything
        needs_text = "Op type not registered" in str(error) and "tensorflow_text" not in sys.modules
        if needs_text and importlib.util.find_spec("tensorflow_text"):
            importlib.import_module("tensorflow_text")  # registers its operations
            return _load(path)
        cure = "; it may need tensorflow-text: pip install tensorflow-text" if needs_text else ""
        raise InputError(f"{path}: cannot be loaded: {first_line(error)}{cure}") from None


def _hub_layer(path: Path, **arguments: Any) -> Any:
    if not importlib.util.find_spec("tensorflow_hub"):
        raise NotApplicable("tensorflow-hub is not installed")
    import tensorflow_hub as hub

    return hub.KerasLayer(os.fspath(path), **arguments)


def _shapes_of(call: Callable, inputs: Any, **arguments: Any) -> Any:
    """Returns the static shapes of the outputs of a call, in the same structure. `inputs` are `tf.TypeSpec`s."""
    outputs = tf.function(lambda inputs: call(inputs, **arguments)).get_concrete_function(inputs).structured_outputs
    return tf.nest.map_structure(lambda spec: spec.shape, outputs)


def _expect_same(loaded: Loaded, others: Any, whose: str, tolerance: float = 1e-5) -> None:
    """Fails unless `others` are the root's outputs for `TEXTS`: ids exactly, embeddings within a tolerance relative to
    their largest value."""
    for output, other in zip(tf.nest.flatten(loaded(tf.constant(TEXTS))), tf.nest.flatten(others), strict=True):
        difference = np.abs(output - other).max()
        allowed = tolerance * np.abs(output).max() if output.dtype.is_floating else 0
        expect(difference <= allowed, f"the outputs {whose} differ by {difference:.1e}")


def _saved_again(loaded: Loaded, path: Path) -> None:
    """a copy made by loading and saving works without the original files"""
    with tempfile.TemporaryDirectory() as folder:
        first, second = os.path.join(folder, "first"), os.path.join(folder, "second")
        shutil.copytree(path, first)
        tf.saved_model.save(tf.saved_model.load(first), second)
        shutil.rmtree(first)
        _expect_same(loaded, tf.saved_model.load(second)(tf.constant(TEXTS)), "of the copy")


def _ids(batch: int, length: int) -> dict[str, tf.Tensor]:
    """Returns inputs of real tokens, with small ids that every vocabulary has."""
    word_ids = np.random.default_rng(0).integers(1, 5, (batch, length))
    return dict(zip(INPUTS, (tf.constant(a, tf.int32) for a in (word_ids, np.ones_like(word_ids), word_ids * 0))))


def _needs_training(loaded: Loaded) -> None:
    if not loaded.trainable_variables:
        raise NotApplicable("nothing is trainable: an export for serving")


def _dict_call(loaded: Loaded, _: Path) -> None:
    """the root takes a dict of input_word_ids, input_mask and input_type_ids, all int32 [batch, seq]"""
    for batch, length in ((1, 2), (3, 7)):
        try:
            pooled = loaded(_ids(batch, length))["pooled_output"]
        except Exception as error:  # another exporter's SavedModel may raise anything
            raise ValueError(f"{first_line(error)}; {_IS_ENCODER}") from None
        expect(pooled.shape[0] == batch, f"a batch of {batch} gave pooled_output {pooled.shape}")


def _list_call(loaded: Loaded, _: Path) -> None:
    """for a list of these three tensors, the root returns the list [pooled_output, sequence_output]"""
    inputs = _ids(2, 5)
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
    inputs = _ids(2, 5)
    default, off = loaded(inputs), loaded(inputs, training=False)
    loaded(inputs, training=True)
    difference = float(tf.reduce_max(tf.abs(default["pooled_output"] - off["pooled_output"])))
    expect(difference < 1e-6, f"without `training` the output differs from training=False by {difference:.1e}")


def _outputs(loaded: Loaded, _: Path) -> str:
    """for a dict, the root returns pooled_output (also as default), sequence_output and encoder_outputs, all float32"""
    outputs = loaded(_ids(2, 5))
    expected = {"pooled_output", "default", "sequence_output", "encoder_outputs"}
    expect(set(outputs) == expected, f"the keys are {', '.join(sorted(outputs))}")
    dtypes = {tensor.dtype.name for tensor in tf.nest.flatten(dict(outputs))}
    expect(dtypes == {"float32"}, f"dtypes are {', '.join(sorted(dtypes))}")
    expect(bool(tf.reduce_all(outputs["default"] == outputs["pooled_output"])), "default is not pooled_output")
    hidden = outputs["pooled_output"].shape[-1]
    for tensor in (outputs["sequence_output"], *outputs["encoder_outputs"]):
        expect(tensor.shape == (2, 5, hidden), f"an output has shape {tensor.shape}; pooled_output has [2, {hidden}]")
    return f"{len(outputs['encoder_outputs'])} blocks, hidden size {hidden}"


def _hub_weights(loaded: Loaded, path: Path) -> str:
    """the trainable weights of hub.KerasLayer(path, trainable=True) are the root's trainable variables, in order"""
    _needs_training(loaded)
    weights = _hub_layer(path, trainable=True).trainable_weights
    variables = loaded.trainable_variables
    expect(len(weights) == len(variables) and all(map(np.array_equal, weights, variables)),
           f"{len(weights)} weights, {len(variables)} trainable_variables, or their order differs")
    return f"{len(weights)} weights"


def _dropout(loaded: Loaded, _: Path) -> None:
    """dropout is off with training=False and on with training=True"""
    _needs_training(loaded)
    callables = {"": (loaded, _ids(2, 5))}
    if hasattr(loaded, "mlm"):
        callables[".mlm "] = (loaded.mlm, _ids(2, 5) | {"masked_lm_positions": tf.constant([[1, 2], [0, 1]])})
    for name, (call, inputs) in callables.items():
        for training in (False, True):
            draws = np.stack([call(inputs, training=training)["pooled_output"] for _ in range(_DRAWS)])
            deviation = float(draws.std(axis=0).mean())
            expect(deviation > 1e-3 if training else deviation < 1e-6,
                   f"{name}pooled_output deviates by {deviation:.1e} over {_DRAWS} calls with training={training}")


def _encoder_shapes(loaded: Loaded, _: Path) -> None:
    """for inputs of static length, only the batch size of pooled_output and sequence_output is unknown"""
    shapes = _shapes_of(loaded, dict.fromkeys(INPUTS, tf.TensorSpec([None, 10], tf.int32)))
    pooled, sequence = (str(shapes[name]) for name in ("pooled_output", "sequence_output"))
    hidden = loaded(_ids(1, 2))["pooled_output"].shape[-1]
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
    saved = SavedModel.FromString(pathlib.Path(path, "saved_model.pb").read_bytes())
    for node in saved.meta_graphs[0].object_graph_def.nodes:
        children = {child.local_name for child in node.children}
        expect("optimizer" not in children and node.user_object.identifier != "optimizer", "an optimizer is saved")
        expect('"class_name": "Lambda"' not in node.user_object.metadata, "a Lambda layer, Python bytecode, is saved")
    metadata = pathlib.Path(path, "keras_metadata.pb")  # newer releases of Keras 2 describe layers here
    expect(not metadata.exists() or b'"class_name": "Lambda"' not in metadata.read_bytes(),
           "a Lambda layer, Python bytecode, is saved")


def _assets(loaded: Loaded, _: Path) -> str:
    """vocab_file is a readable asset, and do_lower_case is a non-trainable variable"""
    if hasattr(loaded, "sp_model_file"):
        raise NotApplicable("the tokenizer is SentencePiece")
    file = pathlib.Path(os.fsdecode(loaded.vocab_file.asset_path.numpy()))
    size = file.stat().st_size
    lower_case = loaded.do_lower_case
    expect(lower_case.dtype == tf.bool and not lower_case.trainable, f"do_lower_case is {lower_case}")
    return f"{file.name} with {size} bytes, do_lower_case {bool(lower_case.numpy())}"


def _mlm(loaded: Loaded, _: Path) -> None:
    """.mlm also takes masked_lm_positions, returns mlm_logits, not default, and trains the root's variables and more"""
    if not hasattr(loaded, "mlm"):
        raise NotApplicable("no .mlm")
    outputs = loaded.mlm(_ids(2, 5) | {"masked_lm_positions": tf.constant([[1, 2, 3], [0, 1, 2]])})
    expected = {"pooled_output", "sequence_output", "encoder_outputs", "mlm_logits"}
    expect(set(outputs) == expected, f"the keys are {', '.join(sorted(outputs))}")
    expect(outputs["mlm_logits"].shape[:2] == (2, 3), f"mlm_logits has shape {outputs['mlm_logits'].shape}")
    root, head = ({v.name for v in part.trainable_variables} for part in (loaded, loaded.mlm))
    expect(root < head or not (root or head), "the root's trainable_variables must be a part of those of .mlm")


def _special_tokens(loaded: Loaded) -> dict[str, int]:
    return {name: int(value) for name, value in loaded.tokenize.get_special_tokens_dict().items()}


def _preprocessor_root(loaded: Loaded, _: Path) -> str:
    """the root takes string [batch], truncates long texts, and returns three tensors, int32 [batch, seq]"""
    texts = tf.constant([_TEXT, _TEXT + f" {_TEXT}" * 400])
    outputs = loaded(texts)
    expect(outputs.keys() == {*INPUTS}, f"the keys are {', '.join(sorted(outputs))}")
    for name, tensor in outputs.items():
        expect(tensor.dtype == tf.int32 and tensor.shape.rank == 2, f"{name} is {tensor.dtype.name} {tensor.shape}")
    word_ids, mask = outputs["input_word_ids"].numpy(), outputs["input_mask"].numpy()
    special = _special_tokens(loaded)
    expect(mask[1].all() and not mask[0].all(), "a long text must fill the length, and a short one must not")
    expect(word_ids[1, -1] == special["end_of_segment_id"], f"a truncated text ends in {word_ids[1, -1]}")
    return f"length {mask.shape[1]}"


def _tokenize(loaded: Loaded, _: Path) -> None:
    """tokenize returns a ragged tensor, int32 [batch, (words), (tokens)]"""
    _expect_tokens(loaded.tokenize(tf.constant([_TEXT, "", _TEXT])), tf.int32)


def _tokenize_with_offsets(loaded: Loaded, _: Path) -> None:
    """tokenize_with_offsets also returns where tokens start and end, int64, in bytes of the text"""
    if not hasattr(loaded, "tokenize_with_offsets"):
        raise NotApplicable("no tokenize_with_offsets")
    tokens, starts, limits = loaded.tokenize_with_offsets(tf.constant([_TEXT, "", _TEXT]))
    for tensor, dtype in zip((tokens, starts, limits), (tf.int32, tf.int64, tf.int64)):
        _expect_tokens(tensor, dtype)
    begin, end = [word[0] for word in starts[0].to_list()], [word[-1] for word in limits[0].to_list()]
    expect((begin, end) == ([0, 4, 6], [3, 5, 8]), f"the words of {_TEXT!r} start at {begin} and end at {end}")
    _, starts, _ = loaded.tokenize_with_offsets(tf.constant(["中 b"]))
    expect(starts[0, -1, 0] == 4, f"the last word of '中 b' starts at {starts[0, -1, 0]}, not in bytes")


def _expect_tokens(tensor: tf.RaggedTensor, dtype: tf.DType) -> None:
    expect(isinstance(tensor, tf.RaggedTensor) and tensor.dtype == dtype and tensor.shape.rank == 3,
           f"returned {type(tensor).__name__} {tensor.dtype.name} {tensor.shape}")
    expect(tensor.row_lengths().numpy().tolist() == [3, 0, 3],
           f"texts of 3, 0 and 3 words gave {tensor.row_lengths().numpy().tolist()} words")


def _special_tokens_dict(loaded: Loaded, _: Path) -> str:
    """both tokenize functions share get_special_tokens_dict, which returns special ids and vocab_size in any graph"""
    with tf.Graph().as_default():
        names = set(loaded.tokenize.get_special_tokens_dict())
    needed = {"padding_id", "start_of_sequence_id", "end_of_segment_id", "vocab_size"}
    expect(needed <= names <= needed | {"mask_id"}, f"the keys are {', '.join(sorted(names))}")
    tokens = _special_tokens(loaded)
    size = tokens.pop("vocab_size")
    expect(all(0 <= value < size for value in tokens.values()), f"the ids are {tokens}, vocab_size is {size}")
    if hasattr(loaded, "tokenize_with_offsets"):
        expect(loaded.tokenize.get_special_tokens_dict is loaded.tokenize_with_offsets.get_special_tokens_dict,
               "tokenize and tokenize_with_offsets have different ones")
    return f"{size} tokens"


def _pack(loaded: Loaded, _: Path) -> str:
    """bert_pack_inputs takes one or two segments of ragged rank 1 or 2, and seq_length as an int or a tensor"""
    special = _special_tokens(loaded)
    cls, sep, padding = (special[name] for name in ("start_of_sequence_id", "end_of_segment_id", "padding_id"))
    first, second, separators = [[[4], [5, 6]]], [[[7]]], _separators(loaded)
    for segments, ragged_rank, length in itertools.product((1, 2), (1, 2), (9, tf.constant(9))):
        inputs = [tf.ragged.constant(part, tf.int32, ragged_rank=2) for part in (first, second)[:segments]]
        inputs = [part if ragged_rank == 2 else part.merge_dims(1, 2) for part in inputs]
        got = {name: tensor.numpy()[0].tolist()
               for name, tensor in loaded.bert_pack_inputs(inputs, seq_length=length).items()}
        ids = [cls, 4, 5, 6, *([sep] * separators + [7] if segments == 2 else []), sep]
        last, rest = got["input_type_ids"][len(ids) - 1], [0] * (9 - len(ids))
        wanted = {"input_word_ids": ids + [padding] * len(rest), "input_mask": [1] * len(ids) + rest,
                  "input_type_ids": [0] * (len(ids) - 2) + [last] * 2 + rest}
        expect(got == wanted and last < segments, f"{segments} segments gave {got}")
    return f"separators {separators}, segment id of the second text {last}"


def _separators(loaded: Loaded) -> int:
    """Returns the number of separators, 1 or 2, between two segments."""
    segments = [tf.ragged.constant([[token]]) for token in (4, 7)]
    length = int(tf.reduce_sum(loaded.bert_pack_inputs(segments, seq_length=9)["input_mask"]))
    expect(length in (5, 6), f"two segments of one token are packed as {length}")
    return length - 4


def _truncation(loaded: Loaded, _: Path) -> str:
    """at length 10, two segments of 8 tokens keep 4+3 or 7+0 tokens, and three keep 2+2+2 or 6+0+0"""
    kept = [_kept(loaded, 2)]
    with contextlib.suppress(TypeError, ValueError):  # if at most two segments are accepted
        kept.append(_kept(loaded, 3))
    for name, wanted in (("round robin", [(4, 3), (2, 2, 2)]), ("waterfall", [(7, 0), (6, 0, 0)])):
        if kept == wanted[:len(kept)]:
            return name if len(kept) == 2 else f"{name}, at most two segments"
    raise ValueError(f"the segments keep {kept}")


def _kept(loaded: Loaded, segments: int) -> tuple[int, ...]:
    """Returns how many of 8 tokens of each segment `bert_pack_inputs` keeps at length 10; with two separators, at as
    many more."""
    inputs = [tf.ragged.constant([[4 + number] * 8], tf.int32) for number in range(segments)]
    length = 10 + (segments - 1) * (_separators(loaded) - 1)
    word_ids = loaded.bert_pack_inputs(inputs, seq_length=length)["input_word_ids"].numpy()[0].tolist()
    return tuple(word_ids.count(4 + number) for number in range(segments))


def _golden(loaded: Loaded, path: Path) -> str:
    """the token ids equal those of BERT's original tokenizer"""
    files = [file for file in pathlib.Path(path, "assets").glob("*") if b"[CLS]" in file.read_bytes().split()]
    if len(files) != 1:
        raise NotApplicable("no asset is a WordPiece vocabulary")
    texts = [_TEXT, "DEF Abc's xy, d!"]
    got = loaded.tokenize(tf.constant(texts)).merge_dims(1, 2).to_list()
    wanted = {casing: BertTokenizer(files[0], lower_case).ids(texts)
              for casing, lower_case in (("uncased", True), ("cased", False))}
    casings = [casing for casing, ids in wanted.items() if ids == got]
    expect(casings, f"{texts} gave {got}; BERT's ids are {wanted['uncased']}, or cased {wanted['cased']}")
    return casings[0] if len(casings) == 1 else ""


def _preprocessor_shapes(loaded: Loaded, _: Path) -> None:
    """the static shapes are right for a batch of 7 and for a batch of unknown size"""
    length = loaded(tf.constant([_TEXT]))["input_word_ids"].shape[1]
    for batch in (7, None):
        texts, tokens = tf.TensorSpec([batch], tf.string), tf.RaggedTensorSpec([batch, None, None], tf.int32)
        wanted = [(loaded, texts, {}, [batch, length]),
                  (loaded.bert_pack_inputs, [tokens] * 2, {"seq_length": 256}, [batch, 256])]
        wanted += [(getattr(loaded, name), texts, {}, [batch, None, None])
                   for name in ("tokenize", "tokenize_with_offsets") if hasattr(loaded, name)]
        for call, inputs, arguments, shape in wanted:
            shapes = tf.nest.flatten(_shapes_of(call, inputs, **arguments))
            expect(all(found.as_list() == shape for found in shapes), f"a batch of {batch} gave {shapes}, not {shape}")


def _embedding_root(loaded: Loaded, _: Path) -> str:
    """the root takes string [batch] and returns float32 [batch, dim]"""
    for texts in (TEXTS, TEXTS[:1], []):
        embeddings = loaded(tf.constant(texts, tf.string))
        expect(isinstance(embeddings, tf.Tensor), f"returned {type(embeddings).__name__}")
        expect(embeddings.dtype == tf.float32 and embeddings.shape.rank == 2 and len(embeddings) == len(texts),
               f"a batch of {len(texts)} gave {embeddings.dtype.name} {embeddings.shape}")
    return f"{embeddings.shape[1]} dimensions"


def _embedding_shapes(loaded: Loaded, _: Path) -> None:
    """dim is static for a batch of unknown size"""
    width = loaded(tf.constant(TEXTS)).shape[1]
    shape = _shapes_of(loaded, tf.TensorSpec([None], tf.string))
    expect(shape.rank == 2 and shape[1] == width, f"the shape is {shape}")


def _rows(loaded: Loaded, _: Path) -> None:
    """an embedding does not depend on the other texts of the batch"""
    alone = tf.concat([loaded(tf.constant([text])) for text in TEXTS], 0)
    dtypes = {variable.dtype for signature in loaded.signatures.values() for variable in signature.variables}
    _expect_same(loaded, alone, "of texts alone", tolerance=0.02 if tf.bfloat16 in dtypes else 1e-5)


def _any_text(loaded: Loaded, _: Path) -> None:
    """empty texts, long texts and bytes that are not UTF-8 get finite embeddings"""
    for text, embedding in zip(_ANY_TEXTS, loaded(tf.constant(_ANY_TEXTS)).numpy()):
        expect(np.isfinite(embedding).all(), f"the embedding of {text[:10]!r} is not finite")


def _serving_default(loaded: Loaded, _: Path) -> None:
    """serving_default takes one input, string [batch], and returns the root's embeddings as its output embedding"""
    signature = loaded.signatures["serving_default"]
    name, = signature.structured_input_signature[1]
    outputs = signature(**{name: tf.constant(TEXTS)})
    expect("embedding" in outputs, f"returned {', '.join(sorted(outputs))}")
    _expect_same(loaded, outputs["embedding"], "of the signature")


def _hub_embeddings(loaded: Loaded, path: Path) -> None:
    """hub.KerasLayer(path) returns the root's embeddings"""
    _expect_same(loaded, _hub_layer(path)(tf.constant(TEXTS)), "of the layer")


def _answers(loaded: Loaded, _: Path) -> None:
    """serving_default answers empty texts, long texts and bytes that are not UTF-8"""
    signature = loaded.signatures["serving_default"]
    inputs = {name: tf.constant([[text] * 2 for text in _ANY_TEXTS] if spec.shape.rank == 2 else _ANY_TEXTS)
              for name, spec in signature.structured_input_signature[1].items()}
    for name, output in signature(**inputs).items():
        expect(len(output) == len(_ANY_TEXTS) and np.all(output == output), f"{name} is {output}")


# The numbers are those of the rules in docs/hub_contract.md. The missing ones are rules for the exporter, which a
# SavedModel does not show.
ENCODER = ((1, _dict_call), (1, _list_call), (2, _training_is_traced), (3, _outputs), (5, _hub_weights), (6, _dropout),
           (7, _encoder_shapes), (8, _variables), (9, _nothing_else), (10, _assets), (11, _mlm))
PREPROCESSOR = tuple(enumerate((_preprocessor_root, _tokenize, _tokenize_with_offsets, _special_tokens_dict, _pack,
                                _truncation, _golden, _preprocessor_shapes, _saved_again), 1))
EMBEDDING = tuple(enumerate((_embedding_root, _embedding_shapes, _rows, _any_text, _serving_default, _hub_embeddings,
                             _saved_again), 1))
RAW_TEXT = ((1, _answers),)
