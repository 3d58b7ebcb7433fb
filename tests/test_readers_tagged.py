"""What the readers of tagged words and characters make of their files, and of their schemes."""

import json

import hypothesis
import hypothesis.strategies as st
import pyarrow
import pytest
from pyarrow import parquet
from seqeval import scheme as schemes
from seqeval.metrics.sequence_labeling import get_entities

from keras_bert.data.tables import Rows
from keras_bert.data.tagged import TaggedExample, TaggedText, read_tagged, spans_of, to_bio

from conftest import REAL


def write(path, content):
    path.write_bytes(content.encode())
    return path


def forms(folder, rows, plain=None):
    """Rows as a JSON Lines file, a Parquet file and in memory."""
    parquet.write_table(pyarrow.Table.from_pylist(plain or rows), folder / "rows.parquet")
    return write(folder / "rows.jsonl", "\n".join(map(json.dumps, rows))), folder / "rows.parquet", Rows("data", rows)


SCHEMES = {  # letters of an entity of that many words; whether it touches one of its own type on the left, on the right
    "IOB2": lambda size, left, right: "B" + "I" * (size - 1),
    "IOB1": lambda size, left, right: ("B" if left else "I") + "I" * (size - 1),
    "IOE1": lambda size, left, right: "I" * (size - 1) + ("E" if right else "I"),
    "IOE2": lambda size, left, right: "I" * (size - 1) + "E",
    "IOBES": lambda size, left, right: "S" if size == 1 else "B" + "I" * (size - 2) + "E",
    "BILOU": lambda size, left, right: "U" if size == 1 else "B" + "I" * (size - 2) + "L",
}
ENTITIES = st.lists(st.tuples(st.sampled_from(["O", "PER", "creative-work"]), st.integers(1, 4)), max_size=8)


@pytest.mark.parametrize("scheme", SCHEMES)
@hypothesis.given(ENTITIES)
def test_each_scheme_becomes_bio(scheme, spans):
    kinds = [None, *(kind for kind, _ in spans), None]
    tags, bio, entities, known = [], [], [], True
    for before, (kind, size), after in zip(kinds, spans, kinds[2:]):
        if kind == "O":
            tags += ["O"] * size
            bio += ["O"] * size
        else:
            entities.append((kind, len(tags), len(tags) + size - 1))
            # seqeval does not know that an entity of one word may have the tag E in IOE1.
            known &= scheme != "IOE1" or size > 1 or before == kind or after != kind
            tags += [f"{letter}-{kind}" for letter in SCHEMES[scheme](size, before == kind, after == kind)]
            bio += [f"{letter}-{kind}" for letter in SCHEMES["IOB2"](size, False, False)]
    assert to_bio(tags) == bio
    assert get_entities(bio) == entities
    parsed = schemes.Entities([tags], getattr(schemes, scheme)).entities
    assert not known or [(entity.tag, entity.start, entity.end - 1) for entity in parsed[0]] == entities


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


@pytest.mark.parametrize("content, expected", [
    ("New York\tB-LOC\n\t\n \n#now\tO\n", [(["New York"], ["B-LOC"], 1), (["#now"], ["O"], 4)]),
    ("play\nmusic\n\nstop\n", [(["play", "music"], None, 1), (["stop"], None, 4)]),
    # Comments are only before the words of a sentence.
    ("# text O\n# a comment O\n# O\nplay O\n# B-x\n\n## O O O\n\n#now O\n# O\n",
     [(["#", "play", "#"], ["O", "O", "B-x"], 3), (["#now", "#"], ["O", "O"], 9)]),
    ("# O\nplay\n#\n", [(["play", "#"], None, 2)])])
def test_words_with_spaces_without_tags_and_comments(tmp_path, content, expected):
    path = write(tmp_path / "a.conll", content)
    assert list(read_tagged(path)) == [TaggedExample(*example) for example in expected]


def test_rows_of_words_and_tags(tmp_path):
    rows = [{"tokens": ["a", "b"], "tags": ["S-X", "O"]}, {"tokens": [], "tags": []}]
    for data in forms(tmp_path, rows):
        assert list(read_tagged(data)) == [TaggedExample(["a", "b"], ["B-X", "O"], 1), TaggedExample([], [], 2)]
    path = write(tmp_path / "b.jsonl", '{"words": ["a"]}')
    assert list(read_tagged(path)) == [TaggedExample(["a"], None, 1)]


