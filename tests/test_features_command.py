"""`keras-bert features`: vectors of texts in files."""

import dataclasses
import json
import os

import keras
import numpy as np
import pytest
from keras import ops
from pyarrow import parquet

from keras_bert.errors import InputWarning
from keras_bert.inference import features as features_module
from keras_bert.layers import BertLayer
from keras_bert.models.feature_tagger import BertFeatures
from keras_bert.text import BertTokenizer

from conftest import TINY, TINY_VOCABULARY, eagerly, randomize, write_huggingface

TEXTS = ["play some music", "", "turn the light on please", "book a flight now . what time is it today ?", "lamp"]
LONGEST, AT_ONCE = 12, 15  # tokens
TOKENIZER = BertTokenizer(TINY_VOCABULARY)


@pytest.fixture(scope="module")
def deep_bert():
    return randomize(BertLayer(dataclasses.replace(TINY, num_hidden_layers=4)))


@pytest.fixture
def extract(run, tmp_path, deep_bert, monkeypatch, eager):
    """Runs the command on the encoder in batches of two; `texts.txt` is in `tmp_path`."""
    monkeypatch.setattr(features_module, "_TOKENS", AT_ONCE)  # several chunks
    write_huggingface(tmp_path / "pretrained", deep_bert)
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS) + "\n")

    def call(*flags, input="texts.txt", output="out.npz"):
        return run("features", f"--model={tmp_path}/pretrained", f"--input={tmp_path}/{input}",
                   f"--output={tmp_path}/{output}", "--batch_size=2", *flags)

    return call


def read(path, pooling):
    """What a file holds as a list of (tokens or None, vectors [tokens, width] or [1, width]) of each text."""
    if path.suffix == ".parquet":
        with parquet.ParquetFile(path) as file:
            groups = [file.read_row_group(number).to_pylist() for number in range(file.num_row_groups)]
        assert max(sum(len(row["tokens"]) for row in group) for group in groups) <= AT_ONCE + LONGEST
        rows = [row for group in groups for row in group]
        assert [row["text"] for row in rows] == TEXTS
        return [(row["tokens"], np.array(row["vectors"] if pooling == "none" else [row["vectors"]], np.float32))
                for row in rows]
    with np.load(path, allow_pickle=False) as file:
        assert file["vectors"].dtype == np.float32
        if pooling != "none":
            assert file.files == ["vectors"]
            return [(None, vector[None]) for vector in file["vectors"]]
        assert file["text_ends"].dtype == np.int64 and file["text_ends"][-1] == len(file["vectors"])
        vectors, tokens = (np.split(file[key], file["text_ends"][:-1]) for key in ("vectors", "tokens"))
        return [(some.tolist(), rows) for some, rows in zip(tokens, vectors, strict=True)]


@pytest.fixture(scope="module")
def alone(deep_bert):
    """The vectors of each text alone."""
    model = BertFeatures(deep_bert, "concat-last-4")
    with eagerly():
        return [ops.convert_to_numpy(model(TOKENIZER([text])))[0] for text in TEXTS]


@pytest.mark.parametrize("suffix,pooling,pool,normalize", [
    (".parquet", "none", lambda x: x, False), (".npz", "none", lambda x: x, True),
    (".npz", "mean", lambda x: x.mean(axis=0)[None], True), (".parquet", "cls", lambda x: x[:1], False),
    (".npz", "max", lambda x: x.max(axis=0)[None], False)])
def test_vectors_are_those_of_each_text_alone_in_order(extract, alone, tmp_path, suffix, pooling, pool, normalize):
    status, output, messages = extract(f"--pooling={pooling}", *["--normalize"] * normalize, output=f"new/out{suffix}")
    pieces = [["[CLS]", *TOKENIZER.tokenize(text), "[SEP]"] for text in TEXTS]
    assert status == 0 and all(line.endswith(" of 5 texts") for line in messages)  # progress, on slow machines
    assert output == [f"{tmp_path}/new/out{suffix}: 5 texts, {sum(map(len, pieces))} tokens"]
    assert os.listdir(tmp_path / "new") == [f"out{suffix}"]
    found = read(tmp_path / "new" / f"out{suffix}", pooling)
    for wanted, expected, (tokens, vectors) in zip(pieces, map(pool, alone), found, strict=True):
        assert tokens == (None if suffix == ".npz" and pooling != "none" else wanted)
        if normalize:
            expected = expected / np.linalg.norm(expected, axis=1)[:, None]
        np.testing.assert_allclose(vectors, expected, rtol=0, atol=5e-6)


