"""The report on the data before training, held-out validation data, and remembered columns."""

import collections
import contextlib
import dataclasses
import itertools
import json
import time

import hypothesis
import hypothesis.strategies as st
import pytest

from keras_bert.data import Example
from keras_bert.errors import InputError
from keras_bert.tasks import TASKS
from keras_bert.text import BertTokenizer
from keras_bert.text.coverage import Coverage
from keras_bert.text.same import SameTexts
from keras_bert.training import FineTuned, finetune
from keras_bert.training.data_report import data_report, report_lines
from keras_bert.training.held_out import hold_out
from keras_bert.training.strategy import FewShot

import zoo
from conftest import REAL, TINY_VOCABULARY, spelled

UNCASED = BertTokenizer(str(REAL / "vocab/bert-base-uncased/vocab.txt"), None)
SPELLED = SameTexts(UNCASED, None)


def fit(task, rows, **settings):
    """A task whose labels are those of labelled tuples, and the examples of these."""
    examples = TASKS[task].read(TASKS[task].open(rows, "train"))
    return TASKS[task].from_examples("train", examples, **settings), examples


def report(task, rows, valid, tokenizer, max_length, held_out=None, **settings):
    """The report's lines on labelled tuples."""
    valid = TASKS[task].read(TASKS[task].open(valid, "valid"))
    fitted, examples = fit(task, rows, max_length=max_length, **settings)
    encoded = fitted.encode(examples, tokenizer)
    found = json.loads(json.dumps(data_report(
        fitted, tokenizer, examples, valid, held_out, encoded.cut, encoded.split)))
    return list(report_lines(found))


def test_report_on_texts(tokenizer):
    rows = [("play some music", "music"),  # 5 tokens with [CLS] and [SEP]
            ("Turn the  light on", "light"), ("turn the light off", "light"), ("Turn the light on", "light"),  # 6 each
            ("play some music", "song"), ("it is on", "song"),  # 5
            *((f"play {word}", "song") for word in ("a", "the", "my", "light", "song", "table", "weather"))]  # 4
    assert report("intent", rows, [("book a flight", "song"), ("play the", "song"), ("it is on ", "song")], tokenizer,
                  6) == [
        "13 texts for training, 3 for validation, 3 labels: song (9), light (3), music (1)",
        "4 tokens at the median, 6 at the 95th percentile, 6 at most",
        "repeated texts: 2, such as row 4 equal to row 2",
        "warning: repeated texts with different labels: 1, such as row 5 equal to row 1: correct the labels",
        "warning: validation texts that are also training texts: 2, such as row 2 equal to row 8 of the training data: "
        "scores on these are too high; remove them from one of the two"]


def test_report_on_long_and_unknown_texts(tokenizer):
    rows = [("play xyzzy xyzzy", "a"), ("plugh light on", "b"), ("light", "a"), ("lamp", "b")]  # 5, 5, 3, 3 tokens
    assert report("classify", rows, rows[:0] or [("off", "a")], tokenizer, 4, held_out=0.2) == [
        "4 texts for training, 1 for validation, 2 labels, 2 each: a, b",
        "no validation file: held out 20% of the training file",
        "3 tokens at the median, 5 at the 95th percentile, 5 at most",
        "warning: 37.5% of the tokens are [UNK], most often xyzzy (2), plugh (1); use a model for this language, and "
        "check its lower_case, which is True",
        "warning: texts cut at max_length 4: 2 of 4: use a larger max_length, or split them into windows by "
        "doc_stride=2"]
    rows = [("play", "a"), ("lamp", "b")] * 50 + [("turn the light on please now", "a")]
    lines = report("classify", rows, [("off", "a")], tokenizer, 5)
    assert lines[2] == "texts cut at max_length 5: 1 of 101"
    rows = [("light the lamp please", "a"), ("xyzzy", "b")] * 5 + [("light the lamp", "a")] * 40
    assert report("classify", rows, [("off", "a")], tokenizer, 128)[2] == (
        "3.45% of the tokens are [UNK], most often xyzzy (5)")  # 5 of 4 * 5 + 5 + 3 * 40


def test_report_on_windows(tokenizer):
    """The first texts of pairs are cut all the same."""
    rows = [("play " * 20, "song", 1), ("lamp", "light", 0)]
    assert report("regress", rows, [("lamp", "a", 0)], tokenizer, 16, doc_stride=4)[2:] == [
        "texts cut at max_length 16: 1 of 2",
        "warning: many texts are cut although they are split into windows: use a larger max_length or max_windows"]


