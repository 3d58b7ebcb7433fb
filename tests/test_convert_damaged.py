"""Damaged sources: one line each, which names the tensor or the file, and nothing left behind."""

import json
import os
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from keras_bert.convert import native as own
from keras_bert.convert import tf1
from keras_bert.convert.weights import Weights
from keras_bert.export import export_encoder
from keras_bert.layers import BertLayer
from keras_bert.text import BertTokenizer

from conftest import TINY, TINY_VOCABULARY, randomize, write_huggingface

KERNEL = "encoder.layer.1.intermediate.dense.weight"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """One encoder in several formats."""
    path = tmp_path_factory.mktemp("whole")
    bert = randomize(BertLayer(TINY))
    write_huggingface(path / "huggingface", bert)
    for name, module in (("tf1", tf1), ("keras_bert", own)):
        (path / name).mkdir()
        module.write(Weights.of(bert, BertTokenizer(TINY_VOCABULARY)), path / name)
    export_encoder(bert, path / "hub", BertTokenizer(TINY_VOCABULARY))
    return path


def cut(name, share):
    def damage(path):
        size = (path / name).stat().st_size
        os.truncate(path / name, int(size * share))

    return damage


def flip(name):
    """One bit in the middle of a file."""
    def damage(path):
        content = bytearray((path / name).read_bytes())
        content[len(content) // 2] ^= 1
        (path / name).write_bytes(content)

    return damage


def tensors(edit):
    def damage(path):
        changed = load_file(path / "model.safetensors")
        edit(changed)
        save_file({key: np.ascontiguousarray(array) for key, array in changed.items()}, path / "model.safetensors")

    return damage


def another_name(changed):
    changed["encoder.layer.1.intermediate.dense.kernel"] = changed.pop(KERNEL)


def another_layout(changed):
    changed[KERNEL] = changed[KERNEL].T


def another_layer(changed):
    changed |= {key.replace("layer.1.", "layer.2."): array for key, array in changed.items() if "layer.1." in key}


def only_a_pickle(path):
    (path / "model.safetensors").rename(path / "pytorch_model.bin")


def loop(name):
    def damage(path):
        (path / name).unlink()
        (path / name).symlink_to(name)

    return damage


def folder_loop(path):
    shutil.rmtree(path)
    path.symlink_to(path.name)


def lost_shard(path):
    names = sorted(load_file(path / "model.safetensors"))
    (path / "model.safetensors").unlink()
    index = {"weight_map": dict.fromkeys(names, "model-00001-of-00002.safetensors")}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))


def config(**changes):
    def damage(path):
        values = json.loads((path / "config.json").read_text())
        (path / "config.json").write_text(json.dumps(values | changes))

    return damage


def more_pieces(path):
    with open(path / "vocab.txt", "a") as file:
        file.write("one\nmore\n")


def without(name):
    return lambda path: (path / name).unlink()


@pytest.mark.parametrize("form,damage,words", [
    ("tf1", cut("bert_model.ckpt.data-00000-of-00001", 0.5), "bert_model.ckpt: bert/"),
    ("tf1", flip("bert_model.ckpt.data-00000-of-00001"), "bert_model.ckpt: bert/"),
    ("tf1", cut("bert_model.ckpt.index", 0.5), "bert_model.ckpt.index"),
    ("tf1", without("bert_config.json"), "bert_config.json"),
    ("tf1", without("bert_model.ckpt.data-00000-of-00001"), "bert_model.ckpt"),
    ("huggingface", cut("model.safetensors", 0.9), "model.safetensors"),
    ("huggingface", tensors(another_name), f"missing {KERNEL}; unexpected {KERNEL.replace('weight', 'kernel')}"),
    ("huggingface", tensors(another_layout), f"{KERNEL} has shape (16, 32), but the config gives (32, 16)"),
    ("huggingface", tensors(another_layer), "unexpected encoder.layer.2.attention.output.LayerNorm.bias"),
    ("huggingface", only_a_pickle, "pytorch_model.bin: a pickle can run any code"),
    ("huggingface", loop("model.safetensors"), "model.safetensors"),
    ("huggingface", loop("config.json"), "config.json"),
    ("huggingface", folder_loop, "source"),
    ("huggingface", lost_shard, "model-00001-of-00002.safetensors"),
    ("huggingface", config(num_hidden_layers=3), "missing encoder.layer.2."),
    ("huggingface", config(vocab_size=61), "embeddings.word_embeddings.weight has shape (60, 16)"),
    ("huggingface", more_pieces, "its vocabulary must have at most the config's vocab_size (60) tokens; got 62"),
    ("keras_bert", cut("model.keras", 0.9), "model.keras"),
    ("hub", without("variables/variables.index"), "variables"),
    ("hub", cut("variables/variables.data-00000-of-00001", 0.5), "variables"),
])
def test_damage_is_one_line(run, whole, tmp_path, form, damage, words):
    source = shutil.copytree(whole / form, tmp_path / "source")
    damage(source)
    before = sorted(os.listdir(tmp_path))
    command = ("convert", f"--model={source}", f"--output={tmp_path / 'out'}", "--format=huggingface")
    status, output, messages = run(*command)
    assert status == 1 and len(messages) == 1, messages
    assert messages[0].startswith("keras-bert: ") and words in messages[0]
    assert not any(line.startswith("done") for line in output)
    assert sorted(os.listdir(tmp_path)) == before


def test_a_path_that_is_taken_is_kept(run, whole, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/mine").write_text("keep")
    command = ("convert", f"--model={whole / 'tf1'}", f"--output={tmp_path / 'out'}", "--format=huggingface")
    status, output, messages = run(*command)
    assert status == 1 and "exists already" in messages[0]
    assert (tmp_path / "out/mine").read_text() == "keep"
    assert run(*command, "--overwrite")[0] == 0
    assert not (tmp_path / "out/mine").exists()


def test_named_weights_may_be_missing(run, whole, tmp_path):
    source = shutil.copytree(whole / "huggingface", tmp_path / "source")
    tensors(lambda changed: [changed.pop(f"pooler.dense.{part}") for part in ("weight", "bias")])(source)
    command = ("convert", f"--model={source}", f"--output={tmp_path / 'out'}", "--format=huggingface")
    assert "missing pooler.dense.weight; missing pooler.dense.bias" in run(*command)[2][0]
    status, output, _ = run(*command, "--allow_missing=pooler.*")
    assert status == 0 and "initialised pooler.dense.weight, pooler.dense.bias: not in the source" in output
    pooler = load_file(tmp_path / "out/model.safetensors")["pooler.dense.weight"]
    assert 0.015 < pooler.std() < 0.02 and np.abs(pooler).max() <= 0.04  # normal, cut at two deviations of 0.02
