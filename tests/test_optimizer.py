"""AdamW and LAMB: their steps beside NumPy's, on two devices, in saved models; on the backend of KERAS_BACKEND."""


import keras
import numpy as np
import pytest
from keras import ops

from keras_bert.errors import InputError
from keras_bert.training import WarmupDecay, make_optimizer
from keras_bert.training.optimizer import AccumulatingAdamW, AdamW, Lamb

RATE, DECAY, CLIP, EPSILON = 0.1, 0.5, 1.0, 1e-6


def make_variables(values):
    return [keras.Variable(value, name=name) for name, value in zip(("kernel", "bias"), values)]


def make_gradients(step):
    rng = np.random.default_rng(step)
    return [rng.normal(0, 1, shape).astype("float32") for shape in ((4, 3), (3,))]


def expected(kind, values, steps):
    """The weights after some steps, by the formulas of the papers in float64."""
    values = [np.array(value, "float64") for value in values]
    moments = [(np.zeros_like(value), np.zeros_like(value)) for value in values]
    for step in range(1, steps + 1):
        gradients = make_gradients(step)
        norm = np.sqrt(sum(np.square(gradient).sum() for gradient in gradients))
        assert norm > 2 * CLIP
        for index, gradient in enumerate(gradients):
            gradient = gradient.astype("float64") * CLIP / norm
            first, second = moments[index]
            moments[index] = first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
            update = first / (1 - 0.9**step) / (np.sqrt(second / (1 - 0.999**step)) + EPSILON)
            if index == 0:  # biases do not decay
                update += DECAY * values[index]
                if kind is Lamb:
                    update *= np.linalg.norm(values[index]) / np.linalg.norm(update)
            values[index] = values[index] - RATE * update
    return values


@pytest.mark.parametrize("kind", [AdamW, Lamb])
def test_steps_equal_numpy(kind):
    values = make_gradients(0)
    variables = make_variables(values)
    optimizer = kind(RATE, DECAY, global_clipnorm=CLIP, loss_scale_factor=64.0)
    for step in range(1, 6):
        gradients = [ops.convert_to_tensor(64 * gradient) for gradient in make_gradients(step)]
        optimizer.apply(gradients[::-1], variables[::-1])  # in any order
    for variable, value in zip(variables, expected(kind, values, 5)):
        np.testing.assert_allclose(ops.convert_to_numpy(variable), value, atol=1e-5)
    assert int(optimizer.iterations) == 5


def test_a_variable_without_a_gradient_stays():
    values = make_gradients(0)
    variables = make_variables(values)
    optimizer = AdamW(RATE, DECAY)
    optimizer.build(variables)
    optimizer.apply([None, ops.ones(3)])
    np.testing.assert_array_equal(ops.convert_to_numpy(variables[0]), values[0])
    assert (ops.convert_to_numpy(variables[1]) != values[1]).all()
    with pytest.raises(ValueError, match="no variable has a gradient"):
        optimizer.apply([None, None])
    with pytest.raises(ValueError, match="^late was not trainable when the optimizer was built"):
        optimizer.apply([ops.ones(3)], [keras.Variable(np.ones(3), name="late")])


@pytest.mark.backend("tensorflow")
@pytest.mark.parametrize("compiled", [False, True])
def test_batches_are_averaged_into_one_step(compiled):
    """Also with a last step of fewer batches, and a variable without a gradient."""
    import tensorflow as tf

    values = [*make_gradients(0), np.ones(2, "float32")]
    ours, wanted = make_variables(values), make_variables(values)
    unused = keras.Variable(values[2], name="unused")
    schedule = WarmupDecay(RATE, 0, 5)
    optimizer = AccumulatingAdamW(schedule, DECAY, global_clipnorm=CLIP)
    whole = AdamW(schedule, DECAY, global_clipnorm=CLIP)
    optimizer.build([*ours, unused])
    apply = tf.function(lambda gradients: optimizer.apply([*gradients, None], [*ours, unused]), jit_compile=compiled)
    for group in ((1, 2), (3, 4), (5,)):
        for number, batch in enumerate(group, 1):
            steps, before = int(optimizer.iterations), ours[0].numpy()
            optimizer.batches.assign(number * (number == len(group)))
            apply([tf.constant(gradient) for gradient in make_gradients(batch)])
            assert (int(optimizer.iterations) == steps) == (ours[0].numpy() == before).all() == (number < len(group))
        whole.apply([ops.convert_to_tensor(np.mean(parts, axis=0, dtype="float32"))
                     for parts in zip(*map(make_gradients, group))], wanted)
        for one, other in zip(ours, wanted):
            np.testing.assert_allclose(one.numpy(), other.numpy(), atol=1e-6)
    assert int(optimizer.iterations) == 3 and (unused.numpy() == values[2]).all()


def test_bfloat16_learns():
    variable = keras.Variable(np.ones((4, 3)), dtype="bfloat16")
    optimizer = AdamW(RATE, global_clipnorm=CLIP, epsilon=1e-3)
    for _ in range(3):
        optimizer.apply([ops.full((4, 3), 100.0, "bfloat16")], [variable])
    np.testing.assert_allclose(ops.convert_to_numpy(ops.cast(variable, "float32")), 0.7, atol=0.02)


def make_model():
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, name="classifier")])


