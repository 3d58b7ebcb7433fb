"""Fine-tuning with LoRA, frozen blocks, class weights, early stopping, bfloat16, on two devices."""

import dataclasses
import json
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_bert.errors import InputError
from keras_bert.layers import BertLayer
from keras_bert.training import FineTuned, finetune

from conftest import (
    TINY,
    TINY_VOCABULARY,
    finetune_command,
    interrupted_after,
    random_inputs,
    randomize,
    write_huggingface,
)


def weights(layer):
    return {variable.path.split("/", 1)[1]: keras.ops.convert_to_numpy(variable) for variable in layer.variables}


def changed(before, after):
    return {name for name, value in weights(after).items() if (value != weights(before)[name]).any()}


@pytest.mark.slow("weights that train although they are frozen")
@pytest.mark.usefixtures("eager")
def test_frozen_blocks_stay(tmp_path, pretrained, intents, bert):
    model = finetune(*intents, model=pretrained, output=tmp_path / "out", epochs=2, batch_size=2, freeze_blocks=1,
                     learning_rate=0.01)
    moved = changed(bert, model.model.bert)
    assert moved and not any(name.startswith(("embeddings", "block_0")) for name in moved)
    assert {"pooler/kernel", "block_1/attention/query/kernel"} <= moved
    with pytest.raises(InputError, match=r"freeze_blocks must be at most .* \(2\); got 3"):
        finetune(*intents, model=pretrained, output=tmp_path / "out3", freeze_blocks=3)
    with pytest.raises(InputError, match=r"lora_rank must be at most the encoder's hidden_size \(\d+\); got 9999"):
        finetune(*intents, model=pretrained, output=tmp_path / "out3", lora_rank=9999)


@pytest.mark.slow("updates of the wrong rank")
@pytest.mark.usefixtures("eager")
def test_lora_changes_queries_and_values_by_a_low_rank(tmp_path, pretrained, intents, bert):
    model = finetune(*intents, model=pretrained, output=tmp_path / "out", epochs=3, batch_size=2, lora_rank=2,
                     learning_rate=0.05)
    assert changed(bert, model.model.bert) == {
        f"block_{i}/attention/{name}/kernel" for i in range(2) for name in ("query", "value")}
    for i in range(2):
        name = f"block_{i}/attention/query/kernel"
        singular = np.linalg.svd(weights(model.model.bert)[name] - weights(bert)[name], compute_uv=False)
        assert singular[1] > 1e-4 > 1e-5 > singular[2]  # of rank 2 but for rounding
    assert not [variable for variable in model.model.variables if "lora" in variable.name]
    inputs = random_inputs(2, 5)
    np.testing.assert_array_equal(FineTuned.load(tmp_path / "out").model(inputs), model.model(inputs))


@pytest.fixture
def accumulate(tmp_path):
    """Fine-tunes an encoder on different texts, with this rate of dropout everywhere."""
    def run(name, texts, dropout=0.0, **options):
        rows = [("play " * (1 + i) + TINY_VOCABULARY[5 + i], "ab"[i % 2]) for i in range(texts)]
        config = dataclasses.replace(TINY, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)
        if not (tmp_path / "encoder").exists():
            write_huggingface(tmp_path / "encoder", randomize(BertLayer(config)))
        return finetune(rows, rows, model=tmp_path / "encoder", output=tmp_path / name, dropout=dropout,
                        **{"learning_rate": 1e-3, "task": "classify", **options}).model.get_weights()
    return run


@pytest.mark.parametrize("mode, options", [
    ("eager", {}), pytest.param("without_pictures", {"pack": True}, marks=pytest.mark.slow("packed rows in a graph"))])
def test_accumulated_batches_are_one_larger(accumulate, tmp_path, request, mode, options):
    request.getfixturevalue(mode)
    accumulated = accumulate("four", 8, epochs=3, batch_size=4, gradient_accumulation_steps=2, **options)
    for one, other in zip(accumulated, accumulate("eight", 8, epochs=3, batch_size=8, **options)):
        np.testing.assert_allclose(one, other, atol=1e-6)
    metrics = [json.loads((tmp_path / name / "metrics.json").read_text()) for name in ("four", "eight")]
    assert metrics[0]["history"]["loss"] == pytest.approx(metrics[1]["history"]["loss"], abs=1e-5)


