"""Google's TensorFlow 1 checkpoints, beside the same weights carried by hand into PyTorch's model."""

import json
import shutil

import numpy as np
import pytest

from keras_bert.config import BertConfig
from keras_bert.convert import convert, open_source
from keras_bert.errors import InputError
from keras_bert.layers import BertLayer
from keras_bert.models import BertPretrainer
from keras_bert.text import BertTokenizer
from keras_bert.weights import tf1
from keras_bert.weights.bundle import Bundle, write_bundle
from keras_bert.weights.format import Weights
from keras_bert.weights.kinds import shapes

from conftest import REAL, SMALL, TINY_VOCABULARY, random_inputs, randomize

CHECKPOINT = REAL / "checkpoints/tiny_tf1_kerasbert"
INDEX = REAL / "checkpoints/google_index_tensors.json"
HEADS = {"cls/predictions/transform/dense/kernel": "cls.predictions.transform.dense.weight",
         "cls/predictions/transform/dense/bias": "cls.predictions.transform.dense.bias",
         "cls/predictions/transform/LayerNorm/gamma": "cls.predictions.transform.LayerNorm.weight",
         "cls/predictions/transform/LayerNorm/beta": "cls.predictions.transform.LayerNorm.bias",
         "cls/predictions/output_bias": "cls.predictions.bias",
         "cls/seq_relationship/output_weights": "cls.seq_relationship.weight",
         "cls/seq_relationship/output_bias": "cls.seq_relationship.bias"}


def pytorch_name(name):
    """What PyTorch's BertForPreTraining calls a TensorFlow 1 variable."""
    if name in HEADS:
        return HEADS[name]
    name = name.replace("/layer_", "/layer.").replace("/", ".").replace("gamma", "weight").replace("beta", "bias")
    return name.removesuffix(".kernel") + ".weight" if name.endswith((".kernel", "_embeddings")) else name


@pytest.mark.peers
def test_logits_of_a_genuine_checkpoint():
    import torch
    import transformers

    bundle = Bundle(str(CHECKPOINT / "bert_model.ckpt"))
    config = transformers.BertConfig.from_json_file(CHECKPOINT / "bert_config.json")
    peer = transformers.BertForPreTraining._from_config(config, attn_implementation="eager").eval()
    tensors = {}
    for name in bundle.shapes:
        if name != "global_step" and "adam" not in name:
            array = bundle.get(name)
            tensors[pytorch_name(name)] = torch.tensor(array.T.copy() if name.endswith("/kernel") else array)
    loaded = peer.load_state_dict(tensors, strict=False)
    assert loaded.unexpected_keys == []
    assert set(loaded.missing_keys) <= {"cls.predictions.decoder.weight", "cls.predictions.decoder.bias"}  # tied

    model = BertPretrainer.from_pretrained(CHECKPOINT)
    inputs = random_inputs(4, 16, model.bert.config)
    inputs["input_mask"][1, 9:] = 0
    with torch.inference_mode():
        wanted = peer(*(torch.from_numpy(inputs[key]).long()
                          for key in ("input_word_ids", "input_mask", "segment_ids")))
    outputs = model(inputs)
    real = inputs["input_mask"].astype(bool)
    # The sums are of four numbers: nothing but rounding differs.
    np.testing.assert_allclose(np.asarray(outputs["mlm_logits"])[real], wanted.prediction_logits[real], atol=1e-5)
    np.testing.assert_allclose(outputs["next_sentence_logits"], wanted.seq_relationship_logits, atol=1e-5)


def test_every_tensor_of_it_is_accounted_for():
    source = open_source(CHECKPOINT)
    weights, skipped, missing = source.load()
    loaded = {tf1.TABLE[name].stored_name for name in weights.read}
    assert source.kind == "pretraining" and missing == [] and len(loaded) == 46
    assert loaded | skipped.keys() == source.shapes.keys()
    assert all(name == "global_step" or name.endswith(("/adam_m", "/adam_v")) for name in skipped)
    assert source.tokenizer.vocabulary[:5] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


@pytest.mark.parametrize("name,config", [
    ("google_chinese_L12_index_only", BertConfig.from_size("chinese")),
    ("google_uncased_L8_H512_index_only", BertConfig.from_size("medium"))])
def test_the_table_covers_what_google_released(name, config):
    released = {name: tuple(tensor["shape"]) for name, tensor in json.loads(INDEX.read_text())[name].items()}
    ours = {tf1.TABLE[name].stored_name: tf1.TABLE[name].stored_shape(shape, config)
            for name, shape in shapes(config, "pretraining").items()}
    assert ours == released


@pytest.fixture
def checkpoint(tmp_path):
    """A checkpoint of a tiny encoder with both heads of pretraining, and its model."""
    model = randomize(BertPretrainer(BertLayer(SMALL)))
    tf1.write(Weights.of(model, BertTokenizer(TINY_VOCABULARY)), tmp_path)
    return tmp_path, model


def test_a_path_may_name_one_of_several_checkpoints(checkpoint):
    folder, model = checkpoint
    for file in list(folder.glob("bert_model.ckpt.*")):
        shutil.copy(file, str(file).replace("bert_model.ckpt", "model.ckpt-10"))
    with pytest.raises(InputError, match="multiple checkpoints.*bert_model.ckpt.*model.ckpt-10"):
        open_source(folder)
    loaded = BertPretrainer.from_pretrained(folder / "model.ckpt-10")
    np.testing.assert_array_equal(loaded.mlm.bias, model.mlm.bias)
    (folder / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-10"\n')
    assert open_source(folder).path.endswith("model.ckpt-10")


@pytest.mark.parametrize("name", ["bert/pooler/dense/kernel/lamb_m", "bert/pooler/dense/bias/Adam_1", "beta1_power",
                                  "global_step", "cls/predictions/output_bias/adam_v_1"])
def test_what_optimizers_leave_is_skipped(checkpoint, name):
    folder, model = checkpoint
    add(folder, name)
    loaded = BertPretrainer.from_pretrained(folder)
    np.testing.assert_array_equal(loaded.mlm.bias, model.mlm.bias)


def add(folder, name):
    """Another variable in the checkpoint."""
    bundle = Bundle(str(folder / "bert_model.ckpt"))
    arrays = [(key, bundle.get(key)) for key in bundle.shapes]
    write_bundle(str(folder / "bert_model.ckpt"), [*arrays, (name, np.zeros(3, np.float32))])


def test_an_unknown_variable_is_an_error_unless_named(checkpoint, tmp_path):
    folder, _ = checkpoint
    add(folder, "adapter/kernel")
    with pytest.raises(InputError, match="unexpected adapter/kernel$"):
        convert(folder, tmp_path / "out", "huggingface")
    lines = []
    convert(folder, tmp_path / "out", "huggingface", ignore=["adapter/*"], report=lines.append)
    assert "skipped 1: adapter/kernel: ignored" in lines