def test_long_words_and_labels_are_cut(tokenizer):
    word, label = "x" * 150_000, "y" * 150_000
    examples = [Example(f"play {text}", None, name, row) for row, (text, name) in enumerate(
        [(word, label), (word, "b"), ("a", "b"), ("a the", label)], 1)]
    task = TASKS["classify"].from_examples("train", examples, max_length=9)
    found = data_report(task, tokenizer, examples, [])
    assert found["unknown_words"] == {"x" * 40 + "…": 2} and found["labels"] == {"b": 2, label: 2}
    lines = report_lines(found)
    assert lines[0].endswith(f"2 labels, 2 each: b, {'y' * 40}…") and max(map(len, lines)) < 200
    assert any(f"most often {'x' * 40}… (2)" in line for line in lines)
    assert report_lines(found | {"labels": {"b": 3, label: 1}})[0].endswith(f"2 labels: b (3), {'y' * 40}… (1)")
    assert FewShot.remarks({"b": 3, label: 1}, 100, 100) == [
        f"1 label with one text, such as {'y' * 40}…: the encoder learns from the others only"]


@pytest.mark.parametrize("labels, shown", [
    ("ab", "2 labels, 1 each: a, b"), ("aab", "2 labels: a (2), b (1)"),
    ("a" * 9 + "bbbbb" + "cdefg", "7 labels from g (1) to a (9); 5 with fewer than 5"),
    ("a" * 6 + "".join(label * 5 for label in "bcdefg"), "7 labels from g (5) to a (6)")])
def test_report_on_labels(tokenizer, labels, shown):
    rows = [(f"play {number}", label) for number, label in enumerate(labels)]
    assert report("intent", rows, [("off", "a")], tokenizer, 9)[0].endswith(f"for validation, {shown}")


SPAN = [("what is on", "the lamp is on the table", {"text": ["the lamp"], "answer_start": [0]}),
        ("what", "the lamp is on the table", {"text": ["the table"], "answer_start": [15]}),
        ("what", "book a flight for two " * 12, {"text": ["a flight"], "answer_start": [5]})]


@pytest.mark.parametrize("task, rows, valid, lines", [
    ("regress", [("play", "song", 1), ("lamp", "light", 0)], [("lamp", "light", 0)],
     ["2 pairs with scores for training, 1 for validation",
      "5 tokens at the median, 5 at the 95th percentile, 5 at most",
      "warning: validation texts that are also training texts: 1, such as row 1 equal to row 2 of the training data: …"
      ]),
    ("choice", [("turn the", ("light on", "song"), 0), ("lamp", ("off", "on"), 1)], [("lamp", ("on", "off"), 0)],
     ["2 texts for training, 1 for validation", "5 tokens at the median, 7 at the 95th percentile, 7 at most"]),
    ("tag", [(("play", "a", "song"), ("O", "O", "B-what")), (("lamp", "on"), ("B-what", "B-how")),
             (["light"] * 80, ["O"] * 80)], [(("off",), ("O",))],
     ["3 texts for training, 1 for validation, 2 labels: what (2), how (1)",
      "5 tokens at the median, 82 at the 95th percentile, 82 at most",
      "texts split into windows of max_length 70: 1 of 3"]),
    ("span", SPAN, [("where", *SPAN[0][1:])],
     ["3 texts for training, 1 for validation", "12 tokens at the median, 64 at the 95th percentile, 64 at most",
      "warning: validation texts that are also training texts: 1, such as id 1 equal to id 1 of the training data: …"]),
])
def test_report_on_other_tasks(tokenizer, task, rows, valid, lines):
    pytest.importorskip("scipy")
    cure = "scores on these are too high; remove them from one of the two"
    assert [line.replace(cure, "…") for line in report(task, rows, valid, tokenizer, 70)] == lines


KOREAN, ENGLISH = "corpora/ko/nsmc_raw_reviews.txt", "corpora/en/classic_books.txt"
GERMAN = "Unmündigkeit ist das Unvermögen, sich seines Verstandes ohne Leitung eines anderen zu bedienen."  # Kant


@pytest.mark.parametrize("name, file, rate, fits", [
    ("uncased", KOREAN, 5.5, False), ("multilingual-cased", KOREAN, 2.7, False), ("koelectra35000", KOREAN, 1.9, True),
    ("uncased", ENGLISH, 1.1, True), ("multilingual-cased", ENGLISH, 1.2, True),
    ("koelectra35000", ENGLISH, 2.3, False), ("uncased", None, 2.4, False)])