def test_rows_of_texts_and_entities(tmp_path):
    rows = [{"text": "각 서울시는 e\u0301🎵a", "entities": [{"start": 8, "end": 9, "label": "x", "text": "🎵"},
                                                          {"start": 2, "end": 4, "label": "곳", "score": 0.5}]},
            {"text": "a", "entities": []}]
    wanted = [TaggedText(rows[0]["text"], "O O B-곳 I-곳 O O O O O B-x O".split(), 1), TaggedText("a", ["O"], 2)]
    rows[0]["entities"][0] |= {"start": 9, "end": 10}
    plain = [row | {"entities": [{name: entity[name] for name in ("start", "end", "label")}
                                 for entity in row["entities"]]} for row in rows]
    for data in forms(tmp_path, rows, plain):
        assert list(read_tagged(data)) == wanted
    path = write(tmp_path / "b.jsonl", '{"text": "a b"}')
    assert list(read_tagged(path)) == [TaggedText("a b", None, 1)]


def entities_of(example):
    return [(start, end, example.tags[start][2:]) for start, end in spans_of(example.tags)]


@hypothesis.settings(deadline=None)
@hypothesis.given(st.lists(st.tuples(st.text("가a🎵\u0301", min_size=1, max_size=3), *[st.integers(0, 2)] * 2,
                                     st.sampled_from(["x", "y"])), min_size=1, max_size=6),
                  st.sampled_from(" \t\u3000"))
def test_white_space_at_the_ends_of_entities_is_no_part_of_them(parts, space):
    text, wide, wanted = "", [], []
    for word, left, right, label in parts:
        start = len(text) + left
        text += space * left + word + space * right
        wide.append({"start": start - left, "end": len(text), "label": label, "text": text[start - left:]})
        wanted.append((start, start + len(word), label))
    for rows in ([{"text": text, "entities": wide}], [{"text": text, "entities": wide[::-1]}]):
        example, = read_tagged(Rows("data", rows))
        assert entities_of(example) == wanted


def test_adjacent_entities_are_two_in_every_format_with_spans(tmp_path):
    text, spans = "Ada Bob met", [{"start": 0, "end": 3, "label": "per"}, {"start": 3, "end": 7, "label": "per"}]
    tags = "B-per I-per I-per B-per I-per I-per I-per O O O O".split()
    write(tmp_path / "a.tsv", "".join(f"{character}\t{tag}\n" for character, tag in zip(text, tags, strict=True)))
    files = *forms(tmp_path, [{"text": text, "entities": spans}]), tmp_path / "a.tsv"
    for data, data_format in zip(files, (None, None, None, "klue-ner"), strict=True):
        example, = read_tagged(data, data_format)
        assert entities_of(example) == [(0, 3, "per"), (4, 7, "per")]


def test_white_space_around_tags_is_no_part_of_them(tmp_path):
    wanted = [TaggedExample(["O", "Ada", "King"], ["O", "B-per", "I-per"], 1)]
    write(tmp_path / "a.conll", "O\tO \nAda\t B-per\nKing\tI-per\u3000\n")
    write(tmp_path / "a.jsonl", json.dumps({"words": wanted[0].words, "tags": ["O\t", "B-per ", "I- per"]}))
    for path in (tmp_path / "a.conll", tmp_path / "a.jsonl"):
        assert list(read_tagged(path)) == wanted
    example, = read_tagged(Rows("data", [{"text": "ab", "entities": [{"start": 0, "end": 2, "label": " per "}]}]))
    assert example.tags == ["B-per", "I-per"]
    write(tmp_path / "b.tsv", "가\tB-PS \n나\tI-PS\n")
    assert [example.tags for example in read_tagged(tmp_path / "b.tsv", "klue-ner")] == [["B-PS", "I-PS"]]


@pytest.mark.parametrize("name, counts", [
    ("ner/wnut17/train.conll", (400, 7700, 218)), ("ner/wnut17/dev.conll", (150, 2239, 148)),
    ("intent/snips/train", (200, 1733, 503)), ("intent/snips/dev", (100, 985, 273))])
def test_real_files_of_tags(name, counts):
    """Their sentences, words and entities."""
    examples = list(read_tagged(REAL / name))
    assert all(len(example.words) == len(example.tags) for example in examples)
    assert counts == (len(examples), sum(len(example.words) for example in examples),
                      sum(tag[0] == "B" for example in examples for tag in example.tags))
