"""Multi-label classification: files, scores compared with scikit-learn, thresholds, and the answers of a model."""

import collections
import json

import numpy as np
import pandas
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.special import logit
from sklearn import metrics

from keras_bert.data import Example
from keras_bert.errors import InputError
from keras_bert.export import export_text_model
from keras_bert.models import BertClassifier
from keras_bert.tasks import TASKS, Encoded, MultiLabel
from keras_bert.tasks.base import best_threshold
from keras_bert.tasks.multilabel import score
from keras_bert.text import BertTokenizer
from keras_bert.training import FineTuned, finetune
from keras_bert.training.data_report import data_report, report_lines
from keras_bert.training.held_out import hold_out

from conftest import REAL, eagerly

GOEMOTIONS = REAL / "multilabel/goemotions"
ROWS = [("thanks", ["joy", "thanks"]), ("oh", []), ("x, y", ["a, b"]), ("no", ["joy"])]
FLAGS = pandas.DataFrame([{"text": text, **{label: int(label in labels) for label in ("thanks", "joy", "a, b")}}
                          for text, labels in ROWS])
WANTED = [("thanks", ("joy", "thanks")), ("oh", ()), ("x, y", ("a, b",)), ("no", ("joy",))]


def read(data, **columns):
    return [(example.text, example.label) for example in MultiLabel.read(MultiLabel.open(data, "data", **columns),
                                                                         **columns)]


BY_COLUMN = {"label_columns": ["thanks", "joy", "a, b"]}


@pytest.mark.parametrize("name, content, columns", [
    ("a.jsonl", "\n".join(json.dumps({"text": text, "labels": labels}) for text, labels in ROWS), {}),
    ("a.json", json.dumps([{"t": text, "y": "|".join(labels)} for text, labels in ROWS]),
     {"text_column": "t", "label_column": "y", "label_delimiter": "|"}),
    ("a.tsv", 'text\tlabels\nthanks\tthanks, joy\noh\t\nx, y\t"a, b"\nno\tjoy,joy\n', {}),
    ("a.tsv", "text\tlabel\nthanks\tthanks;joy\noh\t \nx, y\ta, b\nno\tjoy\n", {"label_delimiter": ";"}),
    ("a.csv", pandas.DataFrame(ROWS, columns=["text", "labels"]).to_csv(index=False), {}),
    ("a.csv", pandas.DataFrame([(text, json.dumps(labels)) for text, labels in ROWS], columns=["text", "label"]).to_csv(
        index=False), {}),
    ("a.csv", FLAGS.to_csv(index=False), BY_COLUMN),
    ("a.tsv", FLAGS.astype({"joy": float, "thanks": bool}).to_csv(index=False, sep="\t"), BY_COLUMN),
])
def test_every_file_gives_the_same_examples(tmp_path, name, content, columns):
    (tmp_path / name).write_text(content)
    assert read(tmp_path / name, **columns) == WANTED
    assert [label for _, label in read(tmp_path / name, **columns | {"label_column": None})] == [None] * 4


def test_data_in_memory_and_parquet(tmp_path):
    table = pandas.DataFrame(ROWS, columns=["text", "labels"])
    table.to_parquet(tmp_path / "a.parquet")
    for data, columns in ((tmp_path / "a.parquet", {}), (table, {}), (ROWS, {}), (FLAGS, BY_COLUMN)):
        assert read(data, **columns) == WANTED
    assert read([("a", "b", [3, 10])]) == [("a", ("10", "3"))]  # a pair, with ids as labels


def test_goemotions_as_published():
    examples = MultiLabel.read(str(GOEMOTIONS / "dev.tsv"), data_format="goemotions")
    names = dict(admiration=0, amusement=1, curiosity=7, gratitude=15, joy=17, love=18, sadness=25, surprise=26)
    ids = [line.split("\t")[1] for line in (GOEMOTIONS / "dev.tsv").read_text(encoding="utf-8").splitlines()]
    assert [",".join(str(names[label]) for label in example.label) for example in examples] == ids and len(ids) == 160


