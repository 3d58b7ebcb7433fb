"""Weights of Hugging Face folders in every kind of file: TensorFlow models that transformers 4 wrote and ran
(`python tests/record_transformers4.py`), PyTorch's pickles, and shards."""

import os
import shutil

import numpy as np
import pytest
from keras import ops
from record_transformers4 import FOLDER, LABELS
from safetensors.numpy import load_file, save_file
from test_convert_damaged import split

from keras_bert import models
from keras_bert.convert import load_pretrained, open_source
from keras_bert.errors import InputError, InputWarning
from keras_bert.layers import BertLayer
from keras_bert.weights.tensor_files import open_tensors

from conftest import Peer

torch, transformers = Peer("torch"), Peer("transformers")
CLASSES = {
    "TFBertModel": BertLayer, "TFBertForPreTraining": models.BertPretrainer, "TFBertForMaskedLM": models.BertPretrainer,
    "TFBertForSequenceClassification": models.BertClassifier,
    "TFBertForTokenClassification": models.BertTokenClassifier,
    "TFBertForQuestionAnswering": models.BertSpanLabeler, "TFBertForMultipleChoice": models.BertMultipleChoice}
OUTPUTS = {"mlm_logits": ("prediction_logits", "logits"), "next_sentence_logits": ("seq_relationship_logits",),
           "start_logits": ("start_logits",), "end_logits": ("end_logits",)}


@pytest.mark.parametrize("name", LABELS)
def test_tensorflow_models_of_transformers_4(name):
    reference = load_file(FOLDER / name / "reference.safetensors")
    inputs = {"input_word_ids": reference["input_ids"], "input_mask": reference["attention_mask"],
              "segment_ids": reference["token_type_ids"]}
    options = {"next_sentence": False} if name == "TFBertForMaskedLM" else {}
    outputs = load_pretrained(FOLDER / name, CLASSES[name], **options)(inputs)
    if name == "TFBertModel":
        outputs = dict(zip(("pooler_output", "last_hidden_state"), outputs))
    for key, value in (outputs if isinstance(outputs, dict) else {"logits": outputs}).items():
        wanted = next(reference[other] for other in OUTPUTS.get(key, (key,)) if other in reference)
        value = ops.convert_to_numpy(value)
        if wanted.shape[:2] == inputs["input_mask"].shape:  # of tokens
            value, wanted = (array[inputs["input_mask"] == 1] for array in (value, wanted))
        np.testing.assert_allclose(value, wanted, rtol=0, atol=1e-5, err_msg=key)


def test_every_tensorflow_weight_is_read():
    with pytest.warns(InputWarning, match="tf_model.h5: version 1.0 will not read it; .*: keras-bert convert "):
        source = open_source(FOLDER / "TFBertForPreTraining")
    weights, skipped, missing = source.load()
    assert len(weights.read) == 5 + 16 * 2 + 2 + 7 and not skipped and not missing


def save_pickle(tensors, path, **options):
    torch.save({name: torch.from_numpy(array) for name, array in tensors.items()}, path, **options)


def assert_same_tensors(folder, wanted):
    shapes, get = open_tensors(folder, "bert")
    assert shapes == {name: array.shape for name, array in wanted.items()}
    for name, array in wanted.items():
        np.testing.assert_array_equal(get(name), array, err_msg=name)


@pytest.mark.parametrize("suffix", ["safetensors", pytest.param("bin", marks=pytest.mark.peers)])
def test_shards(pretrained, suffix):
    tensors = load_file(pretrained / "model.safetensors")
    split(pretrained, save_file if suffix == "safetensors" else save_pickle, suffix)
    assert_same_tensors(pretrained, tensors)


@pytest.mark.peers
@pytest.mark.parametrize("options", [{}, {"_use_new_zipfile_serialization": False}])
def test_pickles(pretrained, options):
    tensors = load_file(pretrained / "model.safetensors")
    save_pickle(tensors, pretrained / "pytorch_model.bin", **options)
    (pretrained / "model.safetensors").unlink()
    assert_same_tensors(pretrained, tensors)


class RunsCode:
    """What pickle writes as a call of a shell command."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


@pytest.mark.peers
@pytest.mark.parametrize("in_zip", [True, False])
def test_a_pickle_runs_no_code(pretrained, tmp_path, in_zip):
    ran = tmp_path / "ran"
    torch.save({"a": torch.ones(2), "b": RunsCode(ran)}, pretrained / "pytorch_model.bin",
               _use_new_zipfile_serialization=in_zip)
    (pretrained / "model.safetensors").unlink()
    with pytest.raises(InputError, match="pytorch_model.bin: not a complete pickle of tensors alone: unsupported "
                                         "GLOBAL posix.system") as error:
        open_source(pretrained)
    assert "\n" not in str(error.value) and not ran.exists()
    torch.load(pretrained / "pytorch_model.bin", weights_only=False)  # the file does run code
    assert ran.exists()


@pytest.mark.peers
def test_an_old_pytorch_reads_no_pickle(pretrained, monkeypatch):
    shutil.move(pretrained / "model.safetensors", pretrained / "pytorch_model.bin")
    monkeypatch.setattr("torch.__version__", "2.5.1+cpu")
    with pytest.raises(InputError, match="needs PyTorch 2.6 or later; got 2.5.1"):
        open_source(pretrained)


def test_without_pytorch(pretrained, monkeypatch):
    shutil.move(pretrained / "model.safetensors", pretrained / "pytorch_model.bin")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match="pytorch_model.bin: PyTorch, which reads this pickle .* is not installed"):
        open_source(pretrained)
