"""The TensorFlow Model Garden's checkpoints and SavedModels, read and written, beside the Garden's own classes; and our
SavedModels with `.mlm`."""

import dataclasses
import functools
import pathlib

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_hub as hub
import tf_keras

from keras_bert.convert import FORMATS, convert, load_pretrained, open_source
from keras_bert.convert.conversion import differences
from keras_bert.errors import InputError
from keras_bert.export import export_encoder
from keras_bert.export.checking import PASSED
from keras_bert.export.verify import verify
from keras_bert.layers import BertLayer
from keras_bert.models import BertPretrainer
from keras_bert.text import BertTokenizer

from conftest import TINY, TINY_VOCABULARY, random_inputs, randomize, write_huggingface

# The Garden's pretrainer itself gives its encoder more inputs than that takes.
pytestmark = pytest.mark.filterwarnings("ignore:Input dict contained keys")
# What a bert_config.json calls gelu is the tanh form in the Garden.
TANH = dataclasses.replace(TINY, hidden_act="gelu_tanh")
CASED = TINY_VOCABULARY[:5] + [piece.title() for piece in TINY_VOCABULARY[5:]]
INPUTS = random_inputs(3, 9)
INPUTS["input_mask"][1, 5:] = INPUTS["input_mask"][2, 8:] = 0
INPUTS["input_type_ids"] = INPUTS.pop("segment_ids")
REAL = INPUTS["input_mask"].astype(bool)
INPUTS = {name: tf.constant(array) for name, array in INPUTS.items()}
MASKED_INPUTS = INPUTS | {"masked_lm_positions": tf.constant([[1, 8], [4, 2], [0, 7]])}
slow = pytest.mark.slow("the graph and variables of a SavedModel with .mlm")
# Names of outputs, as the Garden has them.
POOLED, SEQUENCE, LOGITS, NEXT = "pooled_output", "sequence_output", "mlm_logits", "next_sentence"


@functools.cache
def make(version, next_sentence, **width):
    """The Garden's pretrainer, made once. `pooler_dense` of its next-sentence head is a second pooler."""
    from official.modeling import tf_utils
    from official.nlp.modeling import layers, models, networks

    gelu = tf_utils.get_activation("gelu")
    encoder = getattr(networks, version)(
        TINY.vocab_size, TINY.hidden_size, TINY.num_hidden_layers, TINY.num_attention_heads,
        TINY.max_position_embeddings, TINY.type_vocab_size, TINY.intermediate_size, inner_activation=gelu,
        dict_outputs=True, **width)
    head = layers.ClassificationHead(inner_dim=TINY.hidden_size, num_classes=2, name="next_sentence")
    heads = [head] if next_sentence else None
    model = models.BertPretrainerV2(encoder, mlm_activation=gelu, classification_heads=heads)
    model(MASKED_INPUTS)
    return model


def garden(version="BertEncoder", next_sentence=True, seed=0, **width):
    """`make`, all variables random, so that none of them can be lost unnoticed."""
    model, rng = make(version, next_sentence, **width), np.random.default_rng(seed)
    for variable in model.variables:
        variable.assign(rng.normal(float("gamma" in variable.name), 0.1, variable.shape))
    return model


def ours(kind):
    bert = BertLayer(TANH)
    return randomize(bert if kind == "encoder" else BertPretrainer(bert, next_sentence=kind == "pretraining"))


def saved(folder, objects, config=TINY):
    """The path of a checkpoint, with the Garden's own files beside it."""
    config.to_json(folder / "bert_config.json")
    (folder / "vocab.txt").write_text("\n".join(TINY_VOCABULARY))
    return tf.train.Checkpoint(**objects).save(str(folder / "checkpoint"))