@pytest.mark.parametrize("rows, columns, message", [
    ([("a", 3)], {}, r"data: row 1: 'label' must be a list of labels, \[\] for none, or a text with ',' between"),
    ([("a", "x"), ("b", ["x"])], {"label_delimiter": ";"}, "row 2: 'label' must be a text with ';' between the labels"),
    ([("a", ["x"]), ("b", 'x,"y')], {}, "row 2: 'label' must be labels with a quote at both ends or none; got"),
    ([("a", "x,,y")], {}, "labels that are texts or whole numbers, and not empty; got 'x,,y'"),
    ([("a", ["x", " "])], {}, r"got \['x', ' '\]"),
    ([("a", [True])], {}, r"got \[True\]; for a 0 or 1 of each label, make a .* pass label_columns=…"),
    ([("a", ["b"]), ("c", "{food,travel}")], {}, "row 2: 'label' must be a list as JSON or Python prints it, or"),
    *(([("a", cell)], {}, "data: row 1: 'label' must be .* pass label_columns=…$") for cell in (
        [1, 0, 0], np.array([0, 1, 1]), [0.0, 1.0], np.array([True, False]), "[0 0 1]", "0,0,1", "0 1", "1;0",
        "[1.0, 0.0]", ["true", "false", "false"], "tensor([1, 0])", "('x', nan)",
        "['food' 'travel']", "[np.int64(1), np.int64(0)]", "[1, 0, 0]")),
    ([{"text": "a", "x": ""}], {"label_columns": ["x"]}, "data: row 1: 'x' must be 0 or 1; got ''"),
    (FLAGS, {"label_columns": []}, r"label_columns must be different names, at least one; got \[\]"),
    (FLAGS, {"label_columns": ["joy", "y"]}, "there is no column 'y'"),
    (FLAGS, {"label_columns": ["joy", "joy"]}, "label_columns must be different names, at least one; got .'joy', "),
    (FLAGS, {"label_columns": ["joy"], "label_column": "y"}, "label_column must be left out with label_columns"),
    (FLAGS, {}, "there is no column 'label'; the columns are text, thanks, joy, 'a, b'; pass label_column=…"),
])
def test_invalid_labels_are_named(rows, columns, message):
    with pytest.raises(InputError, match=message):
        read(rows, **columns)


@pytest.mark.parametrize("columns, message", [
    ({}, "row 2: 'labels' must be numbers from 0 to 27; got '2,28', '28' among them"),
    ({"label_columns": ["x"]}, "label_columns must be left out with data_format=goemotions, which sets"),
    ({"label_delimiter": ";"}, "label_delimiter must be left out with data_format=goemotions, which sets"),
])
def test_invalid_files_of_goemotions(tmp_path, columns, message):
    (tmp_path / "a.tsv").write_text("so\t27\teezly\nno\t2,28\teezlx\n")
    with pytest.raises(InputError, match=message):
        MultiLabel.read(str(tmp_path / "a.tsv"), data_format="goemotions", **columns)


@pytest.mark.parametrize("train, valid, options, message", [
    ([("a", []), ("b", [])], [("a", [])], {}, "train: must have texts with labels; no row has one"),
    *(([("a", cell), ("b", cell)], [("a", cell)], {}, f"train: must not have both labels, {labels}, in every row")
      for cell, labels in (([1, 0], "0 and 1"), ("False,True", "False and True"), ("0.0,1.0", "0.0 and 1.0"))),
    ([("a", ["x"])], [("b", ["x"]), ("c", ["z"])], {},
     "valid: row 2: label 'z' is not among the learned labels; correct it, or train on texts with it"),
    ([("a", ["x"])], [("b", [])], {}, "valid: scores need texts with labels; no row has one"),
    (FLAGS, FLAGS, {"task": "classify", "label_columns": ["x"]}, "label_columns must be left out unless task is multi"),
    (FLAGS, FLAGS, {"label_delimiter": "ab"}, "label_delimiter must be one character, no quote or white space"),
    (FLAGS[:2], FLAGS, BY_COLUMN, "label_columns must have a row with 1 each; 'a, b' is always 0"),
])
def test_data_and_options_that_do_not_fit(pretrained_once, tmp_path, train, valid, options, message):
    with pytest.raises(InputError, match=message):
        finetune(train, valid, **{"task": "multilabel", "model": pretrained_once, "output": tmp_path / "out"} | options)
    assert not (tmp_path / "out").exists()


def random_answers(seed, texts, labels, levels):
    """Random probabilities with equal ones among them, and right labels."""
    rng = np.random.default_rng(seed)
    right = rng.random((texts, labels)) < rng.uniform(0.05, 0.6, labels)
    noise = rng.normal(0, 1, (texts, labels)) + right
    return np.round(1 / (1 + np.exp(-noise)) * levels).astype("float32") / levels, right


