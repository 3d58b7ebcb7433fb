"""Pretraining's loss, gradients and steps beside PyTorch's and the Model Garden's with the same weights; batches in
parts, two devices, dropout, half precision, what is not computed, and how fast GPUs could be."""

import dataclasses
import functools
import pathlib
import subprocess
import sys
import types

import keras
import numpy as np
import pytest
import tensorflow as tf
from test_convert_garden import make as make_garden

from keras_bert.layers import BertLayer
from keras_bert.models import BertPretrainer
from keras_bert.pretraining.objective import Objective
from keras_bert.pretraining.trainer_tensorflow import PretrainingTrainer
from keras_bert.training.optimizer import WarmupDecay, make_optimizer, make_pretraining_optimizer
from keras_bert.training.run import TrainingLog, peak
from keras_bert.weights import garden
from keras_bert.weights.format import Weights
from keras_bert.weights.huggingface_models import TYPES

from conftest import SMALL, TINY, Peer, random_inputs, randomize

torch, transformers = Peer("torch"), Peer("transformers")
CALM = dataclasses.replace(TINY, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
ONE_BLOCK = dataclasses.replace(CALM, num_hidden_layers=1)  # a step's graph takes its time
CLIP, DECAY = 0.5, 0.1
HUGGINGFACE = TYPES["bert"].table("pretraining")


def make_batch(step=0, seed=0):
    """8 examples, of which the first half has three masked tokens each and the other one. Without [PAD], whose row
    PyTorch trains in the output alone."""
    rng, batch = np.random.default_rng(step), random_inputs(8, 12, seed=step)
    batch["input_word_ids"] = np.maximum(batch["input_word_ids"], 1)
    batch["input_type_ids"] = batch.pop("segment_ids")
    batch["input_mask"][2:5, 9:] = 0
    weights = np.ones((8, 3), "float32")
    weights[4:, 1:] = 0
    positions = rng.permuted(np.tile(np.arange(1, 9, dtype="int32"), (8, 1)), axis=1)[:, :3]
    return batch | {
        "masked_lm_positions": np.where(weights == 1, positions, 0).astype("int32"),
        "masked_lm_ids": np.where(weights == 1, rng.integers(1, TINY.vocab_size, (8, 3)), 0).astype("int32"),
        "masked_lm_weights": weights,
        "next_sentence_labels": rng.integers(0, 2, 8).astype("int32"),
        "dropout_seed": np.tile(np.array([[seed, step]], "int32"), (8, 1)),
    }


BATCHES = [make_batch(step) for step in range(3)]


def feeding(batches):
    """What `PretrainingTrainer.feed` takes."""
    def shard_of(step, shard, shards):
        return tf.data.Dataset.from_tensor_slices({
            name: np.stack([np.split(batch[name], shards)[shard] for batch in batches[step:]]) for name in batches[0]})

    return shard_of


def make_model(config=CALM, dtype=None):
    return randomize(BertPretrainer(BertLayer(config, dtype=dtype)))


def make_trainer(batches=BATCHES, config=ONE_BLOCK, dtype=None, optimizer=None, **options):
    """A trainer of always the same model."""
    def make():
        model, schedule = make_model(config, dtype), WarmupDecay(0.01, 2, 50, 2)
        return model, optimizer or make_pretraining_optimizer(model, "adamw", schedule, DECAY, CLIP)

    trainer = PretrainingTrainer(make, Objective(), **options)
    trainer.feed(feeding(batches), 0)
    return trainer


@functools.cache
def trained():
    """Three steps on one device, the batches in one part."""
    trainer = make_trainer()
    trainer.train(3)
    return trainer


def scores_and_gradients(model, batch):
    """`Objective`'s scores of a batch, and a model that holds the gradients in the place of weights."""
    objective = Objective()
    with tf.GradientTape() as tape:
        sums, counts = objective.sums(model, batch, training=True), objective.counts(batch)
        loss = objective.loss(sums, counts)
    gradients = tape.gradient(loss, [variable.value for variable in model.weights])
    holder = make_model(model.bert.config)
    holder.set_weights([tf.convert_to_tensor(gradient).numpy() for gradient in gradients])
    return objective.scores([sums | counts]), holder


def in_form(model, table):
    """The weights of a model as another library calls and stores them."""
    return {name.stored_name: array for name, array in Weights.of(model).arrays(table)}


def assert_close(got, wanted, tolerance=1e-5):
    """Arrays by name, each beside its largest value. The gradient of a key's bias is nothing but rounding."""
    assert got.keys() == wanted.keys()
    for name, value in wanted.items():
        atol = tolerance * max(np.abs(value).max(), 1e-3)
        np.testing.assert_allclose(got[name], value, rtol=0, atol=atol, err_msg=name)


def pytorch_replica(model):
    """`BertForPreTraining` with the weights of a `BertPretrainer`, and its parameters as `in_form` has them."""
    replica = transformers.BertForPreTraining(transformers.BertConfig(**model.bert.config.to_dict()))
    parameters = {name.removeprefix("bert."): parameter for name, parameter in replica.named_parameters()}
    arrays = in_form(model, HUGGINGFACE)
    assert arrays.keys() == parameters.keys()
    for name, parameter in parameters.items():
        parameter.data.copy_(torch.tensor(arrays[name]))
    return replica, parameters


def pytorch_loss(replica, batch):
    labels = np.full(batch["input_word_ids"].shape, -100)  # of the tokens that are not asked for
    asked = np.where(batch["masked_lm_weights"] == 1, batch["masked_lm_ids"], -100)
    np.put_along_axis(labels, batch["masked_lm_positions"], asked, 1)
    tensors = (torch.from_numpy(batch[name]).long() for name in ("input_word_ids", "input_mask", "input_type_ids"))
    return replica(*tensors, labels=torch.from_numpy(labels),
                   next_sentence_label=torch.from_numpy(batch["next_sentence_labels"]).long()).loss


@pytest.mark.peers
@pytest.mark.filterwarnings("ignore:Input dict contained keys")  # of the Garden by itself
@pytest.mark.parametrize("weights", ["some", "parts", "none"])
def test_loss_scores_and_gradients_equal_the_garden(weights):
    peer = make_garden("BertEncoderV2", True)
    from official.nlp.data.pretrain_dataloader import BertPretrainDataConfig
    from official.nlp.tasks import masked_lm

    model = make_model(dataclasses.replace(CALM, hidden_act="gelu_tanh"))
    # Its next-sentence head has a pooler of its own, and leaves the encoder's alone.
    variables, own_pooler = {}, ("pooler_transform", "next_sentence/pooler_dense")
    for name, array in in_form(model, garden.TABLE).items():
        (variables[name],) = (each for each in peer.trainable_variables
                              if f"/{each.name}".endswith(f"/{name.replace(*own_pooler)}:0"))
        variables[name].assign(array)
    batch = make_batch()
    batch["masked_lm_weights"] *= {"some": 1, "parts": np.linspace(0.1, 1, 24).reshape(8, 3), "none": 0}[weights]
    batch["masked_lm_ids"][::2] = np.argmax(peer(batch)["mlm_logits"], -1)[::2]
    task = masked_lm.MaskedLMTask(masked_lm.MaskedLMConfig(train_data=BertPretrainDataConfig()))
    metrics = task.build_metrics()
    with tf.GradientTape() as tape:
        outputs = peer(batch, training=False)  # its dropout cannot be switched off
        loss = task.build_losses(batch, outputs, metrics)
    task.process_metrics(metrics, batch, outputs)
    wanted = {metric.name: float(metric.result()) for metric in metrics}
    got, gradients = scores_and_gradients(model, batch)
    wanted |= {"loss": float(loss), "mlm_loss": wanted.pop("lm_example_loss"),
               "mlm_accuracy": wanted.pop("masked_lm_accuracy")}
    assert got == pytest.approx(wanted, abs=1e-5)
    assert (got["mlm_accuracy"] > 0) == (weights != "none") and 0 < got["next_sentence_accuracy"] < 1
    wanted = tape.gradient(loss, variables, unconnected_gradients="zero")
    assert_close(in_form(gradients, garden.TABLE),
                 {name: tf.convert_to_tensor(gradient).numpy() for name, gradient in wanted.items()})


def pytorch_optimizer(parameters):
    """AdamW that spares biases and layer norms."""
    spared = [parameter for name, parameter in parameters.items() if name.endswith("bias") or "LayerNorm" in name]
    decayed = [parameter for name, parameter in parameters.items() if not (name.endswith("bias") or "Norm" in name)]
    return torch.optim.AdamW([{"params": decayed, "weight_decay": DECAY}, {"params": spared, "weight_decay": 0}],
                             lr=0.01, betas=(0.9, 0.999), eps=1e-6)


@pytest.mark.peers
def test_steps_equal_pytorch():
    """Three whole steps of AdamW: gradients, clipping, decay, schedule."""
    model = make_model(ONE_BLOCK)
    replica, parameters = pytorch_replica(model)
    optimizer = pytorch_optimizer(parameters)
    schedule = transformers.get_polynomial_decay_schedule_with_warmup(optimizer, 2, 50, lr_end=0, power=2)
    losses = []
    for batch in BATCHES:
        optimizer.zero_grad()
        losses.append(pytorch_loss(replica, batch))
        losses[-1].backward()
        assert torch.nn.utils.clip_grad_norm_(replica.parameters(), CLIP) > 2 * CLIP  # it does clip
        optimizer.step()
        schedule.step()
    got, before = in_form(trained().model, HUGGINGFACE), in_form(model, HUGGINGFACE)
    assert_close(got, {name: parameter.detach().numpy() for name, parameter in parameters.items()})
    assert all(np.abs(got[name] - before[name]).max() > 1e-3 for name in got if not name.endswith("key.bias"))
    assert trained().scores()["loss"] == pytest.approx(sum(losses).item() / 3, abs=1e-5)  # all have as many masked


def in_rows(gradient):
    """A gradient as `tf.IndexedSlices`, each row in two halves."""
    rows = np.tile(np.arange(len(gradient)), 2)
    return tf.IndexedSlices(tf.constant(np.concatenate([gradient, gradient]) / 2), rows, gradient.shape)


@pytest.mark.peers
def test_fine_tuning_steps_equal_pytorch():
    """Five steps of AdamW with warm-up, decay and clipping, both given the same gradients: ours of the embeddings in
    rows, as TensorFlow has them, where a row may occur twice."""
    model, holder, rng = make_model(), make_model(), np.random.default_rng(0)
    replica, parameters = pytorch_replica(model)
    ours, optimizer = make_optimizer(model, 0.01, 10, 0.2, DECAY), pytorch_optimizer(parameters)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, 2, 10)
    for _ in range(5):
        gradients = [rng.normal(0, 0.1, variable.shape).astype("float32") for variable in model.weights]
        holder.set_weights(gradients)
        for name, gradient in in_form(holder, HUGGINGFACE).items():
            parameters[name].grad = torch.tensor(gradient)
        assert torch.nn.utils.clip_grad_norm_(replica.parameters(), 1.0) > 5  # it does clip
        optimizer.step()
        schedule.step()
        ours.apply([in_rows(gradient) if variable.name == "embeddings" else tf.constant(gradient)
                    for variable, gradient in zip(model.weights, gradients)], model.weights)
    assert_close(in_form(model, HUGGINGFACE), {name: value.detach().numpy() for name, value in parameters.items()})


