"""Smaller word embeddings: those of the tokens that some texts use."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from keras_bert.convert.proof import outputs
from keras_bert.errors import InputError
from keras_bert.models.base import BertTask, head_weights
from keras_bert.text import Tokenizer
from keras_bert.text.vocabulary_training import read_texts
from keras_bert.weights.format import Weights
from keras_bert.weights.kinds import OF_TOKENS, shapes

_BATCH = 1024  # lines
_EVERY = 20  # of so many lines, one is held out
_MOST = 10_000  # lines that are held out
_COMPARED = 64  # lines whose vectors are compared
_LENGTH = 128  # of these, in tokens


def with_tokens_of(weights: Weights, paths: Sequence[str], report: Callable[[str], object]) -> Weights:
    """Returns the weights with the rows of the tokens that text files use, one text per line, and those of special
    tokens, prompts and single characters. One of 20 lines, up to 10,000, is held out: the report says how many of these
    get other tokens, and the cosine of their vectors, means over the tokens, with those before."""
    tokenizer = weights.tokenizer
    if tokenizer is None:
        raise InputError("the tokens of texts need a vocabulary next to the weights")
    used, held_out = tokenizer.is_special | tokenizer.is_character, list[str]()
    texts = read_texts(paths, lambda line: None)
    while lines := list(itertools.islice(texts, _BATCH)):
        taken = lines[_EVERY - 1::_EVERY][:_MOST - len(held_out)]
        held_out += taken
        del lines[_EVERY - 1:len(taken) * _EVERY:_EVERY]
        used[tokenizer.flat_ids(lines)[0]] = True
    used[tokenizer.flat_ids((weights.settings.get("prompts") or {}).values())[0]] = True
    kept = np.flatnonzero(used)
    read = {name: functools.partial(_rows, weights.read[name], kept) for name in OF_TOKENS if name in weights.read}
    restricted = tokenizer.restricted(kept.tolist())
    trimmed = dataclasses.replace(weights.with_config(vocab_size=len(kept), pad_token_id=restricted.pad_id),
                                  read={**weights.read, **read}, tokenizer=restricted)
    report(f"kept {len(kept):,} of {weights.config.vocab_size:,} rows of the word embeddings: the encoder has "
           f"{_megabytes(trimmed):.0f} MB in float32, before {_megabytes(weights):.0f} MB")
    if not held_out:
        report(f"fewer than {_EVERY} lines, so none is held out")
        return trimmed
    changed = [text for text, old, new in zip(held_out, tokenizer.ids(held_out), restricted.ids(held_out))
               if old != kept[new].tolist()]
    line = f"{len(changed) / len(held_out):.1%} of {len(held_out):,} held-out lines have other tokens"
    if changed:
        before, after = (_vectors(*pair, changed[:_COMPARED]) for pair in ((weights, tokenizer), (trimmed, restricted)))
        cosines = (before * after).sum(1)
        line += (f"; the cosine of their vectors is {cosines.mean():.3f}, at least {cosines.min():.3f}, for "
                 f"{len(cosines)} of them")
    report(line)
    return trimmed


def trimmed(model: BertTask, tokenizer: Tokenizer, settings: dict[str, Any], paths: Sequence[str],
            report: Callable[[str], object]) -> tuple[BertTask, Tokenizer]:
    """Returns a model with the rows of `with_tokens_of`, and its tokenizer. `settings` are those of the task."""
    weights = with_tokens_of(Weights.of(model.bert, tokenizer, settings=settings), paths, report)
    bert = weights.build()
    copy = type(model).from_config(model.get_config() | {"bert": keras.saving.serialize_keras_object(bert)})
    copy.bert.set_weights(bert.get_weights())
    for variable, value in zip(head_weights(copy), head_weights(model), strict=True):
        variable.assign(value)
    return copy, weights.tokenizer or tokenizer


def _rows(read: Callable[[], np.ndarray], rows: np.ndarray) -> np.ndarray:
    return read()[rows]


def _megabytes(weights: Weights) -> float:
    return sum(map(math.prod, shapes(weights.config).values())) * 4 / 1e6


def _vectors(weights: Weights, tokenizer: Tokenizer, texts: list[str]) -> np.ndarray:
    """Returns the mean of the encoder's outputs over the tokens of each text, of length 1, float32 [texts, hidden]."""
    inputs = tokenizer(texts, max_length=min(_LENGTH, weights.config.max_position_embeddings))
    inputs["input_type_ids"] = inputs.pop("segment_ids")
    states = outputs(weights.build(), weights.kind, inputs)["sequence_output"]
    sums = (states * inputs["input_mask"][..., None]).sum(1)
    return sums / np.linalg.norm(sums, axis=1, keepdims=True)
