"""The token ids of documents, by words that are remembered, in files."""

import glob
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_bert.pretraining import corpus
from keras_bert.pretraining.corpus import Block, Corpus, WordIds, join, write_part
from keras_bert.text import BertTokenizer

from conftest import DATA, TINY_VOCABULARY

TOKENIZER = BertTokenizer(TINY_VOCABULARY)
# What is near a space may change a word: a final sigma, marks to combine, white space of other kinds, what is deleted.
STRANGE = ["Σ", "ΑΣ", "Σ.", "\u0301", "\u1161", "\u11a8", "각", "\t", "\u3000", "\x00", "\u200b", "[SEP]", "[MASK]",
           "##s", "İ", "漢", "the", "lamp", ".", "e\u0301", "", " "]


def assert_equal(words, tokenizer, texts):
    ids, counts = words(texts)
    expected = tokenizer.ids(texts)
    assert ids.tolist() == list(itertools.chain.from_iterable(expected))
    assert counts.tolist() == list(map(len, expected))


@given(st.lists(st.lists(st.sampled_from(STRANGE)).map(" ".join) | st.lists(st.sampled_from(STRANGE)).map("".join)
                | st.text(), min_size=1), st.booleans(), st.booleans())
def test_words_have_the_ids_of_the_text(texts, cased, twice):
    tokenizer = BertTokenizer([*TINY_VOCABULARY, *"ας가각ㄱ"], lower_case=not cased)
    words = WordIds(tokenizer)
    for _ in range(1 + twice):
        assert_equal(words, tokenizer, texts)
    flat, counts = tokenizer.flat_ids(texts)
    assert (flat.tolist(), counts.tolist()) == (words(texts)[0].tolist(), words(texts)[1].tolist())


@pytest.mark.parametrize("vocabulary", ["bert-base-uncased", "koelectra35000", "bert-base-multilingual-cased"])
def test_corpora(vocabulary, monkeypatch):
    tokenizer = BertTokenizer(DATA / "vocab" / vocabulary / "vocab.txt", lower_case=None)
    words = WordIds(tokenizer)
    monkeypatch.setattr(corpus, "_BATCH", 20_000)
    forgot = 0
    for path in sorted(glob.glob(f"{DATA}/corpora/*/*.txt")):
        with open(path, encoding="utf-8") as file:
            lines = file.read(300_000).split("\n")
        for begin in range(0, len(lines), 1000):
            before = len(words._ids)
            assert_equal(words, tokenizer, lines[begin:begin + 1000])
            forgot += len(words._ids) < before
    assert forgot > 1


def write(folder, *blocks):
    """The corpus of blocks, each a list of documents, which were tokenized in another order."""
    folder.mkdir()
    for number, texts in reversed(list(enumerate(blocks))):
        write_part(Block(number // 2, number % 2, texts, 1.0), WordIds(TOKENIZER), folder)
    return join(folder) and Corpus.open(folder)


def test_sentences_without_tokens_are_left_out(tmp_path, monkeypatch):
    texts = [["\x00"], ["the a", "\x01", "music"], ["\x00", "\x02"], ["lamp \x00"]]
    for size in (1, 4, 10**6):  # characters tokenized at a time
        monkeypatch.setattr(corpus, "_BATCH", size)
        for name, blocks in (("one", [texts]), ("three", [texts[:1], texts[1:3], texts[3:]])):
            found = write(tmp_path / f"{name}{size}", *blocks)
            assert [TINY_VOCABULARY[i] for i in found.ids] == ["the", "a", "music", "lamp"]
            assert (found.sentences.tolist(), found.documents.tolist()) == ([0, 2, 3, 4], [0, 2, 3])
    assert write(tmp_path / "none", [["\x00"]]) == 0


def test_sections_hold_all_documents(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    texts = [[" ".join(["the"] * count) for count in rng.integers(1, 9, rng.integers(1, 9))] for _ in range(90)]
    whole = write(tmp_path / "corpus", *([text] for text in texts))
    monkeypatch.setattr(corpus, "SECTION", 50)
    sections = list(whole.sections())
    assert len(sections) > 20 and sections[0].first == 0 and sections[-1].last == len(texts)
    for section, following in itertools.pairwise(sections):
        sizes = [sum(text.count("the") for text in document) for document in texts[section.first:section.last]]
        assert sum(sizes) >= 50 > sum(sizes[:-1]) and following.first == section.last
        part = whole.part(section)
        assert np.diff(part.sentences[part.documents]).tolist() == sizes and len(part.ids) == sum(sizes)


def test_memory_is_bounded(monkeypatch):
    monkeypatch.setattr(corpus, "_BATCH", 1000)
    words, rng = WordIds(TOKENIZER), np.random.default_rng(0)
    for _ in range(50):
        words([" ".join(map(str, rng.integers(0, 10**9, 200)))])
        assert len(words._numbers) == len(words._counts) <= 1200