@pytest.mark.peers
def test_lamb_steps_equal_the_gardens():
    """Five steps on the same gradients."""
    from official.modeling.optimization import lamb

    peer = lamb.LAMB(0.01, global_clipnorm=CLIP, epsilon=1e-6, weight_decay_rate=DECAY,
                     exclude_from_weight_decay=["norm", "bias"])
    model, rng = make_model(), np.random.default_rng(0)
    ours = make_pretraining_optimizer(model, "lamb", 0.01, DECAY, CLIP)
    replicas = {variable.path: tf.Variable(variable.value, name=variable.path)
                for variable in model.trainable_variables}
    for _ in range(5):
        gradients = [tf.constant(rng.normal(0, 0.1, replica.shape), tf.float32) for replica in replicas.values()]
        assert tf.linalg.global_norm(gradients) > 2 * CLIP
        ours.apply(gradients, model.trainable_variables)
        peer.apply_gradients(zip(gradients, replicas.values()))
    assert_close({variable.path: variable.numpy() for variable in model.trainable_variables},
                 {path: replica.numpy() for path, replica in replicas.items()})


@pytest.mark.peers
@pytest.mark.parametrize("warmup,power", [(7, 2), (0, 1)])
def test_schedule_equals_transformers(warmup, power):
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.3)
    peer = transformers.get_polynomial_decay_schedule_with_warmup(optimizer, warmup, 50, lr_end=0, power=power)
    ours = WarmupDecay(0.3, warmup, 50, power)
    for step in range(53):
        assert float(ours(step)) == pytest.approx(peer.get_last_lr()[0], abs=1e-7), step
        optimizer.step()
        peer.step()


