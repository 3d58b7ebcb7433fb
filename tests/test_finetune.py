import inspect
import io
import json
import re
import sys
import zipfile

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_bert.config import BertConfig
from keras_bert.errors import InputError
from keras_bert.layers import BertLayer
from keras_bert.models import BertClassifier
from keras_bert.presets import PRESETS, Preset
from keras_bert.tasks import TASKS
from keras_bert.training import FineTuned, WarmupDecay, finetune, make_optimizer
from keras_bert.training.optimizer import AdamW
from keras_bert.training.options import Options
from keras_bert.training.prepare import prepare
from keras_bert.weights.huggingface_models import TYPES
from keras_bert.weights.kinds import shapes, variable

import zoo
from conftest import SMALL, TINY, Peer, random_inputs, randomize, write_huggingface

torch, transformers = Peer("torch"), Peer("transformers")
TABLE = TYPES["bert"].table("encoder")


def numpy(tensor):
    return keras.ops.convert_to_numpy(tensor)


@pytest.mark.peers
def test_schedule_equals_transformers():
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.3)
    peer = transformers.get_linear_schedule_with_warmup(optimizer, 7, 50)
    ours = WarmupDecay(0.3, 7, 50)
    for step in range(51):
        assert float(ours(step)) == pytest.approx(peer.get_last_lr()[0], abs=1e-7)
        optimizer.step()
        peer.step()


def pytorch_replica(model):
    """`BertForSequenceClassification` with the weights of a `BertClassifier`, and the pairs of their parameters: a dict
    of PyTorch's names to (our variable, PyTorch's parameter, whether it is transposed)."""
    config = model.bert.config
    replica = transformers.BertForSequenceClassification(
        transformers.BertConfig(**config.to_dict(), num_labels=model.num_classes, classifier_dropout=0.0))
    ours = {f"bert.{TABLE[name].stored_name}": variable(model, name) for name in shapes(config)}
    ours |= {"classifier.weight": model.classifier.kernel, "classifier.bias": model.classifier.bias}
    pairs = {name: (ours.pop(name), parameter, name.endswith("weight") and parameter.ndim == 2
                    and "embeddings" not in name) for name, parameter in replica.named_parameters()}
    assert not ours
    with torch.no_grad():
        for source, parameter, transposed in pairs.values():
            parameter.copy_(torch.tensor(in_layout(numpy(source), transposed)))
    return replica, pairs


def in_layout(array, transposed):
    return np.ascontiguousarray(array.T if transposed else array)


@pytest.fixture
def classifier():
    """Without dropout, and with weights that give gradients to everything."""
    config = BertConfig.from_dict(TINY.to_dict() | {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0})
    return BertClassifier(randomize(BertLayer(config)), 5, dropout=0.0)


@pytest.mark.peers
def test_loss_and_gradients_equal_pytorch(classifier):
    replica, pairs = pytorch_replica(classifier)
    inputs, labels = random_inputs(6, 9), np.arange(6) % 5
    inputs["input_word_ids"] = np.maximum(inputs["input_word_ids"], 1)  # PyTorch never trains the row of [PAD]
    inputs["input_mask"][2, 6:] = 0
    wanted = replica(*(torch.from_numpy(inputs[key]).long() for key in ("input_word_ids", "input_mask", "segment_ids")),
                  labels=torch.from_numpy(labels)).loss
    wanted.backward()
    with tf.GradientTape() as tape:
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)(labels, classifier(inputs, training=True))
    assert float(loss) == pytest.approx(wanted.item(), abs=1e-6)
    gradients = tape.gradient(loss, [variable.value for variable, _, _ in pairs.values()])
    for (name, (_, parameter, transposed)), gradient in zip(pairs.items(), gradients):
        # Gradients reach 0.5; the two sum in another order.
        np.testing.assert_allclose(in_layout(numpy(tf.convert_to_tensor(gradient)), transposed), parameter.grad.numpy(),
                                   atol=2e-6, err_msg=name)


def in_rows(gradient):
    """A gradient as `tf.IndexedSlices`, each row in two halves."""
    rows = np.tile(np.arange(len(gradient)), 2)
    return tf.IndexedSlices(tf.constant(np.concatenate([gradient, gradient]) / 2), rows, gradient.shape)


