"""The checks of the contract of a Hub-style text preprocessor (docs/hub_contract.md)."""

import contextlib
import itertools
import pathlib

import numpy as np
import tensorflow as tf

from keras_bert.arguments import Path
from keras_bert.text import BertTokenizer

from .checking import Loaded, NotApplicable, expect
from .loaded_again import saved_again, static_shapes

_KEYS = ["input_mask", "input_type_ids", "input_word_ids"]
_TEXT = "abc d ef"


def _special_tokens(loaded: Loaded) -> dict[str, int]:
    return {name: int(value) for name, value in loaded.tokenize.get_special_tokens_dict().items()}


def _root(loaded: Loaded, _: Path) -> str:
    """the root takes string [batch], truncates long texts, and returns three tensors, int32 [batch, seq]"""
    texts = tf.constant([_TEXT, _TEXT + f" {_TEXT}" * 400])
    outputs = loaded(texts)
    expect(sorted(outputs) == _KEYS, f"the keys are {', '.join(sorted(outputs))}")
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


def _pack(loaded: Loaded, _: Path) -> None:
    """bert_pack_inputs takes one or two segments of ragged rank 1 or 2, and seq_length as an int or a tensor"""
    special = _special_tokens(loaded)
    cls, sep, padding = (special[name] for name in ("start_of_sequence_id", "end_of_segment_id", "padding_id"))
    first, second = [[[4], [5, 6]]], [[[7]]]
    for segments, ragged_rank, length in itertools.product((1, 2), (1, 2), (8, tf.constant(8))):
        inputs = [tf.ragged.constant(part, tf.int32, ragged_rank=2) for part in (first, second)[:segments]]
        inputs = [part if ragged_rank == 2 else part.merge_dims(1, 2) for part in inputs]
        got = {name: tensor.numpy()[0].tolist()
               for name, tensor in loaded.bert_pack_inputs(inputs, seq_length=length).items()}
        wanted = {"input_word_ids": [cls, 4, 5, 6, sep, *([7, sep] if segments == 2 else [padding] * 2), padding],
                  "input_mask": [1] * (3 + 2 * segments) + [0] * (5 - 2 * segments),
                  "input_type_ids": [0] * 5 + [segments - 1] * 2 + [0]}
        expect(got == wanted, f"{segments} segments gave {got}")


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
    """Returns how many of 8 tokens of each segment `bert_pack_inputs` keeps at length 10."""
    inputs = [tf.ragged.constant([[4 + number] * 8], tf.int32) for number in range(segments)]
    word_ids = loaded.bert_pack_inputs(inputs, seq_length=10)["input_word_ids"].numpy()[0].tolist()
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


def _static_shapes(loaded: Loaded, _: Path) -> None:
    """the static shapes are right for a batch of 7 and for a batch of unknown size"""
    length = loaded(tf.constant([_TEXT]))["input_word_ids"].shape[1]
    for batch in (7, None):
        texts, tokens = tf.TensorSpec([batch], tf.string), tf.RaggedTensorSpec([batch, None, None], tf.int32)
        wanted = [(loaded, texts, {}, [batch, length]),
                  (loaded.bert_pack_inputs, [tokens] * 2, {"seq_length": 256}, [batch, 256])]
        wanted += [(getattr(loaded, name), texts, {}, [batch, None, None])
                   for name in ("tokenize", "tokenize_with_offsets") if hasattr(loaded, name)]
        for call, inputs, arguments, shape in wanted:
            shapes = tf.nest.flatten(static_shapes(call, inputs, **arguments))
            expect(all(found.as_list() == shape for found in shapes), f"a batch of {batch} gave {shapes}, not {shape}")


def _saved_again(loaded: Loaded, path: Path) -> None:
    """a copy made by loading and saving works without the original files"""
    texts = tf.constant([_TEXT, "DEF"])
    with saved_again(path) as copy:
        word_ids = tf.saved_model.load(copy)(texts)["input_word_ids"]
    expect(np.array_equal(word_ids, loaded(texts)["input_word_ids"]), "the copy gives other ids")


# docs/hub_contract.md has the same rules.
CHECKS = tuple(enumerate((_root, _tokenize, _tokenize_with_offsets, _special_tokens_dict, _pack, _truncation, _golden,
                          _static_shapes, _saved_again), 1))