def weights_after(trainer, steps):
    trainer.train(steps)
    return trainer.model.get_weights()


def numpy(variable):
    return tf.convert_to_tensor(variable.value).numpy()


def scores_of(model, batches):
    """The scores of batches as of one, in NumPy's float64."""
    batch = {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}
    outputs, scores = model(batch), {}
    for head, labels, weights in (("mlm", batch["masked_lm_ids"], batch["masked_lm_weights"]),
                                  ("next_sentence", batch["next_sentence_labels"], np.ones(8 * len(batches)))):
        logits = np.asarray(outputs[f"{head}_logits"], "float64")
        losses = np.log(np.exp(logits).sum(-1)) - np.take_along_axis(logits, labels[..., None], -1)[..., 0]
        scores[f"{head}_loss"] = np.average(losses, weights=weights)
        scores[f"{head}_accuracy"] = np.average(logits.argmax(-1) == labels, weights=weights)
    return scores | {"loss": scores["mlm_loss"] + scores["next_sentence_loss"]}


def check_shared(**options):
    """A batch in parts, or on two devices, of which the first has three masked tokens for each of the other's: the same
    weights and scores as in one."""
    trainer = make_trainer(**options)
    for got, wanted in zip(weights_after(trainer, 3), trained().model.get_weights(), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-6)
    assert trainer.scores() == pytest.approx(trained().scores(), rel=1e-6)
    batches = [*BATCHES[:2], make_batch(9)]
    batches[0] = batches[0] | {"masked_lm_weights": np.eye(8, 3, dtype="float32")}  # fewer than in the others
    assert trainer.evaluate(feeding(batches), 3) == pytest.approx(scores_of(trainer.model, batches), rel=1e-6)
    assert trainer.scores() == pytest.approx(trained().scores(), rel=1e-6)


