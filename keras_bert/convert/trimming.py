"""Smaller word embeddings: those of the tokens that some texts use."""

import dataclasses
import itertools
import math
import unicodedata
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
_COMMON = 0.01  # smallest share of a text's script among the different tokens that the texts use
_MANY = 20  # letters in a vocabulary that are a script, and not a few signs, such as µ


def with_tokens_of(weights: Weights, paths: Sequence[str], report: Callable[[str], object]) -> Weights:
    """Returns the weights with the rows of special tokens, prompts, tokens of text files, one text per line, and single
    characters, but not letters of scripts, other than Latin, with less than 1% of these. Reports what is lost."""
    tokenizer = weights.tokenizer
    if tokenizer is None:
        raise InputError("the tokens of texts need a vocabulary next to the weights")
    used = tokenizer.is_special & [not token.startswith("[unused") for token in tokenizer.vocabulary]
    used[[tokenizer.pad_id, tokenizer.unk_id, tokenizer.cls_id, tokenizer.sep_id]] = True
    held_out: list[str] = []
    texts = read_texts(paths, lambda line: None)
    while lines := list(itertools.islice(texts, _BATCH)):
        taken = lines[_EVERY - 1::_EVERY][:_MOST - len(held_out)]
        held_out += taken
        del lines[_EVERY - 1:len(taken) * _EVERY:_EVERY]
        used[tokenizer.flat_ids(lines)[0]] = True
    used[tokenizer.flat_ids((weights.settings.get("prompts") or {}).values())[0]] = True
    all_used = used.copy()
    all_used[tokenizer.flat_ids(held_out)[0]] = True
    trimmed, _ = _restricted(weights, tokenizer, all_used)
    report(f"kept {trimmed.config.vocab_size:,} of {weights.config.vocab_size:,} rows of the word embeddings: the "
           f"encoder has {_megabytes(trimmed):.0f} MB in float32, before {_megabytes(weights):.0f} MB")
    if not held_out:
        report(f"fewer than {_EVERY} lines, too few to estimate what new texts lose")
        return trimmed
    partial, kept = _restricted(weights, tokenizer, used)
    changed = [text for text, ids in zip(held_out, tokenizer.ids(held_out)) if not kept[ids].all()]
    line = f"{len(changed) / len(held_out):.1%} of {len(held_out):,} held-out lines use tokens that the others lack"
    if changed:
        before, after = (_vectors(one, one.tokenizer or tokenizer, changed[:_COMPARED]) for one in (weights, partial))
        cosines = (before * after).sum(1)
        line += (f"; without these, the cosine of their vectors is {cosines.mean():.3f}, at least {cosines.min():.3f}, "
                 f"for {len(cosines)} of them")
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


def _restricted(weights: Weights, tokenizer: Tokenizer, used: np.ndarray) -> tuple[Weights, np.ndarray]:
    """Returns the weights of the tokens `used`, bool [vocabulary], and of characters; and which they are, alike."""
    scripts = np.array([_script(token[-1:]) for token in tokenizer.vocabulary])
    foreign = [name for name, count in zip(*np.unique(scripts[tokenizer.is_character], return_counts=True))
               if count >= _MANY and name not in ("", "LATIN") and (scripts[used] == name).mean() < _COMMON]
    kept = used | tokenizer.is_character & ~np.isin(scripts, foreign)
    ids = np.flatnonzero(kept)
    read = {name: lambda read=weights.read[name]: read()[ids] for name in OF_TOKENS if name in weights.read}
    restricted = tokenizer.restricted(ids.tolist())
    return dataclasses.replace(weights.with_config(vocab_size=len(ids), pad_token_id=restricted.pad_id),
                               read={**weights.read, **read}, tokenizer=restricted), kept


def _script(letter: str) -> str:
    """Returns the script of a letter, from its name in Unicode; "" for other characters, also for modifiers as "ー"."""
    name = unicodedata.name(letter or "\0", "").removeprefix("HALFWIDTH ").removeprefix("FULLWIDTH ")
    return name.partition(" ")[0] if letter.isalpha() and unicodedata.category(letter) != "Lm" else ""


def _megabytes(weights: Weights) -> float:
    return sum(map(math.prod, shapes(weights.config).values())) * 4 / 1e6


def _vectors(weights: Weights, tokenizer: Tokenizer, texts: list[str]) -> np.ndarray:
    """Returns the mean of the encoder's outputs over the tokens of each text, of length 1, float32 [texts, hidden]."""
    inputs = tokenizer(texts, max_length=min(_LENGTH, weights.config.max_position_embeddings))
    inputs["input_type_ids"] = inputs.pop("segment_ids")
    states = outputs(weights.build(), weights.kind, inputs)["sequence_output"]
    sums = (states * inputs["input_mask"][..., None]).sum(1)
    return sums / np.linalg.norm(sums, axis=1, keepdims=True)
