"""The command line as a user meets it."""

import io
import json
import os
import subprocess
import sys

import pytest

from conftest import TINY_VOCABULARY


@pytest.fixture
def run(capsys, run_cli):
    """Runs a command in this process: (exit status, lines of output, lines of messages)."""

    def call(*arguments):
        status = run_cli([str(argument) for argument in arguments])
        output, messages = capsys.readouterr()
        return status, output.splitlines(), messages.splitlines()

    return call


def train(run, intents, pretrained, output, *more):
    return run("finetune", f"--train={intents[0]}", f"--valid={intents[1]}", f"--init_from={pretrained}",
               f"--output_dir={output}", "--epochs=1", "--batch_size=2", *more)


@pytest.fixture
def trained(run, intents, pretrained, tmp_path):
    status, output, messages = train(run, intents, pretrained, tmp_path / "trained")
    assert status == 0
    assert output[0].startswith(f"{tmp_path / 'trained'}: accuracy ") and "on 4 texts" in output[0]
    assert any("epoch 1/1" in line and "examples/s" in line and "left" in line for line in messages)
    return tmp_path / "trained"


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


def test_python_m_export(pretrained, tmp_path):
    root = os.path.dirname(os.path.dirname(__file__))
    subprocess.run([sys.executable, "-m", "export", f"--model={pretrained}", f"--output={tmp_path / 'out'}"],
                   cwd=root, check=True, capture_output=True)
    assert (tmp_path / "out/saved_model.pb").exists()


@pytest.mark.parametrize("arguments,status,words", [
    ([], 2, []),
    (["teach"], 2, ["'teach'", "finetune, evaluate, predict, export, verify, presets"]),
    (["finetune", "--epoch=3"], 2, ["epoch", "epochs"]),
    (["finetune", "--epochs=many"], 2, ["--epochs", "many"]),
    (["finetune", "--train=a.tsv"], 2, ["--valid", "--init_from", "--output_dir"]),
    (["finetune", "train.tsv"], 2, ["--name=value", "train.tsv"]),
    (["predict"], 2, ["--model"]),
    (["predict", "--model=x", "--top_k=0", "hello"], 2, ["--top_k", "0"]),
    (["predict", "--model=x"], 1, ["texts as arguments or --input", "neither"]),
    (["predict", "--model=x", "--input=y", "z"], 1, ["both"]),
    (["predict", "--model=/nowhere", "hello"], 1, ["/nowhere", "model.keras"]),
    (["export", "--model=/nowhere", "--output=/tmp/never"], 1, ["/nowhere"]),
    (["evaluate", "--model=x"], 2, ["--data"]),
    (["evaluate", "--model=/nowhere", "--data=y.tsv"], 1, ["/nowhere", "model.keras"]),
    (["finetune", "--class_weights=heavy"], 2, ["--class_weights", "heavy", "balanced"]),
    (["export", "--model=x", "--output=y", "--dtype=int8"], 2, ["--dtype", "int8"]),
])
def test_bad_usage_is_one_line(run, arguments, status, words):
    got, output, messages = run(*arguments)
    assert got == status
    if words:
        assert output == [] and len(messages) == 1
        for word in words:
            assert word in messages[0]


def write(name, content):
    def damage(folder):
        (folder / name).write_bytes(content)
        return name.split("/")[-1]

    return damage


def cut(name):
    def damage(folder):
        (folder / name).write_bytes((folder / name).read_bytes()[:-50])
        return name.split("/")[-1]

    return damage


def use(flag, name, content):
    """Damage in a file of another name, given by `flag`."""
    def damage(folder):
        (folder / name).write_bytes(content)
        return name, f"--{flag}={folder / name}"

    return damage


def config(**changes):
    def damage(folder):
        path = folder / "pretrained/config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))
        return "pretrained"

    return damage


def remove(name):
    def damage(folder):
        (folder / name).unlink()
        return name.split("/")[-1]

    return damage


def folder_instead(name):
    def damage(folder):
        (folder / name).unlink()
        (folder / name).mkdir()
        return name.split("/")[-1]

    return damage


