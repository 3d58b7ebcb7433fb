"""Fine-tuning with LoRA, frozen blocks, class weights, early stopping, bfloat16, on two devices."""

import contextlib
import dataclasses
import json
import re
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import config as tf_config

from keras_bert.errors import InputError
from keras_bert.layers import BertLayer
from keras_bert.tasks import TASKS
from keras_bert.training import FineTuned, finetune
from keras_bert.training.options import Options
from keras_bert.training.strategy import weights_of_classes

from conftest import SMALL, TINY, TINY_VOCABULARY, eagerly, fit, options_of, randomize, write_huggingface

LONG = "turn the lamp off please turn the light on"


def weights(layer):
    return {variable.path.split("/", 1)[1]: keras.ops.convert_to_numpy(variable) for variable in layer.variables}


def changed(before, after):
    return {name for name, value in weights(after).items() if (value != weights(before)[name]).any()}


@pytest.mark.slow("weights that train although they are frozen, or the wrong epoch kept")
@pytest.mark.usefixtures("eager")
def test_frozen_bfloat16_early_stopping_and_tensorboard(tmp_path, pretrained, intents, bert):
    text = intents[1].read_text()  # answers that the training file calls wrong: scores get worse in time
    intents[1].write_text(text.replace("music\n", "x\n").replace("light\n", "music\n").replace("x\n", "light\n"))
    model = finetune(*intents, model=pretrained, output=tmp_path / "out", epochs=40, batch_size=2, learning_rate=0.05,
                     warmup_ratio=0.0, dropout=0.0, freeze_blocks=1, dtype="mixed_bfloat16", early_stopping_patience=4,
                     log_dir=tmp_path / "logs")
    moved = changed(bert, model.model.bert)
    assert moved and not any(name.startswith(("embeddings", "block_0")) for name in moved)
    assert {"pooler/kernel", "block_1/attention/query/kernel"} <= moved
    assert {str(variable.dtype) for variable in model.model.trainable_variables} == {"float32"}
    assert model.model.bert.compute_dtype == "bfloat16"
    metrics = json.loads((tmp_path / "out/metrics.json").read_text())
    accuracy, loss = metrics["history"]["val_accuracy"], metrics["history"]["val_loss"]
    assert min(metrics["history"]["loss"]) < 0.9 * metrics["history"]["loss"][0]
    assert len(loss) == metrics["best_epoch"] + 4 < 40
    logged = [(event.step, tf.make_ndarray(value.tensor)) for path in (tmp_path / "logs").iterdir()
              for event in tf.compat.v1.train.summary_iterator(str(path))
              for value in event.summary.value if value.tag == "validation/loss"]
    assert logged == [(2 * epoch, pytest.approx(value)) for epoch, value in enumerate(loss, 1)]
    best = metrics["best_epoch"] - 1
    assert (accuracy[best], -loss[best]) == max(zip(accuracy, (-value for value in loss)))
    assert (metrics["accuracy"], metrics["loss"]) == pytest.approx((accuracy[best], loss[best]), abs=1e-5)


