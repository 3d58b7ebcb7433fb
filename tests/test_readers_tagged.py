"""What the reader of tagged words makes of its files, and of their schemes."""

import json

import hypothesis
import hypothesis.strategies as st
import pyarrow
import pytest
from pyarrow import parquet
from seqeval.metrics.sequence_labeling import get_entities

from keras_bert.tasks.tag import TaggedExample, read_tagged, to_bio

from conftest import DATA, REAL, needs_data


def write(path, content):
    path.write_bytes(content.encode())
    return path


SCHEMES = {  # letters of an entity of that many words; whether it touches one of its own type on the left, on the right
    "BIO": lambda size, left, right: "B" + "I" * (size - 1),
    "IOB1": lambda size, left, right: ("B" if left else "I") + "I" * (size - 1),
    "IOE1": lambda size, left, right: "I" * (size - 1) + ("E" if right else "I"),
    "IOE2": lambda size, left, right: "I" * (size - 1) + "E",
    "BIOES": lambda size, left, right: "S" if size == 1 else "B" + "I" * (size - 2) + "E",
    "BILOU": lambda size, left, right: "U" if size == 1 else "B" + "I" * (size - 2) + "L",
}
ENTITIES = st.lists(st.tuples(st.sampled_from(["O", "PER", "creative-work"]), st.integers(1, 4)), max_size=8)


@pytest.mark.parametrize("scheme", SCHEMES)
@hypothesis.given(ENTITIES)
def test_each_scheme_becomes_bio(scheme, spans):
    kinds = [None, *(kind for kind, _ in spans), None]
    tags, bio, entities = [], [], []
    for before, (kind, size), after in zip(kinds, spans, kinds[2:]):
        if kind == "O":
            tags += ["O"] * size
            bio += ["O"] * size
        else:
            entities.append((kind, len(tags), len(tags) + size - 1))
            tags += [f"{letter}-{kind}" for letter in SCHEMES[scheme](size, before == kind, after == kind)]
            bio += [f"{letter}-{kind}" for letter in SCHEMES["BIO"](size, False, False)]
    assert to_bio(tags) == bio
    assert get_entities(bio) == entities


@hypothesis.given(st.lists(st.sampled_from(["O", *(f"{letter}-{kind}" for letter in "BIES" for kind in "XY")])))
def test_any_tags_mean_what_conlleval_reads_in_them(tags):
    bio = to_bio(tags)
    assert get_entities(bio) == get_entities(tags) and to_bio(bio) == bio
    assert [tag == "O" for tag in bio] == [tag == "O" for tag in tags]


def test_conll_files(tmp_path):
    path = write(tmp_path / "a.txt", "\ufeff-DOCSTART- -X- -X- O\r\n\r\nEU NNP B-NP I-ORG\r\nrejects VBZ B-VP O\r\n\r\n"
                                     "# id = 2\r\n# NN B-NP O\r\nJapan NNP B-NP I-LOC\r\n")
    assert list(read_tagged(path)) == [TaggedExample(["EU", "rejects"], ["B-ORG", "O"], 3),
                                       TaggedExample(["#", "Japan"], ["O", "B-LOC"], 7)]


def test_words_in_tables_of_tabs_may_have_spaces(tmp_path):
    path = write(tmp_path / "a.conll", "New York\tB-LOC\n\t\n \n#now\tO\n")
    assert list(read_tagged(path)) == [TaggedExample(["New York"], ["B-LOC"], 1), TaggedExample(["#now"], ["O"], 4)]


def test_words_without_tags(tmp_path):
    path = write(tmp_path / "a.conll", "play\nmusic\n\nstop\n")
    assert list(read_tagged(path)) == [TaggedExample(["play", "music"], None, 1), TaggedExample(["stop"], None, 4)]


def test_rows_of_words_and_tags(tmp_path):
    rows = [{"tokens": ["a", "b"], "tags": ["S-X", "O"]}, {"tokens": [], "tags": []}]
    write(tmp_path / "a.jsonl", "\n".join(map(json.dumps, rows)))
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    for name in ("a.jsonl", "a.parquet"):
        assert list(read_tagged(tmp_path / name)) == [TaggedExample(["a", "b"], ["B-X", "O"], 1),
                                                      TaggedExample([], [], 2)]
    path = write(tmp_path / "b.jsonl", '{"words": ["a"]}')
    assert list(read_tagged(path)) == [TaggedExample(["a"], None, 1)]


def test_klue_ner_characters_become_words(tmp_path):
    sentence = [("특", "B-OG"), ("허", "I-OG"), (" ", "I-OG"), ("청", "I-OG"), ("은", "O"), (" ", "O"), (" ", "O"),
                ("이", "O"), ("A", "B-PS"), (" ", "O"), ("B", "B-PS")]
    lines = "".join(f"{character}\t{tag}\n" for character, tag in sentence)
    path = write(tmp_path / "klue-ner-v1.1_dev.tsv", f"## klue-ner-v1_dev_0\t<특허 청:OG>은  이<A:PS> B\n{lines}\n"
                                                     f"## klue-ner-v1_dev_1\t#\n#\tO\n")
    assert list(read_tagged(path, "klue-ner")) == [
        TaggedExample(["특허", "청은", "이A", "B"], ["B-OG", "I-OG", "O", "B-PS"], 2), TaggedExample(["#"], ["O"], 15)]


@pytest.mark.parametrize("name, sentences, words, entities", [
    ("ner/wnut17/train.conll", 400, 7700, 218), ("ner/wnut17/dev.conll", 150, 2239, 148),
    ("intent/snips/train", 200, 1733, 503), ("intent/snips/dev", 100, 985, 273)])
def test_real_files_of_tags(name, sentences, words, entities):
    assert counts(REAL / name) == (sentences, words, entities)


@needs_data
@pytest.mark.parametrize("name, sentences, words, entities", [
    ("train.conll", 3394, 62_730, 1975), ("dev.conll", 1009, 15_733, 836)])
def test_counts_of_wnut17_are_the_published_ones(name, sentences, words, entities):
    # Derczynski et al., 2017, table 2.
    assert counts(DATA / "ner/wnut17" / name) == (sentences, words, entities)


def counts(path):
    """(sentences, words, entities) of a file."""
    examples = list(read_tagged(path))
    assert all(len(example.words) == len(example.tags) for example in examples)
    return (len(examples), sum(len(example.words) for example in examples),
            sum(tag[0] == "B" for example in examples for tag in example.tags))
