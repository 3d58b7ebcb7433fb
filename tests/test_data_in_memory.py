"""Training data in memory: DataFrames, dicts and tuples give the same model as a file."""

import json

import numpy as np
import pandas
import pytest

from keras_bert.data.tables import open_data, read_table
from keras_bert.errors import InputError
from keras_bert.models import BertClassifier
from keras_bert.tasks import TASKS
from keras_bert.training import FineTuned, finetune

TEXTS = {"text": ["light on", "light off", "play music", "stop it"], "label": ["on", "off", "on", "off"]}
ANSWERS = [{"text": ["Tom"], "answer_start": [0]}, {"text": [], "answer_start": []}]
# By task: columns, and in `columns` the arguments that name them.
DATA = {
    "intent": (TEXTS, {}),
    "classify": ({"q": ["a", "b"], "r": ["c", "d"], "y": [1, 0]},
                 {"text_column": "q", "text_pair_column": "r", "label_column": "y"}),
    "multilabel": ({"text": ["a", "b"], "label": [["x", "y"], []]}, {}),
    "regress": ({"text": ["a", "b"], "label": [0.5, 2]}, {}),
    "tag": ({"words": [["in", "Seoul"], ["no"]], "tags": [["O", "B-LOC"], ["O"]]}, {}),
    "span": ({"question": ["who?", "where?"], "context": ["Tom ran.", "Tom ran."], "answers": ANSWERS}, {}),
    "choice": ({"prompt": ["he", "she"], "choices": [["sits", "x"], ["y", "runs"]], "label": [0, 1]}, {}),
}


def rows(columns):
    return [dict(zip(columns, values)) for values in zip(*columns.values())]


def read(task, data, columns):
    return TASKS[task].read(TASKS[task].open(data, "data", **columns), **columns)


@pytest.mark.parametrize("task", DATA)
def test_every_form_reads_as_a_file_does(task, tmp_path):
    table, columns = DATA[task]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows(table)))
    wanted = read(task, path, columns)
    arrays = {name: pandas.Series([np.array(cell) if isinstance(cell, list) else cell for cell in column])
              for name, column in table.items()}
    for data in (rows(table), list(zip(*table.values())), [list(row.values()) for row in rows(table)],
                 iter(rows(table)), pandas.DataFrame(table), pandas.DataFrame(arrays)):
        assert read(task, data, columns) == wanted
    assert len(wanted) == len(rows(table))


@pytest.mark.usefixtures("eager")
def test_finetune_learns_the_same_from_memory_as_from_a_file(tmp_path, pretrained, intents):
    train, valid = (pandas.read_csv(path, sep="\t") for path in intents)
    wanted = finetune(*intents, model=pretrained, output=tmp_path / "file", epochs=1, batch_size=2)
    model = finetune(train, list(valid.itertuples(index=False, name=None)), model=pretrained,
                     output=tmp_path / "memory", epochs=1, batch_size=2)
    for got, weight in zip(model.model.get_weights(), wanted.model.get_weights(), strict=True):
        np.testing.assert_array_equal(got, weight)
    metrics = json.loads((tmp_path / "memory/metrics.json").read_text())
    assert (metrics["arguments"]["train"], metrics["command"]) == ("rows in memory", None)
    assert "rows in memory" in (tmp_path / "memory/README.md").read_text()
    scores = FineTuned.load(tmp_path / "memory").evaluate(valid)
    assert scores == wanted.evaluate(intents[1]) and scores["loss"] == pytest.approx(metrics["loss"])
    assert model.calibrate(valid).task.threshold is model.task.threshold is None


def test_only_intents_have_a_threshold(bert, tokenizer):
    model = FineTuned(BertClassifier(bert, 2), tokenizer, TASKS["classify"](16, ["a", "b"]))
    with pytest.raises(InputError, match="only the tasks intent and multilabel have a threshold; this model is of the"):
        model.calibrate([("play", "a")])


@pytest.mark.parametrize("data, message", [
    ([], "train: holds no rows"),
    (["a"], "train: row 1: must be a dict or (text, label) or (text, text_pair, label); got 'a'"),
    ([("a", "x"), ("a",)], "train: row 2: must be a dict or (text, label) or (text, text_pair, label); got ('a',)"),
    ([{"text": "a"}], "train: there is no column 'label'; the columns are text"),
    ([{"text": "a", "label": "x"}, {"text": 1.5, "label": "x"}], "train: row 2: 'text' must be a text; got 1.5"),
    (pandas.DataFrame({"text": ["a", None], "label": ["x", "y"]}), "train: row 2: 'text' must be a text; got "),
    (pandas.DataFrame({"text": ["a"], "label": [float("nan")]}), "train: row 1: 'label' must be a label; got nan"),
    (3, "train must be a string or a path or rows; got 3"),
])
def test_bad_rows_are_named(data, message, intents, pretrained, tmp_path):
    with pytest.raises(InputError) as error:
        finetune(data, intents[1], model=pretrained, output=tmp_path / "out")
    assert str(error.value).startswith(message)
    assert not (tmp_path / "out").exists()


def test_rows_have_no_published_format(intents, pretrained, tmp_path):
    with pytest.raises(InputError, match="train: data_format must be left out for rows in memory; got 'sst2'"):
        finetune([("a", "x")], intents[1], model=pretrained, output=tmp_path / "out", data_format="sst2")


def test_columns_come_from_all_rows():
    columns, values = read_table(open_data([{"a": 1}, {"a": 2, "b": np.int64(3)}], "data"))
    assert columns == ["a", "b"]
    assert list(values) == [(1, {"a": 1, "b": None}), (2, {"a": 2, "b": 3})]


@pytest.mark.parametrize("task, data, columns", [
    ("span", [("who?", "Tom ran.", {"text": ["Tom"], "answer_start": [np.int64(0)]})], {}),
    ("tag", [(("in", "Seoul"), ("O", "B-LOC"))], {}),
    ("choice", [("he", ("sits", "runs"), 1)], {"label_column": "gold"}),  # the columns of choices have fixed names
])
def test_values_of_other_types(task, data, columns):
    example, = read(task, data, columns)
    assert getattr(example, {"span": "answers", "tag": "tags", "choice": "label"}[task]) == {
        "span": [("Tom", 0)], "tag": ["O", "B-LOC"], "choice": 1}[task]


@pytest.mark.parametrize("data, message", [
    (None, "data must be a path, a DataFrame or a list of rows; got None"),
    (5, "data must be a path, a DataFrame or a list of rows; got 5"),
    (pandas.Series(["a"]), "data: row 1: must be a dict or (text, label) or (text, text_pair, label); got 'a'"),
    ([("a", "b\ud800")], "data: row 1: must be valid Unicode: surrogates not allowed")])
def test_what_is_no_data(data, message):
    with pytest.raises(InputError) as error:
        read("intent", data, {})
    assert str(error.value) == message
