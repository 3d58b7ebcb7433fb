"""The command line as a user meets it."""

import io
import json
import os
import re
import subprocess
import sys

import pytest

from conftest import finetune_command


@pytest.mark.usefixtures("eager")
def test_finetune_shows_its_progress_and_what_it_wrote(run, intents, pretrained, tmp_path):
    status, output, messages = run(*finetune_command(intents, pretrained, tmp_path / "out"))
    assert status == 0
    assert output[0].startswith(f"{tmp_path / 'out'}: accuracy ") and "on 4 texts" in output[0]
    assert f"{tmp_path / 'out'}/README.md" in output and f"{tmp_path / 'out'}/learning_curves.png" in output
    assert any("epoch 1/1" in line and "examples/s" in line and "left" in line for line in messages)


def test_predict_in_every_form(run, trained, tmp_path, monkeypatch):
    texts = ["play music", "light off", "what time"]
    status, output, _ = run("predict", f"--model={trained}", "--format=jsonl", "--top_k=2", *texts)
    assert status == 0
    answers = [json.loads(line) for line in output]
    assert [answer["text"] for answer in answers] == texts
    for answer in answers:
        assert answer["label"] in ("light", "music") and 0.5 <= answer["score"] <= 1
        assert answer["top"][0] == {"label": answer["label"], "score": answer["score"]} and len(answer["top"]) == 2

    files = {"a.txt": "\n".join(texts), "a.tsv": "text\n" + "\n".join(texts), "a.csv": "n,text\n" + "\n".join(
        f"1,{text}" for text in texts), "a.jsonl": "\n".join(json.dumps({"text": text}) for text in texts)}
    for name, content in files.items():
        (tmp_path / name).write_text(content)
        arguments = ("--format=jsonl", "--top_k=2", f"--input={tmp_path / name}")
        assert run("predict", f"--model={trained}", *arguments)[1] == output

    stdin = io.TextIOWrapper(io.BytesIO("\n".join(texts).encode()))
    monkeypatch.setattr(sys, "stdin", stdin)
    status, lines, _ = run("predict", f"--model={trained}", "--input=-")
    assert status == 0
    assert [line.split("\t")[2] for line in lines] == texts
    assert [line.split("\t")[0] for line in lines] == [answer["label"] for answer in answers]


@pytest.mark.slow
def test_export(run, trained, pretrained, tmp_path):
    import tensorflow as tf

    for source, name in ((trained, "one"), (pretrained, "two")):
        status, output, _ = run("export", f"--model={source}", f"--output={tmp_path / name}")
        assert (status, output) == (0, [str(tmp_path / name)])
        assert tf.saved_model.contains_saved_model(str(tmp_path / name))
    status, _, messages = run("export", f"--model={trained}", f"--output={tmp_path / 'one'}")
    assert status == 1 and messages == [
        f"keras-bert: {tmp_path / 'one'}: exists already; name another path or pass --overwrite"]
    assert run("export", f"--model={trained}", f"--output={tmp_path / 'one'}", "--overwrite", "--dtype=bfloat16",
               "--jit_compile")[0] == 0


@pytest.mark.slow
def test_python_m_export(pretrained, tmp_path):
    root = os.path.dirname(os.path.dirname(__file__))
    subprocess.run([sys.executable, "-m", "export", f"--model={pretrained}", f"--output={tmp_path / 'out'}"],
                   cwd=root, check=True, capture_output=True)
    assert (tmp_path / "out/saved_model.pb").exists()


def test_evaluate(run, trained, intents, tmp_path):
    status, output, _ = run("evaluate", f"--model={trained}", f"--data={intents[1]}", "--format=json")
    scores = json.loads("\n".join(output))
    metrics = json.loads((trained / "metrics.json").read_text())
    for key in ("accuracy", "macro_f1", "loss", "calibration_error", "classes", "confusions", "out_of_scope"):
        assert scores[key] == metrics[key], key
    status, output, _ = run("evaluate", f"--model={trained}", f"--data={intents[1]}")
    assert status == 0
    assert output[0].split() == ["class", "precision", "recall", "F1", "texts"]
    assert [line.split()[0] for line in output[1:3]] == ["light", "music"]
    assert ["accuracy", f"{metrics['accuracy']:.4f}"] in map(str.split, output)


def test_texts_out_of_scope_choose_the_threshold(run, trained, intents, tmp_path):
    path = tmp_path / "scope.tsv"
    path.write_text(intents[1].read_text() + "what time is it today\tnone\nbook a flight\tnone\n")
    status, _, messages = run("evaluate", f"--model={trained}", f"--data={path}")
    assert status == 1 and "row 6: label 'none' does not occur in the training file" in messages[0]
    status, output, _ = run("evaluate", f"--model={trained}", f"--data={path}", "--out_of_scope=none", "--format=json",
                            "--choose_threshold")
    chosen = json.loads("\n".join(output))["out_of_scope"]
    assert (chosen["texts"], chosen["stand_in"]) == (2, False)
    _, output, _ = run("predict", f"--model={trained}", "--format=jsonl", "what time is it today", "play some music")
    for answer in map(json.loads, output):
        assert answer["in_scope"] == (answer["score"] >= chosen["threshold"])


def test_a_label_out_of_scope_that_no_text_has_is_refused(run, trained, intents):
    status, _, messages = run("evaluate", f"--model={trained}", f"--data={intents[1]}", "--out_of_scope=nothing")
    assert (status, messages) == (1, [f"keras-bert: {intents[1]}: no text has the label out_of_scope, 'nothing'"])


def test_help_starts_without_tensorflow():
    code = "import sys, keras_bert.cli as c; c.run(['finetune', '--help']); assert 'tensorflow' not in sys.modules"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "--learning_rate" in run.stdout


@pytest.mark.parametrize("name,shared", [
    ("finetune", "text_pair layout"), ("evaluate", "layout"), ("convert", "config next_sentence_pooler")])
def test_help_has_the_flags_that_commands_share(run, name, shared):
    status, lines, _ = run(name, "--help")
    listed = re.findall(r"^  --(?:\[no\])?(\w+):", "\n".join(lines), re.M)
    assert status == 0 and set(shared.split()) < set(listed) and len(listed) == len(set(listed))
    assert not [line for line in lines if "keras_bert." in line or "helpfull" in line]


def test_flags_mirror_the_arguments():
    import inspect

    from absl import flags

    from keras_bert.commands import finetune as command
    from keras_bert.training import finetune

    values = flags.FlagValues()
    command.define(values)
    parameters = inspect.signature(finetune).parameters
    assert set(values) - {"?", "help", "helpfull", "helpshort", "helpxml"} == set(parameters)
    for name, parameter in parameters.items():
        if parameter.default is not inspect.Parameter.empty:
            assert values[name].default == parameter.default, name
