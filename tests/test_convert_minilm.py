"""Real weights through every format, beside the libraries that own them."""

import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from keras_bert.convert import convert
from keras_bert.text import BertTokenizer

from conftest import Peer

TEXTS = ["The quick brown fox jumps over the lazy dog.", "How do I reset my password?", "北京 and Zürich", "ok"]
torch, transformers, keras_hub = Peer("torch"), Peer("transformers"), Peer("keras_hub")
pytestmark = [pytest.mark.peers, pytest.mark.slow("weights of a real size, in the libraries themselves")]


@pytest.fixture(scope="module")
def minilm(minilm, tmp_path_factory):
    """The first half of MiniLM's encoder: without the modules of sentence-transformers."""
    folder = tmp_path_factory.mktemp("minilm")
    for name in ("vocab.txt", "tokenizer_config.json"):
        shutil.copy(minilm / name, folder)
    config = json.loads((minilm / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))
    save_file({name: array for name, array in load_file(minilm / "model.safetensors").items()
               if not name.startswith(("encoder.layer.3", "encoder.layer.4", "encoder.layer.5"))},
              folder / "model.safetensors")
    return folder


@pytest.fixture(scope="module")
def inputs(minilm):
    return BertTokenizer.from_folder(minilm)(TEXTS)


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


def test_through_our_formats(minilm, inputs, tmp_path):
    """And at the end, the first file."""
    wanted = pytorch_outputs(minilm, inputs)
    source = minilm
    for form in ("tf1", "keras_bert", "hub", "huggingface"):
        found = convert(source, tmp_path / form, form)
        assert max(found.values()) <= 2e-6  # the SavedModel fuses its operations in another way
        source = tmp_path / form
    assert_same_file(minilm, source)
    assert_close(inputs, pytorch_outputs(source, inputs), wanted)


def test_through_kerashub_and_the_garden(minilm, tanh, inputs, tmp_path):
    import tensorflow as tf
    from official.nlp.modeling import networks

    wanted = pytorch_outputs(minilm, inputs, hidden_act="gelu_new")
    convert(minilm, tmp_path / "kerashub", "kerashub", config=tanh)
    backbone = keras_hub.models.BertBackbone.from_preset(str(tmp_path / "kerashub"))
    outputs = backbone({"token_ids": inputs["input_word_ids"], "padding_mask": inputs["input_mask"],
                        "segment_ids": inputs["segment_ids"]})
    assert_close(inputs, (outputs["pooled_output"], outputs["sequence_output"]), wanted)
    backbone.save_to_preset(str(tmp_path / "peer"))

    convert(tmp_path / "peer", tmp_path / "garden", "garden")
    encoder = networks.BertEncoderV2(vocab_size=30522, hidden_size=384, num_layers=3, num_attention_heads=12,
                                     inner_dim=1536, type_vocab_size=2, max_sequence_length=512)
    encoder(encoder.inputs)
    prefix = tf.train.latest_checkpoint(str(tmp_path / "garden"))
    tf.train.Checkpoint(encoder=encoder).restore(prefix).assert_existing_objects_matched()
    outputs = encoder({"input_word_ids": inputs["input_word_ids"], "input_mask": inputs["input_mask"],
                       "input_type_ids": inputs["segment_ids"]})
    assert_close(inputs, (outputs["pooled_output"], outputs["sequence_output"]), wanted)
    tf.train.Checkpoint(encoder=encoder).save(str(tmp_path / "saved/ckpt"))
    convert(tmp_path / "saved", tmp_path / "back", "huggingface", config=tmp_path / "garden/bert_config.json")
    assert_same_file(minilm, tmp_path / "back")
