"""Training data in memory: DataFrames, dicts and tuples give the same model as a file."""

import json
import re
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pandas
import pytest

from keras_bert.errors import InputError, InputWarning
from keras_bert.tasks import TASKS
from keras_bert.text import BertTokenizer
from keras_bert.training import FineTuned, finetune

from conftest import TINY_VOCABULARY

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


@pytest.mark.parametrize("task, row, columns, missing", [(task, row, columns, name) for tasks, row, columns in [
    ("classify regress rerank embed", {"text": "a", "text_pair": "b", "label": 1}, {}),
    ("multilabel", {"text": "a", "text_pair": "b", "label": "x"}, {}),
    ("multilabel", {"text": "a", "x": 1, "y": 0}, {"label_columns": ["x", "y"]}),
    ("rerank embed", {"text": "a", "text_pair": "b", "negative": "c"}, {}), ("tag", {"text": "a", "entities": []}, {}),
    ("choice", {"prompt": "he", "choice0": "sits", "choice1": "x", "label": 1}, {}),
    ("span", {"id": "1", "question": "who?", "context": "Tom ran.", "answers": ANSWERS[0], "is_impossible": False}, {}),
] for task in tasks.split() for name in row])
def test_a_missing_cell_means_the_same_in_every_form(task, row, columns, missing, tmp_path):
    """The same examples, or the same rule, wherever a table can lack a value."""
    def outcome(data):
        try:
            examples = read(task, data, columns)
        except InputError as error:
            return re.sub(r"^\S+ (row .: )?|; got.*|\\(id .\\)", "", str(error))
        return [str(vars(example) | dict.fromkeys(("row", "place", "id"))).replace("1.0", "1") for example in examples]

    def table(value):
        return pandas.DataFrame([row, row | {missing: value}], dtype=object)

    wanted = outcome([row, row | {missing: None}])
    forms = [table(value) for value in (None, np.nan, pandas.NA, pandas.NaT, "", " \u3000")]
    forms.append([row, {name: value for name, value in row.items() if name != missing}])
    for number, value in enumerate((None, np.nan, "")):
        forms.append(tmp_path / f"{number}.jsonl")
        forms[-1].write_text("\n".join(map(json.dumps, [row, row | {missing: value}])))
    forms.append(tmp_path / "a.parquet")
    table(None).to_parquet(forms[-1])
    if not any(isinstance(value, list | dict) for value in row.values()):
        for name, separator in (("a.csv", ","), ("a.tsv", "\t")):
            forms.append(tmp_path / name)
            table(None).to_csv(forms[-1], sep=separator, index=False)
    assert [outcome(form) for form in forms] == [wanted] * len(forms)


NUMBERS = [10, 0, 2, -1, 11, 1]


class Dataset(list):
    """Rows with classes, as a `Dataset` of Hugging Face has them."""

    features = {name: SimpleNamespace(names=["no", "B-b", "I-b", "B-a", "I-a", "O"]) for name in ("label", "tags")}


@pytest.mark.parametrize("task, data, wanted", [
    *((task, [{"text": "a", "label": label} for label in labels], wanted) for task in ("classify", "intent")
      for labels, wanted in ((NUMBERS, sorted(NUMBERS)), (map(float, NUMBERS), map(float, sorted(NUMBERS))),
                             (map(str, NUMBERS), sorted(NUMBERS)), (["10", "9", "x"], ["10", "9", "x"]))),
    ("classify", Dataset({"text": "a", "label": label} for label in (3, 0, 1)), ["no", "B-b", "B-a"]),
    ("multilabel", Dataset({"text": "a", "label": labels} for labels in ([3, 0], [1])), ["no", "B-b", "B-a"]),
    ("multilabel", [("a", [10, 2]), ("b", [1])], [1, 2, 10]), ("multilabel", [("a", "10,x"), ("b", "9")], [10, 9, "x"]),
    ("tag", Dataset([{"words": ["a", "b"], "tags": [3, 1]}]), Dataset.features["tags"].names[1:]),
    ("tag", [(["a"] * 3, ["B-10", "B-9", "O"])], ["O", "B-9", "I-9", "B-10", "I-10"])])
def test_labels_keep_the_order_of_numbers_and_classes(task, data, wanted):
    opened = TASKS[task].open(data, "data")
    assert TASKS[task].from_examples(opened, TASKS[task].read(opened), max_length=9).labels == [*map(str, wanted)]


