"""How an encoder runs and what of it trains: declared by its arguments, and the same after every way to copy it."""

import dataclasses
import json
import warnings
import zipfile

import keras
import numpy as np
import pytest
from keras import ops
from keras.src.testing import TestCase

from keras_bert import kernels
from keras_bert.errors import InputError
from keras_bert.layers import BertLayer, MaskedLMHead
from keras_bert.models import BertClassifier, BertFeatures, BertFeatureTagger, BertPretrainer, load_model

from conftest import SMALL, TINY, few_objects, random_inputs, randomize, write_huggingface

INPUTS = random_inputs(3, 7)
INPUTS["input_mask"][1, 4:] = 0
LABELS = np.array([2, 0, 1])
ALL = 5 + 2 * 16 + 2  # variables of the encoder: embeddings, two blocks, pooler

on_tensorflow = pytest.mark.skipif(kernels.BACKEND == "jax", reason="layout='unpadded' runs on TensorFlow alone")


def numpy(tensor):
    return ops.convert_to_numpy(tensor)


def tensors():
    return {name: keras.Input((None,), dtype="int32", name=name) for name in INPUTS}


def head(bert):
    return BertClassifier(bert, 3)


def functional(bert):
    inputs = tensors()
    return keras.Model(inputs, keras.layers.Dense(3)(bert(inputs)[0]))


def reload(model, tmp_path):
    model.save(tmp_path / "model.keras")
    return keras.saving.load_model(tmp_path / "model.keras")


def by_config(model, tmp_path):
    return type(model).from_config(model.get_config())


def clone(model, tmp_path):
    return keras.models.clone_model(model)


def rebuild(model, tmp_path):
    return model.rebuild()


def encoder(*changes, **arguments):
    bert = BertLayer(TINY, **arguments)
    for change in changes:
        change(bert)
    return bert


def freeze(layer_of):
    """A function of a model that freezes a layer of it."""
    return lambda model: setattr(layer_of(model), "trainable", False)


def with_frozen(layer_of, model):
    layer_of(model).trainable = False
    return model


def tagger(**arguments):
    bert = BertLayer(TINY)
    BertFeatureTagger(bert, 3, "last", units=5)  # takes the first numbers of Keras's names
    return BertFeatureTagger(bert, 3, "last", units=5, **arguments)


# A model, and how many of its variables train. Each way to freeze, of each kind of model, by each kind of copy once.
@pytest.mark.parametrize("make,count,copy", [
    (lambda: head(encoder(freeze(lambda bert: bert))), 2, reload),
    (lambda: functional(encoder(trainable=False, lora_rank=2)), 2, clone),
    (lambda: head(encoder(lambda bert: bert.freeze(1))), 20, by_config),
    (lambda: functional(encoder(frozen=["embeddings", "block_0"])), 20, reload),
    (lambda: head(encoder(lambda bert: bert.enable_lora(2))), 10, reload),
    (lambda: functional(encoder(lora_rank=2)), 10, by_config),
    (lambda: functional(encoder(lambda bert: bert.freeze(1), lambda bert: bert.enable_lora(2))), 6, clone),
    (lambda: head(encoder(lora_rank=2, frozen=["block_0/attention/query"])), 8, clone),
    (lambda: head(encoder(freeze(lambda bert: bert.blocks[0]), lora_rank=2)), 6, rebuild),
    (lambda: head(encoder(freeze(lambda bert: bert.pooler))), ALL, reload),
    (lambda: functional(encoder(freeze(lambda bert: bert.embeddings.word_embeddings),
                                freeze(lambda bert: bert.blocks[0].attention.query))), ALL - 1, reload),
    (lambda: with_frozen(lambda model: model.classifier, head(BertLayer(TINY))), ALL, by_config),
    (lambda: BertClassifier(BertLayer(TINY), 3, frozen=["classifier"]), ALL, reload),
    (lambda: with_frozen(lambda model: model.first.forward_layer, tagger()), 11, reload),
    (lambda: tagger(frozen=["first/forward_lstm"]), 11, clone)])
