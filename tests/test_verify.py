"""`keras-bert verify` on good SavedModels, ours and the Garden's, and on some broken on purpose."""

import json
import os
import pathlib
import random
import shutil

import pytest
import tensorflow as tf

from keras_bert import cli
from keras_bert.errors import InputError
from keras_bert.export.checking import ANY_SAVED_MODEL, FAILED, LITERT, NOT_APPLICABLE, PASSED
from keras_bert.export.verify import EMBEDDING, ENCODER, PREPROCESSOR, RAW_TEXT, verify
from keras_bert.hub import HubLayer

import zoo
from conftest import TINY_VOCABULARY

WITHOUT_TRAINING = [(0, PASSED), (1, PASSED), (1, PASSED), (2, PASSED), (3, PASSED), (5, NOT_APPLICABLE),
                    (6, NOT_APPLICABLE), (7, PASSED), (8, PASSED), (9, PASSED), (10, PASSED), (11, NOT_APPLICABLE)]
COMPLETE = [(line, PASSED if line in (5, 6) else status) for line, status in WITHOUT_TRAINING]
FOREIGN = [(0, NOT_APPLICABLE), *COMPLETE[1:]]  # without digests


def statuses(path):
    return [(result.line, result.status) for result in verify(path)]


@pytest.mark.parametrize("options,expected", [
    ({}, COMPLETE), pytest.param({"dtype": "bfloat16"}, WITHOUT_TRAINING,
                                 marks=pytest.mark.slow("an export that cannot be trained"))])
def test_ours_pass(exported, options, expected):
    assert statuses(exported(**options)) == expected


@pytest.mark.peers
def test_the_gardens_passes(tmp_path):
    from official.legacy.bert import configs
    from official.nlp.tools import export_tfhub_lib as exporter

    config = configs.BertConfig(60, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, intermediate_size=32)
    _, pretrainer = exporter._create_model(bert_config=config, encoder_config=None, with_mlm=True)
    checkpoint = tf.train.Checkpoint(**pretrainer.checkpoint_items).save(str(tmp_path / "checkpoint/test"))
    (tmp_path / "vocab.txt").write_text("\n".join(TINY_VOCABULARY))
    exporter.export_model(str(tmp_path / "garden"), bert_config=config, model_checkpoint_path=checkpoint, with_mlm=True,
                          vocab_file=str(tmp_path / "vocab.txt"), do_lower_case=True)
    expected = [(line, PASSED if line else NOT_APPLICABLE) for line, _ in COMPLETE]
    expected[2] = (1, NOT_APPLICABLE)  # it takes dicts only
    assert statuses(tmp_path / "garden") == expected


class Encoder(tf.Module):
    """The least that fulfils the contract; `fault` breaks one line of it."""

    variables = None
    trainable_variables = None

    def __init__(self, fault, vocabulary):
        super().__init__()
        self.fault = fault
        self.table = tf.Variable(tf.random.normal([60, 16]), name="table")
        self.variables = [] if fault == "no variables" else [self.table]
        self.trainable_variables = [self.table]
        self.regularization_losses = [tf.Variable(0.0)] if fault == "losses are no callables" else []
        self.do_lower_case = tf.Variable(True, trainable=fault == "trainable casing")
        if fault != "no vocabulary":
            self.vocab_file = tf.saved_model.Asset(str(vocabulary))
        if fault == "optimizer":
            self.optimizer = tf.train.Checkpoint(iterations=tf.Variable(0))

    @tf.function
    def __call__(self, inputs, training=False):
        if self.fault == "dropout by default":
            training = not training
        as_list = isinstance(inputs, list)
        word_ids = inputs[0] if as_list else inputs["input_word_ids"]
        sequence = tf.gather(self.table, word_ids)
        if training and self.fault != "no dropout":
            # tf.nn.dropout would draw alike in every tracing where an earlier test has set a global seed.
            drawn = tf.raw_ops.RandomUniform(shape=tf.shape(sequence), dtype=tf.float32)
            sequence = tf.where(drawn < 0.5, sequence, 0.0)
        pooled = tf.tanh(sequence[:, 0])
        if self.fault == "unknown shapes":
            pooled = tf.raw_ops.PlaceholderWithDefault(input=pooled, shape=None)
        if as_list:
            return [pooled, sequence][:: -1 if self.fault == "list in another order" else 1]
        outputs = {"pooled_output": pooled, "default": pooled, "sequence_output": sequence,
                   "encoder_outputs": [sequence]}
        if self.fault == "no default":
            del outputs["default"]
        dtype = tf.bfloat16 if self.fault == "bfloat16" else tf.float32
        return tf.nest.map_structure(lambda tensor: tf.cast(tensor, dtype), outputs)

    def write(self, path):
        tokens = tf.TensorSpec([None, None], tf.int32)
        names = ("input_word_ids", "input_mask", "input_type_ids")
        for training in (False,) if self.fault == "one tracing" else (False, True):
            for inputs in (dict.fromkeys(names, tokens), [tokens] * 3):
                self.__call__.get_concrete_function(inputs, training=training)
        tf.saved_model.save(self, str(path))


