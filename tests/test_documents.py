"""Documents from files, and the pairs and packed texts made of their sentences."""

import gzip
import itertools
import json
import os

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet
from text_reference import TOKENIZER, XLM_R

from keras_bert.pretraining import corpus
from keras_bert.pretraining.corpus import Corpus, Section, read_blocks
from keras_bert.pretraining.pairs import full_sentences, pack_spans, pair_sentences, truncate
from keras_bert.text import truncate_pair

from conftest import TINY_VOCABULARY

WORDS = TINY_VOCABULARY[5:40]


def random_documents(count, seed=0):
    """Documents of random words, 1 to 9 sentences of 1 to 12 words."""
    rng = np.random.default_rng(seed)
    return [[" ".join(rng.choice(WORDS, rng.integers(1, 13))) for _ in range(rng.integers(1, 10))]
            for _ in range(count)]


def read_documents(path, **options):
    return [document for block in read_blocks(path, **options) for document in block.documents]


@pytest.mark.parametrize("content, options, expected", [
    ("one\ntwo\n\n\n \t\nthree ", {}, [["one", "two"], ["three"]]),
    ("\ufeffone\r\n\r\n two\n", {}, [["one"], ["two"]]),
    ("\n\n", {}, []),
    ("", {}, []),
    ('It is 3.5 m. "Really?" He said (so.) yes… no\n你好。「是！」好 a.b\n', {"split_sentences": True},
     [["It is 3.5 m.", '"Really?"', "He said (so.)", "yes…", "no", "你好。", "「是！」", "好 a.b"]]),
])
def test_text_files(tmp_path, content, options, expected):
    (tmp_path / "a.txt").write_bytes(content.encode())
    assert read_documents(tmp_path / "a.txt", **options) == expected


def test_rows_are_documents(tmp_path):
    bodies = ["one\n two ", "", "\n", "drei\n\nvier 한국어"]
    rows = [json.dumps({"body": body, "text": 5}) for body in bodies]
    (tmp_path / "a.jsonl").write_text("\n".join([*rows, "", ""]))
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress((tmp_path / "a.jsonl").read_bytes()))
    parquet.write_table(pyarrow.table({"body": bodies, "text": [1] * 4}), tmp_path / "a.parquet", row_group_size=3)
    for name in ("a.jsonl", "a.jsonl.gz", "a.parquet"):
        assert read_documents(tmp_path / name, text_column="body") == [["one", "two"], ["drei", "vier 한국어"]]


