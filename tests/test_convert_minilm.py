"""Real weights through every format, beside the libraries that own them."""

import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file

from keras_bert.convert import convert
from keras_bert.text import BertTokenizer

from conftest import Peer

TEXTS = ["The quick brown fox jumps over the lazy dog.", "How do I reset my password?", "北京 and Zürich", "ok"]
torch, transformers, keras_hub = Peer("torch"), Peer("transformers"), Peer("keras_hub")
pytestmark = [pytest.mark.peers, pytest.mark.slow]


@pytest.fixture(scope="module")
def minilm(minilm, tmp_path_factory):
    """MiniLM's encoder alone: without the modules of sentence-transformers."""
    ignore = shutil.ignore_patterns("modules.json", "1_Pooling")
    return shutil.copytree(minilm, tmp_path_factory.mktemp("minilm") / "encoder", ignore=ignore)


@pytest.fixture(scope="module")
def inputs(minilm):
    return BertTokenizer.from_folder(minilm)(TEXTS)


@pytest.fixture(scope="module")
def wanted(minilm, inputs):
    return pytorch_outputs(minilm, inputs)


@pytest.fixture(scope="module")
def wanted_of_tanh(minilm, inputs):
    return pytorch_outputs(minilm, inputs, hidden_act="gelu_new")


@pytest.fixture(scope="module")
def tanh(minilm, tmp_path_factory):
    """MiniLM's config with the GELU that KerasHub and the Model Garden have."""
    path = tmp_path_factory.mktemp("tanh") / "config.json"
    path.write_text(json.dumps(json.loads((minilm / "config.json").read_text()) | {"hidden_act": "gelu_new"}))
    return path


def pytorch_outputs(minilm, inputs, **changes):
    model = transformers.BertModel.from_pretrained(minilm, **changes).eval()
    with torch.inference_mode():
        outputs = model(*(torch.from_numpy(inputs[key]).long()
                          for key in ("input_word_ids", "input_mask", "segment_ids")))
    return outputs.pooler_output.numpy(), outputs.last_hidden_state.numpy()


def assert_close(inputs, got, wanted):
    real = inputs["input_mask"].astype(bool)
    np.testing.assert_allclose(got[0], wanted[0], atol=2e-5)
    np.testing.assert_allclose(np.asarray(got[1])[real], wanted[1][real], atol=2e-5)


def assert_same_file(minilm, folder):
    tensors = load_file(minilm / "model.safetensors")
    del tensors["embeddings.position_ids"]
    again = load_file(folder / "model.safetensors")
    assert tensors.keys() == again.keys()
    for name, array in tensors.items():
        np.testing.assert_array_equal(again[name], array, err_msg=name)


@pytest.mark.parametrize("form", ["huggingface", "tf1", "keras_bert", "hub"])
def test_there_and_back(minilm, inputs, wanted, tmp_path, form):
    found = convert(minilm, tmp_path / form, form)
    assert max(found.values()) <= 2e-6  # the SavedModel fuses its operations in another way
    convert(tmp_path / form, tmp_path / "back", "huggingface")
    assert_same_file(minilm, tmp_path / "back")
    assert_close(inputs, pytorch_outputs(tmp_path / "back", inputs), wanted)


def test_kerashub(minilm, tanh, inputs, wanted_of_tanh, tmp_path):
    convert(minilm, tmp_path / "kerashub", "kerashub", config=tanh)
    backbone = keras_hub.models.BertBackbone.from_preset(str(tmp_path / "kerashub"))
    outputs = backbone({"token_ids": inputs["input_word_ids"], "padding_mask": inputs["input_mask"],
                        "segment_ids": inputs["segment_ids"]})
    assert_close(inputs, (outputs["pooled_output"], outputs["sequence_output"]), wanted_of_tanh)
    backbone.save_to_preset(str(tmp_path / "peer"))
    convert(tmp_path / "peer", tmp_path / "back", "huggingface")
    assert_same_file(minilm, tmp_path / "back")


@pytest.fixture(scope="module")
def garden(minilm, tanh, tmp_path_factory):
    folder = tmp_path_factory.mktemp("garden") / "garden"
    convert(minilm, folder, "garden", config=tanh)
    return folder


@pytest.mark.parametrize("version", ["BertEncoder", "BertEncoderV2"])
def test_garden(minilm, garden, inputs, wanted_of_tanh, tmp_path, version):
    import tensorflow as tf
    from official.nlp.modeling import networks

    sizes = {"vocab_size": 30522, "hidden_size": 384, "num_layers": 6, "num_attention_heads": 12,
             "type_vocab_size": 2, "max_sequence_length": 512}
    width = {"intermediate_size" if version == "BertEncoder" else "inner_dim": 1536}
    encoder = getattr(networks, version)(**sizes, **width, **({"dict_outputs": True} if len(version) == 11 else {}))
    encoder(encoder.inputs)
    prefix = tf.train.latest_checkpoint(str(garden))
    tf.train.Checkpoint(encoder=encoder).restore(prefix).assert_existing_objects_matched()
    outputs = encoder({"input_word_ids": inputs["input_word_ids"], "input_mask": inputs["input_mask"],
                       "input_type_ids": inputs["segment_ids"]})
    assert_close(inputs, (outputs["pooled_output"], outputs["sequence_output"]), wanted_of_tanh)
    tf.train.Checkpoint(encoder=encoder).save(str(tmp_path / "peer/ckpt"))
    convert(tmp_path / "peer", tmp_path / "back", "huggingface", config=garden / "bert_config.json")
    assert_same_file(minilm, tmp_path / "back")
