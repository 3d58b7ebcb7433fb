"""The command line as a user meets it."""

import importlib
import inspect
import json
import os
import pathlib
import re
import runpy
import shlex
import subprocess
import sys
from typing import Literal

import numpy as np
import pytest

import keras_bert
from keras_bert import arguments
from keras_bert.cli import COMMANDS, arguments_of, make_flags, module_of
from keras_bert.config import DIRECTIONALITIES
from keras_bert.convert import FORMATS
from keras_bert.errors import InputError
from keras_bert.flags import read, read_source
from keras_bert.inference.features import POOLS
from keras_bert.training import TASKS
from keras_bert.training.optimizer import OPTIMIZERS

import zoo


@pytest.mark.usefixtures("eager")
def test_predict_prints_objects(run, trained_once):
    texts = ["play music", "light off", "what time"]
    status, output, _ = run("predict", f"--model={trained_once}", "--output_format=jsonl", "--top_k=2", *texts)
    assert status == 0
    answers = [json.loads(line) for line in output]
    assert [answer["text"] for answer in answers] == texts
    for answer in answers:
        assert answer["label"] in ("light", "music") and 0.5 <= answer["score"] <= 1
        assert answer["top"][0] == {"label": answer["label"], "score": answer["score"]} and len(answer["top"]) == 2


@pytest.mark.slow("a module that is run, which exports nothing usable")
@pytest.mark.usefixtures("eager")
def test_export(pretrained_once, tmp_path, monkeypatch):
    import tensorflow as tf

    output = str(tmp_path / "out")
    monkeypatch.setattr(sys, "argv", ["export", f"--model={pretrained_once}", f"--output={output}"])
    with pytest.raises(SystemExit, match="^0$"):
        runpy.run_module("export", run_name="__main__")
    assert tf.saved_model.contains_saved_model(output)


@pytest.mark.usefixtures("eager")
def test_evaluate(run, trained, intents, tmp_path):
    status, output, _ = run("evaluate", f"--model={trained}", f"--data={intents[1]}", "--output_format=json")
    scores = json.loads("\n".join(output))
    metrics = json.loads((trained / "metrics.json").read_text())
    for key in ("accuracy", "macro_f1", "loss", "calibration_error", "classes", "confusions", "out_of_scope"):
        assert scores[key] == metrics[key], key
    status, output, _ = run("evaluate", f"--model={trained}", f"--data={intents[1]}")
    assert status == 0
    assert output[0].split() == ["class", "precision", "recall", "F1", "texts"]
    assert [line.split()[0] for line in output[1:3]] == ["light", "music"]
    assert ["accuracy", f"{metrics['accuracy']:.4f}"] in map(str.split, output)


@pytest.mark.usefixtures("eager")
def test_texts_out_of_scope_choose_the_threshold(run, trained, intents, tmp_path):
    command = "predict", f"--model={trained}", "--output_format=jsonl", "what time is it today", "play some music"
    assert json.loads((trained / "settings.json").read_text())["threshold"] is None
    assert json.loads((trained / "metrics.json").read_text())["out_of_scope"] is None
    assert json.loads(run(*command)[1][0]).keys() == {"text", "label", "score"}
    path = tmp_path / "scope.tsv"
    path.write_text(intents[1].read_text() + "what time is it today\tnone\nbook a flight\tnone\n")
    status, _, messages = run("evaluate", f"--model={trained}", f"--data={path}")
    assert status == 1 and "row 6: label 'none' is not among the learned labels" in messages[0]
    arguments = ("evaluate", f"--model={trained}", f"--data={path}", "--out_of_scope_label=none")
    status, output, _ = run(*arguments, "--output_format=json", "--choose_threshold")
    chosen = json.loads("\n".join(output))["out_of_scope"]
    assert chosen["texts"] == 2
    rejected = f"rejects {chosen['rejected_in_scope']:.1%} of the texts in scope"
    assert run(*arguments)[1][-1].split() == [
        "threshold", *(f"{chosen['threshold']:.4f}: {rejected} and {chosen['recall']:.1%} of the 2 out of scope, with "
                       f"precision {chosen['precision']:.4f}; of the {chosen['answered']} answers that reach it, "
                       f"{chosen['wrong']} are wrong").split()]
    assert f": {rejected}; of the" in run("evaluate", f"--model={trained}", f"--data={intents[1]}")[1][-1]
    assert "measured on the 4 of 6 texts that are in scope".split() in map(str.split, run(*arguments)[1])
    lines = run(*(part for part in command if "format" not in part))[1]
    for answer, line in zip(map(json.loads, run(*command)[1]), lines, strict=True):
        assert answer["in_scope"] == (answer["score"] >= chosen["threshold"])
        assert line.split("\t")[2:] == ["in scope" if answer["in_scope"] else "out of scope", answer["text"]]


