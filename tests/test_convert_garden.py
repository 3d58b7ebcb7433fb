"""The TensorFlow Model Garden's checkpoints and SavedModels, read and written, beside the Garden's own classes; and our
SavedModels with `.mlm`."""

import dataclasses
import pathlib

import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from keras_bert.convert import convert, load_pretrained, open_source
from keras_bert.errors import InputError
from keras_bert.export import export_encoder
from keras_bert.export.checking import FAILED
from keras_bert.export.verify import verify
from keras_bert.layers import BertLayer
from keras_bert.models import BertPretrainer
from keras_bert.text import BertTokenizer

from conftest import TINY, TINY_VOCABULARY, random_inputs, randomize, write_huggingface

# What the Garden calls gelu in a bert_config.json is the tanh form.
TANH = dataclasses.replace(TINY, hidden_act="gelu_tanh")
VERSIONS = ("BertEncoder", "BertEncoderV2")
INPUTS = random_inputs(3, 9)
INPUTS["input_mask"][1, 5:] = INPUTS["input_mask"][2, 8:] = 0
INPUTS["input_type_ids"] = INPUTS.pop("segment_ids")
INPUTS["masked_lm_positions"] = np.array([[1, 8], [4, 2], [0, 7]], "int32")
TENSORS = {name: tf.constant(array) for name, array in INPUTS.items()}
REAL = INPUTS["input_mask"].astype(bool)
ENCODER_TENSORS = {name: TENSORS[name] for name in ("input_word_ids", "input_mask", "input_type_ids")}
# Values up to 4 through two blocks; the two programs sum in other orders.
SAME = {"rtol": 0, "atol": 5e-6}


def encoder(version, seed=0):
    """The Garden's encoder, all variables random; the test is skipped where the Garden is not installed."""
    networks = pytest.importorskip("official.nlp.modeling.networks")
    made = getattr(networks, version)(
        TINY.vocab_size, TINY.hidden_size, TINY.num_hidden_layers, TINY.num_attention_heads,
        TINY.max_position_embeddings, TINY.type_vocab_size, TINY.intermediate_size, inner_activation=gelu(),
        dict_outputs=True)
    made(made.inputs)
    return scramble(made, seed)


def pretrainer(version, next_sentence=True, seed=0):
    """The Garden's pretrainer; `pooler_dense` of its next-sentence head stands beside the encoder's pooler."""
    inside = encoder(version)
    from official.nlp.modeling import layers, models

    head = layers.ClassificationHead(inner_dim=TINY.hidden_size, num_classes=2, name="next_sentence")
    made = models.BertPretrainerV2(inside, mlm_activation=gelu(), classification_heads=[head] if next_sentence else None)
    made(made.inputs)
    return scramble(made, seed)


def gelu():
    from official.modeling import tf_utils

    return tf_utils.get_activation("gelu")


def scramble(model, seed):
    rng = np.random.default_rng(seed)
    for variable in model.variables:
        variable.assign(rng.normal(float("gamma" in variable.name), 0.1, variable.shape))
    return model


def trained(model, optimizer):
    """The optimizer after a step on every variable, so that it has slots for all of them."""
    optimizer.apply_gradients([(tf.ones_like(variable), variable) for variable in model.trainable_variables])
    return optimizer


def saved(folder, **items):
    """The path of a checkpoint of such objects, with the Garden's own files beside it."""
    prefix = tf.train.Checkpoint(**items).save(str(folder / "checkpoint"))
    TINY.to_json(folder / "bert_config.json")
    (folder / "vocab.txt").write_text("\n".join(TINY_VOCABULARY))
    return prefix


def outputs(ours):
    """Ours under the Garden's names; of real tokens alone, for what stands at padding is nobody's business."""
    found = (ours if isinstance(ours, BertLayer) else ours.bert).encode(INPUTS)
    if isinstance(ours, BertPretrainer):
        found |= ours(INPUTS)
    names = {"next_sentence_logits": "next_sentence"}
    return {names.get(name, name): ops.convert_to_numpy(found[name]) for name in
            ("pooled_output", "sequence_output", "mlm_logits", "next_sentence_logits") if name in found}


def assert_same_outputs(ours, wanted, names=None, **tolerance):
    """All outputs of ours, or those of `names`, beside the Garden's `wanted`."""
    for name, got in outputs(ours).items():
        if names is None or name in names:
            real = REAL if name == "sequence_output" else ...
            np.testing.assert_allclose(got[real], np.asarray(wanted[name])[real], **(tolerance or SAME), err_msg=name)