def test_blocks_hold_whole_documents_and_little_more_than_their_size(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus, "BLOCK", 700)
    texts = random_documents(300)
    (tmp_path / "a.txt").write_text("\n\n".join(map("\n".join, texts)))
    blocks = list(read_blocks(tmp_path / "a.txt", 7))
    assert [document for block in blocks for document in block.documents] == texts and len(blocks) > 30
    assert [(block.file, block.number) for block in blocks] == [(7, number) for number in range(len(blocks))]
    shares = [block.share for block in blocks]
    assert shares == sorted(shares) and shares[-1] == 1 and abs(shares[len(shares) // 2] - 0.5) < 0.1
    for block in blocks[:-1]:
        sizes = [len("".join(document)) for document in block.documents]
        assert sum(sizes) >= 700 > sum(sizes[:-1])


@pytest.mark.parametrize("name, content, message", [
    ("a.txt", b"fine\n\xff\n", "row 2: must be UTF-8 text: invalid start byte at byte 1"),
    ("a.jsonl", b'{"text": "a"}\n{"text": \n', "row 2: not JSON: Expecting value: line 2 column 1 (char 10)"),
    ("a.parquet", {"body": ["a"]}, "there is no column 'text'; the columns are body"),
    ("a.parquet", {"text": [b"\xff"]}, "row 1"),
    ("a.parquet", {"text": [None]}, "row 1: 'text' must be a text; got None"),
    ("a.txt", b" \n\n", "must contain text; there is none"),
])
def test_bad_files_are_named_with_the_row(run, tmp_path, name, content, message):
    path = tmp_path / name
    if isinstance(content, dict):
        parquet.write_table(pyarrow.table(content), path)
    else:
        path.write_bytes(content)
    status, output, messages = run("make-pretraining-data", f"--input={path}", "--vocab=minilm", "--processes=1",
                                   f"--output={tmp_path}/out")
    assert (status, output, len(messages)) == (1, [], 1) and messages[0].startswith(f"keras-bert: {path}: {message}")
    assert os.listdir(tmp_path) == [name]


# Numbered tokens, so that a span says where it comes from.

def numbered(lengths):
    """The corpus 0, 1, 2, … in documents of sentences of these lengths."""
    sentences = np.cumsum([0, *itertools.chain.from_iterable(lengths)])
    return Corpus(np.arange(sentences[-1], dtype=np.int32), sentences, np.cumsum([0, *map(len, lengths)]))


def pair(corpus, limit):
    """The pairs of all documents."""
    return pair_sentences(corpus, Section(0, 0, len(corpus.documents) - 1), limit, np.random.default_rng(0))


def random_lengths(count, most=30, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(1, most, rng.integers(1, 40)).tolist() for _ in range(count)]


def test_second_texts_are_next_or_from_another_document():
    tokens = numbered(random_lengths(1600))
    begins = tokens.sentences[tokens.documents]  # of the documents, and the end
    spans, labels = pair(tokens, 61)
    document = np.searchsorted(begins, spans, side="right") - 1
    last = np.searchsorted(begins, spans - 1, side="right") - 1  # of a span's last token
    assert np.isin(spans, tokens.sentences).all()
    assert (spans[:, 0] < spans[:, 1]).all() and (spans[:, 2] < spans[:, 3]).all()
    assert (document[:, 0] == last[:, 1]).all() and (document[:, 2] == last[:, 3]).all()
    is_next = labels == 0
    assert (spans[is_next, 1] == spans[is_next, 2]).all() and (document[is_next, 0] == document[is_next, 2]).all()
    assert (document[~is_next, 0] != document[~is_next, 2]).all()
    used = np.where(is_next, spans[:, 3], spans[:, 1])  # a pair begins where the one before it ends
    assert (spans[:, 0] == [0, *used[:-1]]).all() and used[-1] == len(tokens.ids)
    assert abs(labels.mean() - 0.5) < 0.01 and len(labels) > 4000
    assert len(set(document[~is_next, 2])) > 1500  # from anywhere


def test_pairs_are_as_long_as_fits_but_for_one_in_ten():
    tokens = numbered([[1] * 50_000] * 20)
    spans, labels = pair(tokens, 125)
    lengths = (spans[:, 3] - spans[:, 2]) + (spans[:, 1] - spans[:, 0])
    is_short = lengths[labels == 0] < 125
    assert is_short.mean() == pytest.approx(0.1 * 123 / 124, abs=0.012) and lengths.max() == 125
    counts, _ = np.histogram(lengths[labels == 0][is_short], bins=4, range=(2, 125))
    assert counts.min() > 0.8 * counts.max()
    cuts = (spans[:, 1] - spans[:, 0])[(labels == 0) & (lengths == 125)]
    assert cuts.min() == 1 and cuts.max() == 124 and abs(cuts.mean() - 62.5) < 1.5


@pytest.mark.parametrize("lengths", [[[5], [5]], [[50]] * 9])
def test_a_lone_sentence_has_a_random_second_text(lengths):
    spans, labels = pair(numbered(lengths), 20)
    assert spans[:, :2].tolist() == [[sum(map(sum, lengths[:i])), sum(map(sum, lengths[:i + 1]))]
                                     for i in range(len(lengths))]
    assert labels.tolist() == [1] * len(lengths)
    assert (spans[:, 0] != spans[:, 2]).all()


def test_half_are_random_though_lone_sentences_must_be():
    lengths = [part for pair in zip([[70]] * 300, [[10] * 300] * 300) for part in pair]
    _, labels = pair(numbered(lengths), 61)
    assert abs(labels.mean() - 0.5) < 0.01


def test_truncation_takes_from_the_longer_at_either_end():
    rng = np.random.default_rng(0)
    spans = np.cumsum(rng.integers(1, 80, (5000, 4)), axis=1)
    cut = truncate(spans, 61, rng)
    expected = [truncate_pair(range(b - a), range(d - c), 61) for a, b, c, d in spans.tolist()]  # see test_text.py
    assert np.diff(cut, axis=1)[:, ::2].tolist() == [[len(first), len(second)] for first, second in expected]
    inward = (cut - spans) * [1, -1, 1, -1]
    assert (inward >= 0).all() and inward.any()
    for front, back in (inward[:, :2].T, inward[:, 2:].T):
        assert abs(front.sum() / (front + back).sum() - 0.5) < 0.01


@pytest.mark.parametrize("most", [10, 60])
def test_packing_uses_every_token_once_and_fills_the_texts(most):
    limit, sep = 40, -1
    lengths = random_lengths(200, most)
    ids, spans = full_sentences(numbered(lengths), limit, sep)
    texts = [ids[begin:end].tolist() for begin, end, *_ in spans]
    assert (spans[:, 1:2] == spans[:, 2:]).all()
    assert [i for text in texts for i in text if i != sep] == list(range(sum(map(sum, lengths))))
    ends = np.cumsum([0, *map(sum, lengths)])
    sentences = itertools.chain.from_iterable(lengths)
    parts = [part for length in sentences for part in [limit] * (length // limit) + [length % limit] if part]
    begins, sizes = np.cumsum([0, *parts]), dict(zip(np.cumsum([0, *parts]).tolist(), parts))
    for text, following in zip(texts, [*texts[1:], None]):
        assert len(text) <= limit and text[0] != sep != text[-1] and text[0] in begins
        separated = [text[i + 1] for i, token in enumerate(text) if token == sep]
        assert separated == [end for end in ends if text[0] < end <= text[-1]]
        if following:  # what follows would not have fitted, with [SEP] before it if it begins a document
            assert len(text) + (following[0] in ends) + sizes[following[0]] > limit


@pytest.mark.parametrize("tokenizer", [TOKENIZER, XLM_R], ids=["BERT", "XLM-R"])
def test_texts_are_joined_and_padded(tokenizer):
    rng = np.random.default_rng(0)
    ids = rng.integers(5, 40, 100).astype(np.int32)
    spans = np.array([[0, 4, 90, 100], [7, 8, 8, 9], [3, 9, 9, 9], [0, 6, 90, 97]])
    features = pack_spans(ids, spans, tokenizer, 18)
    for row, (a, b, c, d) in enumerate(spans):
        first = [tokenizer.cls_id, *ids[a:b], *[tokenizer.sep_id] * (tokenizer.separators if d > c else 1)]
        second = [*ids[c:d], tokenizer.sep_id] if d > c else []
        padding = [0] * (18 - len(first + second))
        assert features["input_word_ids"][row].tolist() == first + second + [tokenizer.pad_id] * len(padding)
        assert features["input_mask"][row].tolist() == [1] * len(first + second) + padding
        types = [0] * len(first) + [int(tokenizer.has_segments)] * len(second) + padding
        assert features["input_type_ids"][row].tolist() == types