def test_what_is_frozen_stays_frozen(make, count, copy, tmp_path):
    """A head that is frozen, copied and thawed trains what it trained before; Keras's own models do not."""
    model = make()
    again = copy(model, tmp_path)
    assert len(model.trainable_variables) == len(again.trainable_variables) == count
    assert getattr(again, "frozen", None) == getattr(model, "frozen", None)
    again.trainable = False
    thawed = copy(again, tmp_path)
    assert again.trainable_variables == thawed.trainable_variables == []
    for each in (again, thawed) if isinstance(model, BertClassifier) else ():
        each.trainable = True
        assert len(each.trainable_variables) == (count if count > 2 else ALL + 2)


@pytest.mark.usefixtures("eager")
def test_a_saved_optimizer_keeps_its_state_in_mixed_float16(tmp_path):
    """Version 0.1 did not scale the loss."""
    model = head(BertLayer(SMALL, dtype="mixed_float16"))
    model.compile("adam", "mse", None, None, None, False, 1, "auto", False)
    model.fit(INPUTS, np.eye(3), verbose=0)
    copy = reload(model, tmp_path)
    assert type(copy.optimizer) is type(model.optimizer) is keras.optimizers.Adam
    for copied, original in zip(copy.optimizer.variables, model.optimizer.variables, strict=True):
        np.testing.assert_array_equal(numpy(copied), numpy(original))


def test_the_loss_is_scaled_where_the_encoder_is_in_mixed_float16(tmp_path):
    model = head(BertLayer(SMALL, dtype="mixed_float16"))
    model.compile("adam", "mse")
    assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    again = reload(model, tmp_path)
    assert not isinstance(again.optimizer.inner_optimizer, keras.optimizers.LossScaleOptimizer)
    model.compile(None, "mse")
    assert model.optimizer is None
    model.compile("adam", "mse", auto_scale_loss=False)
    assert not isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)


