import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from keras_bert.convert import load_pretrained
from keras_bert.convert.huggingface import TABLE
from keras_bert.convert.kinds import shapes, variable
from keras_bert.convert.weights import Weights
from keras_bert.errors import InputError
from keras_bert.layers import BertLayer

from conftest import TINY, random_inputs


def change(folder, edit):
    """Rewrites the folder's tensors through `edit`."""
    tensors = edit(load_file(folder / "model.safetensors"))
    save_file({key: np.ascontiguousarray(value) for key, value in tensors.items()}, folder / "model.safetensors")


def assert_same_weights(got, wanted):
    for one, other in zip(got.get_weights(), wanted.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_every_weight_of_minilm_is_carried(minilm, minilm_bert):
    names = shapes(minilm_bert.config)
    assert len(names) == len(minilm_bert.weights) == 5 + 16 * 6 + 2 == 103
    tensors = load_file(minilm / "model.safetensors")
    assert {TABLE[name].stored_name for name in names} == tensors.keys() - {"embeddings.position_ids"}
    assert {id(variable(minilm_bert, name)) for name in names} == {id(weight) for weight in minilm_bert.weights}
    assert minilm_bert.count_params() == sum(tensors[TABLE[name].stored_name].size for name in names)


def test_round_trip(pretrained, bert):
    assert_same_weights(BertLayer.from_pretrained(pretrained), bert)


@pytest.mark.peers
def test_saved_by_transformers(tmp_path):
    import transformers

    model = transformers.BertForSequenceClassification(transformers.BertConfig(**TINY.to_dict(), num_labels=3))
    model.save_pretrained(tmp_path)  # with the prefix bert. and a head
    loaded = load_pretrained(tmp_path)
    for name, array in Weights.of(loaded).arrays(TABLE):
        np.testing.assert_array_equal(array, model.bert.state_dict()[name.stored_name].numpy())


def test_old_names(pretrained, bert):
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}

    def rename(key):
        for new, name in old.items():
            key = key.replace(new, name)
        return f"bert.{key}"

    change(pretrained, lambda tensors: {rename(key): value for key, value in tensors.items()})
    assert_same_weights(load_pretrained(pretrained), bert)


def test_half_precision_files(pretrained, bert):
    change(pretrained, lambda tensors: {key: value.astype("float16") for key, value in tensors.items()})
    loaded = load_pretrained(pretrained)
    assert loaded.weights[0].dtype == "float32"
    for got, wanted in zip(loaded.get_weights(), bert.get_weights()):
        np.testing.assert_array_equal(got, wanted.astype("float16"))


def test_dtype(pretrained):
    pooled, _ = load_pretrained(pretrained, dtype="bfloat16")(random_inputs(2, 5))
    assert pooled.dtype == "bfloat16"


def test_missing_extra_and_misshapen_weights_are_listed_at_once(pretrained):
    def damage(tensors):
        tensors.pop("pooler.dense.bias")
        tensors["embeddings.word_embeddings.weight"] = tensors["embeddings.word_embeddings.weight"][:-1]
        return tensors | {"encoder.layer.2.output.dense.bias": np.zeros(16, "float32")}

    change(pretrained, damage)
    with pytest.raises(InputError) as error:
        load_pretrained(pretrained)
    for words in (str(pretrained), "missing pooler.dense.bias", "unexpected encoder.layer.2.output.dense.bias",
                  "embeddings.word_embeddings.weight has shape (59, 16)", "(60, 16)"):
        assert words in str(error.value)


def test_damaged_folders_name_the_file(pretrained, tmp_path):
    def refused(word, folder):
        with pytest.raises(InputError) as error:
            load_pretrained(folder)
        assert word in str(error.value)

    truncated = shutil.copytree(pretrained, tmp_path / "truncated")
    weights = truncated / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    refused("model.safetensors", truncated)

    text = shutil.copytree(pretrained, tmp_path / "text")
    (text / "model.safetensors").write_text("not tensors at all")
    refused("model.safetensors", text)

    pickle = shutil.copytree(pretrained, tmp_path / "pickle")
    (pickle / "model.safetensors").rename(pickle / "pytorch_model.bin")
    refused("pytorch_model.bin: ", pickle)

    empty = shutil.copytree(pretrained, tmp_path / "empty")
    (empty / "model.safetensors").unlink()
    refused("must contain model.safetensors", empty)

    config = shutil.copytree(pretrained, tmp_path / "config")
    (config / "config.json").write_text(json.dumps(TINY.to_dict() | {"num_attention_heads": 5}))
    refused("config.json", config)
    refused("none", tmp_path / "nowhere")