@pytest.mark.usefixtures("eager")
def test_a_run_with_accumulated_batches_resumes(accumulate, tmp_path, capsys):
    """Of five batches an epoch, the last one is a step of its own. Only whole steps are saved."""
    options = {"dropout": 0.1, "epochs": 2, "batch_size": 2, "gradient_accumulation_steps": 2, "save_steps": 1}
    whole = accumulate("whole", 10, **options)
    with interrupted_after(saves=7):  # the last one, of the fifth step, is not finished
        accumulate("again", 10, **options)
    capsys.readouterr()
    again = accumulate("again", 10, **options)
    assert "resuming from step 4 of 6" in capsys.readouterr()[1]
    for one, other in zip(whole, again):
        np.testing.assert_array_equal(one, other)


def test_accumulation_is_refused_where_it_cannot_work(accumulate):
    with pytest.raises(InputError, match="gradient_accumulation_steps must be 1 on the JAX backend and with devices; "):
        accumulate("out", 8, gradient_accumulation_steps=2, devices=["CPU:0", "CPU:1"])


def test_lora_begins_as_the_encoder(bert):
    inputs = random_inputs(2, 5)
    before = keras.ops.convert_to_numpy(bert(inputs)[1])
    bert.enable_lora(4)
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(bert(inputs)[1]), before)
    assert all("lora" in variable.name for variable in bert.trainable_variables)
    assert len(bert.trainable_variables) == 2 * 2 * TINY.num_hidden_layers


@pytest.mark.usefixtures("eager")
def test_class_weights_are_balanced_or_those_of_a_dict_or_a_file(tmp_path, pretrained):
    rows = [("play music", "common")] * 3 + [("light on", "rare"), ("stop it", "other")]
    counts = {"common": 3, "rare": 1, "other": 1}
    balanced = {label: len(rows) / (len(counts) * count) for label, count in counts.items()}
    of_numpy = {label: np.float32(weight) for label, weight in balanced.items()}
    (tmp_path / "weights.json").write_text(json.dumps(balanced))
    for few, few_rows, forms in ((False, rows, ("balanced", tmp_path / "weights.json", {"rare": 1})),
                                 (True, rows * 2, ("balanced", of_numpy, None))):
        wanted, same, unweighted = (
            finetune(few_rows, rows, model=pretrained, output=tmp_path / f"{number}{few}", epochs=1, batch_size=4,
                     few_shot=few, class_weights=weights).model.get_weights() for number, weights in enumerate(forms))
        for got, weight in zip(same, wanted, strict=True):
            np.testing.assert_allclose(got, weight, atol=1e-6)
        assert any((got != weight).any() for got, weight in zip(unweighted, wanted))


@pytest.mark.parametrize("weights, message", [
    ("balance",
     "class_weights must be balanced, or weights by label: a dict or a .json file; there is no file balance; did you "
     "mean balanced?"),
    ({"Music": 1},
     "class_weights must have labels of the training file, light, music; got 'Music'; did you mean music?"),
    ({"music": float("inf")}, "class_weights['music'] must be finite; got inf"),
    ({"music": -1}, "class_weights['music'] must be at least 0; got -1"),
    ({"music": 0}, "class_weights must be positive for at least two labels; got {'music': 0}"),
    (3, "class_weights must be a string or a path or an object; got 3"),
])
def test_wrong_class_weights_are_named(weights, message, intents, pretrained, tmp_path):
    with pytest.raises(InputError) as error:
        finetune(*intents, model=pretrained, output=tmp_path / "out", class_weights=weights)
    assert str(error.value) == message


class Observer(keras.callbacks.Callback):
    """Records its calls; ends the process's work after `steps` steps, as a kill would."""

    def __init__(self, steps=None):
        super().__init__()
        self.seen, self.steps = [], steps

    def on_train_begin(self, logs=None):
        self.seen.append("begin")

    def on_epoch_begin(self, epoch, logs=None):
        self.seen.append(("epoch", epoch))

    def on_train_batch_begin(self, batch, logs=None):
        self.seen.append(("before", batch))

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append(("after", batch))
        if self.steps is not None and sum(step[0] == "after" for step in self.seen) > self.steps:
            raise KeyboardInterrupt

    def on_epoch_end(self, epoch, logs=None):
        self.seen.append(("scores", epoch, logs))

    def on_train_end(self, logs=None):
        self.seen.append("end")


