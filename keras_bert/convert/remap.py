"""Conversion of weights to another vocabulary or to fewer positions."""

import dataclasses

import numpy as np

from keras_bert.errors import InputError
from keras_bert.text import BertTokenizer
from keras_bert.text.vocabulary import CONTINUES
from keras_bert.weights.source import Weights

_WORDS = "bert.embeddings.word_embeddings.embeddings"
_POSITIONS = "bert.embeddings.position_embeddings.embeddings"


def with_vocabulary(weights, path):
    """Returns the weights with one row per token of another vocabulary.

    A token that is in both vocabularies keeps its row. Another one gets the mean of the rows of the old tokens that
    spell it, or the mean of all rows if the old vocabulary cannot spell it.

    Args:
        weights: `Weights` with a tokenizer.
        path: path of the new `vocab.txt`.

    Returns:
        (`Weights`, number of tokens that keep their row, number of tokens spelled with old tokens).

    Raises:
        InputError: the weights have no tokenizer.
    """
    if weights.tokenizer is None:
        raise InputError(f"{path}: another vocabulary needs the old one too; add the vocab.txt of the weights to their "
                         "folder")
    tokenizer = _tokenizer(path, weights.tokenizer)
    ids = {token: index for index, token in enumerate(weights.tokenizer.vocabulary)}
    spellings = [[ids[token]] if token in ids else _spell(token, ids) for token in tokenizer.vocabulary]
    kept = sum(token in ids for token in tokenizer.vocabulary)

    def mapped(name):
        def read():
            rows = weights.read[name]()
            mean = rows.mean(axis=0)
            return np.stack([rows[spelling].mean(axis=0) if spelling else mean for spelling in spellings])

        return read

    config = dataclasses.replace(weights.config, vocab_size=len(tokenizer.vocabulary), pad_token_id=tokenizer.pad_id)
    read = weights.read | {name: mapped(name) for name in (_WORDS, "mlm.bias") if name in weights.read}
    return (dataclasses.replace(weights, config=config, read=read, tokenizer=tokenizer), kept,
            sum(map(bool, spellings)) - kept)


def with_positions(weights: Weights, number):
    """Returns the weights with only the first `number` position embeddings."""
    limit = weights.config.max_position_embeddings
    if not 1 <= number <= limit:
        raise InputError(f"max_position_embeddings must be from 1 to {limit}, the number in the weights; got {number}")
    read = weights.read | {_POSITIONS: lambda: weights.read[_POSITIONS]()[:number]}
    config = dataclasses.replace(weights.config, max_position_embeddings=number)
    settings = weights.settings
    if settings:
        settings = settings | {"max_length": min(settings["max_length"], number)}
    return dataclasses.replace(weights, config=config, read=read, settings=settings)


def _tokenizer(path, old):
    """Returns the tokenizer of the new vocabulary, with the rules that its tokens suggest. If the old vocabulary
    suggests the same rules, it gets the rules of the old tokenizer instead."""
    new = BertTokenizer(path, lower_case=None)
    if new.rules != BertTokenizer(old.vocabulary, lower_case=None).rules:
        return new
    return BertTokenizer(new.vocabulary, **dataclasses.asdict(old.rules))


def _spell(token, ids):
    """Returns the ids of the old tokens that spell a new token, by longest match first; an empty list if that
    fails, and for special tokens."""
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