@pytest.mark.usefixtures("eager")
def test_a_head_trains_what_is_left_after_a_reload(tmp_path):
    """Also with LoRA, both of whose factors Keras sets to zero."""
    for arguments in ({"frozen": ["embeddings", "block_0"]}, {"lora_rank": 2}):
        model = reload(head(randomize(BertLayer(SMALL, **arguments))), tmp_path)
        model.compile(keras.optimizers.SGD(0.5), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        before, trained = model.get_weights(), {weight.path for weight in model.trainable_weights}
        model.fit(INPUTS, LABELS, epochs=2, verbose=0)
        assert {weight.path for weight, value in zip(model.weights, before, strict=True)
                if (numpy(weight) != value).any()} == trained


def test_the_config_has_every_argument():
    arguments = {"layout": "packed", "frozen": ["block_1", "pooler"], "lora_rank": 3, "gradient_checkpointing": True,
                 "output_mask": True, "trainable": False, "name": "encoder"}
    config = BertLayer(TINY, **arguments).get_config()
    assert {name: config[name] for name in arguments} == arguments
    assert BertLayer.from_config(config).get_config() == json.loads(json.dumps(config)) == config


def test_impossible_arguments_and_inputs():
    packed = INPUTS | {"sequence_ids": INPUTS["input_mask"], "pooled_positions": np.arange(3, dtype="int32") * 7}
    needs = "layout='packed', and no other, needs inputs with sequence_ids and pooled_positions; got layout="
    layouts = "layout must be one of padded, packed, unpadded; got 'ragged'"
    bert = BertLayer(TINY)
    for call, message in (
            (lambda: BertLayer(TINY, layout="ragged"), layouts), (lambda: bert(INPUTS, layout="ragged"), layouts),
            (lambda: BertLayer(TINY, frozen=["block_2"]),
             "frozen must name layers: embeddings, block_0, block_1, pooler, or .*; got 'block_2'"),
            (lambda: bert(packed), f"{needs}'padded' and input_word_ids, .*, pooled_positions"),
            (lambda: bert([*INPUTS.values()], layout="packed"), f"{needs}'packed' and a list"),
            (lambda: bert(INPUTS, outputs="both"), "outputs must be one of pair, pooled, all, attention; got 'both'")):
        with pytest.raises(ValueError, match=message):
            call()


@on_tensorflow
def test_xla_is_not_asked_for_without_padding():
    model = head(BertLayer(TINY, layout="unpadded"))
    assert not model.bert.supports_jit and BertLayer(TINY).supports_jit
    with pytest.warns(UserWarning, match="`jit_compile=True`"):
        model.compile("sgd", "mse", jit_compile=True)
    assert not model.jit_compile


def test_states_of_each_block_in_a_functional_model(bert, tmp_path):
    inputs = tensors()
    outputs = bert.encode(inputs)
    model = keras.Model(inputs, [*outputs.encoder_outputs, bert.pool(inputs), outputs.embedding_output])
    again = reload(model, tmp_path)
    encoded = bert.encode(INPUTS)
    wanted = [*encoded.encoder_outputs, encoded.pooled_output, encoded.embedding_output]
    for got, reloaded, value in zip(model(INPUTS), again(INPUTS), wanted, strict=True):
        np.testing.assert_allclose(numpy(got), numpy(value), atol=2e-6)
        np.testing.assert_array_equal(numpy(reloaded), numpy(got))


class Subclassed(keras.Model):
    """Layers that skip what a Keras mask hides."""

    def __init__(self, bert):
        super().__init__()
        self.bert, self.lstm, self.attention = bert, keras.layers.LSTM(4), keras.layers.MultiHeadAttention(2, 4)
        self.pooling = keras.layers.GlobalAveragePooling1D()

    def call(self, inputs):
        sequence = self.bert(inputs)[1]
        parts = self.lstm(sequence), self.pooling(self.bert.encode(inputs).sequence_output)
        return ops.concatenate([*parts, self.pooling(self.attention(sequence, sequence))], axis=1)


@pytest.mark.parametrize("is_functional,layout,copy", [
    (True, "padded", reload), *(pytest.param(*case, marks=[
        pytest.mark.slow("masks that a way to copy a model loses"), pytest.mark.backend("tensorflow")]) for case in (
            (True, "padded", clone), (True, "unpadded", by_config),
            (False, "padded", lambda model, _: Subclassed(model.bert.rebuild()))))])
@pytest.mark.usefixtures("eager")
def test_layers_skip_padding_by_the_output_mask(is_functional, layout, copy, tmp_path):
    """As if each text were alone; in training, too, wherever the padding ends."""
    config, inputs = dataclasses.replace(SMALL, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0), tensors()
    model, plain = (Subclassed(BertLayer(config, **modes)) for modes in ({"layout": layout, "output_mask": True}, {}))
    if is_functional:
        model, plain = (keras.Model(inputs, Subclassed.call(each, inputs)) for each in (model, plain))
    again = copy(model, tmp_path)
    longer = {name: np.pad(values, [(0, 0), (0, 2)]) for name, values in INPUTS.items()}
    for each in (model, plain, again):
        each(INPUTS)
        each.set_weights(model.get_weights())
        each.compile("sgd", "mse")
    for row, length in enumerate(INPUTS["input_mask"].sum(1)):
        alone = plain({name: values[row:row + 1, :length] for name, values in INPUTS.items()})
        np.testing.assert_allclose(numpy(again(longer))[row], numpy(alone)[0], atol=5e-6)
    losses = [each.fit(inputs, np.ones((3, 36)), epochs=2, verbose=0).history["loss"]
              for each, inputs in ((model, INPUTS), (again, longer))]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_chosen_positions_have_no_output_mask(bert):
    positions = np.array([[0, 2], [1, 3], [0, 1]], "int32")
    sequence = bert.rebuild(output_mask=True).encode(INPUTS, positions=positions).sequence_output
    pooled = keras.layers.GlobalAveragePooling1D()(sequence)
    np.testing.assert_allclose(numpy(pooled), numpy(sequence).mean(axis=1), atol=2e-6)


def test_functional_training_drops_out(bert):
    """The states that `encode` gives are those of training, if the model trains."""
    inputs = tensors()
    model = keras.Model(inputs, bert.encode(inputs).encoder_outputs[0])
    first, second = (numpy(model(INPUTS, training=True)) for _ in range(2))
    assert np.abs(first - second).max() > 1e-3


def test_a_quantized_model_reloads(bert, tmp_path):
    model = BertPretrainer(bert)
    before = keras.tree.flatten(model(INPUTS))
    with few_objects(), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # norms cannot be quantized
        model.quantize("int8")
    again = reload(model, tmp_path)
    configs = [layer.get_config() for each in (again, model) for layer in each.layers if layer.name == bert.name]
    assert configs[0] == configs[1] and configs[0]["dtype"]["class_name"] == "DTypePolicyMap"
    for got, wanted, plain in zip(*(keras.tree.flatten(each(INPUTS)) for each in (again, model)), before, strict=True):
        np.testing.assert_array_equal(numpy(got), numpy(wanted))
        assert 0 < np.abs(numpy(got) - numpy(plain)).max() < 0.2  # 8 bits, of logits up to 2


def test_from_config_leaves_the_config_as_it_is():
    config = head(BertLayer(TINY)).get_config()
    kept = json.dumps(config)
    for _ in range(2):
        assert len(BertClassifier.from_config(config).weights) == ALL + 2
    assert json.dumps(config) == kept


@pytest.mark.parametrize("make", [BertLayer.rebuild, lambda bert, **modes: head(bert).rebuild(**modes).bert])
def test_rebuild_changes_the_arguments_and_keeps_the_weights(make, bert):
    copy = make(bert, layout="packed", gradient_checkpointing=True, frozen=["pooler"])
    assert (copy.layout, copy.gradient_checkpointing, copy.frozen) == ("packed", True, ("pooler",))
    assert (bert.layout, bert.gradient_checkpointing, bert.frozen) == ("padded", False, ())
    for copied, original in zip(copy.weights, bert.weights, strict=True):
        assert copied is not original
        np.testing.assert_array_equal(numpy(copied), numpy(original))


def test_features_leave_the_encoder_as_it_is(bert):
    model = BertFeatures(bert, "last")
    assert len(bert.trainable_variables) == ALL and not model.trainable_variables
    assert BertFeatures(model.bert, "last").bert is model.bert


@pytest.mark.parametrize("config,message", [
    ("{}", "not the whole .keras file of a model: KeyError"),
    ("{", "not the whole .keras file of a model: JSONDecodeError"),
    ("", "not the whole .keras file of a model: .*config.json"),
    (None, "the weights cannot be read: ")])
def test_a_damaged_file_is_one_line(config, message, tmp_path):
    head(BertLayer(TINY)).save(tmp_path / "whole.keras")
    with zipfile.ZipFile(tmp_path / "whole.keras") as whole, zipfile.ZipFile(tmp_path / "model.keras", "w") as file:
        if config != "":
            file.writestr("config.json", config or whole.read("config.json"))
        file.writestr("model.weights.h5", whole.read("model.weights.h5")[:2000])
    with pytest.raises(InputError, match=f"^{tmp_path}/model.keras: {message}.*$"):
        load_model(tmp_path)


def test_a_changed_byte_is_one_line(tmp_path):
    head(BertLayer(TINY)).save(path := tmp_path / "model.keras")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match=f"^{path}: the weights cannot be read: .*$"):
        load_model(tmp_path)