@pytest.mark.peers
def test_a_dataset_of_hugging_face_reads_as_its_names_do(tmp_path):
    import datasets

    def dataset(columns, **features):
        data = datasets.Dataset.from_dict(columns)
        for name, feature in features.items():
            data = data.cast_column(name, feature)
        return data

    def classes(*names):
        return datasets.ClassLabel(names=names)

    data = dataset({"text": ["light on", "light off"], "label": [1, 0]}, label=classes("off", "on"))
    assert read("intent", data, {}) == read("intent", [("light on", "on"), ("light off", "off")], {})
    assert read("regress", data, {}) == read("regress", [("light on", 1), ("light off", 0)], {})
    for names in (["off", "on"], ["0", "1"]):
        with pytest.raises(InputError, match="row 1: 'label' must be a text or a finite number; got None"):
            read("intent", dataset({"text": ["a"], "label": [-1]}, label=classes(*names)), {})
    two = dataset({"text": ["a"], "x": [1], "y": [0]}, x=classes("off", "on"), y=classes("off", "on"))
    assert read("multilabel", two, {"label_columns": ["x", "y"]}) == read("multilabel", [("a", ["x"])], {})
    tags = dataset({"words": [["in", "Seoul"]], "tags": [[0, 1]]}, tags=datasets.List(classes("O", "B-LOC")))
    assert read("tag", tags, {}) == read("tag", [(["in", "Seoul"], ["O", "B-LOC"])], {})
    for task, table in ("intent", data), ("tag", tags):  # as a file, which has the names in its metadata
        table.to_parquet(path := tmp_path / f"{task}.parquet")
        of_file, in_memory = ((examples := TASKS[task].read(opened), TASKS[task].from_examples(
            opened, examples, max_length=9)) for opened in (TASKS[task].open(one, "data") for one in (path, table)))
        assert of_file == in_memory
    choices = dataset({"prompt": ["he"], "choices": [["sits", "runs"]], "label": [1]}, label=classes("0", "1"))
    assert read("choice", choices, {}) == read("choice", [("he", ["sits", "runs"], 1)], {})


@pytest.mark.slow("a cell that files and memory read differently")
@pytest.mark.usefixtures("eager")
def test_finetune_learns_the_same_from_memory_as_from_a_file(tmp_path, pretrained_once, trained_once, intents):
    train, valid = (pandas.read_csv(path, sep="\t") for path in intents)
    model = finetune(train, list(valid.itertuples(index=False, name=None)), model=pretrained_once,
                     output=tmp_path / "memory", epochs=1, batch_size=2)
    for got, weight in zip(model.model.get_weights(), FineTuned.load(trained_once).model.get_weights(), strict=True):
        np.testing.assert_allclose(got, weight, atol=1e-6)
    metrics = json.loads((tmp_path / "memory/metrics.json").read_text())
    assert (metrics["arguments"]["train"], metrics["command"]) == ("rows in memory", None)
    assert "rows in memory" in (tmp_path / "memory/README.md").read_text()
    assert FineTuned.load(tmp_path / "memory").evaluate(valid)["loss"] == pytest.approx(metrics["loss"])
    assert model.calibrate(valid).task.threshold is model.task.threshold is None


FORM = "must be a dict or (text, label) or (text, text_pair, label); got"


@pytest.mark.parametrize("data, message", [
    ([], "data: holds no rows"),
    ([("a", "x"), ("a",)], f"data: row 2: {FORM} ('a',)"), (pandas.Series(["a"]), f"data: row 1: {FORM} 'a'"),
    ([("a", "b"), ("a", "b", "c")], "data: row 2: must have 2 values as the first row; got ('a', 'b', 'c')"),
    ([{"text": "a"}], "data: there is no column 'label'; the columns are text"),
    ([{"text": "a", "label": "x"}, {"text": 1.5, "label": "x"}], "data: row 2: 'text' must be a text; got 1.5"),
    (pandas.DataFrame({"text": ["a", None], "label": ["x", "y"]}), "data: row 2: 'text' must be a text; got "),
    (None, "data must be a path, a DataFrame or a list of rows; got None"),
])
def test_bad_rows_are_named(data, message):
    with pytest.raises(InputError) as error:
        read("intent", data, {})
    assert str(error.value).startswith(message)


@pytest.mark.parametrize("data, options, message", [
    ([("a", "x")], {"data_format": "sst2"}, "^train: data_format must be left out for rows in memory; got 'sst2'"),
    (3, {}, "^train must be a string or a path or rows; got 3")])