def assert_same_outputs(model, wanted, *names, atol=5e-6):
    """Ours beside the Garden's, real tokens alone: what stands at padding is nobody's business. Two blocks deep, two
    programs differ by their order of summation."""
    got = (model if isinstance(model, BertLayer) else model.bert).encode(INPUTS)._asdict()
    if isinstance(model, BertPretrainer):
        got |= model(MASKED_INPUTS)
    for name in names:
        value, real = got["next_sentence_logits" if name == NEXT else name], REAL if name == SEQUENCE else ...
        np.testing.assert_allclose(np.asarray(value)[real], np.asarray(wanted[name])[real], rtol=0, atol=atol)


def assert_equal(got, wanted):
    """Bit for bit, in one order."""
    for one, other in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(one, other)


def trained(model, name):
    """An optimizer of tf_keras after a step on every variable, so that it has slots for all of them."""
    optimizer = {"Adam": tf_keras.optimizers.Adam, "legacy": tf_keras.optimizers.legacy.Adam}[name]()
    optimizer.apply_gradients([(tf.ones_like(variable), variable) for variable in model.trainable_variables])
    return optimizer


# What people save, of a pretrainer.
LAYOUTS = {
    "encoder": lambda model: {"encoder": model.encoder_network},
    "model=encoder": lambda model: {"model": model.encoder_network},
    "both": lambda model: LAYOUTS["encoder"](model) | LAYOUTS["model=encoder"](model),  # export_tfhub_lib.py
    "items": lambda model: model.checkpoint_items,
    "model": lambda model: {"model": model},
    "Adam": lambda model: {"model": model, "optimizer": trained(model, "Adam")},
    "legacy Adam": lambda model: {"model": model, "optimizer": trained(model, "legacy")},
    "trainer": lambda model: {"global_step": tf.Variable(7), **LAYOUTS["Adam"](model), **model.checkpoint_items},
}
HEAD = {f"next_sentence/{layer}/{part}" for layer in ("pooler_dense", "logits") for part in ("kernel", "bias")}


@pytest.mark.peers
@pytest.mark.parametrize(("layout", "version"), [
    *((layout, "BertEncoderV2") for layout in LAYOUTS), ("encoder", "BertEncoder"), ("trainer", "BertEncoder")])
def test_checkpoints(version, layout, tmp_path):
    model = garden(version)
    source = open_source(saved(tmp_path, LAYOUTS[layout](model)))
    _, skipped, missing = source.load()
    optimizers = {name for name, reason in skipped.items() if reason == "optimizer variable"}
    assert source.config == TANH and source.tokenizer.vocabulary == TINY_VOCABULARY and not missing
    assert bool(optimizers) == (layout in ("Adam", "legacy Adam", "trainer"))
    wanted = model(MASKED_INPUTS)
    assert_same_outputs(load_pretrained(source), wanted, POOLED, SEQUENCE)
    if layout in ("encoder", "model=encoder", "both"):
        assert source.kind == "encoder" and not skipped
    else:
        assert source.kind == "masked_lm" and skipped.keys() - optimizers == HEAD - (
            {"next_sentence/logits/kernel", "next_sentence/logits/bias"} if layout == "items" else set())
        assert all("--next_sentence_pooler" in skipped[name] for name in skipped.keys() - optimizers)
        assert_same_outputs(load_pretrained(source, BertPretrainer), wanted, POOLED, SEQUENCE, LOGITS)


@pytest.mark.peers
@pytest.mark.parametrize("layout", ["encoder", "model"])
def test_embeddings_of_a_width_of_their_own(layout, tmp_path):
    model = garden("BertEncoderV2", False, embedding_width=8)
    part = model.encoder_network if layout == "encoder" else model
    before, wanted = [variable.numpy() for variable in part.variables], model(MASKED_INPUTS)
    path = saved(tmp_path, LAYOUTS[layout](model), dataclasses.replace(TINY, embedding_size=8))
    assert_same_outputs(load_pretrained(path), wanted, POOLED, SEQUENCE)
    if layout == "model":
        assert_same_outputs(load_pretrained(path, BertPretrainer), wanted, POOLED, SEQUENCE, LOGITS)
    convert(path, tmp_path / "back", "garden")
    garden("BertEncoderV2", False, seed=1, embedding_width=8)
    tf.train.Checkpoint(**LAYOUTS[layout](model)).restore(
        tf.train.latest_checkpoint(tmp_path / "back")).expect_partial()
    assert_equal(part.variables, before)


