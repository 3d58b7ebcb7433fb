"""Conversion of weights to another vocabulary or to fewer positions."""

import dataclasses
import functools
from collections.abc import Callable, Sequence

import numpy as np

from keras_bert.arguments import Path, check_rules
from keras_bert.errors import InputError
from keras_bert.text import BertTokenizer
from keras_bert.text.vocabulary import CONTINUES
from keras_bert.weights.source import Weights

_WORDS = "bert.embeddings.word_embeddings.embeddings"
_POSITIONS = "bert.embeddings.position_embeddings.embeddings"


def with_vocabulary(weights: Weights, path: Path) -> tuple[Weights, int, int]:
    """Returns the weights with one row per token of another `vocab.txt`, the number of tokens that keep their row, and
    the number of those that are spelled with old tokens.

    A token that is in both vocabularies keeps its row. Another one gets the mean of the rows of the old tokens that
    spell it, or the mean of all rows if the old vocabulary cannot spell it.
    """
    if weights.tokenizer is None:
        raise InputError(f"{path}: another vocabulary needs the old one too; add the vocab.txt of the weights to their "
                         "folder")
    tokenizer = _tokenizer(path, weights.tokenizer)
    ids = {token: index for index, token in enumerate(weights.tokenizer.vocabulary)}
    spellings = [[ids[token]] if token in ids else _spell(token, ids) for token in tokenizer.vocabulary]
    kept = sum(token in ids for token in tokenizer.vocabulary)
    mapped = {name: functools.partial(_mapped, weights.read[name], spellings)
              for name in (_WORDS, "mlm.bias") if name in weights.read}
    weights = weights.with_config(vocab_size=len(tokenizer.vocabulary), pad_token_id=tokenizer.pad_id)
    weights = dataclasses.replace(weights, read={**weights.read, **mapped}, tokenizer=tokenizer)
    return weights, kept, sum(map(bool, spellings)) - kept


def _mapped(read: Callable[[], np.ndarray], spellings: Sequence[list[int]]) -> np.ndarray:
    """Returns the rows of new tokens, each the mean of the rows of the old tokens that spell it."""
    rows = read()
    mean = rows.mean(axis=0)
    return np.stack([rows[spelling].mean(axis=0) if spelling else mean for spelling in spellings])


def with_positions(weights: Weights, number: int) -> Weights:
    """Returns the weights with only the first `number` position embeddings."""
    limit = weights.config.max_position_embeddings
    check_rules(("max_position_embeddings", number, f"from 1 to {limit}, the number in the weights",
                 1 <= number <= limit))
    read = {**weights.read, _POSITIONS: lambda: weights.read[_POSITIONS]()[:number]}
    settings = weights.settings
    if settings:
        settings = settings | {"max_length": min(settings["max_length"], number)}
    return dataclasses.replace(weights.with_config(max_position_embeddings=number), read=read, settings=settings)


def _tokenizer(path: Path, old: BertTokenizer) -> BertTokenizer:
    """Returns the tokenizer of the new vocabulary, with the rules that its tokens suggest. If the old vocabulary
    suggests the same rules, it gets the rules of the old tokenizer instead."""
    kept = {name: getattr(old, name) for name in ("has_segments", "truncation_side", "max_word_length")}
    new = BertTokenizer(path, lower_case=None, **kept)
    if new.rules != BertTokenizer(old.vocabulary, lower_case=None).rules:
        return new
    return BertTokenizer(new.vocabulary, **dataclasses.asdict(old.rules), **kept)


def _spell(token: str, ids: dict[str, int]) -> list[int]:
    """Returns the ids of the old tokens that spell a new one, longest match first; [] if none do, or it is special."""
    if token.startswith("[") and token.endswith("]"):
        return []
    prefix = CONTINUES if token.startswith(CONTINUES) else ""
    rest, spelling = token.removeprefix(CONTINUES), []
    while rest:
        end = next((end for end in range(len(rest), 0, -1) if prefix + rest[:end] in ids), None)
        if end is None:
            return []
        spelling.append(ids[prefix + rest[:end]])
        rest, prefix = rest[end:], CONTINUES
    return spelling
