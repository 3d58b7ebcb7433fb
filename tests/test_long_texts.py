"""Of a long text, only the part that a model reads is tokenized."""

import dataclasses
import random

import numpy as np
import pytest

from keras_bert.text import BertTokenizer
from keras_bert.text.packing import pack

import zoo
from conftest import TINY_VOCABULARY

# Words, white space that Python and BERT see differently, characters that change with their neighbours, ideographs.
PARTS = ["the", "lamp", " ", "\n", "\t", "\u3000", "\x0b", "\x85", "\u2003", "Σ", "ΟΔΟΣ", "'", ".", "é", "e\u0301",
         "각", "\u1100\u1161", "中", "豈", "\u0301", "\ufffd", "\0", "music" * 50, "\U000e0001", "İ"]


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("rules", [
    {}, {"lower_case": False}, {"split_cjk": False}, {"normalization": "NFC"}, {"strip_accents": False}], ids=str)
def test_the_inputs_are_those_of_the_whole_texts(rules, side):
    rng, tokenizer = random.Random(1), BertTokenizer(TINY_VOCABULARY, truncation_side=side, **rules)
    texts = ["".join(rng.choices(PARTS, [3, 3, 4] + [1] * (len(PARTS) - 3), k=rng.choice([30, 300, 900])))
             for _ in range(30)]
    whole = [tokenizer.subwords.encode(tokenizer.rules.normalize(text)).ids for text in texts]
    assert tokenizer.ids(texts) == whole
    for length in (3, 8, 20):
        assert [ids for ids, _ in tokenizer.pack(texts, None, length)] == [
            pack(ids, None, tokenizer.cls_id, tokenizer.sep_id, length, side)[0] for ids in whole]
        packed, cut = tokenizer.pack_with_cuts(texts, texts[::-1], length)
        assert packed == [pack(first, second, tokenizer.cls_id, tokenizer.sep_id, length, side)
                          for first, second in zip(whole, whole[::-1])]
        assert cut == [row for row, (first, second) in enumerate(zip(whole, whole[::-1]))
                       if len(first) + len(second) > length - 3]


def test_a_long_text_is_not_tokenized_as_a_whole():
    tokenizer = BertTokenizer(TINY_VOCABULARY)
    assert len(tokenizer.part("the lamp " * 100_000, 16)) < 200
    assert tokenizer.part("the lamp " * 5, 16) == "the lamp " * 5
    assert tokenizer.words("あ" * 100_000) == "[UNK]" and len(tokenizer.words("!" * 100_000, 16)) < 40


@pytest.mark.filterwarnings("ignore:texts cut at max_")
@pytest.mark.parametrize("case", ["intent", "pairs", "tag", "span", "prompts"])
def test_answers_from_windows_are_those_of_whole_texts(case, monkeypatch):
    model, rng = zoo.make(case), random.Random(2)
    model = model.with_task(dataclasses.replace(model.task, doc_stride=5, max_windows=3))
    texts = [["".join(rng.choices(["the ", "lamp ", "\n", "Σ", "중", "! "], k=k)) for k in (900, 3, 400)]
             for _ in model.task.inputs]
    answers, numbers = zoo.numbers(list(model.predict(*texts)))
    monkeypatch.setattr(BertTokenizer, "part", lambda tokenizer, text, needed: text)
    expected, close = zoo.numbers(list(model.predict(*texts)))
    assert answers == expected
    np.testing.assert_allclose(numbers, close, atol=1e-6)