@pytest.mark.parametrize("seed, texts, labels, levels", [(1, 300, 28, 1000), (2, 40, 2, 3)])
def test_scores_are_those_of_scikit_learn(seed, texts, labels, levels):
    probabilities, right = random_answers(seed, texts, labels, levels)
    assert right.any(0).all()
    thresholds = np.random.default_rng(seed).uniform(0.2, 0.8, labels)
    names = [f"label {i}" for i in range(labels)]
    ours = score(names, probabilities, right.astype("float32"), thresholds)
    for suffix, predicted in (("", probabilities >= thresholds), ("_at_half", probabilities >= 0.5)):
        for average in ("micro", "macro"):
            assert ours[f"{average}_f1{suffix}"] == pytest.approx(
                metrics.f1_score(right, predicted, average=average, zero_division=0), abs=1e-12)
    averages = metrics.average_precision_score(right, probabilities, average=None)
    assert ours["mean_average_precision"] == pytest.approx(averages.mean(), abs=1e-12)
    peer = metrics.precision_recall_fscore_support(right, probabilities >= thresholds, zero_division=0)
    for i, name in enumerate(names):
        row = ours["labels"][name]
        assert [row[key] for key in ("precision", "recall", "f1", "texts")] == pytest.approx([part[i] for part in peer])
        assert (row["threshold"], row["average_precision"]) == (thresholds[i], pytest.approx(averages[i], abs=1e-12))
    json.dumps(ours)


def test_labels_that_do_not_occur_are_left_out_of_means():
    probabilities = np.array([[0.9, 0.2, 0.1], [0.1, 0.7, 0.1]])
    scores = score(["a", "b", "c"], probabilities, [[1, 0, 0], [0, 0, 0]], np.full(3, 0.5))
    assert scores["mean_average_precision"] == 1 and scores["labels"]["b"]["average_precision"] is None
    assert scores["macro_f1"] == 0.5 and scores["micro_f1"] == pytest.approx(2 / 3)  # b was predicted, c was not


COLUMN = st.lists(st.tuples(st.sampled_from([0.1, 0.2, 0.5, 0.7, 0.9, 1.0]), st.booleans()), min_size=1, max_size=30)


@given(COLUMN)
@settings(deadline=None)
def test_a_threshold_has_the_best_f1_of_all(texts):
    scores, right = (np.array(column) for column in zip(*texts))
    assume(right.any())
    threshold = best_threshold(scores.astype("float32"), right, 0.0)
    f1 = [2 * (right & (scores >= value)).sum() / (right.sum() + (scores >= value).sum())
          for value in (threshold, *scores)]
    assert f1[0] == pytest.approx(max(f1)) and np.abs(scores - threshold).min() > 0.01  # between two scores


def test_the_loss_is_the_mean_over_labels_and_texts():
    logits = np.random.default_rng(0).normal(0, 3, (7, 4)).astype("float32")
    task = MultiLabel(9, list("abcd"))
    examples = [Example("", None, tuple("abcd"[:i % 5]), i) for i in range(7)]
    targets = task.targets(examples)
    wanted = np.mean([np.log1p(np.exp(-z)) if y else np.log1p(np.exp(z))
                      for z, y in zip(logits.ravel().astype(float), targets.ravel())])
    assert float(task.loss_arguments()["loss"](targets, logits)) == pytest.approx(wanted, rel=1e-6)
    assert task.score(Encoded(examples, [], targets), list(logits))["loss"] == pytest.approx(wanted, rel=1e-9)


