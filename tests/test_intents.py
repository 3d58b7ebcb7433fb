"""The rules of demo-176, the bundled intents: enough texts, no near-duplicate across the split."""

import collections
import pathlib
import re

import pytest

from intents.build import build, read_templates

TEMPLATES = sorted((pathlib.Path(__file__).parents[1] / "examples/intents/templates").glob("*.txt"))


@pytest.fixture(scope="module")
def splits(tmp_path_factory):
    folder = tmp_path_factory.mktemp("intents")
    build(folder)
    return {split: [tuple(line.split("\t")) for line in (folder / f"{split}.tsv").read_text().splitlines()[1:]]
            for split in ("train", "valid")}


def test_176_intents_of_at_least_30_texts(splits):
    for split, least in (("train", 30), ("valid", 6)):
        counts = collections.Counter(intent for _, intent in splits[split])  # no text stands twice
        assert len(counts) == 176 and min(counts.values()) >= least


def test_no_text_stands_twice(splits):
    texts = [text for rows in splits.values() for text, _ in rows]
    assert len(set(texts)) == len(texts)


def test_no_near_duplicate_crosses_the_split():
    """Word sets of templates, slots counted as one word each, overlap by less than 0.6 (Jaccard)."""
    training, held_out = [], []
    for path in TEMPLATES:
        for intent, templates in read_templates(path)[1].items():
            for template in templates:
                words = frozenset(re.findall(r"{\w+}|[\w']+", template.lower()))
                (held_out if template.startswith("* ") else training).append((words, intent, template))
    for words, intent, template in held_out:
        for other, other_intent, other_template in training:
            overlap = len(words & other) / len(words | other)
            assert overlap < 0.6, f"{intent}: {template} ~ {other_intent}: {other_template}"


def test_the_build_repeats_itself(tmp_path, splits):
    build(tmp_path)
    lines = (tmp_path / "train.tsv").read_text().splitlines()[1:]
    assert [tuple(line.split("\t")) for line in lines] == splits["train"]