@pytest.mark.peers
def test_optimizer_steps_equal_pytorch(classifier):
    """Five steps of AdamW with warm-up, decay and clipping, both given the same gradients: ours of the embeddings in
    rows, as TensorFlow has them, where a row may occur twice."""
    replica, pairs = pytorch_replica(classifier)
    ours = make_optimizer(classifier, 0.01, 10, warmup_ratio=0.2, weight_decay=0.1)
    spared = [p for name, (_, p, _) in pairs.items() if name.endswith("bias") or "LayerNorm" in name]
    decayed = [p for name, (_, p, _) in pairs.items() if not (name.endswith("bias") or "LayerNorm" in name)]
    peer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1}, {"params": spared, "weight_decay": 0.0}],
                               lr=0.01, eps=1e-6)
    schedule = transformers.get_linear_schedule_with_warmup(peer, 2, 10)
    rng = np.random.default_rng(0)
    for _ in range(5):
        gradients = [rng.normal(0, 0.1, variable.shape).astype("float32") for variable, _, _ in pairs.values()]
        for (_, parameter, transposed), gradient in zip(pairs.values(), gradients):
            parameter.grad = torch.tensor(in_layout(gradient, transposed))
        assert torch.nn.utils.clip_grad_norm_(replica.parameters(), 1.0) > 5  # it does clip
        peer.step()
        schedule.step()
        variables = [variable for variable, _, _ in pairs.values()]
        ours.apply([in_rows(gradient) if variable.name == "embeddings" else tf.constant(gradient)
                    for variable, gradient in zip(variables, gradients)], variables)
    for name, (source, parameter, transposed) in pairs.items():
        np.testing.assert_allclose(in_layout(numpy(source), transposed), parameter.detach().numpy(), atol=1e-6,
                                   err_msg=name)


def test_learns_saves_and_answers_the_same(tmp_path, intents):
    """In graphs, as a user's."""
    encoder = randomize(BertLayer(SMALL))
    model = finetune(*intents, model=write_huggingface(tmp_path / "encoder", encoder), output=tmp_path / "out",
                     epochs=8, batch_size=2, learning_rate=0.02)
    metrics = json.loads((tmp_path / "out/metrics.json").read_text())
    assert metrics["accuracy"] == 1.0
    assert len(metrics["history"]["val_accuracy"]) == 8
    texts = ["play my song", "turn the lamp off", "what time is it", ""]
    model.model.predict_function = None  # traced anew, as of the loaded: rounding depends on the shapes that came first
    answers = model.predict(texts, top_k=2)
    assert answers[1].label == "light"
    assert all(sum(answer.scores) == pytest.approx(1, abs=1e-6) and answer.scores == sorted(answer.scores, reverse=True)
               for answer in answers)
    with zipfile.ZipFile(tmp_path / "out/model.keras") as file, h5py.File(
            io.BytesIO(file.read("model.weights.h5"))) as weights:
        assert "optimizer" not in weights
    loaded = FineTuned.load(tmp_path / "out")
    assert loaded.predict(texts, top_k=2) == answers
    assert loaded.predict([]) == []
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "README.md", "attention.png", "bert_config.json", "calibration.png", "confusions.png", "labels.json",
        "learning_curves.png", "metrics.json", "model.keras", "settings.json", "tokenizer_config.json", "vocab.txt"]


@pytest.mark.usefixtures("eager")
def test_saved_and_exported_by_its_methods(tmp_path, trained_once):
    model = FineTuned.load(trained_once)
    (tmp_path / "copy").mkdir()  # an empty folder is no obstacle
    model.save(tmp_path / "copy")
    for write in (model.save, model.export):
        with pytest.raises(InputError, match="exists already"):
            write(tmp_path / "copy")
    model.save(tmp_path / "copy", overwrite=True)
    assert FineTuned.load(tmp_path / "copy").predict(["play"]) == model.predict(["play"])
    with pytest.raises(InputError, match="max_length must be"):
        model.export(tmp_path / "other", max_length=10**6)


@pytest.mark.parametrize("model, options, rate", [
    ("tiny", {}, 0.125), ("org/tiny", {}, 0.125), ("tiny", {"few_shot": True}, 5e-5),
    ("tiny", {"task": "embed"}, 5e-5), ("tiny", {"learning_rate": 0.5}, 0.5), ("pretrained", {}, 5e-5)])
def test_the_learning_rate_of_a_preset_is_its_default(tmp_path, pretrained, monkeypatch, model, options, rate):
    class Chosen(Exception):
        pass

    def choose(model, learning_rate, *_, **__):
        raise Chosen(learning_rate)

    (tmp_path / "tiny_weights").mkdir()
    (tmp_path / "tiny_weights/__init__.py").touch()
    (tmp_path / "tiny_weights/model").symlink_to(pretrained)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(PRESETS, "tiny", Preset("tiny", "org/tiny", learning_rate=0.125, package="tiny_weights"))
    monkeypatch.setattr(sys.modules["keras_bert.training.prepare"], "make_optimizer", choose)
    rows = [("play", "a"), ("stop", "a"), ("lamp", "b"), ("light", "b")]
    with pytest.raises(Chosen) as chosen:
        finetune(rows, rows, model=model, output=tmp_path / "out", **options)
    assert chosen.value.args == (rate,)


