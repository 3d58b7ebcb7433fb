"""The task tag: targets, scores and answers, for tags of words and of characters."""

import dataclasses
import random

import numpy as np
import pytest
import seqeval.metrics
import sklearn.metrics
from hypothesis import given, settings
from hypothesis import strategies as st
from seqeval.metrics.sequence_labeling import get_entities
from seqeval.scheme import IOB2

from keras_bert.data.batches import UNLABELLED
from keras_bert.data.tables import Rows
from keras_bert.data.tagged import TaggedExample, TaggedText, read_tagged, spans_of, type_of
from keras_bert.errors import InputError
from keras_bert.layers import BertLayer
from keras_bert.models import BertTokenClassifier
from keras_bert.tasks import TASKS, Tag
from keras_bert.text import BertTokenizer
from keras_bert.training import FineTuned

from conftest import TINY, Peer, randomize

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]",
              *"서울 ##시 ##는 시 부산 ##특 삼 ##성 ##전자 · ' , in new york ##er ##s play ##ing".split()]
TOKENIZER = BertTokenizer(VOCABULARY)
LABELS = ["O", "B-LC", "I-LC", "B-OG", "I-OG"]
WORDS = ["서울시는", "서울·부산은", "'삼성전자',", "부산특시", "뷁궭", "New", "Yorkers", "playing"]


def logits_of(task, encoded, labels):
    """Model outputs, [CLS] and [SEP] included, that predict these labels, one list per text without parts."""
    return [np.eye(len(LABELS))[[0, *map(LABELS.index, of_text), 0]] * 3 for of_text in labels]


def targets(task, example):
    (row,) = task.encode([example], TOKENIZER).targets
    return [None if target == UNLABELLED else task.labels[target] for target in row[1:-1]]


def test_targets_of_words():
    example = TaggedExample(["서울시는", "New-York,", "playing"], ["B-LC", "B-OG", "I-OG"], 1)
    # New is in the vocabulary, - is [UNK]: three words of the encoder, whose first tokens have the labels.
    assert targets(Tag(128, LABELS), example) == [
        "B-LC", None, None, "B-OG", "I-OG", "I-OG", "I-OG", "I-OG", None]


def test_targets_of_characters():
    text = "서울시는 New Yorkers, 부산특시"
    tags = ["O"] * len(text)
    for start, end, kind in ((0, 2, "LC"), (2, 3, "OG"), (5, 13, "OG"), (19, 21, "LC")):
        tags[start:end] = [f"B-{kind}"] + [f"I-{kind}"] * (end - start - 1)
    # 서울 ##시 ##는 New York ##er ##s , 부산 ##특 ##시: the last entity begins inside 부산, so ##특 begins it.
    assert text[19:21] == "산특"
    assert targets(Tag(128, LABELS, unit="character"), TaggedText(text, tags, 1)) == [
        "B-LC", "B-OG", "O", "B-OG", "I-OG", "O", "O", "O", "O", "B-LC", "O"]


