"""AdamW and LAMB with warm-up, as BERT was trained."""

import keras
from keras import ops

from keras_bert import kernels


@keras.saving.register_keras_serializable("keras_bert")
class WarmupDecay(keras.optimizers.schedules.LearningRateSchedule):
    """Rises linearly from 0 to `peak` over `warmup_steps`, then falls to 0 at `total_steps` as a power of what is left:
    linearly with 1 (Devlin et al., 2018, appendix A.2)."""

    def __init__(self, peak, warmup_steps, total_steps, power=1.0):
        self.peak = peak
        self.warmup_steps = warmup_steps
        self.total_steps = total_steps
        self.power = power

    def __call__(self, step):
        step = ops.cast(step, "float32")
        rising = step / self.warmup_steps if self.warmup_steps else 1.0
        left = ops.maximum(0.0, (self.total_steps - step) / max(1, self.total_steps - self.warmup_steps))
        return self.peak * ops.minimum(rising, ops.power(left, self.power))

    def get_config(self):
        return {"peak": self.peak, "warmup_steps": self.warmup_steps, "total_steps": self.total_steps,
                "power": self.power}


class Phased(keras.optimizers.schedules.LearningRateSchedule):
    """One `WarmupDecay` after another, each with steps counted from its own beginning.

    Args:
        schedules: list of them; each takes over where the one before has come to 0.
    """

    def __init__(self, schedules):
        self.schedules = schedules

    def __call__(self, step):
        step = ops.cast(step, "float32")
        rate = 0.0
        for schedule in self.schedules:
            within = ops.logical_and(step >= 0, step < schedule.total_steps)
            rate = ops.where(within, schedule(step), rate)
            step -= schedule.total_steps
        return rate


class _Adam:
    def _adam(self, gradient, variable):
        """The direction of a step, its moments brought up to date (Kingma and Ba, 2014, algorithm 1)."""
        index = self._get_variable_index(variable)
        momentum, velocity = self._momentums[index], self._velocities[index]
        gradient, step = ops.cast(gradient, variable.dtype), ops.cast(self.iterations + 1, variable.dtype)
        self.assign_add(momentum, (gradient - momentum) * (1 - self.beta_1))
        self.assign_add(velocity, (ops.square(gradient) - velocity) * (1 - self.beta_2))
        mean = ops.divide(momentum, 1 - ops.power(ops.cast(self.beta_1, step.dtype), step))
        deviation = ops.sqrt(ops.divide(velocity, 1 - ops.power(ops.cast(self.beta_2, step.dtype), step)))
        return mean / (deviation + self.epsilon)


@keras.saving.register_keras_serializable("keras_bert")
class AdamW(_Adam, keras.optimizers.AdamW):
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2017), fused for float32 variables on TensorFlow. Unlike
    in Keras's, epsilon is added to moments whose bias is corrected, as in Adam's paper and PyTorch: in Keras's it
    weighs 30 times as much in the first step, twice as much after 300."""

    def apply(self, grads, trainable_variables=None):
        # Keras would take the norm to clip by before the rows that occur twice are added up.
        return super().apply([None if gradient is None else kernels.dense(gradient) for gradient in grads],
                             trainable_variables)

    def _clip_gradients(self, grads):
        if kernels.clip_by_global_norm is None or not self.global_clipnorm:
            return super()._clip_gradients(grads)
        return kernels.clip_by_global_norm(grads, self.global_clipnorm)

    def _apply_weight_decay(self, variables):
        pass  # `update_step` does

    def update_step(self, gradient, variable, learning_rate):
        learning_rate = ops.cast(learning_rate, variable.dtype)
        if self.weight_decay is not None and self._use_weight_decay(variable):
            self.assign_sub(variable, ops.multiply(variable, learning_rate * self.weight_decay))
        if kernels.adam_step is None or keras.backend.standardize_dtype(variable.dtype) != "float32":
            self.assign_sub(variable, learning_rate * self._adam(gradient, variable))
        else:
            index = self._get_variable_index(variable)
            kernels.adam_step(variable, self._momentums[index], self._velocities[index], gradient, self.iterations + 1,
                              learning_rate, self.beta_1, self.beta_2, self.epsilon)


@keras.saving.register_keras_serializable("keras_bert")
class Lamb(_Adam, keras.optimizers.Lamb):
    """LAMB (You et al., 2019, https://arxiv.org/abs/1904.00962): a step is as long as its variable. Unlike in
    Keras's, the weight decay is a part of the step whose length is measured, as in the paper, and what does not decay
    takes Adam's step."""

    def _apply_weight_decay(self, variables):
        pass

    def update_step(self, gradient, variable, learning_rate):
        update = self._adam(gradient, variable)
        if self._use_weight_decay(variable):
            value = ops.convert_to_tensor(variable)
            update += self.weight_decay * value
            length, wanted = ops.norm(update), ops.norm(value)
            has_both = ops.logical_and(length > 0, wanted > 0)
            update *= ops.where(has_both, wanted / ops.where(has_both, length, 1.0), 1.0)
        self.assign_sub(variable, ops.cast(learning_rate, variable.dtype) * update)


class _Summed:
    """An optimizer whose gradients are the sums over all devices already; Keras would add them up once more."""

    def _all_reduce_sum_gradients(self, grads_and_vars):
        return grads_and_vars


class SummedAdamW(_Summed, AdamW):
    pass


class SummedLamb(_Summed, Lamb):
    pass


OPTIMIZERS = {"adamw": SummedAdamW, "lamb": SummedLamb}


def make_optimizer(model, learning_rate, total_steps, warmup_ratio=0.1, weight_decay=0.01):
    """`AdamW` with `WarmupDecay`, gradients clipped to a global norm of 1, as `finetune` takes it.

    Args:
        model: a built model; its biases and layer norms do not decay (google-research/bert `optimization.py`).
        learning_rate: the peak.
        total_steps: steps until the rate is 0.
        warmup_ratio: share of `total_steps` to warm up, in [0, 1).
        weight_decay: decoupled decay a step, times the learning rate.

    Returns:
        an `AdamW`.
    """
    schedule = WarmupDecay(learning_rate, int(total_steps * warmup_ratio), total_steps)
    return _make(AdamW, model, schedule, weight_decay, clip_norm=1.0)


def make_pretraining_optimizer(model, name, schedule, weight_decay, clip_norm):
    """An optimizer for gradients that are sums over all devices already.

    Args:
        model: see `make_optimizer`.
        name: `adamw` or `lamb`.
        schedule: a `WarmupDecay` or `Phased`.
        weight_decay: see `make_optimizer`.
        clip_norm: most of the gradients' global norm; None for any.

    Returns:
        the optimizer; under mixed float16 within a `keras.optimizers.LossScaleOptimizer`.
    """
    optimizer = _make(OPTIMIZERS[name], model, schedule, weight_decay, clip_norm)
    if model.bert.dtype_policy.name == "mixed_float16":
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    optimizer.build(model.trainable_variables)
    return optimizer


def _make(kind, model, schedule, weight_decay, clip_norm):
    optimizer = kind(schedule, weight_decay=weight_decay, beta_2=0.999, epsilon=1e-6, global_clipnorm=clip_norm)
    optimizer.exclude_from_weight_decay(
        var_list=[variable for variable in model.trainable_variables if variable.name in ("bias", "gamma", "beta")])
    return optimizer