@pytest.mark.filterwarnings("ignore:.*head in these weights:keras_bert.errors.InputWarning")
def test_pretrained_models_have_names(bert, tmp_path):
    folder = write_huggingface(tmp_path / "bert", bert)
    assert BertLayer.from_pretrained(folder, name="mine").name == "mine"
    assert BertFeatures.from_pretrained(folder, features="last", name="other").name == "other"


@pytest.mark.filterwarnings("ignore:.*head in these weights:keras_bert.errors.InputWarning")
def test_pretrained_weights_under_lora(bert, tmp_path):
    folder = write_huggingface(tmp_path / "bert", bert)
    for model in (BertLayer.from_pretrained(folder, lora_rank=2, frozen=["embeddings", "block_0"]),
                  BertFeatures.from_pretrained(folder, features="last", lora_rank=2).bert):
        assert model.lora_rank == 2
        np.testing.assert_array_equal(numpy(model(INPUTS)[1]), numpy(bert(INPUTS)[1]))


class TestAsKerasTestsItsOwn(TestCase):
    """Keras's own checklist: config, build, symbolic and eager calls, a training step, mixed precision."""

    @pytest.mark.slow("a rule of Keras for layers")
    def test_bert_layer(self):
        for layout in ("padded", "unpadded") if kernels.BACKEND == "tensorflow" else ("padded",):
            self.run_layer_test(
                BertLayer, {"config": TINY, "layout": layout}, input_data=[*INPUTS.values()],
                expected_output_shape=((3, 16), (3, 7, 16)), expected_num_trainable_weights=ALL,
                expected_num_non_trainable_weights=0, supports_masking=False,
                run_training_check=False)  # its generator takes no lists

    def test_masked_lm_head(self):
        self.run_class_serialization_test(MaskedLMHead(TINY, "relu", 1e-5))
