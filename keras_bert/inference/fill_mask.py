"""`fill_mask`: predicts masked tokens."""

from collections.abc import Iterable

import keras
import numpy as np
from keras import ops

from keras_bert.arguments import texts_of_argument
from keras_bert.errors import InputError
from keras_bert.models import BertPretrainer
from keras_bert.text import Tokenizer, pad


def fill_mask(model: BertPretrainer, tokenizer: Tokenizer, texts: Iterable[str], top_k: int = 5,
              batch_size: int = 32) -> list[list[list[tuple[str, float]]]]:
    """Predicts the tokens for each [MASK] in texts.

    Args:
        model: a `BertPretrainer`.
        tokenizer: the model's `Tokenizer`.
        texts: list, Series, array or generator of str, each with one or more [MASK].
        top_k: number of tokens to return for each [MASK].
        batch_size: texts per batch; it does not change the results, apart from rounding.

    Returns:
        a list with one list per text, which has one list per [MASK]: pairs of (token, its probability), the most
        probable token first.

    Raises:
        InputError: the vocabulary has no [MASK]; or a text is no str, has no [MASK] or is too long, and the message
            says which.
    """
    if tokenizer.mask_id is None:
        raise InputError("the vocabulary must have [MASK]; it does not")
    texts = texts_of_argument("texts", texts)
    limit = model.bert.config.max_position_embeddings
    packed = [_pack(text, number, tokenizer, limit) for number, text in enumerate(texts, 1)]
    return [best for begin in range(0, len(packed), batch_size)
            for best in _fill_batch(model, tokenizer, packed[begin:begin + batch_size], top_k)]


def _fill_batch(model: BertPretrainer, tokenizer: Tokenizer, packed: list[tuple[list[int], int]],
                top_k: int) -> list[list[list[tuple[str, float]]]]:
    inputs = pad(packed, tokenizer.pad_id)
    masks = [np.flatnonzero(row == tokenizer.mask_id) for row in inputs["input_word_ids"]]
    positions = keras.utils.pad_sequences(masks, padding="post")
    logits = model(inputs | {"masked_lm_positions": positions})["mlm_logits"]
    probabilities = ops.convert_to_numpy(ops.softmax(logits))
    best = np.argsort(-probabilities, axis=-1, kind="stable")[..., :top_k]
    return [[[(tokenizer.vocabulary[i], float(probabilities[row, mask, i])) for i in best[row, mask]]
             for mask in range(len(columns))] for row, columns in enumerate(masks)]


def _pack(text: str, number: int, tokenizer: Tokenizer, limit: int) -> tuple[list[int], int]:
    """Returns the ids of [CLS] text [SEP] and their number, an input of `packing.pad`."""
    assert tokenizer.mask_id is not None  # `fill_mask` has checked it
    mask, ids = tokenizer.vocabulary[tokenizer.mask_id], list[int]()
    if mask not in text:
        raise InputError(f"text {number}: must have {mask}; got {text[:60]!r}")
    for part in tokenizer.ids(text.split(mask)):
        ids += [*part, tokenizer.mask_id]
    packed = tokenizer.pack_ids(ids[:-1], None, len(ids) + 1)
    if (length := len(packed[0])) > limit:
        raise InputError(f"text {number}: must have at most {limit} tokens, including [CLS] and [SEP]; got {length}")
    return packed