@pytest.mark.usefixtures("eager")
def test_callbacks_see_the_run_and_what_remains_of_it(tmp_path, pretrained, intents):
    def run(name, *callbacks):
        return finetune(*intents, model=pretrained, output=tmp_path / name, epochs=2, batch_size=2, save_steps=1,
                        callbacks=callbacks)

    steps = len(intents[0].read_text().splitlines()) // 2
    wanted, whole = run("plain"), Observer()
    seen = run("whole", whole)
    history = json.loads((tmp_path / "whole/metrics.json").read_text())["history"]
    assert {"loss", "accuracy", "val_loss", "val_accuracy"} <= history.keys()
    assert whole.seen == ["begin", *(call for epoch in range(2) for call in [
        ("epoch", epoch), *((when, step) for step in range(steps) for when in ("before", "after")),
        ("scores", epoch, {name: values[epoch] for name, values in history.items()})]), "end"]
    killed, resumed = Observer(steps + 1), Observer()
    with pytest.raises(KeyboardInterrupt):
        run("killed", killed)
    resumed_model = run("killed", resumed)
    assert resumed.seen == ["begin", ("epoch", 1), *whole.seen[whole.seen.index(("epoch", 1)) + 3:]]
    for model in (seen, resumed_model):
        for got, weight in zip(model.model.get_weights(), wanted.model.get_weights(), strict=True):
            np.testing.assert_array_equal(got, weight)


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


@pytest.mark.slow("class weights without effect")
@pytest.mark.usefixtures("without_pictures")
def test_class_weights_help_the_rare_class(tmp_path, pretrained):
    """One text with both labels: its scores tend to the shares of the classes in the loss."""
    for name, common in (("train", 30), ("even", 3)):
        rows = "play music\tcommon\n" * common + "play music\trare\n" * 3
        (tmp_path / f"{name}.tsv").write_text("text\tlabel\n" + rows)
    for weighing, valid, share in ((None, "train", 3 / 33), ("balanced", "even", 0.5)):
        model = finetune(tmp_path / "train.tsv", tmp_path / f"{valid}.tsv", model=pretrained,
                         output=tmp_path / f"out_{valid}",
                         epochs=15, learning_rate=0.01, class_weights=weighing)
        answer, = model.predict(["play music"], top_k=2)
        assert answer.scores[answer.labels.index("rare")] == pytest.approx(share, abs=0.05)


@pytest.mark.slow("the wrong epoch kept")
@pytest.mark.usefixtures("without_pictures")
def test_early_stopping_keeps_the_best_epoch_and_tensorboard_sees_it(tmp_path, pretrained, intents):
    text = intents[1].read_text()  # answers that the training file calls wrong: scores get worse in time
    intents[1].write_text(text.replace("music\n", "x\n").replace("light\n", "music\n").replace("x\n", "light\n"))
    finetune(*intents, model=pretrained, output=tmp_path / "out", epochs=40, batch_size=2, learning_rate=0.02,
             early_stopping_patience=2,
             log_dir=str(tmp_path / "logs"))
    metrics = json.loads((tmp_path / "out/metrics.json").read_text())
    accuracy, loss = metrics["history"]["val_accuracy"], metrics["history"]["val_loss"]
    assert len(loss) == metrics["best_epoch"] + 2 < 40
    logged = [(event.step, tf.make_ndarray(value.tensor)) for path in (tmp_path / "logs").iterdir()
              for event in tf.compat.v1.train.summary_iterator(str(path))
              for value in event.summary.value if value.tag == "validation/loss"]
    assert logged == [(2 * epoch, pytest.approx(value)) for epoch, value in enumerate(loss, 1)]
    best = metrics["best_epoch"] - 1
    assert (accuracy[best], -loss[best]) == max(zip(accuracy, (-value for value in loss)))
    assert (metrics["accuracy"], metrics["loss"]) == pytest.approx((accuracy[best], loss[best]), abs=1e-5)