def test_pairs_from_columns_are_cut_to_max_length(extract, deep_bert, tmp_path):
    pairs = [("play some music", "now"), ("turn on the light", "turn the lamp off please")]
    rows = [json.dumps({"first": first, "second": second}) for first, second in pairs]
    (tmp_path / "pairs.jsonl").write_text("\n".join(rows))
    assert extract("--text_column=first", "--text_pair_column=second", "--max_length=9", "--features=layer-1",
                   input="pairs.jsonl")[0] == 0
    found = read(tmp_path / "out.npz", "none")
    assert found[1][0] == "[CLS] turn on the [SEP] turn the lamp [SEP]".split()
    for pair, (_, vectors) in zip(pairs, found, strict=True):
        wanted = deep_bert.encode(TOKENIZER(*([text] for text in pair), max_length=9)).encoder_outputs[0]
        np.testing.assert_allclose(vectors, ops.convert_to_numpy(wanted)[0], rtol=0, atol=5e-6)


def test_an_encoder_of_two_blocks_gives_both(pretrained, bert, tmp_path):
    (tmp_path / "texts.txt").write_text("play some music\n")
    with pytest.warns(InputWarning, match="^features=concat-last-2, because the encoder has 2 blocks$"):
        features_module.write_features(pretrained, tmp_path / "texts.txt", tmp_path / "out.npz")
    blocks = bert.encode(TOKENIZER(["play some music"])).encoder_outputs
    (_, vectors), = read(tmp_path / "out.npz", "none")
    np.testing.assert_allclose(vectors, np.concatenate(blocks, axis=-1)[0], rtol=0, atol=5e-6)


@pytest.mark.usefixtures("eager")
def test_the_encoder_of_a_folder_that_finetune_wrote(run, trained_once, tmp_path):
    (tmp_path / "texts.txt").write_text("play\n")
    status, _, _ = run("features", f"--model={trained_once}", f"--input={tmp_path}/texts.txt", "--features=last",
                       f"--output={tmp_path}/out.npz")
    model = keras.saving.load_model(trained_once / "model.keras")
    wanted = model.bert(BertTokenizer.from_folder(trained_once)(["play"]))[1]
    assert status == 0
    (_, vectors), = read(tmp_path / "out.npz", "none")
    np.testing.assert_allclose(vectors, ops.convert_to_numpy(wanted)[0], rtol=0, atol=5e-6)


def test_texts_are_cut_where_the_folder_says(extract, tmp_path):
    (tmp_path / "pretrained/sentence_bert_config.json").write_text('{"max_seq_length": 6}')
    assert extract("--features=last")[0] == 0
    with np.load(tmp_path / "out.npz") as file:
        assert np.diff(file["text_ends"], prepend=0).tolist() == [min(len(TOKENIZER.pack([text])[0][0]), 6)
                                                                  for text in TEXTS]


@pytest.mark.parametrize("flags,words", [
    (["--output=out.csv"], ["output must be a file that ends in .npz or .parquet; got 'out.csv'"]),
    (["--features=layer-5"], ["features must be one of", "layer-N", "encoder with 4 blocks; got 'layer-5'"]),
    (["--features=weighted-all"], ["features must be without weights to train; got 'weighted-all'"]),
    (["--max_length=129"], ["max_length must be at most 128, the encoder's positions; got 129"]),
    (["--max_length=2"], ["max_length must be at least 3; got 2"]),
    (["--model=nowhere"], ["nowhere"]),
    (["--input=/nowhere.txt"], ["/nowhere.txt"]),
    (["--input=/nowhere.xlsx"], ["/nowhere.xlsx", ".tsv"]),
])
def test_bad_usage_is_one_line_and_leaves_nothing(extract, tmp_path, flags, words):
    before = sorted(tmp_path.rglob("*"))
    got, output, messages = extract(*flags)
    assert (got, output, len(messages)) == (1, [], 1) and all(word in messages[0] for word in words), messages
    assert sorted(tmp_path.rglob("*")) == before


def test_a_file_without_texts_is_named(extract, tmp_path):
    (tmp_path / "bad.txt").touch()
    assert extract(input="bad.txt")[::2] == (
        1, [f"keras-bert: {tmp_path}/bad.txt: the file must have at least one line of text"])


def test_what_stands_there_is_kept_until_the_new_file_is_whole(extract, tmp_path, monkeypatch):
    (tmp_path / "out.npz").write_text("old")
    before = sorted(tmp_path.iterdir())
    assert extract()[2] == [f"keras-bert: {tmp_path}/out.npz: exists already; pass another path or --overwrite"]
    with monkeypatch.context() as patched:
        patched.setattr(features_module, "run_model", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        assert extract("--overwrite")[0] == 130
    assert (tmp_path / "out.npz").read_text() == "old" and sorted(tmp_path.iterdir()) == before
    assert extract("--overwrite")[0] == 0
    assert len(read(tmp_path / "out.npz", "none")) == len(TEXTS)
