"""`keras-bert predict`: what it reads and prints."""

import contextlib
import functools
import io
import json
import sys

import pytest

from keras_bert.commands import glue, predict
from keras_bert.data import Example
from keras_bert.errors import InputError, InputWarning
from keras_bert.models import BertClassifier, BertEmbedder, BertMultipleChoice, BertRegressor
from keras_bert.tasks import TASKS
from keras_bert.text import BertTokenizer
from keras_bert.training import FineTuned

from conftest import TINY_VOCABULARY, randomize

pytestmark = pytest.mark.usefixtures("eager")


@pytest.fixture(scope="module")
def saved(source, tmp_path_factory):
    """Saves a model of random weights for a task, by its labels; without labels, a regressor."""
    @functools.cache
    def save(*labels, columns=None, **settings):
        task = TASKS["classify"](16, list(labels), **settings) if labels else TASKS["regress"](16, **settings)
        model = BertClassifier(source, len(labels)) if labels else BertRegressor(source)
        folder = tmp_path_factory.mktemp("saved") / "model"
        FineTuned(model, BertTokenizer(TINY_VOCABULARY), task, dict([columns] if columns else [])).save(folder)
        return folder

    return save


def test_every_answer_is_one_line_with_as_many_cells(run, trained_once, tmp_path):
    texts = ["play music", "play\tmusic", "play\nmusic", "play\rmusic\r\n", "play\\nmusic\\"]
    path = tmp_path / "A.JSONL"  # a suffix may be in upper case
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    status, lines, _ = run("predict", f"--model={trained_once}", f"--input={path}")
    assert status == 0
    cells = [line.split("\t") for line in lines]
    assert [len(row) for row in cells] == [3] * 5
    assert [row[2] for row in cells] == [
        "play music", r"play\tmusic", r"play\nmusic", r"play\rmusic\r\n", r"play\\nmusic\\"]


def test_a_byte_order_mark_is_no_part_of_the_first_line(run, trained_once, tmp_path, monkeypatch):
    content = "\ufeffplay music\r\nlight off\r\n".encode()
    path = tmp_path / "a.txt"
    path.write_bytes(content)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    for source in ("-", path):
        status, lines, _ = run("predict", f"--model={trained_once}", f"--input={source}")
        assert status == 0 and [line.split("\t")[2] for line in lines] == ["play music", "light off"]
    path.write_bytes(b"")
    assert run("predict", f"--model={trained_once}", f"--input={path}") == (
        1, [], [f"keras-bert: {path}: must have a text in each line; it is empty"])


def test_invalid_bytes_of_arguments_become_one_character_each(run, trained_once):
    arguments = "predict", f"--model={trained_once}", "--output_format=jsonl", "\udcffplay\udced\udcb0 music"
    status, lines, _ = run(*arguments)
    assert status == 0 and [json.loads(line)["text"] for line in lines] == ["\ufffdplay\ufffd\ufffd music"]


@pytest.mark.parametrize("name, row, last", [
    ("a.txt", "{}\n", None), ("a.tsv", "{}\n", "b\tc\n"), ("a.jsonl", '{{"text": "{}"}}\n', '{"text": 1}\n')])
def test_a_file_is_read_in_chunks_of_limited_size(tmp_path, name, row, last):
    texts = ["a"] * 1500 + ["b" * 300_000] * 5 + ["c"]
    (tmp_path / name).write_text("".join(map(row.format, ["text"] * (name == "a.tsv") + texts)) + (last or ""))
    model = FineTuned(None, None, TASKS["classify"](16, ["x", "y"]))
    sizes = []  # of chunks that are read before the invalid last row
    with pytest.raises(InputError, match="row 150[78]: ") if last else contextlib.nullcontext():
        sizes.extend(map(len, predict._chunks((), str(tmp_path / name), {}, model)))
    assert sizes == [1024, 1500 - 1024 + 4, *[2] * (last is None)]


def test_glue_files_of_labels(run, saved, tmp_path):
    """With the index of the file."""
    folder = saved("contradiction", "entailment", "neutral", pairs=True)
    path = tmp_path / "test_matched.tsv"
    path.write_text("index\tsentence1\tsentence2\n7\tplay music\tlight off\n5\tlight\tmusic\n")
    arguments = ("predict", f"--model={folder}", f"--input={path}", "--data_format=mnli")
    labels = [line.split("\t")[0] for line in run(*arguments)[1]]
    assert run(*arguments, "--output_format=glue")[1] == ["index\tprediction", f"7\t{labels[0]}", f"5\t{labels[1]}"]


@pytest.mark.parametrize("content, message", [
    ("index\tsentence\n0\tplay\n1\n", "row 3: must have 2 columns (index, sentence); got 1"),
    ("", "must have columns and rows; it is empty")])
def test_a_glue_file_is_not_begun_for_an_invalid_file(run, saved, tmp_path, content, message):
    (tmp_path / "a.tsv").write_text(content)
    status, lines, messages = run("predict", f"--model={saved('0', '1')}", f"--input={tmp_path / 'a.tsv'}",
                                  "--data_format=sst2", "--output_format=glue")
    assert (status, lines, messages) == (1, [], [f"keras-bert: {tmp_path / 'a.tsv'}: {message}"])


def test_glue_files_lack_no_row(run, saved, tmp_path):
    (tmp_path / "a.tsv").write_text("id\tquestion1\tquestion2\n0\tplay?\tlight?\n1\tmu\nsic?\tlight?\n")
    folder = saved("0", "1", pairs=True)
    status, lines, messages = run("predict", f"--model={folder}", f"--input={tmp_path / 'a.tsv'}", "--data_format=qqp",
                                  "--output_format=glue")
    assert (status, lines) == (1, []) and messages == [
        f"keras-bert: {tmp_path / 'a.tsv'}: skipped 2 rows with fewer than 3 columns (rows 3, 4), as the official "
        "loaders do; GLUE's server takes an answer for each row: repair these rows"]