def test_finetune_refuses_rows(intents, tmp_path, data, options, message):
    with pytest.raises(InputError, match=message):
        finetune(data, intents[1], model="minilm", output=tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("task, data, columns", [
    ("span", [("who?", "Tom ran.", {"text": ["Tom"], "answer_start": [np.int64(0)]})], {}),
    ("tag", [(("in", "Seoul"), ("O", "B-LOC"))], {}),
    ("choice", [("he", ("sits", "runs"), 1)], {"label_column": "gold"}),  # the columns of choices have fixed names
])
def test_values_of_other_types(task, data, columns):
    example, = read(task, data, columns)
    assert getattr(example, {"span": "answers", "tag": "tags", "choice": "label"}[task]) == {
        "span": [("Tom", 0)], "tag": ["O", "B-LOC"], "choice": 1}[task]


def test_surrogates_in_rows_become_one_character_each():
    rows = [("a\ud800b", ["x\udfff", "y"])]
    for data in (rows, pandas.DataFrame(rows, columns=["text", "label"], dtype=object)):
        example, = read("multilabel", data, {})
        assert (example.text, example.label) == ("a\ufffdb", ("x\ufffd", "y"))
    example, = read("choice", pandas.DataFrame({"prompt": ["he"], "choices": [np.array(["\ud83d", "x"], object)]}),
                    {"label_column": None})
    assert example.choices == ["\ufffd", "x"]


# What the methods of a model take.

def asked(monkeypatch, task, *texts, columns=None, **settings):
    """The inputs of the model when `predict` is called with texts."""
    monkeypatch.setattr(FineTuned, "answer_with_cuts", lambda self, examples, *_: (examples, Counter()))
    tokenizer = BertTokenizer(TINY_VOCABULARY)
    return FineTuned(None, tokenizer, TASKS[task](max_length=99, **settings), columns or {}).predict(*texts)


QUESTIONS = {
    "classify": ({"q": ["a", "b", ""], "r": ["c", "d", "e"]}, {"text_column": "q", "text_pair_column": "r"},
                 {"labels": ["x", "y"], "pairs": True}),
    "intent": ({"text": ["a", "b"]}, {"label_column": "intent"}, {"labels": ["x", "y"]}),
    "multilabel": ({"t": ["a", "b"]}, {"text_column": "t"}, {"labels": ["x", "y"]}),
    "regress": ({"text": ["a", "b"], "text_pair": ["c", "d"]}, {}, {"pairs": True}),
    "tag": ({"text": ["a", "b"]}, {"text_column": "other"}, {"labels": ["O"]}),
    "span": ({"question": ["who?"], "context": ["Tom ran."]}, {}, {}),
    "choice": ({"prompt": ["he", "she"], "choices": [["sits", "x"], ["y", "runs"]]}, {}, {}),
    "embed": ({"text": ["a", "b"]}, {}, {}),
}


@pytest.mark.parametrize("task", QUESTIONS)
def test_predict_reads_tables_and_iterables_as_it_reads_lists(monkeypatch, task):
    table, columns, settings = QUESTIONS[task]
    wanted = asked(monkeypatch, task, *table.values(), columns=columns, **settings)
    assert len(wanted) == len(next(iter(table.values())))
    numbers = [0] * len(wanted)
    extra = {"label": numbers, "collect": numbers} | dict(reversed(table.items()))  # in another order
    nested = {name: [np.array(cell) if isinstance(cell, list) else cell for cell in cells]
              for name, cells in table.items()}
    for texts in ((extra,), (pandas.DataFrame(extra),), (nested,), (pandas.DataFrame(nested),),
                  map(tuple, table.values()), map(pandas.Series, table.values()), map(iter, table.values()),
                  [np.array(cells, object if isinstance(cells[0], list) else None) for cells in table.values()]):
        assert asked(monkeypatch, task, *texts, columns=columns, **settings) == wanted
    assert task == "choice" or asked(monkeypatch, task, *([] for _ in table), **settings) == []


CLASSIFY, PAIRS = ("classify", {"labels": ["x", "y"]}), ("classify", {"labels": ["x", "y"], "pairs": True})


@pytest.mark.parametrize("task, texts, message", [
    (CLASSIFY, (None,), "this model takes single texts, as lists: predict(texts); got 0 lists"),
    (CLASSIFY, (5,), "texts must be a list of texts; got 5"),
    (CLASSIFY, (np.array("a"),), "texts must be a list of texts; got array('a', dtype='<U1')"),
    (CLASSIFY, ({"a"},), "texts must be a list of texts; got {'a'}"),
    (CLASSIFY, (["a", b"b"],), "texts: row 2: must be a text; got b'b'; pass a str"),
    (CLASSIFY, (["a", "b", None],), "texts: row 3: must be a text; got None; leave out the rows without a text"),
    (CLASSIFY, (pandas.Series(["a", float("nan")]),),
     "texts: row 2: must be a text; got nan; leave out the rows without a text"),
    (CLASSIFY, ([("a", "b")],), "texts: row 1: must be a text; got ('a', 'b'); pass a str"),
    (CLASSIFY, (["a"], ["b"]), "this model takes single texts, as lists: predict(texts); got 2 lists"),
    (CLASSIFY, ({"review": ["a"], "label": ["x"]},),
     "texts: there is no column 'text'; the columns are review, label; pass the columns themselves: predict(table[…])"),
    (CLASSIFY, ({"text": "a"},), "texts must be a list of texts; got 'a'; pass ['a']"),
    (CLASSIFY, (__file__,), f"texts must be a list of texts; got {__file__[:60]!r}; this is a file: pass its texts"),
    (PAIRS, ([("a", "b"), ("c", "d")],),
     "this model takes pairs of texts, as lists: predict(texts, text_pairs); got 1 list"),
    (PAIRS, (["a", "b"], ["c"]), "texts, text_pairs must be lists of the same length; got 2, 1"),
    (PAIRS, (pandas.DataFrame({"text": ["a"]}),),
     "texts: there is no column 'text_pair'; the columns are text; pass the columns themselves: predict(table[…], "
     "table[…])"),
    (("regress", {"pairs": True}), (["a"], pandas.DataFrame({"b": ["c"]})),
     "text_pairs must be a list of texts; got a DataFrame; pass one of its columns: table['text']"),
    (("span", {}), ([("who?", "Tom ran.")],),
     "this model takes a question and a context each, as lists: predict(questions, contexts); got 1 list"),
    (("choice", {}), (["he"], ["sits"]), "choices: row 1 must be a list of texts; got 'sits'; pass ['sits']"),
    (("choice", {}), (["he"], [["sits", None]]),
     "choices: row 1: choice 2: must be a text; got None; leave out the choices without a text"),
])
def test_predict_names_what_is_no_text_and_shows_the_call(monkeypatch, task, texts, message):
    name, settings = task
    with pytest.raises(InputError) as error:
        asked(monkeypatch, name, *texts, **settings)
    assert str(error.value) == message


def test_two_columns_of_one_name_and_thresholds_of_other_tasks_are_refused(pretrained, intents, tmp_path):
    table = pandas.DataFrame([["a", "b", "x"]], columns=["text", "text", "label"])
    model = FineTuned(None, None, TASKS["classify"](16, ["x", "y"]))
    for name, call in (("train", lambda: finetune(table, intents[1], model=pretrained, output=tmp_path / "out")),
                       ("valid", lambda: finetune(intents[0], table, model=pretrained, output=tmp_path / "out")),
                       ("data", lambda: model.evaluate(table)), ("texts", lambda: model.predict(table))):
        with pytest.raises(InputError, match=f"^{name}: column names must differ; got text, text, label$"):
            call()
    with pytest.raises(InputError, match="a model of the task classify needs a max_error, "):
        model.calibrate([("play", "a")])


@pytest.mark.parametrize("task, labels, message", [
    ("intent", ["x", "x ", "y", "y"], r"train: labels that look alike: 'x' \(row 1\) and 'x ' \(row 2\); they"),
    ("classify", ["turn on", "turnon", "a", "a\u3000"],
     r"'turnon' \(row 2\) \(1 more such groups\); they are different labels; if they should be one, write them alike"),
    ("multilabel", [["x 1"], ["y", "x\t1 "], [], []], r"'x 1' \(row 1\) and 'x\\t1' \(row 2\); they"),
    ("embed", ["x", "x ", "y", "y"], r"'x' \(row 1\) and 'x '"),
    ("tag", [["B-first name"], ["O"], ["B-Firstname"]], r"'first name' \(row 1\) and 'Firstname' \(row 3\)"),
    ("classify", ["é", "y", "e\u0301", "y"], r"'é' \(row 1\) and 'e\\u0301' \(row 3\);"),
    *(("classify", ["x", "y", label, "y"], re.escape(f"'x' (row 1) and {ascii(label)} (row 3);"))
      for label in ("x\u200b", "\ufeffX", "\xadx", "x\ufe0f")),
])
@pytest.mark.filterwarnings("error::keras_bert.errors.InputWarning")  # raised before training
def test_labels_that_look_alike(pretrained, tmp_path, task, labels, message):
    names = ("words", "tags") if task == "tag" else ("text", "label")
    rows = [dict(zip(names, ([text] if task == "tag" else text, label))) for text, label in zip("abcd", labels)]
    with pytest.raises(InputWarning, match=message):
        finetune(rows, rows, model=pretrained, output=tmp_path / "out", task=task)
