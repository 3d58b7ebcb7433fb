"""Mistakes on the command line: one line each, and nothing left behind."""

import json
import subprocess
import sys

import pytest

from conftest import TINY_VOCABULARY, finetune_command


@pytest.mark.parametrize("arguments,status,words", [
    ([], 2, []),
    (["teach"], 2, ["'teach'", "finetune, evaluate, predict, export, export preprocessor,"]),
    (["finetune", "--epoch=3"], 2, ["epoch", "epochs"]),
    (["finetune", "--epochs=many"], 2, ["--epochs", "many"]),
    (["finetune", "--train=a.tsv"], 2, ["--valid", "--model", "--output"]),
    (["finetune", "train.tsv"], 2, ["--name=value", "train.tsv"]),
    (["predict"], 2, ["--model"]),
    (["predict", "--model=x", "--top_k=0", "hello"], 1, ["top_k must be at least 1", "0"]),
    (["predict", "--model=x"], 1, ["texts as arguments or --input", "neither"]),
    (["predict", "--model=x", "--input=y", "z"], 1, ["both"]),
    (["predict", "--model=/nowhere", "hello"], 1, ["/nowhere", "no such folder"]),
    (["export", "--model=/nowhere", "--output=/tmp/never"], 1, ["/nowhere"]),
    (["evaluate", "--model=x"], 2, ["--data"]),
    (["evaluate", "--model=/nowhere", "--data=y.tsv"], 1, ["/nowhere", "no such folder"]),
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
@pytest.mark.filterwarnings("ignore:.*the vocabulary cannot spell:keras_bert.errors.InputWarning")
def test_bad_input_is_one_line_and_leaves_nothing(run, intents, pretrained, tmp_path, damage):
    damaged = damage(tmp_path)
    name, *more = damaged if isinstance(damaged, tuple) else (damaged,)
    before = sorted(tmp_path.rglob("*"))
    status, output, messages = run(*finetune_command(intents, pretrained, tmp_path / "out", *more))
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


@pytest.mark.slow
def test_a_text_of_ten_megabytes_is_cut(run, intents, pretrained, tmp_path):
    with open(intents[0], "a") as file:
        file.write("play music " * 900_000 + "\tmusic\n" + "x" * 10_000_000 + "\tlight\n")
    assert run(*finetune_command(intents, pretrained, tmp_path / "out"))[0] == 0


def test_a_broken_model_is_one_line(run, trained):
    cut("model.keras")(trained)
    status, output, messages = run("predict", f"--model={trained}", "hello")
    assert status == 1 and output == [] and len(messages) == 1 and "model.keras" in messages[0]


@pytest.mark.slow
def test_no_traceback_for_a_reader_that_leaves(trained):
    command = f"{sys.executable} -m keras_bert.cli predict --model={trained} --input=- | head -1"
    run = subprocess.run(["bash", "-c", f"yes play | head -5000 | {command}"], capture_output=True, text=True)
    assert len(run.stdout.splitlines()) == 1 and "Traceback" not in run.stderr