@pytest.mark.slow("updates of the wrong rank, or lost in a form of the model")
@pytest.mark.usefixtures("eager")
def test_lora_changes_queries_and_values_by_a_low_rank_in_every_form(tmp_path, intents):
    """Of an encoder whose word embeddings have rows without a token."""
    bert = randomize(BertLayer(dataclasses.replace(TINY, vocab_size=64, num_hidden_layers=1)))
    padded = write_huggingface(tmp_path / "padded", bert)
    (padded / "vocab.txt").write_text("\n".join(TINY_VOCABULARY) + "\n")
    model = finetune(*intents, model=padded, output=f"{tmp_path}/out/", epochs=2, batch_size=2, lora_rank=2,
                     learning_rate=0.05)
    names = [f"block_0/attention/{name}/kernel" for name in ("query", "value")]
    assert changed(bert, model.model.bert) == set(names)
    for name in names:
        singular = np.linalg.svd(weights(model.model.bert)[name] - weights(bert)[name], compute_uv=False)
        assert singular[1] > 1e-4 > 1e-5 > singular[2]  # of rank 2 but for rounding
    assert not [variable for variable in model.model.variables if "lora" in variable.name]
    texts = ["play my song", "light off", ""]
    (tmp_path / "answers").mkdir()
    (tmp_path / "answers/old").touch()
    model.export(tmp_path / "answers", overwrite=True)
    assert not (tmp_path / "answers/old").exists()
    exported = tf.saved_model.load(tmp_path / "answers")(texts)
    for wanted, given, label, score in zip(model.predict(texts), FineTuned.load(tmp_path / "out").predict(texts),
                                           exported["label"].numpy(), exported["score"].numpy(), strict=True):
        assert wanted.label == given.label == label.decode() and wanted.in_scope == given.in_scope
        np.testing.assert_allclose([given.score, score], wanted.score, atol=1e-6)


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    """An encoder without dropout, whose draws differ by batch and by device."""
    config = dataclasses.replace(SMALL, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    return write_huggingface(tmp_path_factory.mktemp("calm") / "calm", randomize(BertLayer(config)))


def run_calmly(calm, output, rows, **options):
    """Returns the weights and the losses of two epochs, of packed texts in a graph."""
    with contextlib.nullcontext() if options.get("pack") else eagerly():
        model, progress = fit(output, train=rows, valid=rows, model=calm, epochs=2, learning_rate=1e-3, **options)
    return model.get_weights(), progress.history["loss"]


# Five labelled examples of each task, of very different lengths, and options.
WORDS_OF = [LONG, "play", "stop the music", "lamp", f"{LONG} {LONG}"]
TAGGED = [(text.split(), ["B-x", *["O"] * text.count(" ")]) for text in WORDS_OF]
UNEQUAL = {
    "tag": (TAGGED, {}), "tag windows": (TAGGED, {"max_length": 8, "doc_stride": 3}),
    "classify": (list(zip(WORDS_OF, "abaab")), {"class_weights": {"a": 5.0, "b": 0.1}}),
    "multilabel": (list(zip(WORDS_OF, [["a", "b"], [], ["a"], ["b"], ["a"]])), {}),
    "regress": (list(zip(WORDS_OF, [0.0, 9.0, 1.0, 2.0, 0.5])), {"max_length": 8, "doc_stride": 2}),
    "rerank": ([("play", text, i % 2) for i, text in enumerate(WORDS_OF)], {}),
    "choice": ([(text, ["now", "please stop"], i % 2) for i, text in enumerate(WORDS_OF)], {}),
    "span": ([("what", text, {"text": [text[-4:]], "answer_start": [len(text) - 4]}) for text in WORDS_OF], {}),
    "embed": ([(text, "the music", i / 4) for i, text in enumerate(WORDS_OF)], {"loss": "cosine_similarity"}),
}


@pytest.mark.parametrize("case,batch_size,steps,more", [
    ("tag", 2, 3, {}), ("classify", 2, 3, {}),
    *(pytest.param(*row, marks=pytest.mark.slow("gradients that a graph or a task accumulates")) for row in (
        ("classify", 2, 3, {"pack": True}), ("tag windows", 4, 6, {}), ("multilabel", 4, 2, {}), ("rerank", 4, 2, {}),
        ("choice", 4, 2, {}), ("span", 4, 2, {}), ("regress", 4, 6, {}), ("embed", 4, 2, {})))])
def test_accumulated_batches_of_any_split_are_one_larger(tmp_path, calm, case, batch_size, steps, more):
    """Also packed in a graph, as in plain batches eagerly, and with a last step of fewer texts."""
    rows, options = UNEQUAL[case]
    options = {"task": case.split()[0], "dropout": None if case in ("span", "embed") else 0.0, **options}
    some = run_calmly(calm, tmp_path / "some", rows, batch_size=batch_size, gradient_accumulation_steps=steps,
                      **options, **more)
    whole = run_calmly(calm, tmp_path / "all", rows, batch_size=batch_size * steps, **options)
    for weights, others in zip(some[0], whole[0], strict=True):
        np.testing.assert_allclose(weights, others, atol=5e-5)  # AdamW enlarges the rounding of gradients of 0
    assert some[1] == pytest.approx(whole[1], rel=1e-5)


def weights_of(class_weights):
    """The weights of three classes, of which the first one has three of five texts."""
    options = options_of(finetune, Options, train="x", model="x", output="x", class_weights=class_weights)
    return weights_of_classes(options, TASKS["intent"](16, labels=["music", "light", "stop"]), [0, 0, 1, 2, 0])


def test_class_weights_are_balanced_or_those_of_a_dict_or_a_file(tmp_path):
    balanced = {"music": 5 / 9, "light": 5 / 3, "stop": 5 / 3}
    (tmp_path / "weights.json").write_text(json.dumps(balanced))
    of_numpy = {label: np.float64(weight) for label, weight in balanced.items()}
    for form in ("balanced", tmp_path / "weights.json", of_numpy):
        assert weights_of(form) == pytest.approx(dict(enumerate(balanced.values())))
    assert weights_of({"light": 3}) == {0: 1, 1: 3, 2: 1} and weights_of(None) is None


@pytest.mark.slow("class weights without effect")
@pytest.mark.usefixtures("eager")
def test_class_weights_help_the_rare_class(tmp_path, pretrained):
    """One text with both labels: its scores tend to the shares of the classes in the loss."""
    rows = [("play music", "common")] * 9 + [("play music", "rare")]
    model = finetune(rows, rows[-1:], model=pretrained, output=tmp_path / "out", epochs=5, learning_rate=0.05,
                     warmup_ratio=0.0, freeze_blocks=2, dropout=0.0, class_weights={"rare": 81})
    answer, = model.predict(["play music"], top_k=2)
    assert answer.scores[answer.labels.index("rare")] > 0.7  # 0.9 in the end, but 0.1 without weights


@pytest.mark.parametrize("weights, message", [
    ("balance", "must be balanced, or weights by label: .*; there is no file balance; did you mean balanced?"),
    ({"Music": 1}, "must have labels of the training file, music, light, stop; got 'Music'; did you mean music?"),
    *(({"music": weight}, rf"\['music'\] must be at most 1,000,000, as .*; got {re.escape(str(weight))}$")
      for weight in (float("inf"), 1e300, 1e30, 10**9)),
    ({"music": -1}, r"\['music'\] must be at least 0; got -1"),
    ({"music": 0, "stop": 0}, "must be positive for at least two labels; got {'music': 0, 'stop': 0}"),
    (3, "must be a string or a path or an object; got 3"),
])
def test_wrong_class_weights_are_named(weights, message):
    with pytest.raises(InputError, match=f"^class_weights ?{message}"):
        weights_of(weights)


@pytest.mark.usefixtures("eager")
def test_callbacks_that_change_the_training_are_refused(tmp_path, pretrained, intents):
    stops = keras.callbacks.LambdaCallback()
    stops.on_train_batch_end = lambda batch, logs: setattr(stops.model, "stop_training", True)
    for callback, message in (
            (keras.callbacks.EarlyStopping(), "must be observers; pass early_stopping_patience instead; got ["),
            (keras.callbacks.ReduceLROnPlateau(), "must be observers; pass learning_rate and warmup_ratio instead;"),
            (print, "must be Keras callbacks; got <built-in function print>"),
            (stops, "must not stop the training; pass early_stopping_patience=…")):
        with pytest.raises(InputError) as error:
            finetune(*intents, model=pretrained, output=tmp_path / "out", callbacks=[callback])
        assert str(error.value).startswith(f"callbacks {message}")


TWO_DEVICES = """
import functools
import json
import sys
sys.modules["matplotlib"] = None  # no pictures, which take time
import numpy as np
import tensorflow as tf
tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0],
                                           [tf.config.LogicalDeviceConfiguration()] * 3)
from keras_bert.training import finetune, optimizer
# So large an epsilon makes AdamW gradient descent: its steps are as long as the gradients that it gets.
optimizer.AdamW = functools.partial(optimizer.AdamW, beta_1=0.0, epsilon=1e6)
folder, runs = sys.argv[1], []
for devices in ((), ("CPU:0", "CPU:1")):
    tf.config.run_functions_eagerly(not devices)  # tracing takes longer
    runs.append(finetune(f"{folder}/train.tsv", f"{folder}/valid.tsv", model=f"{folder}/calm",
                         output=f"{folder}/out{len(devices)}", epochs=2, batch_size=4, learning_rate=1e6, dropout=0.0,
                         devices=devices, weight_decay=1e-6))
one, two = (run.model.get_weights() for run in runs)
difference = max(float(np.abs(a - b).max()) for a, b in zip(one, two))

# A step of tasks whose batch has more to learn from in one half than in the other, and a model without devices.
import keras
from keras_bert.convert import load_pretrained
from keras_bert.tasks import TASKS
from keras_bert.errors import InputError
from keras_bert.training.run import devices_scope
steps = {}
for name, rows in json.load(sys.stdin).items():
    examples = TASKS[name].read(TASKS[name].open(rows, name))
    task, results = TASKS[name].from_examples(name, examples, max_length=80), []
    batches = task.encode(examples, runs[0].tokenizer).batched(runs[0].tokenizer, drop_remainder=True)
    for devices in ((), ("CPU:0", "CPU:1")):
        keras.utils.set_random_seed(0)
        with devices_scope(devices, 4, batches):
            model = task.new_head(load_pretrained(f"{folder}/calm", frozen=task.unused), 0.0)
            model.compile(keras.optimizers.SGD(1.0), run_eagerly=True, **task.loss_arguments())
        before = model.get_weights()
        model.fit(batches.training_dataset(4, 0, 0), verbose=0)
        results.append((float(model.get_metrics_result()["loss"]), model.get_weights()))
    (loss, one), (other, two) = results
    steps[name] = [loss, other, max(float(np.abs(a - b).max()) for a, b in zip(one, before)),
                   max(float(np.abs(a - b).max()) for a, b in zip(one, two))]
refused = []
for devices in (["CPU:1", "CPU:0"], ["CPU:2"], ["CPU:1", "CPU:2"], ["CPU:0", "CPU:0"], ["GPU:0"]):
    try:
        devices_scope(devices, 4)
    except InputError as error:
        refused.append(str(error))
print(json.dumps([difference, steps, refused]))
"""
ROWS = {name: UNEQUAL[name][0][:4] for name in ("tag", "multilabel", "span")}  # by token, by label, by position


@pytest.mark.slow("gradients on two devices")
def test_two_devices_as_one(tmp_path, calm, intents):
    """Without dropout, whose draws differ by device, sharing batches out changes nothing but rounding.
    test_pretraining_trainer.py tests that the norm of the whole batch's gradient is clipped."""
    (tmp_path / "calm").symlink_to(calm)
    intents[0].write_text(intents[0].read_text() + "".join(intents[0].read_text().splitlines(keepends=True)[1:]))
    with open(intents[1], "a") as file:
        file.write("what time is it\tlight\n")  # a last batch of one text: the second device gets none of it
    result = subprocess.run([sys.executable, "-c", TWO_DEVICES, tmp_path], capture_output=True, text=True,
                            input=json.dumps(ROWS))
    assert result.returncode == 0, result.stderr
    difference, steps, refused = json.loads(result.stdout.splitlines()[-1])
    assert refused == [
        "several devices must be the same in all runs of a process, CPU:0, CPU:1; got CPU:1, CPU:2; "
        "start another process",
        "devices must be different ones of those that TensorFlow sees, CPU:0, CPU:1, CPU:2; got CPU:0, CPU:0",
        "devices must be different ones of those that TensorFlow sees, CPU:0, CPU:1, CPU:2; got GPU:0; it sees no GPU: "
        "see docs/gpu.md"]
    assert steps.keys() == ROWS.keys()
    for loss, other, step, apart in steps.values():
        assert other == pytest.approx(loss, rel=1e-5) and step > 1e-3 and apart < 1e-4 * step
    assert difference < 1e-5
    command = json.loads((tmp_path / "out2/metrics.json").read_text())["command"]
    assert command.endswith("--epochs=2 --batch_size=4 --learning_rate=1000000.0 --weight_decay=1e-06 --dropout=0.0 "
                            "--devices=CPU:0,CPU:1")


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("deterministic", [False, True])
def test_on_a_gpu_xla_unless_deterministic(tmp_path, intents, pretrained, monkeypatch, deterministic):
    """What Keras decides where TensorFlow lists a GPU, without the compilation. Determinism would hold for the rest of
    the process."""
    class Compiled(Exception):
        pass

    def fit(model, *_, **__):
        raise Compiled(model.jit_compile)

    listed, gpu = tf.config.list_physical_devices, tf.config.PhysicalDevice("/physical_device:GPU:0", "GPU")
    enabled = []
    monkeypatch.setattr(tf.config, "list_physical_devices",
                        lambda kind=None: [*listed(kind), *([gpu] if kind in (None, "GPU") else [])])
    monkeypatch.setattr(tf.config.experimental, "enable_op_determinism", lambda: enabled.append(True))
    monkeypatch.setattr(tf_config, "is_op_determinism_enabled", lambda: bool(enabled))
    monkeypatch.setattr(keras.Model, "fit", fit)
    with pytest.raises(Compiled) as compiled:
        finetune(*intents, model=pretrained, output=tmp_path / "out", deterministic=deterministic)
    assert (compiled.value.args[0], bool(enabled)) == (not deterministic, deterministic)
