import keras
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from keras_bert.convert import load_pretrained
from keras_bert.errors import InputError, InputWarning
from keras_bert.layers import BertLayer
from keras_bert.models import BertClassifier, BertTokenClassifier
from keras_bert.tasks import Classify
from keras_bert.text import BertTokenizer
from keras_bert.training import FineTuned
from keras_bert.weights.huggingface_models import TYPES
from keras_bert.weights.kinds import initial, shapes, variable

from conftest import TINY, TINY_VOCABULARY, few_objects, random_inputs, write_huggingface

TABLE = TYPES["bert"].table("encoder")
QUERY, VALUE = "bert.blocks.0.attention.query.kernel", "bert.blocks.1.attention.value.kernel"


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


def test_lora_is_no_missing_head(tmp_path):
    classifier = BertClassifier(BertLayer(TINY), 2)
    folder = write_huggingface(tmp_path / "source", classifier)
    loaded = load_pretrained(folder, BertClassifier, lora_rank=2)
    np.testing.assert_array_equal(loaded.classifier.kernel, classifier.classifier.kernel)
    with pytest.warns(InputWarning, match="no BertClassifier head in these weights; it is randomly initialised"):
        load_pretrained(folder, BertClassifier, num_classes=3, lora_rank=2)


@pytest.mark.filterwarnings("ignore:.*does not have a `quantize` method")
def test_a_quantized_model_is_refused(run, tmp_path):
    """Its kernels are integers."""
    model, tokenizer = BertClassifier(BertLayer(TINY), 2), BertTokenizer(TINY_VOCABULARY)
    with few_objects():
        model.quantize("int8")
    with pytest.raises(InputError, match="model must not be quantized; save it before you call quantize"):
        FineTuned(model, tokenizer, Classify(64, ["a", "b"])).save(tmp_path / "saved")
    (tmp_path / "source").mkdir()
    model.save(tmp_path / "source/model.keras")
    status, _, messages = run("convert", f"--model={tmp_path / 'source'}", f"--output={tmp_path / 'out'}",
                              "--format=huggingface")
    assert status == 1 and messages == [
        "keras-bert: --model must not be quantized; convert it before you call quantize"]
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_a_model_of_another_kind_is_refused(run, tmp_path):
    keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)]).save(tmp_path / "model.keras")
    with pytest.raises(InputError, match="model must be a BertLayer or have one of .*; got Sequential"):
        BertLayer.from_pretrained(tmp_path)
    _, _, messages = run("convert", f"--model={tmp_path}", f"--output={tmp_path / 'out'}", "--format=huggingface")
    assert messages == ["keras-bert: --model must be a BertLayer or have one of this package's heads; got Sequential"]


def test_weights_differ_although_their_names_are_equally_long():
    first, second = (initial(name, (64, 64), TINY) for name in (QUERY, VALUE))
    assert len(QUERY) == len(VALUE) and abs(np.corrcoef(first.ravel(), second.ravel())[0, 1]) < 0.1
    np.testing.assert_array_equal(first, initial(QUERY, (64, 64), TINY))


def test_kernels_are_drawn_from_a_truncated_normal_distribution():
    values = initial(QUERY, (200, 200), TINY) / TINY.initializer_range
    assert abs(values.mean()) < 0.02 and abs(values.std() - 0.88) < 0.02 and np.abs(values).max() <= 2


@pytest.mark.parametrize("head", [BertClassifier, BertTokenClassifier])
def test_a_head_of_unknown_width_is_asked_for(pretrained, head):
    with pytest.raises(InputError) as error:
        head.from_pretrained(pretrained)
    assert str(error.value) == (f"{pretrained}: these weights have no classification head; pass num_classes=…, the "
                                f"number of classes, for {head.__name__} to add one")
