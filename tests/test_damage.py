"""Damaged copies of each kind of export, from seeds. `KERAS_BERT_DAMAGED_COPIES` is their number."""

import json
import os
import random
import shutil

import pytest

from keras_bert.export import export_encoder, export_preprocessor
from keras_bert.inference.lite_model import LiteModel
from keras_bert.layers import BertLayer
from keras_bert.models import BertPretrainer
from keras_bert.text import BertTokenizer

import zoo
from conftest import SMALL, TINY_VOCABULARY

COPIES = int(os.environ.get("KERAS_BERT_DAMAGED_COPIES", "40"))
KINDS = {
    "encoder": lambda path: zoo.copy(zoo.encoder(), path),
    "mlm": lambda path: export_encoder(BertPretrainer(BertLayer(SMALL)), path, BertTokenizer(TINY_VOCABULARY)),
    "preprocessor": lambda path: export_preprocessor(BertTokenizer(TINY_VOCABULARY), path),
    "classifier": lambda path: zoo.copy(zoo.saved_model("intent"), path),
    "embedder": lambda path: zoo.copy(zoo.saved_model("mean"), path),
    "LiteRT tagger": lambda path: zoo.copy(zoo.litert("tag"), path)}


def damage(folder, rng):
    """Damages a file, or two. A few damages change nothing: two equal lines may be exchanged."""
    path, other = rng.sample(sorted(path for path in folder.rglob("*") if path.is_file()), 2)
    content, others = path.read_bytes(), other.read_bytes()
    lines, place = content.splitlines(keepends=True), rng.randrange(len(content))
    first, second = rng.choices(range(len(lines)), k=2)
    match rng.choice(["flip", "cut", "swap", "repeat", "edit", "copy", "exchange", "remove", "folder"]):
        case "flip":
            bit = content[place] ^ 1 << rng.randrange(8)
            path.write_bytes(content[:place] + bytes([bit]) + content[place + 1:])
        case "cut":
            path.write_bytes(content[:place])
        case "swap":
            lines[first], lines[second] = lines[second], lines[first]
            path.write_bytes(b"".join(lines))
        case "repeat":
            path.write_bytes(b"".join(lines[:first] + lines[second:]))
        case "edit":
            path = rng.choice(sorted(folder.rglob("*.json")))
            values = json.loads(path.read_text())
            key = rng.choice([*values] if isinstance(values, dict) else range(len(values)))
            values[key] = rng.choice([None, 7, []])
            path.write_text(json.dumps(values))
        case "copy":
            shutil.copy(path, folder / "copy")
        case "exchange":
            path.write_bytes(others)
            other.write_bytes(content)
        case kind:
            path.unlink()
            if kind == "folder":
                path.mkdir()


class Loads(Exception):
    """Raised instead of loading a model."""


@pytest.mark.slow("a damaged export that passes")
@pytest.mark.parametrize("kind", KINDS)
def test_damage_is_one_line_and_nothing_is_loaded(kind, tmp_path, monkeypatch, run):
    """What is loaded has the files of the whole export, and so its answers; digests alone may be missing."""
    def load(*_):
        raise Loads

    KINDS[kind](tmp_path / "whole")
    monkeypatch.setattr(LiteModel, "load", load)
    monkeypatch.setattr("keras_bert.export.verify._load", load)
    loaded = 0
    for seed in range(COPIES):
        folder = shutil.copytree(tmp_path / "whole", tmp_path / "copy")
        damage(folder, random.Random(seed))
        try:
            status, output, messages = run("verify", folder)
            assert (status, output, len(messages)) == (1, [], 1) and str(folder) in messages[0], (seed, messages)
        except Loads:
            assert contents(folder) == contents(tmp_path / "whole"), seed
            loaded += 1
        shutil.rmtree(folder)
    print(f"{kind}: {COPIES} copies, {COPIES - loaded} refused, {loaded} without a change")


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*")
            if path.is_file() and path.name != "sha256.json"}
