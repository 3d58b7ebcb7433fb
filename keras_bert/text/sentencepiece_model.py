"""Reads a `.model` file of SentencePiece: a protobuf message, `ModelProto` of google/sentencepiece,
src/sentencepiece_model.proto, of which a few fields are needed."""

import dataclasses
import enum
import struct
from collections.abc import Iterator
from typing import Any

from keras_bert.arguments import Path
from keras_bert.errors import InputError
from keras_bert.files.paths import reading

_MODEL_TYPES = {1: "unigram", 2: "BPE", 3: "word", 4: "char"}
# Fields of `TrainerSpec` and `NormalizerSpec`: numbers, names, and the only value that this package can use.
_TRAINER = {3: ("model_type", 1), 24: ("treat_whitespace_as_suffix", 0), 35: ("byte_fallback", 0)}
_NORMALIZER = {3: ("add_dummy_prefix", 1), 4: ("remove_extra_whitespaces", 1), 5: ("escape_whitespaces", 1)}


class OtherModel(InputError):
    """An error for a file that is no model of the kind that this package reads."""


class Kind(enum.IntEnum):
    """The kind of a piece."""

    NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)


@dataclasses.dataclass(frozen=True)
class SentencePieceModel:
    """A unigram model: its pieces in the order of their ids, with scores and kinds, and its `precompiled_charsmap`."""

    pieces: list[str]
    scores: list[float]
    kinds: list[Kind]
    charsmap: bytes


def read_model(path: Path) -> SentencePieceModel:
    """Reads a `.model` file.

    Raises:
        OtherModel: the model is not a unigram model, or has a setting or a kind of piece that changes its ids, and the
            message names it.
        InputError: the file is damaged.
    """
    with reading(path), open(path, "rb") as file:
        data = file.read()
    try:
        messages = [(number, dict(_fields(value))) for number, value in _fields(data) if number in (1, 2, 3)]
        pieces = [message for number, message in messages if number == 1]
        trainer, normalizer = (next((message for number, message in messages if number == which), {})
                               for which in (2, 3))
        model = SentencePieceModel([piece[1].decode() for piece in pieces], [piece.get(2, 0.0) for piece in pieces],
                                   [Kind(piece.get(3, 1)) for piece in pieces], normalizer.get(2, b""))
        if not pieces:
            raise ValueError
    except (IndexError, KeyError, ValueError, TypeError, AttributeError, struct.error):
        raise InputError(f"{path}: must be a model of SentencePiece; it is damaged or something else; copy the file "
                         "again") from None
    for fields, message in ((_TRAINER, trainer), (_NORMALIZER, normalizer)):
        for number, (name, needed) in fields.items():
            if (value := message.get(number, needed)) != needed:
                found = _MODEL_TYPES.get(value, value) if name == "model_type" else bool(value)
                raise OtherModel(f"{path}: {name} must be {'unigram' if name == 'model_type' else bool(needed)}; "
                                 f"got {found}")
    if wrong := {Kind.USER_DEFINED, Kind.BYTE} & {*model.kinds}:
        kind, = sorted(wrong)[:1]
        raise OtherModel(f"{path}: must not have pieces that are {kind.name.lower().replace('_', '-')}; got "
                         f"{model.pieces[model.kinds.index(kind)]!r}")
    return model


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yields the numbers and values of a message's fields."""
    at = 0
    while at < len(data):
        key, at = _read_varint(data, at)
        match key & 7:
            case 0:
                value, at = _read_varint(data, at)
                yield key >> 3, value
            case 2:
                size, at = _read_varint(data, at)
                if at + size > len(data):
                    raise ValueError
                yield key >> 3, data[at:at + size]
                at += size
            case 5:
                yield key >> 3, struct.unpack_from("<f", data, at)[0]
                at += 4
            case 1:
                yield key >> 3, data[at:at + 8]
                at += 8
            case _:
                raise ValueError


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while data[at] >= 128:
        value, at, shift = value | (data[at] & 127) << shift, at + 1, shift + 7
    return value | data[at] << shift, at + 1