def check_overflow(**options):
    """A step whose gradients overflow halves the scale and changes nothing else; the next one goes where float32 goes.
    """
    trainer = make_trainer(dtype="mixed_float16", **options)
    optimizer, before = trainer.optimizer, trainer.model.get_weights()
    moments = [variable for variable in optimizer.variables if variable.path.endswith("momentum")]
    optimizer.dynamic_scale.assign(2.0**60)
    after = weights_after(trainer, 1)
    assert all((one == other).all() for one, other in zip(before, after, strict=True))
    assert not any(numpy(moment).any() for moment in moments) and len(moments) == len(before)
    assert numpy(optimizer.dynamic_scale) == 2.0**59 and numpy(optimizer.iterations) == 0
    optimizer.dynamic_scale.assign(2.0**15)
    weights_after(trainer, 1)
    assert numpy(optimizer.dynamic_scale) == 2.0**15 and numpy(optimizer.iterations) == 1
    got = np.concatenate([numpy(moment).ravel() for moment in moments])
    wanted = scores_and_gradients(make_model(ONE_BLOCK), BATCHES[1])[1].get_weights()
    wanted = np.concatenate([gradient.ravel() for gradient in wanted])
    assert got @ wanted > 0.999 * np.linalg.norm(got) * np.linalg.norm(wanted)
    assert np.linalg.norm(got) == pytest.approx(0.1 * CLIP, rel=1e-3)  # clipped after the scale was taken off


@pytest.mark.slow("a sum that depends on how a batch is split")
def test_parts_of_a_batch_add_up(eager):
    check_shared(accumulation_steps=4)


def test_float16_survives_an_overflow(eager):
    check_overflow()


TWO_DEVICES = """
import tensorflow as tf
tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0],
                                           [tf.config.LogicalDeviceConfiguration()] * 2)
import test_optimizer
from conftest import eagerly
from test_pretraining_trainer import check_overflow, check_shared, trained
with eagerly():
    trained()
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
check_shared(strategy=strategy, accumulation_steps=2)
check_overflow(strategy=strategy)
test_optimizer.check_clipping(strategy)
print(strategy.num_replicas_in_sync)
"""


@pytest.mark.slow("gradients and scores that devices do not add up")
def test_on_two_devices():
    run = subprocess.run([sys.executable, "-c", TWO_DEVICES], capture_output=True, text=True,
                         cwd=pathlib.Path(__file__).parent)
    assert run.stdout.endswith("2\n"), run.stderr


