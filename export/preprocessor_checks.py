"""The checks of the contract of a Hub-style text preprocessor (docs/hub_contract.md)."""

import os
import pathlib
import shutil
import tempfile

import numpy as np
import tensorflow as tf

from keras_bert.text import BertTokenizer

from .checking import NotApplicable, expect

_KEYS = ["input_mask", "input_type_ids", "input_word_ids"]
_TEXT = "abc d ef"


def _special_tokens(loaded):
    return {name: int(value) for name, value in loaded.tokenize.get_special_tokens_dict().items()}


def _root(loaded, _):
    texts = tf.constant([_TEXT, _TEXT + f" {_TEXT}" * 400])
    outputs = loaded(texts)
    expect(sorted(outputs) == _KEYS, f"the keys are {', '.join(sorted(outputs))}")
    for name, tensor in outputs.items():
        expect(tensor.dtype == tf.int32 and tensor.shape.rank == 2, f"{name} is {tensor.dtype.name} {tensor.shape}")
    word_ids, mask = outputs["input_word_ids"].numpy(), outputs["input_mask"].numpy()
    special = _special_tokens(loaded)
    expect(mask[1].all() and not mask[0].all(), "a long text must fill the length, and a short one must not")
    expect(word_ids[1, -1] == special["end_of_segment_id"], f"a text that was cut ends in {word_ids[1, -1]}")
    return f"length {mask.shape[1]}"


def _tokenize(loaded, _):
    _ragged_tokens(loaded.tokenize(tf.constant([_TEXT, "", _TEXT])), tf.int32)


def _tokenize_with_offsets(loaded, _):
    if not hasattr(loaded, "tokenize_with_offsets"):
        raise NotApplicable("it has no tokenize_with_offsets")
    tokens, starts, limits = loaded.tokenize_with_offsets(tf.constant([_TEXT, "", _TEXT]))
    for tensor, dtype in zip((tokens, starts, limits), (tf.int32, tf.int64, tf.int64)):
        _ragged_tokens(tensor, dtype)
    begin, end = [word[0] for word in starts[0].to_list()], [word[-1] for word in limits[0].to_list()]
    expect((begin, end) == ([0, 4, 6], [3, 5, 8]), f"the words of {_TEXT!r} start at {begin} and end at {end}")


def _ragged_tokens(tensor, dtype):
    expect(isinstance(tensor, tf.RaggedTensor) and tensor.dtype == dtype and tensor.shape.rank == 3,
           f"returned {type(tensor).__name__} {tensor.dtype.name} {tensor.shape}")
    expect(tensor.row_lengths().numpy().tolist() == [3, 0, 3],
           f"three words, none and three came out as {tensor.row_lengths().numpy().tolist()}")


def _special_tokens_dict(loaded, _):
    with tf.Graph().as_default():
        names = set(loaded.tokenize.get_special_tokens_dict())
    needed = {"padding_id", "start_of_sequence_id", "end_of_segment_id", "vocab_size"}
    expect(needed <= names <= needed | {"mask_id"}, f"the keys are {', '.join(sorted(names))}")
    tokens = _special_tokens(loaded)
    size = tokens.pop("vocab_size")
    expect(all(0 <= value < size for value in tokens.values()), f"{tokens} in a vocabulary of {size}")
    if hasattr(loaded, "tokenize_with_offsets"):
        expect(loaded.tokenize.get_special_tokens_dict is loaded.tokenize_with_offsets.get_special_tokens_dict,
               "tokenize and tokenize_with_offsets have two")
    return f"vocabulary of {size}"


def _pack(loaded, _):
    special = _special_tokens(loaded)
    cls, sep, padding = (special[name] for name in ("start_of_sequence_id", "end_of_segment_id", "padding_id"))
    first, second = [[[4], [5, 6]]], [[[7]]]
    wanted = {1: [cls, 4, 5, 6, sep, padding, padding, padding], 2: [cls, 4, 5, 6, sep, 7, sep, padding]}
    for segments in (1, 2):
        for ragged_rank in (1, 2):
            inputs = [tf.ragged.constant(part, tf.int32, ragged_rank=2) for part in (first, second)[:segments]]
            inputs = [part if ragged_rank == 2 else part.merge_dims(1, 2) for part in inputs]
            for length in (8, tf.constant(8)):
                got = {name: tensor.numpy()[0].tolist()
                       for name, tensor in loaded.bert_pack_inputs(inputs, seq_length=length).items()}
                expect(got["input_word_ids"] == wanted[segments], f"{segments} segments gave {got['input_word_ids']}")
                expect(got["input_mask"] == [1] * (3 + 2 * segments) + [0] * (5 - 2 * segments),
                       f"the mask is {got['input_mask']}")
                expect(got["input_type_ids"] == [0] * 5 + [segments - 1] * 2 + [0],
                       f"the type ids are {got['input_type_ids']}")