@pytest.mark.slow("training in bfloat16")
@pytest.mark.usefixtures("without_pictures")
def test_mixed_bfloat16_learns_with_float32_weights(tmp_path, pretrained, intents):
    model = finetune(*intents, model=pretrained, output=tmp_path / "out", epochs=30, batch_size=2, learning_rate=0.01,
                     dtype="mixed_bfloat16")
    assert json.loads((tmp_path / "out/metrics.json").read_text())["accuracy"] == 1.0
    assert {str(variable.dtype) for variable in model.model.trainable_variables} == {"float32"}
    assert model.model.bert.compute_dtype == "bfloat16"


TWO_DEVICES = """
import functools
import json
import sys
sys.modules["matplotlib"] = None  # no pictures, which take time
import numpy as np
import tensorflow as tf
tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0],
                                           [tf.config.LogicalDeviceConfiguration()] * 3)
from keras_bert import kernels
from keras_bert.training import finetune, optimizer
# So large an epsilon makes AdamW gradient descent: its steps are as long as the gradients that it gets.
optimizer.AdamW = functools.partial(optimizer.AdamW, beta_1=0.0, epsilon=1e6)
clip, norms = kernels.clip_by_global_norm, []
def clip_and_look(gradients, norm):
    tf.py_function(lambda value: norms.append(float(value)), [tf.linalg.global_norm(gradients)], [])
    return clip(gradients, norm / 100)
kernels.clip_by_global_norm = clip_and_look
folder = sys.argv[1]
runs = [finetune(f"{folder}/train.tsv", f"{folder}/valid.tsv", model=f"{folder}/calm",
                 output=f"{folder}/out{len(devices)}",
                 epochs=2, batch_size=4, learning_rate=1e6, dropout=0.0, devices=devices, weight_decay=1e-6)
        for devices in ((), ("CPU:0", "CPU:1"))]
one, two = (run.model.get_weights() for run in runs)
found = [norms[:4], norms[4:12], max(float(np.abs(a - b).max()) for a, b in zip(one, two))]

# A step of each task, whose batch has more to learn from in one half than in the other, and a model without devices.
import keras
from keras_bert.convert import load_pretrained
from keras_bert.models.task_models import loss_arguments, new_head
from keras_bert.tasks import TASKS
from keras_bert.errors import InputError
from keras_bert.training.devices import strategy_scope
steps = {}
for name, rows in json.load(sys.stdin).items():
    examples = TASKS[name].read(TASKS[name].open(rows, name))
    task, results = TASKS[name].from_examples(name, examples, max_length=80), []
    batches = task.encode(examples, runs[0].tokenizer).batched(runs[0].tokenizer, whole=True)
    for devices in ((), ("CPU:0", "CPU:1")):
        keras.utils.set_random_seed(0)
        with strategy_scope(devices, 4, batches):
            model = new_head(task, load_pretrained(f"{folder}/calm", frozen=task.unused), 0.0)
            model.compile(keras.optimizers.SGD(1.0), run_eagerly=True, **loss_arguments(task))
        before = model.get_weights()
        model.fit(batches.training_dataset(4, 0, 0), verbose=0)
        results.append((float(model.get_metrics_result()["loss"]), model.get_weights()))
    (loss, one), (other, two) = results
    steps[name] = [loss, other, max(float(np.abs(a - b).max()) for a, b in zip(one, before)),
                   max(float(np.abs(a - b).max()) for a, b in zip(one, two))]
refused = []
for devices in (["CPU:1", "CPU:0"], ["CPU:2"], ["CPU:1", "CPU:2"], ["CPU:0", "CPU:0"]):
    try:
        strategy_scope(devices, 4)
    except InputError as error:
        refused.append(str(error))
print(json.dumps([*found, steps, refused]))
"""
LONG = "turn the lamp off please turn the light on"
ROWS = {
    "classify": [("play music", "a"), ("lamp", "b"), (LONG, "b"), ("the", "a")],
    "tag": [(LONG.split(), ["O", "O", "B-x", "O", "O", "O", "O", "B-x", "I-x"]), (["play", "music"], ["O", "B-x"]),
            (["play"], ["O"]), (["music"], ["B-x"])],
    "multilabel": [(LONG, ["a", "b"]), ("lamp", []), ("play", ["a"]), ("the", ["b"])],
    "regress": [(LONG, 1.0), ("lamp", -2.0), ("play", 0.5), ("the", 3.0)],
    "choice": [(LONG, ["lamp", "light"], 0), ("the", ["play", "lamp"], 1), ("a", ["lamp", "a"], 0),
               ("on", ["a", "b"], 1)],
    "span": [("what", text, {"text": [text[-4:]], "answer_start": [len(text) - 4]})
             for text in (LONG + " lamp", "the lamp", "play lamp", "my lamp")],
}