@pytest.mark.parametrize("option", [{"loss_scale_factor": 2.0}, {"global_clipnorm": 0.0}])
def test_rows_of_gradients_with_any_option_of_keras(option):
    """A lookup's gradient is a list of rows; options that change nothing here leave the step as it is."""
    def step(**options):
        table = keras.Variable(np.ones((5, 3), np.float32))
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table.value, [1, 1, 2]))
        gradient = tape.gradient(loss, table.value)
        optimizer = AdamW(0.1, **options)
        optimizer.build([table])
        optimizer.apply([gradient])
        return table.numpy()

    np.testing.assert_allclose(step(**option), step(), rtol=0, atol=1e-6)  # Adam's epsilon counts double


@pytest.mark.slow("a run that its seed does not determine")
@pytest.mark.usefixtures("eager")
def test_same_seed_same_model(tmp_path, pretrained_once, trained_once, intents):
    again, other = (finetune(*intents, model=pretrained_once, output=tmp_path / f"out{seed}", epochs=1, batch_size=2,
                             seed=seed, callbacks=[keras.callbacks.Callback()]).model.get_weights() for seed in (0, 1))
    first = FineTuned.load(trained_once).model.get_weights()
    assert all((one == two).all() for one, two in zip(first, again, strict=True))
    assert any((one != two).any() for one, two in zip(first, other))


@pytest.mark.usefixtures("eager")
def test_pairs_of_long_texts_in_place_of_something_else(tmp_path, pretrained):
    """All heads of a text of 512 tokens would take 10 GB as a picture, and 100 MB in metrics.json."""
    path, valid, out = tmp_path / "pairs.csv", tmp_path / "valid.csv", tmp_path / "out"
    rows = [f"first,second,same\n{30 * 'play my '},a song,1\n", "light off,book a flight,0\n"]
    path.write_text("".join(rows))
    valid.write_text(rows[0])
    out.mkdir()
    (out / "thesis.txt").write_text("years of work")
    options = dict(model=pretrained, output=out, text_column="first", text_pair_column="second", label_column="same",
                   epochs=1)
    with pytest.raises(InputError, match="out: exists already"):
        finetune(path, valid, **options)
    assert (out / "thesis.txt").read_text() == "years of work"
    model = finetune(path, valid, overwrite=True, **options)
    assert (out / "model.keras").exists() and not (out / "thesis.txt").exists()
    assert model.task.pairs and model.task.labels == ["0", "1"]
    assert model.columns == {"text_column": "first", "text_pair_column": "second", "label_column": "same"}
    with pytest.raises(InputError, match="takes pairs"):
        model.predict(["play"])
    assert model.predict(["play"], ["music"])[0].label in ("0", "1")
    attention = json.loads((out / "metrics.json").read_text())["attention"]
    assert attention["tokens"][:29] == ["[CLS]", *14 * ["play", "my"]] and len(attention["tokens"]) == 32
    np.testing.assert_allclose(np.sum(attention["layers"], axis=-1), 1, atol=0.01)  # of numbers with four digits
    assert np.shape(attention["layers"])[2:] == (32, 32)


def test_the_card_shows_what_was_used_by_default(trained_once):
    card = (trained_once / "README.md").read_text()
    assert all(f"| {name} | {value} |" in card for name, value in (
        ("max_length", 128), ("dropout", 0.2), ("learning_rate", 5e-05), ("epochs", 1)))
    assert "doc_stride" not in card and "aggregate" not in card  # texts are not split
    assert "Fine-tuned from pretrained" in card and str(trained_once.parent) not in card


def test_starts_from_its_own_folder(trained_once):
    loaded = BertLayer.from_pretrained(trained_once)
    for got, wanted in zip(loaded.get_weights(), FineTuned.load(trained_once).model.bert.get_weights(), strict=True):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("case,rows,options,line", [
    ("intent", [("play", "c"), ("stop", "b"), ("lamp", "a")], {}, "head: that of "),
    ("pairs huggingface", [("play", "c"), ("stop", "b"), ("lamp", "a")], {"task": "intent"}, "head: that of "),
    ("multilabel", [("play", ["c", "b"]), ("stop", ["a"])], {}, "head: that of "),
    ("regress", [("play", 0.5), ("stop", 1.5)], {}, "head: that of "),
    ("rerank", [("play", "stop", 1), ("play", "now", 0)], {}, "head: that of "),
    ("tag", [(["play", "music", "now"], ["O", "B-x", "I-x"])], {}, "head: that of "),
    ("span", zoo.CASES["span"][3], {}, "head: that of "), ("choice", zoo.CASES["choice"][3], {}, "head: that of "),
    ("multilabel", [("play", "a"), ("stop", "b"), ("a", "c")], {"task": "classify"}, "new head: .* not classify"),
    ("intent", [("play", "a"), ("stop", "b")], {}, "new head: .* only one of the two has c"),
    ("few shot", [("play", "a"), ("stop", "b"), ("a", "c")], {}, "new head: .* BertEmbeddingClassifier, the new "),
    ("tag", [(["play"], ["B-x"]), (["a", "i"], ["O", "B-x"])], {"features": "last"}, "new head: .*Tagger on last"),
    ("rerank", [("play", 0.5), ("stop", 1.5)], {"task": "regress"}, "new head: .* is for the task rerank, not regress"),
    ("mean", [("play", "a"), ("stop", "b")], {"task": "classify"}, None)])