def test_fit_applies_each_step_once():
    """Keras's trainers lead to `apply`, and none of Keras's own steps runs beside it."""
    model, replica = make_model(), make_model()
    replica.set_weights(model.get_weights())
    optimizer = make_optimizer(model, RATE, 10, weight_decay=DECAY)
    model.compile(optimizer, "mse")
    inputs, targets = np.ones((2, 4), "float32"), np.full((2, 3), 5.0, "float32")
    model.fit(inputs, targets, epochs=3, verbose=0)
    assert int(optimizer.iterations) == 3
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        other = make_optimizer(replica, RATE, 10, weight_decay=DECAY)
        for _ in range(3):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(replica(inputs) - targets))
            other.apply(tape.gradient(loss, [variable.value for variable in replica.trainable_variables]))
        for one, two in zip(model.get_weights(), replica.get_weights()):
            np.testing.assert_allclose(one, two, rtol=1e-6)


def test_the_steps_of_keras_are_left_out(monkeypatch):
    """They have no public names. If one were called after a change in Keras, it would clip, decay or sum again."""
    for name in ("_backend_apply_gradients", "_backend_update_step", "_clip_gradients", "_apply_weight_decay",
                 "_all_reduce_sum_gradients", "_use_weight_decay", "_get_variable_index"):
        for owner in keras.optimizers.Optimizer.__mro__:
            if name in vars(owner):
                monkeypatch.delattr(owner, name)
    for kind in (AdamW, Lamb):
        values = make_gradients(0)
        variables = make_variables(values)
        kind(RATE, DECAY, global_clipnorm=CLIP).apply(
            [ops.convert_to_tensor(gradient) for gradient in make_gradients(1)], variables)
        np.testing.assert_allclose(ops.convert_to_numpy(variables[0]), expected(kind, values, 1)[0], atol=1e-5)


@pytest.mark.parametrize("option", [{"clipnorm": 1.0}, {"clipvalue": 1.0}, {"use_ema": True}, {"amsgrad": True},
                                    {"gradient_accumulation_steps": 2}])
def test_what_is_not_supported_is_refused(option):
    (name, value), = option.items()
    with pytest.raises(InputError, match=f"^Lamb does not support {name}; got {value}; leave it out$"):
        Lamb(RATE, **option)


def test_variables_that_are_not_supported_are_refused():
    variable = keras.Variable(np.ones(3), name="kernel")
    variable.constraint = keras.constraints.NonNeg()
    with pytest.raises(InputError, match="AdamW supports neither constraints .* kernel has one"):
        AdamW(RATE).build([variable])
    variable = keras.Variable(np.ones(3), name="scale")
    variable.overwrite_with_gradient = True
    with pytest.raises(InputError, match="float8 scales; scale has one"):
        AdamW(RATE).build([variable])
    with pytest.raises(InputError, match="^AdamW cannot train float16 .*; kernel is one; use mixed_float16$"):
        AdamW(RATE).build([keras.Variable(np.ones(3), dtype="float16", name="kernel")])
    with pytest.raises(InputError, match="no_decay"):
        AdamW(RATE).exclude_from_weight_decay(var_names=["bias"])


def test_saved_models_keep_optimizers(tmp_path):
    model = make_model()
    model.compile(Lamb(WarmupDecay(RATE, 2, 9), DECAY, global_clipnorm=CLIP, no_decay=["kernel"]), "mse")
    data = np.ones((2, 4), "float32"), np.full((2, 3), 5.0, "float32")
    model.fit(*data, epochs=2, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.optimizer.get_config() == model.optimizer.get_config()
    for each in (model, loaded):
        each.fit(*data, epochs=2, verbose=0)
    for one, other in zip(model.get_weights(), loaded.get_weights()):
        np.testing.assert_array_equal(one, other)


def test_a_lamb_of_version_0_1_loads():
    """test_golden.py has an AdamW."""
    config = {"name": "adam_w", "learning_rate": 0.5, "weight_decay": 0.5, "global_clipnorm": 1.0, "beta_1": 0.8}
    optimizer = keras.optimizers.deserialize({"module": "keras_bert.training.optimizer", "class_name": "Lamb",
                                              "config": config, "registered_name": "keras_bert>Lamb"})
    assert type(optimizer) is Lamb and {name: optimizer.get_config()[name] for name in config} == config


def check_clipping(strategy):
    """Run by test_pretraining_trainer.py in a process with two devices, which must clip like one."""
    keras.utils.set_random_seed(0)  # LAMB's first step magnifies the rounding of tiny gradients
    weights = make_model().get_weights()

    def fit(kind, steps, **options):
        model = make_model()
        model.set_weights(weights)
        model.compile(kind(global_clipnorm=1.0, **options), "mse")
        rng = np.random.default_rng(0)
        inputs, targets = rng.normal(0, 1, (8, 4)), rng.normal(0, 10, (8, 3))
        model.fit(inputs, targets, batch_size=8, epochs=steps, shuffle=False, verbose=0)
        moments = [ops.convert_to_numpy(value) for value in model.optimizer.variables
                   if value.path.endswith("momentum")]
        norm = np.sqrt(sum(np.square(moment).sum() for moment in moments)) / (1 - model.optimizer.beta_1)
        assert norm == pytest.approx(1.0, abs=1e-5)
        return model.get_weights()

    # So large an epsilon makes AdamW gradient descent, whose steps are as long as the gradient.
    for options in ({"kind": AdamW, "steps": 1, "learning_rate": 0.1}, {"kind": Lamb, "steps": 1, "learning_rate": 0.1},
                    {"kind": AdamW, "steps": 5, "learning_rate": 1e5, "beta_1": 0.0, "epsilon": 1e6,
                     "weight_decay": 1e-6}):
        wanted = fit(**options)
        with strategy.scope():
            for value, other in zip(fit(**options), wanted, strict=True):
                np.testing.assert_allclose(value, other, rtol=0, atol=1e-6)