def test_answers_and_lines():
    task = MultiLabel(9, ["a", 'b, "c"', "d"], thresholds=[0.5, 0.1, 0.9])
    outputs = list(logit(np.array([[0.4, 0.2, 0.1], [0.6, 0.7, 0.95], [0.1, 0.05, 0.1]])))
    example, encoded = Example("text", None, None, 0), Encoded([None] * 3, [])
    held = task.answers(encoded, outputs)
    assert [answer.labels for answer in held] == [['b, "c"'], ["d", 'b, "c"', "a"], []]
    lines = [task.cells(example, answer) for answer in held]
    assert lines == [['"b, ""c"""', "0.2000", "text"], ['d,"b, ""c""",a', "0.9500,0.7000,0.6000", "text"],
                     ["", "", "text"]]
    assert [label for _, label in read([("text", cells[0]) for cells in lines])] == [
        tuple(sorted(answer.labels)) for answer in held]
    assert task.record(example, held[2]) == {"text": "text", "labels": [], "scores": []}
    top, *_ = task.answers(encoded, outputs, top_k=2)
    assert task.cells(example, top) == ["a", "0.4000", 'b, "c"', "0.2000", "text"]
    assert task.record(example, top) == {"text": "text", "labels": ['b, "c"'], "scores": [pytest.approx(0.2)], "top": [
        {"label": "a", "score": pytest.approx(0.4)}, {"label": 'b, "c"', "score": pytest.approx(0.2)}]}


def test_scores_tell_if_the_thresholds_were_chosen_on_the_same_texts():
    task = MultiLabel(9, list("abc"))  # the thresholds are 0.5
    probabilities, right = random_answers(0, 60, 3, 1000)
    outputs = list(logit(np.clip(probabilities, 1e-3, 1 - 1e-3)))
    parts = [(Encoded([], [], right[part].astype("float32")), outputs[part]) for part in (slice(30), slice(30, 60))]
    chosen = task.calibrated(*parts[0])
    before, after, other = task.score(*parts[0]), chosen.score(*parts[0]), chosen.score(*parts[1])
    assert [scores["thresholds_chosen_here"] for scores in (before, after, other)] == [False, True, False]
    assert after["macro_f1"] >= before["macro_f1"]
    for name in ("mean_average_precision", "micro_f1_at_half", "macro_f1_at_half", "loss"):
        assert after[name] == before[name]


def test_a_label_of_none_of_the_texts_keeps_its_threshold():
    task = MultiLabel(9, ["a", "b"], thresholds=[0.3, 0.9])
    encoded = Encoded([], [], np.array([[1, 0], [0, 0]], "float32"))
    chosen = task.calibrated(encoded, [np.array([1.0, 0.0]), np.array([0.0, 1.0])]).thresholds
    assert chosen == [pytest.approx((1 / (1 + np.exp(-1)) + 0.5) / 2), 0.9]


def test_labels_are_held_out_in_proportion():
    examples = MultiLabel.read(str(GOEMOTIONS / "train.tsv"), data_format="goemotions")
    task = MultiLabel.from_examples("train", examples, max_length=9)
    same = task.same_texts(BertTokenizer(str(REAL / "vocab/bert-base-uncased/vocab.txt")))
    _, valid = hold_out(task, "train", examples, 0.2, 0, same)
    counts = [collections.Counter(label for example in some for label in example.label) for some in (examples, valid)]
    assert len(valid) == 97
    for label in task.labels:
        assert counts[1][label] / counts[0][label] == pytest.approx(0.2, abs=0.09)


def test_report_on_label_sets(tokenizer):
    rows = [("play music", ["a", "b"]), ("light", []), ("light off", ["a"]), ("play  music", ["b", "a"]), ("on", ["a"]),
            ("light off", ["a", "b"])]
    examples = MultiLabel.read(MultiLabel.open(rows, "train"))
    task = MultiLabel.from_examples("train", examples, max_length=9)
    report = json.loads(json.dumps(data_report(task, tokenizer, examples, examples[:1])))
    assert report["labels"] == {"a": 5, "b": 3} and (report["labels_per_text"], report["unlabelled"]) == (8 / 6, 1)
    lines = list(report_lines(report))
    assert lines[:2] == ["6 texts for training, 1 for validation, 2 labels: a (5), b (3)",
                         "1.33 labels per text; 1 texts without a label"]
    assert "warning: repeated texts with different labels: 1, such as row 6 equal to row 3: correct the labels" in lines


@pytest.fixture(scope="module")
def trained(pretrained_once, tmp_path_factory):
    """A folder of a model that tells sound from light, trained on columns of 0 and 1, and its data file."""
    folder = tmp_path_factory.mktemp("multilabel")
    rows = ["text,sound,light", "play music,1,0", "turn the light off,0,1", "light and music,1,1", "book a flight,0,0"]
    (folder / "train.csv").write_text("\n".join(rows) + "\n")
    with eagerly():
        finetune(folder / "train.csv", folder / "train.csv", task="multilabel", label_columns=["sound", "light"],
                 model=pretrained_once, output=folder / "model", epochs=1, batch_size=4)  # with columns
    return folder / "model", folder / "train.csv"