@pytest.mark.parametrize("damage", [
    remove("train.tsv"), write("train.tsv", b""), write("train.tsv", b"\x80\x04\x95 pickled"),
    write("train.tsv", b"question\tlabel\nplay\tmusic\n"), write("train.tsv", b"text\tlabel\nplay\n"),
    write("valid.tsv", b"text\tlabel\nplay\tnever seen\n"), folder_instead("valid.tsv"),
    write("pretrained/config.json", b"{}"), remove("pretrained/config.json"), cut("pretrained/model.safetensors"),
    remove("pretrained/vocab.txt"), write("pretrained/vocab.txt", b"a\n"), folder_instead("pretrained/vocab.txt"),
    write("pretrained/vocab.txt", "\n".join(TINY_VOCABULARY[:9]).encode()),
    write("pretrained/tokenizer_config.json", b"{"), write("out", b"a file of mine"),
    write("out.checkpoints", b"a file of mine"),
    write("train.tsv", b"text\tlabel\n"), write("train.tsv", b"text\tlabel\tlabel\nplay\tmusic\tmusic\n"),
    write("train.tsv", b"text\tlabel\nplay\tmusic\nturn on\tmusic\n"),
    write("train.tsv", b"text\tlabel\nplay\t\n"),
    write("valid.tsv", b"text\ttext_pair\tlabel\nplay\tsing\tmusic\n"),
    write("valid.tsv", b"text\tlabel\n\xff\tmusic\n"),
    use("train", "train.jsonl", b'{"text": "play", "label": "music"}\n{"text": "play"\n'),
    use("train", "train.jsonl", b'{"text": 3, "label": "music"}\n'),
    use("valid", "valid.csv", b'text,label\n"play,music\n'),
    use("train", "train.xlsx", b"PK"), use("valid", "valid", b"text\tlabel\nplay\tmusic\n"),
    write("pretrained/model.safetensors", b""), config(num_hidden_layers=3), config(hidden_size=20),
    config(model_type="roberta"), config(vocab_size=61),
])
def test_bad_input_is_one_line_and_leaves_nothing(run, intents, pretrained, tmp_path, damage):
    damaged = damage(tmp_path)
    name, *more = damaged if isinstance(damaged, tuple) else (damaged,)
    before = sorted(tmp_path.rglob("*"))
    status, output, messages = train(run, intents, pretrained, tmp_path / "out", *more)
    assert status == 1 and output == []
    assert len(messages) == 1 and messages[0].startswith("keras-bert: ") and name in messages[0]
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("row,content", [
    (2, "play"), (3, "play\tmusic\nfly\tflight"), (4, "a\tmusic\nb\tlight\n\tc\td")])
def test_bad_rows_are_named(run, trained, tmp_path, row, content):
    path = tmp_path / "data.tsv"
    path.write_text(f"text\tlabel\n{content}\n")
    status, output, messages = run("evaluate", f"--model={trained}", f"--data={path}")
    assert status == 1 and output == [] and len(messages) == 1
    assert messages[0].startswith(f"keras-bert: {path}: row {row}: ")


def test_a_text_of_ten_megabytes_is_cut(run, intents, pretrained, tmp_path):
    with open(intents[0], "a") as file:
        file.write("play music " * 900_000 + "\tmusic\n" + "x" * 10_000_000 + "\tlight\n")
    assert train(run, intents, pretrained, tmp_path / "out")[0] == 0


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
    assert f"accuracy           {metrics['accuracy']:.4f}" in output


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


def test_a_broken_model_is_one_line(run, trained):
    cut("model.keras")(trained)
    status, output, messages = run("predict", f"--model={trained}", "hello")
    assert status == 1 and output == [] and len(messages) == 1 and "model.keras" in messages[0]


def test_no_traceback_for_a_reader_that_leaves(trained):
    command = f"{sys.executable} -m keras_bert.cli predict --model={trained} --input=- | head -1"
    run = subprocess.run(["bash", "-c", f"yes play | head -5000 | {command}"], capture_output=True, text=True)
    assert len(run.stdout.splitlines()) == 1 and "Traceback" not in run.stderr


def test_help_starts_without_tensorflow():
    code = "import sys, keras_bert.cli as c; c.run(['finetune', '--help']); assert 'tensorflow' not in sys.modules"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "--learning_rate" in run.stdout


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