def test_glue_files_count_the_rows_of_files_without_an_index(run, saved, tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("gj04\t1\t\tplay music\ngj04\t0\t*\tlight off\n")
    lines = run("predict", f"--model={saved('0', '1')}", f"--input={path}", "--data_format=cola",
                "--output_format=glue")[1]
    assert [line.split("\t")[0] for line in lines] == ["index", "0", "1"]


def test_glue_files_of_numbers_are_from_0_to_5():
    assert [glue.line(7, Example("a", "b", None, 2), value) for value in (-100.0, 2.3456, 5.001)] == [
        "7\t0.000", "7\t2.346", "7\t5.000"]


@pytest.mark.parametrize("labels, data_format, top_k, message", [
    ("01", None, 1, "--data_format must be one of cola, sst2, mrpc, qqp, stsb, mnli, qnli, rte, wnli, ax with "
                    "--output_format=glue; got None"),
    ("01", "rte", 1, "the model must have the labels entailment, not_entailment for --data_format=rte; got one with "
                     "the labels 0, 1"),
    ("01", "stsb", 1, "the model must have the task regress for --data_format=stsb; got one with the labels 0, 1"),
    ("", "sst2", 1, "the model must have the labels 0, 1 for --data_format=sst2; got one with the task regress"),
    ("01", "sst2", 2, "top_k must be 1 with --output_format=glue; got 2"),
])
def test_what_glue_does_not_take(labels, data_format, top_k, message):
    with pytest.raises(InputError) as error:
        glue.check(data_format, TASKS["classify"](16, list(labels)) if labels else TASKS["regress"](16), top_k)
    assert str(error.value) == message


def test_pairs(run, saved, tmp_path):
    arguments = "predict", f"--model={saved('0', '1', pairs=True)}", f"--input={tmp_path / 'a.csv'}"
    (tmp_path / "a.csv").write_text("text,text_pair\nplay music,light off\n")
    assert [line.split("\t")[2:] for line in run(*arguments)[1]] == [["play music", "light off"]]
    (tmp_path / "a.csv").write_text("text\na\n")
    status, _, messages = run(*arguments)
    assert (status, messages) == (
        1, [f"keras-bert: {tmp_path / 'a.csv'}: must have two texts per row for this model; got one"])


def test_the_data_format_of_the_training_is_suggested(run, saved, tmp_path):
    folder = saved("0", "1", columns=("data_format", "nsmc"))
    for name in ("a.txt", "a.tsv"):
        (tmp_path / name).write_text("id\tdocument\tlabel\n1\tplay\t0\n")
        arguments = ("evaluate", f"--model={folder}", f"--data={tmp_path / name}")
        status, _, messages = run(*arguments)
        assert status == 1 and messages[0].endswith(
            "; the model was trained with --data_format='nsmc': pass it if this file has that format")
    assert run(*arguments, "--data_format=nsmc")[0] == 0
    other = FineTuned.load(folder)
    assert other.evaluate([("play", "0")])["loss"] > 0  # it is no default
    with pytest.raises(InputError, match="^data: row 1: 'text' must be a text; got 1$"):  # rows have no format
        other.evaluate([(1, "0")])


def test_the_command_says_how_many_texts_it_has_cut(run, saved, tmp_path):
    lines = ["play " * words for words in (14, 15, 3, 40)]  # with [CLS] and [SEP], 16 tokens fit
    (tmp_path / "a.txt").write_text("\n".join(lines) + "\n")
    _, output, messages = run("predict", f"--model={saved('0', '1')}", f"--input={tmp_path / 'a.txt'}")
    assert (len(output), messages) == (4, ["texts cut at max_length 16: 2 of 4"])
    assert run("predict", f"--model={saved('0', '1')}", lines[0])[2] == []


@pytest.mark.parametrize("task, kind, settings, inputs, cut", [
    ("regress", BertRegressor, {"pairs": True}, (["a " * 6, "a " * 7, "a"], ["a " * 7, "a " * 7, "a " * 13]), 2),
    ("choice", BertMultipleChoice, {}, (["play", "play"], [["a", "a " * 13, "a " * 20], ["a", "a " * 12, "a"]]), 1),
    ("embed", lambda bert: BertEmbedder(bert, "mean"), {}, (["a " * 15, "a", "a " * 15, "a " * 14],), 2)])
def test_a_warning_says_how_many_inputs_were_cut(bert, tokenizer, task, kind, settings, inputs, cut):
    model = FineTuned(kind(bert), tokenizer, TASKS[task](16, **settings))
    with pytest.warns(InputWarning) as caught:
        model.predict(*inputs)
    assert [str(warning.message) for warning in caught] == [
        f"texts cut at max_length 16: {cut} of {len(inputs[0])}"]
    assert caught[0].filename == __file__


def test_prompts_may_have_different_numbers_of_choices(bert, tokenizer):
    model = FineTuned(randomize(BertMultipleChoice(bert)), tokenizer, TASKS["choice"](16))
    prompts = ["play music", "light", "stop"]
    choices = [["on", "off"], ["music", "stop", "now", "on"], ["the", "light", "play music"]]
    together = model.predict(prompts, choices)
    for prompt, some, answer in zip(prompts, choices, together, strict=True):
        alone, = model.predict([prompt], [some])
        assert answer.index == alone.index and answer.probabilities == pytest.approx(alone.probabilities, abs=1e-6)