def assert_same_variables(got, wanted):
    """Bit for bit; both are the Garden's, in one order."""
    for one, other in zip(got.variables, wanted.variables, strict=True):
        np.testing.assert_array_equal(one, other, other.name)


@pytest.fixture(scope="module", params=VERSIONS)
def theirs(request):
    return pretrainer(request.param)


# What people have saved, by name; optimizers are tf_keras's.
LAYOUTS = {
    "encoder": lambda model, _: {"encoder": model.encoder_network},
    "model of an encoder": lambda model, _: {"model": model.encoder_network},
    "items": lambda model, _: model.checkpoint_items,
    "model": lambda model, _: {"model": model},
    "Adam": lambda model, keras: {"model": model, "optimizer": trained(model, keras.Adam())},
    "legacy Adam": lambda model, keras: {"model": model, "optimizer": trained(model, keras.legacy.Adam())},
    "model and items": lambda model, _: {"model": model, **model.checkpoint_items},
    # official/core/base_trainer.py
    "trainer": lambda model, keras: {"global_step": tf.Variable(7), "model": model, **model.checkpoint_items,
                                     "optimizer": trained(model, keras.Adam(use_ema=True))},
}
HEAD = {f"next_sentence/{name}/{part}" for name in ("pooler_dense", "logits") for part in ("kernel", "bias")}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_checkpoints(theirs, layout, tmp_path):
    keras = pytest.importorskip("tf_keras")
    path = saved(tmp_path, **LAYOUTS[layout](theirs, keras.optimizers))
    wanted = theirs(INPUTS)
    assert_same_outputs(load_pretrained(path), wanted)
    source = open_source(path)
    _, left, missing = source.take()
    assert missing == []
    has_slots = layout in ("Adam", "legacy Adam", "trainer")
    slots = [name for name, reason in left.items() if reason == "an optimizer's"]
    assert bool(slots) == has_slots
    if "encoder" in layout:
        assert source.kind == "encoder" and not left
    else:
        # Moments of all variables at least, and of ours nothing but the other pooler's head.
        assert not has_slots or len(slots) >= 2 * len(theirs.trainable_variables)
        assert left.keys() - slots <= HEAD and source.kind == "masked_lm"
        assert_same_outputs(load_pretrained(path, BertPretrainer), wanted)


def test_the_functional_layout_of_old(tmp_path):
    """Where nothing but `layer_with_weights-N` leads to a variable, its full name tells what it is."""
    keras = pytest.importorskip("tf_keras")
    model = encoder("BertEncoder")
    path = saved(tmp_path, model=keras.Model(model.inputs, model.outputs))
    assert not any("_pooler_layer" in name for name, _ in tf.train.list_variables(path))
    assert_same_outputs(load_pretrained(path), model(ENCODER_TENSORS))


def test_config_and_vocabulary(theirs, tmp_path):
    path = saved(tmp_path, encoder=theirs.encoder_network)
    for name in (path, tmp_path):
        source = open_source(name)
        assert source.config == TANH and source.tokenizer.vocabulary == TINY_VOCABULARY
    (tmp_path / "bert_config.json").rename(tmp_path / "elsewhere.json")
    with pytest.raises(InputError, match="bert_config.json: .*--config"):
        load_pretrained(path)
    assert_same_outputs(load_pretrained(path, config=tmp_path / "elsewhere.json"), theirs(INPUTS))


@pytest.mark.parametrize("version", VERSIONS)
def test_without_a_next_sentence_head(version, tmp_path):
    model = pretrainer(version, next_sentence=False)
    path = saved(tmp_path, model=model)
    weights, left, _ = open_source(path).take()
    assert weights.kind == "masked_lm" and left == {}
    assert_same_outputs(load_pretrained(path, BertPretrainer), model(INPUTS))
    with pytest.raises(InputError, match="checkpoint-1: .*there is none"):
        open_source(path, None, True)


def test_the_next_sentence_head_is_left_with_its_pooler(theirs, tmp_path):
    source = open_source(saved(tmp_path, model=theirs))
    weights, left, _ = source.take()
    assert weights.kind == "masked_lm" and left.keys() == HEAD
    assert all("--next_sentence_pooler" in reason for reason in left.values())
    np.testing.assert_array_equal(weights.build().bert.pooler.kernel, theirs.encoder_network.pooler_layer.kernel)


