"""sentence-transformers folders, in and out, beside the library itself."""

import json
import shutil

import numpy as np
import pytest
from keras import ops

from keras_bert.convert import convert, open_source
from keras_bert.errors import InputError
from keras_bert.layers import BertLayer
from keras_bert.models import BertEmbedder
from keras_bert.text import BertTokenizer
from keras_bert.weights import sentence_transformers
from keras_bert.weights.format import Weights

from conftest import SMALL, TINY_VOCABULARY, Peer, change_json, random_inputs, randomize

library = Peer("sentence_transformers")
TEXTS = ["play some music", "turn the light off, please!", "what time is it today?", "a", "the lamp " * 100]


def numpy(tensor):
    return ops.convert_to_numpy(tensor)


def write(folder, pooling="mean", normalize=True, **settings):
    """Writes a folder of the tiny encoder; returns its path."""
    folder.mkdir()
    model = BertEmbedder(randomize(BertLayer(SMALL)), pooling, normalize)
    sentence_transformers.write(
        Weights.of(model, BertTokenizer(TINY_VOCABULARY), settings={"task": "embed", "max_length": 20} | settings),
        folder)
    return folder


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return write(tmp_path_factory.mktemp("whole") / "folder")


@pytest.fixture
def folder(whole, tmp_path):
    """The folder, of the test's own."""
    return shutil.copytree(whole, tmp_path / "folder")


def embed(folder, texts, **options):
    """Our embeddings of texts, float32 [texts, hidden], of inputs as long as the folder says."""
    source = open_source(folder)
    model = BertEmbedder.from_pretrained(folder, layout="unpadded", **options)
    return numpy(model(source.tokenizer(texts, max_length=source.settings["max_length"])))


@pytest.mark.parametrize(("pooling", "normalize", "layout"), [
    ("mean", True, "padded"), ("mean", False, "unpadded"), ("cls", False, "padded"), ("cls", True, "unpadded"),
    ("max", False, "padded"), ("max", True, "unpadded")])
def test_pooling_counts_no_padding(bert, pooling, normalize, layout):
    inputs = random_inputs(2, 9)
    inputs["input_mask"][1, 5:] = 0
    vectors = numpy(bert(inputs)[1])
    pool = {"mean": lambda rows: rows.mean(axis=0), "cls": lambda rows: rows[0], "max": lambda rows: rows.max(axis=0)}
    wanted = np.stack([pool[pooling](vectors[0]), pool[pooling](vectors[1, :5])])
    if normalize:
        wanted /= np.linalg.norm(wanted, axis=1, keepdims=True)
    model = BertEmbedder(bert.rebuild(layout=layout), pooling, normalize)
    np.testing.assert_allclose(numpy(model(inputs)), wanted, rtol=0, atol=1e-6)


def test_other_formats_cannot_store_the_pooling(folder, tmp_path):
    lines = []
    with pytest.raises(InputError, match="tf1 cannot store these weights exactly: it stores .*, not embedding"):
        convert(folder, tmp_path / "tf1", "tf1")
    convert(folder, tmp_path / "tf1", "tf1", allow_inexact=True, report=lines.append)
    assert any("not embedding: the encoder is written, without its pooling and max_length" in line for line in lines)
    assert open_source(tmp_path / "tf1").kind == "encoder"


def test_an_encoder_has_no_pooling(tmp_path, pretrained_once):
    with pytest.raises(InputError, match="stores embedders, .* not models of the kind encoder; convert to huggingface"):
        convert(pretrained_once, tmp_path / "out", "sentence_transformers", allow_inexact=True)


def test_the_pooling_of_an_encoder_must_be_given(pretrained):
    with pytest.raises(InputError, match="do not say how to pool .*; pass pooling=…, mean, cls or max"):
        BertEmbedder.from_pretrained(pretrained)
    assert BertEmbedder.from_pretrained(pretrained, pooling="cls").pooling == "cls"


def test_an_encoder_is_loaded_from_a_folder_with_modules(folder):
    inputs = random_inputs(2, 9)
    bert, model = BertLayer.from_pretrained(folder), BertEmbedder.from_pretrained(folder)
    np.testing.assert_array_equal(numpy(bert(inputs)[1]), numpy(model.bert(inputs)[1]))
    assert open_source(folder).settings["max_length"] == 20


def test_the_documented_call_cuts_texts_where_the_library_does(whole):
    """docs/migration.md, for `SentenceTransformer(F).encode(texts)`; one text is longer than `max_seq_length`."""
    found = BertEmbedder.from_pretrained(whole)(BertTokenizer.from_folder(whole)(TEXTS))
    np.testing.assert_allclose(numpy(found), embed(whole, TEXTS), rtol=0, atol=1e-6)


def test_a_cross_encoder_is_a_hugging_face_folder(pretrained):
    (pretrained / "modules.json").write_text(json.dumps([
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.base.modules.transformer.Transformer"}]))
    assert open_source(pretrained).format == "huggingface"


def test_a_transformer_in_a_folder_of_its_own(folder, whole):
    (folder / "0_Transformer").mkdir()
    for file in ("config.json", "model.safetensors", "vocab.txt", "tokenizer_config.json", "sentence_bert_config.json"):
        (folder / file).rename(folder / "0_Transformer" / file)
    modules = json.loads((folder / "modules.json").read_text())
    modules[0]["path"] = "0_Transformer"
    (folder / "modules.json").write_text(json.dumps(modules))
    assert open_source(folder).settings["max_length"] == BertTokenizer.from_folder(folder).max_length == 20
    np.testing.assert_array_equal(embed(folder, TEXTS), embed(whole, TEXTS))


def test_settings_of_another_task_are_left_out(folder):
    change_json(folder / "config.json", problem_type="multi_label_classification",
                keras_bert={"task": "multilabel", "thresholds": [0.1], "pairs": True})
    assert open_source(folder).settings == {"task": "embed", "max_length": 20}


def test_a_default_prompt_alone_is_empty(folder):
    """As in the library, which has empty prompts for queries and documents."""
    change_json(folder / "config_sentence_transformers.json", prompts=None, default_prompt_name="query")
    assert open_source(folder).settings == {"task": "embed", "max_length": 20}


@pytest.mark.peers
@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
@pytest.mark.parametrize("normalize", [False, True])
def test_sentence_transformers_reads_what_is_written_and_the_other_way(tmp_path, pooling, normalize):
    folder = write(tmp_path / "folder", pooling, normalize)
    model = library.SentenceTransformer(str(folder), device="cpu")
    assert model.max_seq_length == 20
    model.save(str(tmp_path / "saved"))
    for path in (folder, tmp_path / "saved"):
        np.testing.assert_allclose(embed(path, TEXTS), model.encode(TEXTS), rtol=0, atol=1e-5)