@pytest.fixture
def broken(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(TINY_VOCABULARY))

    def write(fault):
        path = tmp_path / "encoder"
        if fault == "not callable":
            tf.saved_model.save(tf.train.Checkpoint(variables=[]), str(path))
        else:
            Encoder(fault, tmp_path / "vocab.txt").write(path)
        if fault == "Lambda":
            import tf_keras

            layer = tf_keras.layers.Lambda(lambda inputs: inputs, input_shape=(1,))
            tf_keras.Sequential([layer]).save(tmp_path / "lambda", save_format="tf")
            shutil.copy(tmp_path / "lambda/keras_metadata.pb", path)
        return path

    return write


@pytest.mark.parametrize("fault,lines,words", [
    ("not callable", {1}, "not callable; it was checked as an encoder, because it has no tokenize"),
    ("list in another order", {1}, "pooled_output has shape (2, 5, 16) for a list"),
    ("one tracing", {2, 6}, ""),
    ("dropout by default", {1, 2, 6}, "differs"),
    ("no default", {3}, "encoder_outputs, pooled_output, sequence_output"),
    ("bfloat16", {1, 3, 6}, "bfloat16"),
    ("no dropout", {6}, "training=True"),
    ("unknown shapes", {7}, "pooled_output <unknown>"),
    ("no variables", {8}, "empty"),
    ("losses are no callables", {5, 8}, "regularization_losses"),
    ("optimizer", {9}, "an optimizer is saved"),
    ("Lambda", {9}, "a Lambda layer, Python bytecode, is saved"),
    ("no vocabulary", {10}, "vocab_file"),
    ("trainable casing", {10}, "do_lower_case"),
])
def test_a_fault_fails_its_line(broken, fault, lines, words):
    failed = [result for result in verify(broken(fault)) if result.status == FAILED]
    if fault == "not callable":
        failed = failed[:1]  # nothing else can be checked
    assert {result.line for result in failed} == lines
    assert words in failed[0].seen


def test_command_line(broken, capsys):
    path = broken("no default")
    assert cli.run(["verify", str(path)]) == 1
    output, messages = capsys.readouterr()
    assert len(output.splitlines()) == 1 + len(ENCODER) and output.startswith(" 0 not applicable ")
    assert " 3 failed" in output
    assert messages == f"keras-bert: {path}: 1 of {1 + len(ENCODER)} checks failed\n"
    assert cli.run(["verify", "--output_format=json", str(path)]) == 1
    assert [result["line"] for result in json.loads(capsys.readouterr()[0])] == [
        0, *(line for line, _ in ENCODER)]


def test_what_is_no_saved_model(tmp_path, broken):
    """And the least encoder that passes."""
    with pytest.raises(InputError, match="saved_model.pb; it is missing; to write one: keras-bert export, or for a "):
        verify(tmp_path)
    path = broken(None)
    assert statuses(path) == FOREIGN
    with pytest.raises(InputError, match=f"is missing; pass one of the folders in it, {path}$"):
        verify(tmp_path)
    for name in ("variables/variables.data-00000-of-00001", "variables/variables.index", "saved_model.pb"):
        (path / name).write_bytes((path / name).read_bytes()[:-20])
        for load in (verify, HubLayer):
            with pytest.raises(InputError, match=f"{path}: cannot be loaded: "):
                load(path)


@pytest.mark.slow("a rule of raw-text models that is not checked")
@pytest.mark.parametrize("factor,of_line_1", [(1, PASSED), (float("nan"), FAILED)])
def test_a_raw_text_model(tmp_path, factor, of_line_1):
    module = Embedder(tf.float32)
    other = tf.function(lambda text: {"probabilities": factor * module(text)}, module.serve.input_signature)
    tf.saved_model.save(module, tmp_path, signatures={"serving_default": other, "encode": other})
    assert statuses(tmp_path) == [(0, NOT_APPLICABLE), (1, of_line_1)]
    assert statuses(zoo.saved_model("choice")) == [(0, PASSED), (1, PASSED)]