@pytest.mark.peers
def test_the_functional_layout_of_old(tmp_path):
    """Where nothing but `layer_with_weights-N` leads to a variable, its full name tells what it is."""
    encoder = garden().encoder_network
    path = saved(tmp_path, {"model": tf_keras.Model(encoder.inputs, encoder.outputs)})
    assert not any("_pooler_layer" in name for name, _ in tf.train.list_variables(path))
    (tmp_path / "bert_config.json").rename(tmp_path / "elsewhere.json")
    with pytest.raises(InputError, match="bert_config.json: .*config="):
        load_pretrained(path)
    model = load_pretrained(path, config=tmp_path / "elsewhere.json")
    assert_same_outputs(model, encoder(INPUTS), POOLED, SEQUENCE)


@pytest.mark.peers
def test_the_next_sentence_heads_own_pooler(tmp_path):
    model = garden()
    head, wanted = model.classification_heads[0], model(MASKED_INPUTS)
    source = open_source(saved(tmp_path, {"model": model}), None, True)
    assert source.kind == "pretraining"
    wanted[POOLED] = head(wanted[SEQUENCE], only_project=True)
    assert_same_outputs(load_pretrained(source, BertPretrainer), wanted, POOLED, SEQUENCE, LOGITS, NEXT)
    without_logits = open_source(saved(tmp_path, model.checkpoint_items), None, True)
    assert without_logits.kind == "masked_lm"
    assert_same_outputs(load_pretrained(without_logits), wanted, POOLED, SEQUENCE)


@pytest.mark.peers
def test_without_a_next_sentence_head(tmp_path):
    model = garden(next_sentence=False)
    path = saved(tmp_path, {"model": model})
    weights, skipped, _ = open_source(path).load()
    assert weights.kind == "masked_lm" and skipped == {}
    assert_same_outputs(weights.build(), model(MASKED_INPUTS), POOLED, SEQUENCE, LOGITS)
    with pytest.raises(InputError, match="checkpoint-1: .*next-sentence head"):
        open_source(path, None, True)


@pytest.mark.peers
def test_of_two_encoders_none_is_chosen(tmp_path):
    """Keras calls the second one bert_encoder_v2_1."""
    encoders = [garden("BertEncoderV2", next_sentence).encoder_network for next_sentence in (True, False)]
    path = saved(tmp_path, dict(zip(("teacher", "student"), encoders)))
    with pytest.raises(InputError, match="checkpoint-1: two variables .*: student/.* and teacher/"):
        load_pretrained(path)


@functools.cache
def written(folder, kind):
    """A model of ours, and the path of the Garden's checkpoint of it."""
    model = ours(kind)
    found = convert(write_huggingface(folder / f"{kind}-source", model), folder / kind, "garden")
    assert set(found.values()) == {0.0}  # moving is no computation
    return model, tf.train.latest_checkpoint(folder / kind)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("garden")


@pytest.mark.peers
@pytest.mark.parametrize("version,kind,layout,names", [
    *(("BertEncoderV2", "encoder", layout, (POOLED, SEQUENCE)) for layout in ("encoder", "model=encoder")),
    ("BertEncoder", "encoder", "both", (POOLED, SEQUENCE)),
    # Hugging Face's masked LM, which it is written from, has no pooler.
    ("BertEncoderV2", "masked_lm", "both", (SEQUENCE,)), ("BertEncoderV2", "masked_lm", "items", (SEQUENCE, LOGITS)),
    ("BertEncoder", "masked_lm", "model", (SEQUENCE, LOGITS)),
    ("BertEncoderV2", "pretraining", "both", (POOLED, SEQUENCE)),
    ("BertEncoderV2", "pretraining", "items", (POOLED, SEQUENCE, LOGITS)),
    ("BertEncoderV2", "pretraining", "model", (POOLED, SEQUENCE, LOGITS, NEXT)),
])
def test_restored_by_the_garden(folder, version, kind, layout, names):
    peer = garden(version, kind == "pretraining", seed=5)
    model, path = written(folder, kind)
    status = tf.train.Checkpoint(**LAYOUTS[layout](peer)).restore(path).assert_existing_objects_matched()
    if kind == "encoder" or layout == "model":
        status.assert_consumed()
    assert_same_outputs(model, peer(MASKED_INPUTS), *names)
    assert '"hidden_act": "gelu"' in pathlib.Path(path).with_name("bert_config.json").read_text()