@pytest.mark.slow("a flag that the command does not pass on")
@pytest.mark.usefixtures("eager")
def test_calibrate(run, trained, intents, tmp_path):
    status, output, messages = run("calibrate", f"--model={trained}", "--threshold=0.5")
    assert (status, output, messages) == (0, ["threshold: 0.5, set by hand"], [])
    assert "\n- threshold: 0.5, set by hand\n" in (trained / "README.md").read_text()
    in_scope = [json.loads(line)["in_scope"] for line in run(
        "predict", f"--model={trained}", f"--input={intents[1]}", "--output_format=jsonl")[1]]
    before = (trained / "settings.json").read_text()
    assert len(in_scope) == 4 and json.loads(before)["threshold"] == 0.5
    for flags, words in ((["--threshold=0.5", "--data=d"], "pass --data=FILE or --threshold=X, and not both"),
                         ([], "pass --data=FILE or --threshold=X, and not both"),
                         ([f"--data={intents[1]}"], "no threshold was chosen, because every text is in scope; pass"),
                         ([f"--data={intents[1]}", "--max_error=0.01"], "more texts would not help")):
        status, output, messages = run("calibrate", f"--model={trained}", *flags)
        assert (status, output, len(messages)) == (1, [], 1) and words in messages[0]
    assert (trained / "settings.json").read_text() == before
    metrics = json.loads((trained / "metrics.json").read_text())
    metrics["arguments"] |= dict(zip(("train", "valid"), map(str, intents)))
    (trained / "metrics.json").write_text(json.dumps(metrics))
    arguments = "calibrate", f"--model={trained}", f"--data={intents[0]}", "--max_error=0.99"
    status, output, messages = run(*arguments)
    assert (status, output) == (1, []) and messages[0].endswith(
        ": 4 of 4 texts were in the training or validation file; errors on them are rarer than on new texts; pass "
        "texts that the model has not seen")
    metrics["arguments"] |= {"train": str(tmp_path / "one.tsv"), "valid": None}
    (trained / "metrics.json").write_text(json.dumps(metrics))
    (tmp_path / "one.tsv").write_text("text\tlabel\nplay some music\tmusic\n")
    status, output, messages = run(*arguments)
    assert status == 0 and output[1].startswith("threshold: ") and "of 2 texts, 2 reach it" in output[1]
    assert "1 of 4 texts were in the training or validation file; errors on" in messages[0] and len(messages) == 1
    for metrics in ({"a": 1}, {"arguments": None}, {"arguments": {"train": "gone.tsv"}}, None):
        (trained / "metrics.json").write_text(json.dumps(metrics)) if metrics else (trained / "metrics.json").unlink()
        status, _, messages = run(*arguments)
        assert status == 0 and "make sure that these texts did not train the model" in messages[0]


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_every_argument_and_an_example_that_parses(run, name):
    status, lines, _ = run(name, "--help")
    given = [argument for argument in arguments_of(name) if not argument.is_positional]
    listed = re.findall(r"^  --(?:\[no\])?(\w+)", "\n".join(lines), re.M)
    assert status == 0 and sorted(listed) == sorted(argument.name for argument in given)
    assert lines[0].startswith(f"usage: keras-bert {name} ")
    for argument in arguments_of(name):
        assert re.match(r"\S.*[^ ]\.$", argument.help), argument.name
        is_required = argument.default is inspect.Parameter.empty and not argument.is_positional
        assert (f"--{argument.name}={argument.name.upper()}" in lines[0]) == is_required
    example = lines[lines.index("example:") + 1].strip()
    command, *rest = shlex.split(example)[1:]
    rest = rest[1:] if " " in name else rest
    assert command == name.split()[0]
    values = make_flags(arguments_of(name))
    values([name, *rest])
    assert not [argument.name for argument in given
                if argument.default is inspect.Parameter.empty and values[argument.name].value is None]


@pytest.mark.parametrize("path,name", [
    (module_of(name).API, name) for name in COMMANDS if hasattr(module_of(name), "API")])
def test_arguments_read_from_the_source_are_those_of_the_function(path, name):
    file, function = path
    module = importlib.import_module(f"keras_bert.{file.removesuffix('.py').replace('/', '.')}")
    annotated = [argument for argument in read(getattr(module, function))
                 if argument.name not in ("progress", "report", "callbacks")]
    from_source = read_source(f"{os.path.dirname(keras_bert.__file__)}/{file}", function)
    assert from_source == annotated


def test_objects_are_no_flags(tmp_path):
    (tmp_path / "module.py").write_text(
        "def convert(path: Path, rates: Positive | list[Positive] | None = None, kind: Literal['a', 'b'] = 'a', *,\n"
        "            model: Path | BertLayer = 'm', report: Callable[[str], None] = print, other=None,\n"
        "            seed: Generator | None = None):\n    pass\n")
    found = read_source(tmp_path / "module.py", "convert")
    assert {argument.name: argument.annotation for argument in found} == {
        "path": arguments.Path, "rates": arguments.Positive | list[arguments.Positive] | None,
        "kind": Literal["a", "b"], "model": arguments.Path | object}