class Embedder(tf.Module):
    """A text embedding whose rows differ by 0.5% between a text alone and one in a batch, as rounding may make them."""

    def __init__(self, dtype):
        super().__init__()
        self.weights = tf.Variable(tf.range(1, 17, dtype=dtype))

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "text")])
    def __call__(self, texts):
        rows = tf.strings.length(texts)[:, None] * 0 + 1
        scale = tf.where(tf.size(texts) > 1, 1.005, 1.0)
        return tf.cast(rows, tf.float32) * tf.cast(self.weights, tf.float32) * scale

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "text")])
    def serve(self, text):
        return {"embedding": self(text)}


@pytest.mark.parametrize("dtype,of_line_3", [(tf.bfloat16, PASSED), (tf.float32, FAILED)])
def test_rows_may_differ_by_the_rounding_of_the_weights(tmp_path, dtype, of_line_3):
    module = Embedder(dtype)
    tf.saved_model.save(module, tmp_path / "out", signatures=module.serve)
    assert statuses(tmp_path / "out")[1:] == [(line, of_line_3 if line == 3 else PASSED) for line in range(1, 8)]


def test_the_document_holds_the_same_lines():
    document = (pathlib.Path(__file__).parents[1] / "docs/hub_contract.md").read_text()
    written = [line[2:] for line in document.splitlines() if line.startswith("- ")]
    assert written == [f"{line}: {check.__doc__}"
                       for line, check in (ANY_SAVED_MODEL, *ENCODER, *PREPROCESSOR, *EMBEDDING, *RAW_TEXT, *LITERT)]


COPIES = int(os.environ.get("KERAS_BERT_DAMAGED_COPIES", "40"))  # of each kind of export
EXPORTS = {"encoder": zoo.encoder, "tagger": lambda: zoo.litert("tag"), "classifier": lambda: zoo.saved_model("intent")}


def damage(folder, rng):
    """Damages a file, or exchanges two; few damages change nothing."""
    path, other = rng.sample(sorted(path for path in folder.rglob("*") if path.is_file()), 2)
    content, kind = path.read_bytes(), rng.choice(["flip", "cut", "exchange", "copy", "remove", "folder"])
    place = rng.randrange(len(content))
    changed = {"flip": content[:place] + bytes([content[place] ^ 1 << rng.randrange(8)]) + content[place + 1:],
               "cut": content[:place], "exchange": other.read_bytes()}
    if kind == "exchange":
        other.write_bytes(content)
    elif kind == "copy":
        shutil.copy(path, folder / "copy")
    path.unlink()
    if kind == "folder":
        path.mkdir()
    elif kind != "remove":
        path.write_bytes(changed.get(kind, content))


def contents(folder):
    files = {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return {path: content for path, content in files.items() if path.name != "sha256.json"}


@pytest.mark.slow("a damaged export that passes")
@pytest.mark.parametrize("kind", EXPORTS)
def test_damage_is_one_line_and_nothing_is_loaded(kind, tmp_path, monkeypatch, run):
    """What would be loaded is as exported, and answers so; the digests alone may be missing."""
    whole = EXPORTS[kind]()
    for loader in ("inference.lite_model.LiteModel.load", "export.verify._load"):
        monkeypatch.setattr(f"keras_bert.{loader}", lambda *_: pytest.fail("loads"))
    for seed in range(COPIES):
        folder = zoo.copy(whole, tmp_path / "copy")
        damage(folder, random.Random(seed))
        try:
            status, output, messages = run("verify", folder)
            assert (status, output, len(messages)) == (1, [], 1) and str(folder) in messages[0], (seed, messages)
        except pytest.fail.Exception:
            assert contents(folder) == contents(whole), seed
        shutil.rmtree(folder)


@pytest.mark.parametrize("name,damage", [
    ("assets/labels.json", lambda path: path.write_text(json.dumps(json.loads(path.read_text())[::-1]))),
    ("assets/vocab.txt", lambda path: path.write_text("\n".join(TINY_VOCABULARY[:30]))),
    ("saved_model.pb", lambda path: (path.unlink(), path.symlink_to(path)))])
def test_a_damaged_file_is_named(tmp_path, name, damage, run):
    folder = zoo.copy(zoo.saved_model("intent"), tmp_path / "copy")
    damage(folder / name)
    assert run("verify", folder) == (1, [], [
        f"keras-bert: {folder}: {name} must be as it was written; copy or write the folder again, or "
        "remove assets.extra/sha256.json if the change is right"])