def test_keeps_the_head_of_the_same_task_and_labels(tmp_path, case, rows, options, line):
    """Its first outputs are those of the model that it starts from, whose labels are in another order."""
    case, *form = case.split(" h")
    folder = zoo.copy(zoo.converted(case, "huggingface") if form else zoo.model(case), tmp_path / "model")
    (folder / "README.md").write_text(
        "---\nlicense: mit\nlanguage:\n- en\n- ko\ntags: [x]\n---\nlicense: gpl\n")
    was = zoo.make(case)
    labels = getattr(was.task, "labels", [])
    if not form and labels:
        (folder / "labels.json").write_text(json.dumps(labels := labels[::-1]))
    defaults = {name: parameter.default for name, parameter in inspect.signature(finetune).parameters.items()}
    prepared = prepare(Options.checked(finetune, defaults | {
        "train": rows, "valid": rows, "model": folder, "output": tmp_path / "out", "task": was.task.name,
        "max_length": 80 if case == "span" else 16} | options))
    assert prepared.base_model["front_matter"] == "license: mit\nlanguage:\n- en\n- ko\n"
    found = [text for text in prepared.lines if re.match("head: |new head: ", text)]
    assert len(found) == (line is not None) and re.match(line or "", "".join(found))
    inputs = random_inputs(3, 8)
    if case == "choice":
        inputs = {name: np.stack([values, values[::-1]], 1) for name, values in inputs.items()}
    if line and line.startswith("head"):
        wanted, got = was.model(inputs), prepared.model(inputs)
        if labels:
            wanted = np.take(wanted, [labels.index(label) for label in prepared.task.labels], -1)
        for one, other in zip(keras.tree.flatten(wanted), keras.tree.flatten(got), strict=True):
            np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.parametrize("changes,words", [
    ({"task": "poetry"}, ["task", "intent, classify", "poetry"]),
    ({"epochs": 0}, ["epochs", "at least 1", "0"]),
    ({"max_length": 129}, ["max_length", "128", "129"]),
    ({"max_length": 2}, ["max_length", "at least 3"]),
    ({"learning_rate": -1.0}, ["learning_rate", "positive"]),
    ({"model": "/nowhere"}, ["/nowhere"]),
])
def test_bad_arguments(tmp_path, pretrained, intents, changes, words):
    arguments = {"model": pretrained} | changes
    with pytest.raises((InputError, OSError)) as error:
        finetune(*intents, output=tmp_path / "out", **arguments)
    for word in words:
        assert word in str(error.value)
    assert not (tmp_path / "out").exists()


def test_values_of_numpy_become_those_of_python(intents):
    arguments = {name: parameter.default for name, parameter in inspect.signature(finetune).parameters.items()}
    given = {"train": intents[0], "model": "minilm", "output": intents[0].parent / "out", "task": "span",
             "doc_stride": np.int64(64), "seed": np.int32(1), "learning_rate": np.float32(0.5), "epochs": np.int64(2)}
    options = Options.checked(finetune, arguments | given)
    assert (options.doc_stride, options.seed, options.learning_rate, options.epochs) == (64, 1, 0.5, 2)
    json.dumps(options.as_json())
    assert options.fields_of(TASKS["span"]) == {"doc_stride": 64} and type(options.seed) is int


def test_bad_data_is_refused_before_anything_is_written(tmp_path, pretrained, intents):
    train, valid = intents
    valid.write_text("text\tlabel\nplay\tmusic\nfly\tflight\n")
    with pytest.raises(InputError, match="valid.tsv: row 3: label 'flight' does not occur"):
        finetune(train, valid, model=pretrained, output=tmp_path / "out")
    (pretrained / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n")
    with pytest.raises(InputError, match="vocab.txt.*60.*got 4"):
        finetune(train, train, model=pretrained, output=tmp_path / "out")
    train.write_text("text\tlabel\nplay\tmusic\n")
    with pytest.raises(InputError, match="at least two labels"):
        finetune(train, train, model=pretrained, output=tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pretrained", "train.tsv", "valid.tsv"]