def test_a_vocabulary_of_another_language(name, file, rate, fits):
    coverage = Coverage(BertTokenizer(*REAL.glob(f"vocab/*{name}/vocab.txt"), None))
    lines = ((REAL / file).read_text(encoding="utf-8") if file else GERMAN).split("\n")[:2000]
    assert coverage.lengths(lines) == [len(ids) for ids in coverage._tokenizer.ids(lines)]
    assert coverage.tokens_per_word()[0] == pytest.approx(rate, abs=0.15)
    assert any("tokens per word; 1.0 to 1.9 if" in problem for problem in coverage.problems()) != fits


def test_some_words_of_another_language_are_no_problem():
    coverage = Coverage(UNCASED)
    coverage.lengths(["he said hello to all of his friends in the town of seoul", "서울", "x7f3b9 00018273 " * 9,
                      "ありかとう こんにちは " * 9, "x" * 10**6 + "1"])  # no spaces; in linear time
    assert coverage.problems() == []


@pytest.mark.slow("time that grows with the square of the texts")
def test_a_report_takes_time_in_proportion_to_the_texts(tokenizer):
    words = TINY_VOCABULARY[5:40]
    examples = [Example(" ".join([*(words[number // 35**i % 35] for i in range(4)), f"n{number % 5000}"]), None,
                        f"label {number % 200}", number) for number in range(40_000)]
    task = TASKS["intent"].from_examples("train", examples, max_length=128)
    started = time.process_time()
    train, valid = hold_out(task, "train", examples, 0.1, 0, SPELLED)
    data_report(task, tokenizer, train, valid)
    assert time.process_time() - started < 12  # 1 s on one core, but a minute for each with each


def check_held_out(task, examples, share, seed, random):
    train, valid = hold_out(task, "train", examples, share, seed, SPELLED)
    assert sorted(train + valid, key=lambda example: example.row) == examples
    assert all(part == sorted(part, key=lambda example: example.row) for part in (train, valid))
    parts = [{" ".join(example.text.split()) for example in part} for part in (train, valid)]
    assert not parts[0] & parts[1]
    assert {label for example in train for label in task.classes(example)} == set(task.labels)
    random.shuffle(examples)
    assert {example.row for example in hold_out(task, "train", examples, share, seed, SPELLED)[1]} == {
        example.row for example in valid}


@hypothesis.given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.sampled_from("xyz ")), min_size=2, max_size=80),
                  st.floats(0.02, 0.9), st.integers(0, 99), st.randoms())
@hypothesis.settings(deadline=None)
def test_held_out_texts(rows, share, seed, random):
    """Texts of one or two words, so that some repeat, with the same label or others."""
    rows = [(f"{label} {word} {number % 11}", label if number % 9 else "a")
            for number, (label, word) in enumerate(rows)]
    hypothesis.assume(len({label for _, label in rows}) > 1)
    try:
        check_held_out(*fit("intent", rows, max_length=9), share, seed, random)
    except InputError:
        by_label = collections.Counter(label for _, label in set(rows))
        assert sum(by_label.values()) * share <= 1 + len(by_label) or share * max(by_label.values()) < 1.5


@hypothesis.given(st.lists(st.sets(st.sampled_from("abcde"), max_size=3).map(sorted), min_size=2, max_size=60),
                  st.floats(0.05, 0.9), st.integers(0, 99), st.randoms())
@hypothesis.settings(deadline=None)
def test_held_out_texts_leave_every_label_of_several_for_training(labels, share, seed, random):
    rows = [(f"text {number // 2 if number % 7 == 0 else number}", some) for number, some in enumerate(labels)]
    with contextlib.suppress(InputError):
        check_held_out(*fit("multilabel", rows, max_length=9), share, seed, random)


@hypothesis.given(st.lists(st.integers(1, 60), min_size=2, max_size=8), st.floats(0.05, 0.5), st.integers(0, 99))
@hypothesis.settings(deadline=None)
def test_labels_are_held_out_in_proportion(sizes, share, seed):
    examples = [Example(f"{label} {number}", None, str(label), number)
                for label, size in enumerate(sizes) for number in range(size)]
    task = TASKS["intent"](max_length=9, labels=sorted(map(str, range(len(sizes)))))
    hypothesis.assume(share * max(sizes) > 0.5)
    _, valid = hold_out(task, "train", examples, share, seed, SPELLED)
    counts = collections.Counter(example.label for example in valid)
    for label, size in enumerate(sizes):
        assert counts[str(label)] < size and abs(counts[str(label)] - share * size) < 1.5


def test_entities_are_held_out_in_proportion():
    rows = [(["play", str(number)], ["B-song" if number < 4 else "O", "O"]) for number in range(40)]
    task, examples = fit("tag", rows, max_length=9)
    for seed in range(5):
        _, valid = hold_out(task, "train", examples, 0.25, seed, SPELLED)
        assert len(valid) == 10 and sum(len(task.classes(example)) for example in valid) == 1


@pytest.mark.parametrize("name, rows", [
    ("tag", [{"text": text, "entities": [{"start": start, "end": start + 5, "label": "M"}]}
             for text, start in (("play music", 5), ("play  music", 6))]),
    ("span", [("what?", context, {"text": ["music"], "answer_start": [start]})
              for context, start in (("play music", 5), ("play  music", 6))])])
def test_white_space_does_not_make_labels_differ(tokenizer, name, rows):
    task, examples = fit(name, rows, max_length=99)
    report = data_report(task, tokenizer, examples, [])
    assert (report["repeated"]["texts"], report["contradictory"]["texts"]) == (1, 0)


@hypothesis.given(st.lists(st.tuples(*[st.sampled_from(zoo.WORDS)] * 2), min_size=20, max_size=60), st.integers(0, 9))
@hypothesis.settings(deadline=None)
def test_no_pair_is_on_both_sides_in_another_order_or_spelling_nor_an_anchor(words, seed):
    pairs, tokenizer = [(f"{one} music", f"{other} light") for one, other in words], BertTokenizer(TINY_VOCABULARY)
    for name, rows in (("classify", [(*pair, "xy"[i % 2]) for i, pair in enumerate(pairs)]), ("embed", pairs)):
        task, examples = fit(name, spelled(rows), max_length=9)
        report = data_report(task, tokenizer, examples, fit(name, rows, max_length=9)[1])
        assert [report[key]["texts"] for key in ("leaked", "repeated")] == [len(pairs), len(pairs) - len({*pairs})]
        try:
            parts, backwards = (hold_out(task, "train", some, 0.2, seed, task.same_texts(tokenizer))
                                for some in (examples, examples[::-1]))
        except InputError:
            continue
        assert parts[1] and parts[1] == backwards[1][::-1] and len(parts[0]) + len(parts[1]) == len(pairs)
        train, valid = ([pairs[example.row - 1] for example in part] for part in parts)
        held = (lambda pair: pair[0]) if name == "embed" else frozenset
        assert not set(map(held, train)) & set(map(held, valid))
        assert data_report(task, tokenizer, *parts)["leaked"]["texts"] == 0


def test_questions_of_a_context_stay_together():
    rows = [(f"question {number}", f"context {number // 5}", {"text": ["c"], "answer_start": [0]})
            for number in range(100)]
    task, examples = fit("span", rows, max_length=99)
    train, valid = hold_out(task, "train", examples, 0.1, 0, SPELLED)
    assert (len(train), len(valid)) == (90, 10) and len({example.context for example in valid}) == 2
    assert [example.id for example in valid] != [
        example.id for example in hold_out(task, "train", examples, 0.1, 1, SPELLED)[1]]
    with pytest.raises(InputError, match=r"^train: has too few different contexts .* or add contexts: at least two"):
        hold_out(task, "train", examples[:5], 0.1, 0, SPELLED)


@pytest.mark.parametrize("rows, helps", [
    ([("a", "x"), ("b", "y"), ("c", "z")], False), ([("a", "x"), ("b", "y"), ("b ", "y")], False),
    ([("a", "x"), ("a", "y")], False), ([("a", "x"), ("b", "y"), ("c", "y")], True)])
def test_advice_on_too_few_texts_is_true(rows, helps):
    """A larger share is advised where one holds texts out, otherwise more texts, which do help."""
    def held_out(rows, share):
        examples = TASKS["classify"].read(TASKS["classify"].open(rows, "train"))
        task = TASKS["classify"](max_length=9, labels=["x", "y", "z"])
        return hold_out(task, "train", examples, share, 0, SPELLED)[1]

    with pytest.raises(InputError) as error:
        held_out(rows, 0.1)
    cure = "a larger valid_share=…" if helps else "add texts: at least two different ones of each label"
    assert str(error.value).endswith(f" in all) to hold out 10% for validation; pass another file as valid=…, "
                                     f"or {cure}")
    if helps:
        assert held_out(rows, 0.9)
    else:
        with pytest.raises(InputError):
            held_out(rows, 0.99)
        assert held_out([(f"{text} {label} {number}", label) for text, label in rows for number in range(2)], 0.5)


@pytest.mark.slow("a report on the wrong part of a file")
@pytest.mark.usefixtures("eager")
def test_training_on_one_file(run, pretrained_once, tmp_path):
    columns, out, data = {"text_column": "sentence", "label_column": "intent"}, tmp_path / "out", tmp_path / "all.tsv"
    data.write_text("sentence\tintent\n" + "".join(
        f"{verb} {what} {when}\t{what}\n" for verb, what, when in itertools.product(
            ("play", "stop", "turn on", "turn off", "book"), ("music", "light"), ("now", "please"))))
    flags = [f"--{name}={value}" for name, value in columns.items()]
    status, output, messages = run("finetune", f"--train={data}", f"--model={pretrained_once}", f"--output={out}",
                                   "--epochs=1", *flags, "--valid_share=0.2")
    assert status == 0 and output[0].startswith(f"{out}: accuracy ") and "on 4 texts" in output[0]
    assert f"{out}/README.md" in output and f"{out}/learning_curves.png" in output
    assert any("epoch 1/1" in line and "examples/s" in line and "left" in line for line in messages)
    assert messages[:4] == [
        "data: 16 texts for training, 4 for validation, 2 labels, 8 each: light, music",
        "data: no validation file: held out 20% of the training file",
        "data: 5 tokens at the median, 6 at the 95th percentile, 6 at most", "learning rate: 5e-05, by default"]
    assert messages[-1].startswith("threshold: none, because every validation text is in scope") and (
        "keras-bert calibrate chooses one on other texts" in messages[-1])
    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics["data"]["labels"] == {"light": 8, "music": 8} and metrics["valid_examples"] == 4
    card = (out / "README.md").read_text()
    assert "| validation | held out | 4 |  |\n" in card and "\n- 16 texts for training, 4 for validation" in card
    assert "--data=FILE\n" in card and 'model.evaluate("FILE")' in card
    assert json.loads((out / "settings.json").read_text())["columns"] == columns
    # The columns of the training are the defaults.
    other = tmp_path / "other.tsv"
    other.write_text("text\tlabel\nplay\tmusic\n")
    for command, flag, remembered in (("evaluate", "data", "--text_column='sentence' and --label_column='intent'"),
                                      ("predict", "input", "--text_column='sentence'")):
        assert run(command, f"--model={out}", f"--{flag}={data}")[0] == 0
        assert run(command, f"--model={out}", f"--{flag}={other}") == (1, [], [
            f"keras-bert: {other}: there is no column 'sentence'; the columns are text, label; "
            f"the model was trained with {remembered}: pass the names in this file"])
        named = ["--text_column=text", "--label_column=label"][:1 + (command == "evaluate")]
        assert run(command, f"--model={out}", f"--{flag}={other}", *named)[0] == 0


@pytest.mark.usefixtures("eager")
def test_remembered_columns_of_pairs(tmp_path):
    rows = [{"one": "play", "two": "song", "gold": "a"}, {"one": "lamp", "two": "flight", "gold": "b"}]
    columns = {"text_column": "one", "text_pair_column": "two", "label_column": "gold"}
    model = dataclasses.replace(zoo.make("pairs"), columns=columns)
    model.save(tmp_path / "out")
    loaded = FineTuned.load(tmp_path / "out")
    assert loaded.columns == columns
    assert loaded.evaluate(rows) == loaded.evaluate([tuple(row.values()) for row in rows]) == model.evaluate(rows)
    renamed = [{"text": row["one"], "two": row["two"], "gold": row["gold"]} for row in rows]
    assert loaded.evaluate(renamed, text_column="text") == model.evaluate(rows)
    assert FineTuned.load(zoo.model("intent")).columns == {}


@pytest.mark.parametrize("arguments, message", [
    ({"valid_share": 0.1, "valid": [("play", "a")]}, "valid_share must be left out with valid; got 0.1"),
    ({"valid_share": 0}, "valid_share must be above 0; got 0"),
    ({"valid_share": 1.0}, "valid_share must be at least 0 and below 1; got 1.0"),
    ({"out_of_scope_label": "none"}, "out_of_scope_label must be left out without valid; got 'none'"),
    ({}, r"train: has too few different texts of each label \(2 in all\) to hold out 10% for validation"),
    ({"train": [(f"play {word}", number) for number, word in enumerate(TINY_VOCABULARY[5:13])], "task": "regress"},
     r"^train \(held-out texts: 1\): a correlation needs at least two")])
def test_what_is_refused(pretrained_once, tmp_path, arguments, message):
    with pytest.raises(InputError, match=message):
        finetune(model=pretrained_once, output=tmp_path / "out",
                 **{"train": [("play", "a"), ("lamp", "b")]} | arguments)
    assert not (tmp_path / "out").exists()