def test_the_next_sentence_heads_pooler_taken(theirs, tmp_path):
    source = open_source(saved(tmp_path, model=theirs), None, True)
    ours = load_pretrained(source, BertPretrainer)
    assert source.kind == "pretraining"
    head = theirs.classification_heads[0]
    for got, wanted in zip(ours.bert.pooler.weights, head.dense.weights, strict=True):
        np.testing.assert_array_equal(got, wanted)
    wanted = theirs(INPUTS)
    pooled = head(wanted["sequence_output"], only_project=True)
    assert_same_outputs(ours, wanted | {"pooled_output": pooled})


def test_the_pooler_alone_where_its_logits_are_not_saved(theirs, tmp_path):
    """`checkpoint_items` hold `pooler_dense` and no logits."""
    source = open_source(saved(tmp_path, **theirs.checkpoint_items), None, True)
    assert source.kind == "masked_lm"
    np.testing.assert_array_equal(load_pretrained(source).pooler.kernel, theirs.classification_heads[0].dense.kernel)


def test_two_encoders_in_one_checkpoint_are_told_apart_by_nobody(tmp_path):
    path = saved(tmp_path, teacher=encoder("BertEncoderV2"), student=encoder("BertEncoderV2", seed=1))
    with pytest.raises(InputError, match="checkpoint-1: two variables .* two encoders"):
        load_pretrained(path)


ENCODER = ("pooled_output", "sequence_output")
PRETRAINING = (*ENCODER, "mlm_logits", "next_sentence")
MASKED_LM = ("sequence_output", "mlm_logits")  # Hugging Face's masked LM, which these come from, has no pooler
# Kind, the Garden's objects that read it, the outputs that they then have, and whether they take all of the checkpoint.
READERS = [
    ("encoder", "encoder", ENCODER, True),
    ("encoder", "model of an encoder", ENCODER, True),
    ("masked_lm", "encoder", MASKED_LM[:1], False),
    ("masked_lm", "items", MASKED_LM, True),
    ("masked_lm", "model", MASKED_LM, True),
    ("pretraining", "encoder", ENCODER, False),
    ("pretraining", "items", PRETRAINING[:3], False),  # the logits' layer is not among them
    ("pretraining", "model", PRETRAINING, True),
    ("pretraining", "model and items", PRETRAINING, True),
]