def test_values_of_a_flag_are_those_of_the_table():
    for command, flag, table in (
            ("convert", "format", FORMATS), ("finetune", "task", TASKS), ("pretrain", "optimizer", OPTIMIZERS),
            ("pretrain", "directionality", DIRECTIONALITIES), ("features", "pooling", POOLS)):
        assert set(make_flags(arguments_of(command))[flag].parser.enum_values) == set(table)


def test_values_are_checked_by_the_annotations():
    def function(count: arguments.Count = 1, rates: arguments.Positive | list[arguments.Positive] | None = None,
                 mode: Literal["a", "b"] = "a", path: arguments.Path = "x", on: bool = False, other=None):
        pass

    for good in ({}, {"count": 3, "rates": [1, 0.5]}, {"rates": 2.0, "mode": "b"}, {"rates": None, "other": object()},
                 {"path": pathlib.Path("y"), "on": True}):
        arguments.check(function, good)
    for name, bad, rule in (
            ("count", 0, "at least 1"), ("count", True, "a whole number"), ("count", 1.5, "a whole number"),
            ("count", None, "a whole number"), ("rates", [1, 0], "positive"),
            ("rates", [], "one value or several"), ("rates", ["1"], "a number"), ("rates", float("nan"), "positive"),
            ("rates", "1", "a number"), ("mode", "c", "one of a, b"), ("path", 3, "a string or a path"),
            ("on", 1, "True or False")):
        with pytest.raises(InputError, match=re.escape(f"{name} must be {rule}; got {bad!r}") + "$"):
            arguments.check(function, {name: bad})


@pytest.mark.parametrize("name", keras_bert.__all__)
def test_the_public_api_is_annotated(name):
    """Constructors, functions and public methods; what mypy, which `make test` runs, does not ask for."""
    public = getattr(keras_bert, name)
    functions = [public]
    if inspect.isclass(public):
        classes = [kind for kind in public.__mro__ if kind.__module__.startswith("keras_bert.")]
        functions = [getattr(kind, key) for kind in classes for key in vars(kind)
                     if key in ("__init__", "__call__") or not key.startswith("_")]
    for function in filter(callable, functions):
        signature = inspect.signature(function)
        missing = [parameter.name for parameter in signature.parameters.values()
                   if parameter.annotation is parameter.empty and parameter.name != "self"
                   and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)]
        assert not missing and signature.return_annotation is not signature.empty, f"{function.__qualname__}: {missing}"


    signature = str(inspect.signature(keras_bert.finetune))
    assert "Annotated[int, at least 1]" in signature and "lambda" not in signature


def test_the_stub_declares_the_public_names():
    """Type checkers and `import keras_bert` read the same lines."""
    stub = pathlib.Path(keras_bert.__file__ + "i").read_text()
    assert sorted(re.findall(r"^from \S+ import (\w+) as \1$", stub, re.M)) == keras_bert.__all__ == sorted(
        name for name in dir(keras_bert) if name in keras_bert.__all__)
    assert {"BertLayer", "FineTuned", "finetune", "export_text_model"} < set(keras_bert.__all__)


def test_help_without_docstrings():
    run = subprocess.run([sys.executable, "-OO", "-m", "keras_bert.cli", "--help"], capture_output=True, text=True)
    assert run.returncode == 0 and "make-pretraining-data" in run.stdout, run.stderr


def test_arguments_are_made_plain():
    given = [np.int64(3), np.float32(0.5), pathlib.Path("a/b"), (1, np.float64(2)), True, None, "x", {"a": 1}]
    made = arguments.to_json(given)
    assert made == [3, 0.5, "a/b", [1, 2.0], True, None, "x", {"a": 1}]
    assert [type(value) for value in made[:2]] == [int, float] and json.dumps(made)


@pytest.mark.usefixtures("eager")
def test_a_threshold_that_nothing_decides_is_kept(run, trained, tmp_path):
    from keras_bert.training import FineTuned

    data, settings = tmp_path / "texts.tsv", trained / "settings.json"
    data.write_text("text\tlabel\nplay music\tmusic\nplay music\tlight\n")  # one of them is misclassified
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"threshold": 0.25}))
    before = settings.read_text()
    status, _, messages = run("evaluate", f"--model={trained}", f"--data={data}", "--choose_threshold")
    assert status == 0 and settings.read_text() == before
    assert messages[0].startswith("no threshold was chosen, and the model's settings are unchanged, because every text")
    assert FineTuned.load(trained).calibrate(data).task.threshold == 0.25
    folder = zoo.model("pairs")
    assert run("evaluate", f"--model={folder}", f"--data={data}", "--choose_threshold") == (1, [], [
        f"keras-bert: --choose_threshold is for the tasks intent and multilabel; {folder} is of the task classify"])