@pytest.mark.slow("gradients on two devices")
def test_two_devices_as_one(tmp_path, intents):
    """Without dropout, whose draws differ by device, sharing batches out changes nothing but rounding: each device sees
    the norm of the whole batch's gradient before it is clipped."""
    config = dataclasses.replace(TINY, num_hidden_layers=1, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    write_huggingface(tmp_path / "calm", randomize(BertLayer(config)))
    intents[0].write_text(intents[0].read_text() + "".join(intents[0].read_text().splitlines(keepends=True)[1:]))
    with open(intents[1], "a") as file:
        file.write("what time is it\tlight\n")  # a last batch of one text: the second device gets none of it
    result = subprocess.run([sys.executable, "-c", TWO_DEVICES, tmp_path], capture_output=True, text=True,
                            input=json.dumps(ROWS))
    assert result.returncode == 0, result.stderr
    one, two, difference, steps, refused = json.loads(result.stdout.splitlines()[-1])
    assert refused == [
        "several devices must be the same in all runs of a process, CPU:0, CPU:1; got CPU:1, CPU:2; "
        "start another process",
        "devices must be different ones of CPU:0, CPU:1, CPU:2; got CPU:0, CPU:0"]
    assert steps.keys() == ROWS.keys()
    for loss, other, step, apart in steps.values():
        assert other == pytest.approx(loss, rel=1e-5) and step > 1e-3 and apart < 1e-4 * step
    assert sorted(one)[1] > 0.02  # all steps but one clip, to 0.01
    assert sorted(two) == pytest.approx(sorted([*one, *one]), rel=1e-4)
    assert difference < 1e-5
    command = json.loads((tmp_path / "out2/metrics.json").read_text())["command"]
    assert command.endswith("--epochs=2 --batch_size=4 --learning_rate=1000000.0 --weight_decay=1e-06 --dropout=0.0 "
                            "--devices=CPU:0,CPU:1")


GPU = """
import sys
sys.modules["matplotlib"] = None  # no pictures, which take time
import keras
import tensorflow as tf
from tensorflow.python.framework.config import is_op_determinism_enabled
devices = tf.config.list_physical_devices
gpu = tf.config.PhysicalDevice("/physical_device:GPU:0", "GPU")
tf.config.list_physical_devices = lambda kind=None: [*devices(kind), *([gpu] if kind in (None, "GPU") else [])]
compile = keras.Model.compile
def compile_and_tell(self, *args, **kwargs):
    compile(self, *args, **kwargs)
    print("jit_compile", self.jit_compile)
keras.Model.compile = compile_and_tell
from keras_bert import cli
for flags in ([], ["--deterministic"]):
    assert cli.run([*sys.argv[1:], *flags, "--overwrite"]) == 0
    print("deterministic", is_op_determinism_enabled())
"""


@pytest.mark.slow("a step compiled by XLA")
def test_on_a_gpu_xla_unless_deterministic(tmp_path, intents, pretrained):
    """What Keras decides where TensorFlow lists a GPU; XLA compiles for the CPU here. In another process, because
    determinism holds for the rest of it."""
    command = finetune_command(intents, pretrained, tmp_path / "out", "--freeze_blocks=2")  # XLA compiles a small step
    result = subprocess.run([sys.executable, "-c", GPU, *command], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert [line for line in result.stdout.splitlines() if line.startswith(("jit_compile", "deterministic"))] == [
        "jit_compile True", "deterministic False", "jit_compile False", "deterministic True"]


def test_devices_need_whole_batches(tmp_path, intents, pretrained):
    with pytest.raises(InputError, match="^valid must have at least as many texts as a batch with devices, 2; got 1$"):
        finetune(intents[0], [("what time is it", "light")], model=pretrained, output=tmp_path / "out",
                 devices=["CPU:0"], batch_size=2)


def test_lora_needs_an_encoder_that_trains(tmp_path, intents, pretrained):
    with pytest.raises(InputError, match="^lora_rank must be left out with features, whose encoder is frozen; got 2$"):
        finetune(*intents, model=pretrained, output=tmp_path / "out", task="tag", features="last", lora_rank=2)