@pytest.mark.slow("a setting that a folder loses")
def test_a_folder_keeps_thresholds_and_columns(trained, run, eager):
    folder, data = trained
    written = json.loads((folder / "settings.json").read_text())
    found = json.loads((folder / "metrics.json").read_text())
    assert json.loads((folder / "labels.json").read_text()) == ["sound", "light"]
    assert written["columns"] == {"label_columns": ["sound", "light"]}
    assert written["thresholds"] == [found["labels"][label]["threshold"] for label in ("sound", "light")]
    assert found["thresholds_chosen_here"] and set(found["history"]) == {"loss", "val_loss", f"val_{found['main']}"}
    status, output, _ = run("evaluate", f"--model={folder}", f"--data={data}")
    assert output[0].split() == "class precision recall F1 average precision threshold texts".split()
    assert output[-1].startswith("thresholds") and "chosen for the best F1 of each label on these very" in output[-1]
    card = (folder / "README.md").read_text()
    assert "# BERT for 2 labels of text" in card and "any number of 2 labels" in card
    assert "## Weakest labels" in card and "Most frequent confusions" not in card
    assert "The thresholds were chosen for the best F1 of each label on these very texts" in card
    assert (folder / "labels.png").exists() and not (folder / "confusion_matrix.png").exists()


def test_other_columns_replace_those_of_the_training(trained, tmp_path, run, eager):
    folder, _ = trained
    tuned = FineTuned.load(folder)
    rows = [("play music", ["sound"]), ("lamp", ["light"]), ("now", [])]
    scores = tuned.evaluate(rows, label_column="labels")
    assert scores["labels"]["sound"]["texts"] == 1
    assert tuned.evaluate([{"text": text, "labels": "|".join(labels)} for text, labels in rows], label_column="labels",
                          label_delimiter="|") == scores
    flags = [{"text": text, "sound": "sound" in labels, "light": "light" in labels} for text, labels in rows]
    assert tuned.evaluate(flags, label_columns=["light", "sound"]) == scores
    again = tuned.calibrate(rows, label_column="labels")
    assert again.task.thresholds == again.calibrate(rows, label_column="labels").task.thresholds
    with pytest.raises(InputError, match="must have a column for each label of the model; missing: light"):
        tuned.evaluate(flags, label_columns=["sound"])
    (tmp_path / "a.tsv").write_text("text\tlabels\nplay music\tsound\n")
    evaluate = "evaluate", f"--model={folder}", f"--data={tmp_path / 'a.tsv'}"
    assert run(*evaluate, "--label_column=labels")[0] == 0
    status, _, (message,) = run(*evaluate)
    assert status == 1 and message.startswith(f"keras-bert: {tmp_path / 'a.tsv'}: there is no column 'sound'; ")
    assert message.endswith("; the model was trained with --label_columns='sound,light': pass the names in this file, "
                            "or label_column for a file with lists")


@pytest.mark.parametrize("options, message", [
    ({"thresholds": [0.5]}, r"thresholds must be 2 numbers from 0 to 1, one for each label; got \[0.5\]"),
    ({"thresholds": 0.5}, "thresholds must be a list; got 0.5"),
    ({"thresholds": ["a", 2]}, r"thresholds must be a number; got \['a', 2\]"),
    ({"labels": ["a"], "thresholds": [0.5]}, "labels must be the names of the 2 classes of this BertClassifier; got 1"),
    ({"thresholds": [0.5] * 2, "threshold": 0.5}, "takes only these options: .*, threshold, temp.*; got thresholds"),
])
def test_options_of_the_export_that_do_not_fit(bert, tokenizer, tmp_path, options, message):
    with pytest.raises(InputError, match=message):
        export_text_model(BertClassifier(bert, 2), tokenizer, tmp_path / "out", **{"labels": ["a", "b"]} | options)


def test_other_tasks_refuse_columns_of_labels(bert, tokenizer):
    model = FineTuned(BertClassifier(bert, 2), tokenizer, TASKS["classify"](16, ["a", "b"]))
    with pytest.raises(InputError, match="label_columns must be left out unless the task is multilabel; got "):
        model.evaluate([("play", "a")], label_columns=["x"])
