"""`PretrainingTrainer`: batches in parts and on two devices, dropout, half precision, and what it does not compute."""

import dataclasses
import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from test_pretraining_step import (
    BATCHES,
    CLIP,
    ONE_BLOCK,
    feeding,
    make_batch,
    make_model,
    make_trainer,
    scores_and_gradients,
    trained,
)

from keras_bert.pretraining.objective import Objective

from conftest import TINY


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
    config = dataclasses.replace(TINY, num_hidden_layers=1)
    batches = [BATCHES[1] | {"dropout_seed": np.tile(np.array([seed], "int32"), (8, 1))}
               for seed in ([3, 7], [3, 7], [3, 8], [4, 7])]
    trainer = make_trainer(batches, config, optimizer=keras.optimizers.SGD(1.0))
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