def test_only_this_format_has_a_next_sentence_pooler(folder):
    _, path = written(folder, "pretraining")
    assert open_source(path, None, True).kind == "pretraining"
    with pytest.raises(InputError, match="is for the Model Garden's checkpoints; this one is huggingface"):
        open_source(folder / "pretraining-source", None, True)


@pytest.mark.peers
@pytest.mark.parametrize("layout,between", [("encoder", "huggingface"), ("model", "huggingface"),
                                            ("model", "keras_bert")])
def test_there_and_back(layout, between, tmp_path):
    has_head = layout == "model"
    model = garden("BertEncoderV2", has_head)
    convert(saved(tmp_path, LAYOUTS[layout](model)), tmp_path / "between", between, next_sentence_pooler=has_head)
    convert(tmp_path / "between", tmp_path / "last", "garden")
    if has_head:  # the encoder's pooler is the head's now; all else must be what it was
        model.encoder_network.pooler_layer.set_weights(model.classification_heads[0].dense.get_weights())
    part = model.encoder_network if layout == "encoder" else model
    before = [variable.numpy() for variable in part.variables]
    restore = tf.train.Checkpoint(**LAYOUTS[layout](garden("BertEncoderV2", has_head, seed=1))).restore
    restore(tf.train.latest_checkpoint(tmp_path / "last")).assert_consumed()
    assert_equal(part.variables, before)


# SavedModels. Their casing is the other than one would guess from the vocabulary.
@pytest.fixture(scope="module", params=[True, False], ids=["with mlm", "without mlm"])
def exported(request, tmp_path_factory):
    """The path of what the Garden's exporter wrote, of a config, and whether it has `.mlm`."""
    from official.legacy.bert import configs
    from official.nlp.tools import export_tfhub_lib as exporter

    folder, with_mlm = tmp_path_factory.mktemp("exported"), request.param
    checkpoint = saved(folder, LAYOUTS["items" if with_mlm else "encoder"](garden(next_sentence=False)))
    (folder / "vocab.txt").write_text("\n".join(CASED if with_mlm else TINY_VOCABULARY))
    exporter.export_model(
        str(folder / "saved"), bert_config=configs.BertConfig.from_json_file(str(folder / "bert_config.json")),
        model_checkpoint_path=checkpoint, with_mlm=with_mlm, vocab_file=str(folder / "vocab.txt"),
        do_lower_case=with_mlm)
    return folder / "saved", folder / "bert_config.json", with_mlm


@pytest.mark.peers
def test_what_the_garden_exported(exported):
    path, config, with_mlm = exported
    source, loaded = open_source(path, config), tf.saved_model.load(str(path))
    assert source.kind == ("masked_lm" if with_mlm else "encoder") and source.config == TANH
    assert source.tokenizer.rules.lower_case == with_mlm
    assert source.tokenizer.vocabulary == (CASED if with_mlm else TINY_VOCABULARY)
    assert_same_outputs(load_pretrained(source), loaded(INPUTS), POOLED, SEQUENCE)
    if with_mlm:
        model = load_pretrained(source, BertPretrainer)
        assert_same_outputs(model, loaded.mlm(MASKED_INPUTS), POOLED, SEQUENCE, LOGITS)
    with pytest.raises(InputError, match="bert_config.json: .*config=") as error:
        load_pretrained(path)
    assert "\n" not in str(error.value)