def test_one_character_with_multiple_tokens_begins_one_entity():
    tokenizer = BertTokenizer([*VOCABULARY, "1", "/", "⁄", "2"])
    task = Tag(128, LABELS, unit="character")
    for text in ("é", "e\u0301", "각", "\u1100\u1161\u11a8", "½", "ﬁ", "İ"):
        tags = ["B-LC"] + ["I-LC"] * (len(text) - 1)
        (row,) = task.encode([TaggedText(text, tags, 1)], tokenizer).targets
        assert [LABELS[target] for target in row[1:-1]] == ["B-LC"] + ["I-LC"] * (len(row) - 3)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_scores_of_characters_are_those_of_klue(data):
    """KLUE spreads the label of a token over its characters; the characters of [UNK] have its label."""
    task, examples, predicted, gold, spread, answers = Tag(128, LABELS, unit="character"), [], [], [], [], []
    for words in data.draw(st.lists(st.lists(st.sampled_from(WORDS), min_size=1, max_size=4), min_size=1, max_size=4)):
        tags, labels, expected = [], [], []
        for word in words:
            for token in TOKENIZER.ids([word])[0]:
                labels.append(label := data.draw(st.sampled_from(LABELS)))
                size = len(word) if VOCABULARY[token] == "[UNK]" and "은" not in word else len(
                    VOCABULARY[token].removeprefix("##").replace("[UNK]", "부산은"))
                expected += [label] + ["I" + label[1:] if label != "O" else label] * (size - 1)
            kind, size = data.draw(st.sampled_from(["LC", "OG"])), data.draw(st.integers(0, len(word)))
            tags += [f"B-{kind}"] * (size > 0) + [f"I-{kind}"] * (size - 1) + ["O"] * (len(word) - size) + ["O"]
        assert len(expected) == len("".join(words))
        examples.append(TaggedText(" ".join(words), tags[:-1], 1))
        predicted.append(labels)
        gold.append([tag for tag, character in zip(tags, examples[-1].text) if character != " "])
        spread.append(expected)
    encoded = task.encode(examples, TOKENIZER)
    outputs = logits_of(task, encoded, predicted)
    if not any(tag != "O" for tags in gold for tag in tags):
        return
    scores = task.score(encoded, outputs)
    flat = [sum(gold, []), sum(spread, [])]
    assert scores["character_macro_f1"] == pytest.approx(sklearn.metrics.f1_score(*flat, average="macro"))
    # KLUE joins all sentences to one, with the labels of [CLS] and [SEP] between them.
    joined = [[tag for tags in part for tag in ["O", *tags, "O"]] for part in (gold, spread)]
    assert scores["entity_macro_f1"] == pytest.approx(seqeval.metrics.f1_score(
        *([tags] for tags in joined), average="macro", mode="strict", scheme=IOB2, zero_division=0))
    answers = task.answers(encoded, outputs)
    found = {(number, entity.start, entity.end, entity.label) for number, row in enumerate(answers) for entity in row}
    assert all(entity.text == example.text[entity.start:entity.end]
               for example, row in zip(examples, answers) for entity in row)
    right = {(number, start, end, kind) for number, example in enumerate(examples)
             for kind, start, last in get_entities(example.tags) for end in [last + 1]}
    assert scores["f1"] == pytest.approx(2 * len(found & right) / max(len(found) + len(right), 1))


@given(st.lists(st.sampled_from(LABELS), max_size=20))
def test_entities_of_any_labels_are_those_of_seqeval(labels):
    assert [(type_of(labels[first]), first, end - 1) for first, end in spans_of(labels)] == get_entities(labels)


def test_macro_f1_of_words():
    task = Tag(128, LABELS)
    encoded = task.encode([TaggedExample(["서울", "new", "in", "york"], ["B-LC", "B-OG", "O", "B-OG"], 1)], TOKENIZER)
    scores = task.score(encoded, logits_of(task, encoded, [["B-LC", "B-OG", "O", "I-OG"]]))
    assert scores["f1"] == 1.0 and "character_macro_f1" not in scores
    assert scores["entity_macro_f1"] == pytest.approx((1 + 2 / 3) / 2)  # I-OG does not begin an entity of strict IOB2
    assert {kind: row["texts"] for kind, row in scores["entities"].items()} == {"LC": 1, "OG": 2}


@pytest.mark.filterwarnings("ignore:Mean of empty slice", "ignore:invalid value")  # of seqeval
@pytest.mark.parametrize("example", [TaggedExample(["in"], ["O"], 1), TaggedText("in", ["O", "O"], 1)])
def test_scores_without_entities_are_numbers(example):
    task = Tag(128, LABELS, unit=example.unit)
    encoded = task.encode([example, dataclasses.replace(example, row=2)], TOKENIZER)
    for labels in ([["O"], ["O"]], [["I-LC"], ["O"]]):
        scores = task.score(encoded, logits_of(task, encoded, labels))
        assert scores["f1"] == scores["entity_macro_f1"] == 0.0


def test_the_unit_is_that_of_the_training_file(tmp_path):
    words, texts = ([*read_tagged(Rows("data", [row]))] for row in (
        {"words": ["서울"], "tags": ["B-LC"]}, {"text": "서울", "entities": [{"start": 0, "end": 1, "label": "LC"}]}))
    for unit, examples, others in (("word", words, texts), ("character", texts, words)):
        task = Tag.from_examples("train", examples, max_length=9)
        assert task == Tag(9, LABELS[:3], unit=unit, doc_stride=4) and task.settings()["unit"] == unit
        task.check("valid", examples)
        with pytest.raises(InputError) as error:
            task.check("valid", others)
        assert str(error.value).startswith(f"valid: must have the tags of {unit}s, as the training file; got those of "
                                           f"{others[0].unit}s; write each row as ")
        assert task.example("서울 in").text == "서울 in"


