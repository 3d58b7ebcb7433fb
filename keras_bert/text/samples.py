"""Texts in several languages, on which the outputs of two forms of a model are compared."""

import numpy as np

from keras_bert.text.packing import pad
from keras_bert.text.tokenizer import Tokenizer

# Together longer than any input; each is also used alone.
TEXTS = [
    "The bank raised its rates, and the river its banks.",
    "Who wrote this, and when?",
    "play some music in the kitchen",
    "오늘 서울 날씨가 어때요?",
    "이 영화는 정말 재미있었어요!",
    "北京の冬は寒いです。",
    "¿Dónde está la biblioteca? Nº 7",
    "3.14 × 2 = 6.28 😀",
]


def sample_inputs(tokenizer: Tokenizer, length: int, segments: int) -> dict[str, np.ndarray]:
    """Returns int32 [6, length]: a text and a pair that fill it, and four short ones; segment ids below `segments`."""
    whole = " ".join(TEXTS * (length // len(TEXTS) + 1))
    rows = tokenizer.pack([whole, *TEXTS[1:3]], None, length)
    rows += tokenizer.pack([whole, *TEXTS[3:5]], [whole, *TEXTS[:2]], length)
    inputs = pad(rows, tokenizer.pad_id)
    inputs["input_type_ids"] = np.minimum(inputs.pop("segment_ids"), segments - 1)
    return inputs


def of_tokens(output: np.ndarray, inputs: dict[str, np.ndarray]) -> np.ndarray:
    """Returns an output without the values of padding, which libraries compute differently or not at all."""
    mask = inputs["input_mask"].astype(bool)
    return output[mask] if output.shape[:2] == mask.shape else output