def ours(kind, seed=0):
    bert = BertLayer(TANH)
    return randomize(bert if kind == "encoder" else BertPretrainer(bert, next_sentence=kind == "pretraining"), seed)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Dict of each kind to a model of ours and to the path of its checkpoint."""
    folder, found = tmp_path_factory.mktemp("written"), {}
    for kind in ("encoder", "masked_lm", "pretraining"):
        model = ours(kind)
        source = write_huggingface(folder / f"{kind}-source", model)
        assert set(convert(source, folder / kind, "garden").values()) == {0.0}  # moving is no computation
        found[kind] = model, tf.train.latest_checkpoint(folder / kind)
    return found


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("kind,layout,names,is_whole", READERS)
def test_restored_by_the_garden(written, version, kind, layout, names, is_whole):
    theirs = pretrainer(version, next_sentence=kind == "pretraining", seed=5)
    model, path = written[kind]
    status = tf.train.Checkpoint(**LAYOUTS[layout](theirs, None)).restore(path)
    status.assert_existing_objects_matched()
    if is_whole:
        status.assert_consumed()
    assert_same_outputs(model, theirs(INPUTS), names)


def test_its_config_says_gelu_as_the_garden_understands_it(written):
    configs = pytest.importorskip("official.legacy.bert.configs")
    path = pathlib.Path(written["encoder"][1]).with_name("bert_config.json")
    assert configs.BertConfig.from_json_file(str(path)).hidden_act == "gelu"
    assert open_source(path.parent).config == TANH


def test_the_erf_gelu_is_refused(pretrained, bert, tmp_path):
    with pytest.raises(InputError, match="hidden_act .*not gelu.*--allow_inexact") as error:
        convert(pretrained, tmp_path / "garden", "garden")
    assert "\n" not in str(error.value) and not (tmp_path / "garden").exists()
    lines = []
    convert(pretrained, tmp_path / "garden", "garden", allow_inexact=True, tell=lines.append)
    assert any(line.startswith("inexact: hidden_act") for line in lines)


@pytest.mark.parametrize("layout,between", [("encoder", "huggingface"), ("encoder", "keras_bert"),
                                            ("items", "keras_bert")])
def test_there_and_back(layout, between, tmp_path):
    theirs, again = (pretrainer("BertEncoder", next_sentence=False, seed=seed) for seed in (0, 1))
    path = saved(tmp_path, **LAYOUTS[layout](theirs, None))
    convert(path, tmp_path / "between", between)
    convert(tmp_path / "between", tmp_path / "last", "garden")
    restore = tf.train.Checkpoint(**LAYOUTS[layout](again, None)).restore
    restore(tf.train.latest_checkpoint(tmp_path / "last")).assert_consumed()
    if layout == "encoder":
        theirs, again = theirs.encoder_network, again.encoder_network
    assert_same_variables(again, theirs)


@pytest.mark.parametrize("between", ["huggingface", "keras_bert"])
def test_there_and_back_with_the_next_sentence_head(between, tmp_path):
    """All but the encoder's pooler, which is the head's now, in both places."""
    theirs, again = (pretrainer("BertEncoderV2", seed=seed) for seed in (0, 1))
    convert(saved(tmp_path, model=theirs), tmp_path / "between", between, next_sentence_pooler=True)
    convert(tmp_path / "between", tmp_path / "last", "garden")
    tf.train.Checkpoint(model=again).restore(tf.train.latest_checkpoint(tmp_path / "last")).assert_consumed()
    for got, own in zip(theirs.encoder_network.pooler_layer.weights, theirs.classification_heads[0].dense.weights):
        got.assign(own)
    assert_same_variables(again, theirs)


# SavedModels. Each casing is the other than a guess from the vocabulary would be.
CASED = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"Word{i}" for i in range(TINY.vocab_size - 5))]


@pytest.fixture(scope="module", params=[True, False], ids=["with mlm", "without mlm"])
def exported(request, tmp_path_factory):
    """The Garden's SavedModel: (its path, whether it has `.mlm`, path of a config)."""
    exporter = pytest.importorskip("official.nlp.tools.export_tfhub_lib")
    from official.legacy.bert import configs

    folder, with_mlm = tmp_path_factory.mktemp("exported"), request.param
    model = pretrainer("BertEncoder", next_sentence=False)
    checkpoint = saved(folder, **(model.checkpoint_items if with_mlm else {"encoder": model.encoder_network}))
    (folder / "vocab.txt").write_text("\n".join(CASED if with_mlm else TINY_VOCABULARY))
    exporter.export_model(
        str(folder / "saved"), bert_config=configs.BertConfig.from_json_file(str(folder / "bert_config.json")),
        model_checkpoint_path=checkpoint, with_mlm=with_mlm, vocab_file=str(folder / "vocab.txt"),
        do_lower_case=with_mlm)
    return folder / "saved", with_mlm, folder / "bert_config.json"


def test_the_gardens_saved_model(exported):
    path, with_mlm, config = exported
    loaded = tf.saved_model.load(str(path))
    source = open_source(path, config)
    assert source.kind == ("masked_lm" if with_mlm else "encoder") and source.config == TANH
    model = load_pretrained(source, BertPretrainer if with_mlm else BertLayer)
    assert_same_outputs(model, loaded.mlm(TENSORS) if with_mlm else loaded(ENCODER_TENSORS))


def test_its_casing(exported):
    path, with_mlm, config = exported
    tokenizer = open_source(path, config).tokenizer
    assert tokenizer.rules.lower_case == with_mlm
    assert tokenizer.vocabulary == (CASED if with_mlm else TINY_VOCABULARY)


def test_it_does_not_say_what_bert_it_is_of(exported):
    with pytest.raises(InputError, match="--config") as error:
        load_pretrained(exported[0])
    assert "\n" not in str(error.value)


@pytest.fixture(scope="module")
def source():
    return ours("pretraining")


@pytest.fixture(scope="module")
def path(source, tmp_path_factory):
    path = tmp_path_factory.mktemp("ours") / "saved"
    export_encoder(source, path, BertTokenizer(TINY_VOCABULARY))
    return str(path)


@pytest.fixture(scope="module")
def mlm(path):
    root = tf.saved_model.load(path)
    root.mlm.root = root  # or the variables go with it
    return root.mlm