@pytest.fixture(scope="module")
def source():
    return ours("pretraining")


@pytest.fixture(scope="module")
def path(source, folder):
    export_encoder(source, folder / "ours", BertTokenizer(CASED, lower_case=True))
    return str(folder / "ours")


@pytest.fixture(scope="module")
def loaded(path):
    return tf.saved_model.load(path)


@slow
def test_ours_read_again(source, path):
    read = open_source(path)
    assert read.kind == "masked_lm" and read.config == TANH and read.tokenizer.rules.lower_case
    model = load_pretrained(read, BertPretrainer)
    assert_equal(model.weights, source.bert.weights + source.mlm.weights)
    assert_equal(load_pretrained(read).weights, source.bert.weights)
    found = differences(read.load()[0], FORMATS["hub"], path)
    assert LOGITS in found and max(found.values()) <= 2e-6


def test_kinds_without_a_place_are_refused(source, tmp_path):
    with pytest.raises(InputError, match="hub .*encoder, masked_lm, not pretraining"):
        convert(write_huggingface(tmp_path / "both heads", source), tmp_path / "again", "hub")


@slow
def test_mlm_holds_the_encoder_and_its_head(source, loaded):
    assert_same_outputs(source, loaded.mlm(MASKED_INPUTS), POOLED, SEQUENCE, LOGITS, atol=2e-6)
    assert_equal(loaded.mlm.trainable_variables, source.bert.weights + source.mlm.weights)
    assert_equal(loaded.trainable_variables, source.bert.weights)
    head = {variable.ref() for variable in loaded.mlm.variables} - {variable.ref() for variable in loaded.variables}
    assert len(head) == len(source.mlm.weights) == 5


@slow
def test_mlm_trains(loaded):
    first, second = (loaded.mlm(MASKED_INPUTS, training=True)[LOGITS] for _ in range(2))
    assert np.abs(first - second).max() > 0.1  # two draws of dropout
    with tf.GradientTape() as tape:
        outputs = loaded.mlm(MASKED_INPUTS, training=True)
        loss = tf.reduce_sum(outputs[LOGITS] ** 2) + tf.reduce_sum(outputs[POOLED] ** 3)
    assert all(np.any(tf.convert_to_tensor(g)) for g in tape.gradient(loss, loaded.mlm.trainable_variables))


@slow
def test_mlm_under_hub_keras_layer(loaded):
    layer = hub.KerasLayer(loaded.mlm, trainable=True)
    assert [w.ref() for w in layer.trainable_weights] == [v.ref() for v in loaded.mlm.trainable_variables]
    inputs = {name: tf_keras.Input((None,), dtype=tf.int32, name=name) for name in MASKED_INPUTS}
    outputs = layer(inputs)
    model = tf_keras.Model(inputs, [outputs[LOGITS], outputs[POOLED]])
    got = model(MASKED_INPUTS, training=False)
    np.testing.assert_array_equal(got[0], loaded.mlm(MASKED_INPUTS)[LOGITS])
    assert len(model.trainable_weights) == len(layer.trainable_weights)


@slow
def test_verify(path):
    assert {result.status for result in verify(path)} == {PASSED}


@slow
def test_half_precision_compiled_by_xla(source, tmp_path):
    export_encoder(source, tmp_path / "saved", BertTokenizer(TINY_VOCABULARY), dtype="bfloat16", jit_compile=True)
    loaded = tf.saved_model.load(str(tmp_path / "saved"))
    outputs = loaded.mlm(MASKED_INPUTS)
    assert {tensor.dtype for tensor in tf.nest.flatten(outputs)} == {tf.float32}
    # 8 bits of precision, two blocks deep, values up to 1
    assert_same_outputs(source, outputs, POOLED, SEQUENCE, LOGITS, atol=0.05)
    read = load_pretrained(tmp_path / "saved", BertPretrainer)
    assert_equal(read.weights, [tf.cast(v, tf.float32) for v in loaded.mlm.variables])
    assert not loaded.mlm.trainable_variables