def _truncation(loaded, _):
    kept = _kept(loaded, 2)
    names = {(4, 3): "round robin", (7, 0): "waterfall"}
    expect(kept in names, f"of two segments of 8 tokens {kept} are kept at length 10")
    try:
        three = _kept(loaded, 3)
    except (TypeError, ValueError):
        return f"{names[kept]}, two segments at most"
    expect(three == {(4, 3): (2, 2, 2), (7, 0): (6, 0, 0)}[kept], f"of three segments {three} are kept at length 10")
    return names[kept]


def _kept(loaded, segments):
    inputs = [tf.ragged.constant([[4 + number] * 8], tf.int32) for number in range(segments)]
    word_ids = loaded.bert_pack_inputs(inputs, seq_length=10)["input_word_ids"].numpy()[0].tolist()
    return tuple(word_ids.count(4 + number) for number in range(segments))


def _golden(loaded, path):
    files = [file for file in pathlib.Path(path, "assets").glob("*")
             if b"[CLS]" in file.read_bytes().split()]
    if len(files) != 1:
        raise NotApplicable("it holds no vocabulary of word pieces")
    texts = [_TEXT, "DEF Abc's xy, d!"]
    got = [tokens for tokens in loaded.tokenize(tf.constant(texts)).merge_dims(1, 2).to_list()]
    wanted = {casing: BertTokenizer(files[0], lower_case).ids(texts)
              for casing, lower_case in (("uncased", True), ("cased", False))}
    casings = [casing for casing, ids in wanted.items() if ids == got]
    expect(casings, f"{texts} gave {got}, and BERT's are {wanted['uncased']}, or cased {wanted['cased']}")
    return casings[0] if len(casings) == 1 else ""


def _static_shapes(loaded, _):
    length = loaded(tf.constant([_TEXT]))["input_word_ids"].shape[1]
    for batch in (7, None):
        texts, tokens = tf.TensorSpec([batch], tf.string), tf.RaggedTensorSpec([batch, None, None], tf.int32)
        wanted = [
            (loaded, texts, {}, [batch, length]), (loaded.tokenize, texts, {}, [batch, None, None]),
            (loaded.bert_pack_inputs, [tokens] * 2, {"seq_length": 256}, [batch, 256]),
        ]
        if hasattr(loaded, "tokenize_with_offsets"):
            wanted.append((loaded.tokenize_with_offsets, texts, {}, [batch, None, None]))
        for call, inputs, arguments, shape in wanted:
            seen = _shapes(call, inputs, arguments)
            expect(all(one == shape for one in seen), f"a batch of {batch} gave {seen} instead of {shape}")


def _shapes(call, inputs, arguments):
    """Returns the static shapes of the tensors that a call returns."""
    shapes = []

    @tf.function
    def trace(inputs):
        outputs = call(inputs, **arguments)
        shapes.extend(tensor.shape.as_list() for tensor in tf.nest.flatten(outputs))
        return tf.nest.flatten(outputs)[0]

    trace.get_concrete_function(inputs)
    return shapes


def _saved_again(loaded, path):
    texts = tf.constant([_TEXT, "DEF"])
    with tempfile.TemporaryDirectory() as folder:
        first, second = os.path.join(folder, "first"), os.path.join(folder, "second")
        shutil.copytree(path, first)
        tf.saved_model.save(tf.saved_model.load(first), second)
        shutil.rmtree(first)
        word_ids = tf.saved_model.load(second)(texts)["input_word_ids"]
    expect(np.array_equal(word_ids, loaded(texts)["input_word_ids"]), "the second gives other ids")


# docs/hub_contract.md has the same lines. Line 10, the use with an encoder's .mlm, is about the exporter.
CHECKS = (
    (1, "the root takes string [batch] and returns three int32 [batch, seq]; longer texts are cut", _root),
    (2, "tokenize returns int32 ragged [batch, (words), (pieces)]", _tokenize),
    (3, "tokenize_with_offsets adds int64 starts and limits, in bytes of the text", _tokenize_with_offsets),
    (4, "get_special_tokens_dict has the ids of the special tokens and vocab_size, in any graph, one for both",
     _special_tokens_dict),
    (5, "bert_pack_inputs takes one or two segments of ragged rank 1 or 2, and seq_length as int or tensor", _pack),
    (6, "of two segments of 8 tokens 4 and 3 are kept at length 10, or 7 and 0; of three 2, 2 and 2", _truncation),
    (7, "the ids are those that BERT was trained with", _golden),
    (8, "shapes are static for a batch of 7 and an unknown one", _static_shapes),
    (9, "loaded, saved again and the first deleted, the second works", _saved_again),
)