def test_bfloat16_learns_with_float32_weights(eager):
    trainer = make_trainer([BATCHES[0]] * 7, dtype="mixed_bfloat16")
    losses = []
    for steps in (1, 5, 1):
        trainer.reset()
        trainer.train(steps)
        losses.append(trainer.scores()["loss"])
    assert losses[0] == pytest.approx(scores_of(make_model(ONE_BLOCK), BATCHES[:1])["loss"], abs=0.05)
    assert losses[2] < 0.8 * losses[0]
    assert {variable.dtype for variable in trainer.trainable_variables} == {"float32"}
    assert trainer.model.bert.compute_dtype == "bfloat16"


def test_dropout_follows_seed_and_step(eager):
    """The same examples, with `dropout_seed`s of their own."""
    batches = [BATCHES[1] | {"dropout_seed": np.tile(np.array([seed], "int32"), (8, 1))}
               for seed in ([3, 7], [3, 7], [3, 8], [4, 7])]
    trainer = make_trainer(batches, SMALL, optimizer=keras.optimizers.SGD(1.0))
    before, steps = trainer.model.get_weights(), []
    for _ in batches:
        trainer.model.set_weights(before)
        steps.append(weights_after(trainer, 1))
    first, again, next_step, other_seed = (np.concatenate([array.ravel() for array in step]) for step in steps)
    np.testing.assert_array_equal(first, again)
    assert min(np.abs(first - next_step).max(), np.abs(first - other_seed).max(),
               np.abs(next_step - other_seed).max()) > 1e-2


def widths(model, batch, forward=False):
    """How many rows the tensors of a step's graph have, by their last dimension: of the forward, or with gradients."""
    def step():
        with tf.GradientTape() as tape:
            loss = Objective().sums(model, batch, training=True)["mlm_loss"]
        return loss if forward else tape.gradient(loss, [variable.value for variable in model.trainable_variables])

    rows = {}
    for operation in tf.function(step).get_concrete_function().graph.get_operations():
        for shape in (tensor.shape for tensor in operation.outputs if tensor.shape.rank):
            assert shape.is_fully_defined(), operation
            rows.setdefault(shape[-1], set()).add(shape[:-1].num_elements())
    return rows


@pytest.mark.parametrize("blocks,both", [(1, [True]), (2, [True, False])])
def test_no_more_than_is_asked_for_is_computed(blocks, both):
    """8 examples of 12 tokens, of which 3 have a guess; [CLS] goes to the end too. No other dimension is 37 or 60."""
    model = make_model(dataclasses.replace(ONE_BLOCK, num_hidden_layers=blocks, intermediate_size=37))
    asked, every, ends = 8 * 3, 8 * 12, 8 * (3 + 1)
    for forward in both:
        rows = widths(model, BATCHES[0], forward)
        assert asked in rows[60] and every not in rows[60]
        assert ends in rows[37] and (every in rows[37]) == (blocks == 2)
    everywhere = {name: value for name, value in BATCHES[0].items() if name != "masked_lm_positions"}
    bert = tf.function(lambda: model(everywhere, training=True)["mlm_logits"]).get_concrete_function()
    assert bert.outputs[0].shape == (8, 12, 60)


@pytest.mark.parametrize("names,operations", [
    (["NVIDIA L4"], 121e12), (["NVIDIA L40S"], 362e12), (["NVIDIA L40"], None), (["NVIDIA A10G"], 70e12),
    (["NVIDIA A100-SXM4-80GB", "NVIDIA A100-SXM4-80GB"], 624e12), (["NVIDIA H100 80GB HBM3"], 989e12),
    (["NVIDIA H100 PCIe"], 756e12), (["NVIDIA H200"], 989e12), (["Tesla V100-SXM2-16GB"], 125e12),
    (["Tesla T4"], 65e12), (["NVIDIA T400 4GB"], None), (["Tesla T4", "NVIDIA GeForce RTX 3090"], None), ([], None)])
def test_peak_of_gpus_by_whole_words(monkeypatch, names, operations):
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: names if kind == "GPU" else [])
    monkeypatch.setattr(tf.config, "experimental", types.SimpleNamespace(
        get_device_details=lambda name: {"device_name": name}))
    assert peak() == operations


def test_without_a_folder_tensorboard_is_not_needed(monkeypatch):
    monkeypatch.setattr(tf.summary, "scalar", None)  # it raises an error if TensorBoard is not installed
    TrainingLog(10, "examples").write(1, "train", {"loss": 1.0})