def test_predictions_ignore_tags_that_the_model_does_not_know():
    examples = Tag.read(Rows("data", [{"words": ["in", "서울"], "tags": ["O", "B-new"]}]), label_column=None)
    assert examples == [TaggedExample(["in", "서울"], None, 1)]
    assert Tag(9, LABELS).encode(examples, TOKENIZER).targets is None


def test_lines_and_records():
    task, example = Tag(9, LABELS), TaggedExample(["in", "서울"], None, 1)
    assert task.cells(example, []) == ["in 서울", "(no entities)"]
    assert task.record(example, []) == {"text": "in 서울", "entities": []}


@pytest.fixture(scope="module")
def tagger():
    model = BertTokenClassifier(BertLayer(dataclasses.replace(TINY, vocab_size=len(VOCABULARY))), len(LABELS))
    randomize(model)
    model.layers[-1].kernel.assign(np.random.default_rng(1).normal(0, 2, model.layers[-1].kernel.shape))
    return FineTuned(model, TOKENIZER, Tag(128, LABELS))


TEXTS = ["서울시는 New Yorkers, 부산특시", "'삼성전자', playing in 서울·부산", "뷁궭 players", "", " ",
         "e\u0301 서울시"]


def test_each_unit_has_a_default_strategy(tagger):
    per_token = FineTuned(tagger.model, TOKENIZER, dataclasses.replace(tagger.task, unit="character"))
    assert tagger.predict(TEXTS) == tagger.predict(TEXTS, aggregation_strategy="first")
    assert per_token.predict(TEXTS) == tagger.predict(TEXTS, aggregation_strategy="simple")
    assert per_token.predict(TEXTS, aggregation_strategy="max") == tagger.predict(TEXTS, aggregation_strategy="max")


def test_what_is_refused(tagger):
    with pytest.raises(InputError, match="^aggregation_strategy must be one of none, simple, .*; got 'last'"):
        tagger.predict(TEXTS, aggregation_strategy="last")
    with pytest.raises(InputError, match="^aggregation_strategy must be left out for the task regress; it is for tag"):
        TASKS["regress"](128).answer_options(aggregation_strategy="first")
    with pytest.raises(InputError, match="^out_of_scope_label must be left out unless .*; got 'no' for the task tag$"):
        tagger.evaluate([(["서울"], ["B-LC"])], out_of_scope_label="no")


def test_adjacent_entities_whose_spans_have_spaces():
    text = "in New York 서울시"
    example, = read_tagged(Rows("data", [{"text": text, "entities": [
        {"start": start, "end": end, "label": "LC"} for start, end in ((2, 6), (6, 12), (11, 15))]}]))
    assert targets(Tag(128, LABELS, unit="character"), example) == ["O", "B-LC", "B-LC", "B-LC", "I-LC"]


@pytest.fixture(scope="module")
def pipeline(tagger, tmp_path_factory):
    from keras_bert.convert import convert

    transformers, folder = Peer("transformers"), tmp_path_factory.mktemp("pipeline")
    tagger.save(folder / "ours")
    convert(folder / "ours", folder / "peer", "huggingface")
    return transformers.TokenClassificationPipeline(
        model=transformers.BertForTokenClassification.from_pretrained(folder / "peer"),
        tokenizer=transformers.BertTokenizerFast.from_pretrained(folder / "peer", strip_accents=False))


@pytest.mark.peers
@pytest.mark.parametrize("strategy", ["none", "simple", "first", "average", "max"])
def test_strategies_are_those_of_transformers(tagger, pipeline, strategy):  # stripping accents would decompose Hangul
    parts = [*WORDS, "부산", "전자", "er", " ", "  ", ",", "'", "-", "é", "🎵", "漢字"]
    random_texts = ("".join(rng.choices(parts, k=9)) for rng in map(random.Random, range(100)))
    texts = [text for text in [*TEXTS, *random_texts]
             if text.strip() and "\u0301" not in text]  # e\u0301 is a part of a word there
    found = 0
    for text, entities in zip(texts, tagger.predict(texts, aggregation_strategy=strategy), strict=True):
        theirs = [(entity.get("entity_group") or entity["entity"], entity["start"], entity["end"],
                   pytest.approx(float(entity["score"]), abs=1e-5))
                  for entity in pipeline(text, aggregation_strategy=strategy)]
        assert [(entity.label, entity.start, entity.end, entity.score) for entity in entities] == theirs
        found += len(theirs)
    assert found > 200
