"""AdamW with warm-up, as BERT was trained."""

import keras
from keras import ops

from keras_bert import kernels


@keras.saving.register_keras_serializable("keras_bert")
class WarmupLinearDecay(keras.optimizers.schedules.LearningRateSchedule):
    """Rises linearly from 0 to `peak` over `warmup_steps`, then falls linearly to 0 at `total_steps` (Devlin et al.,
    2018, appendix A.2)."""

    def __init__(self, peak, warmup_steps, total_steps):
        self.peak = peak
        self.warmup_steps = warmup_steps
        self.total_steps = total_steps

    def __call__(self, step):
        step = ops.cast(step, "float32")
        rising = step / max(1, self.warmup_steps)
        falling = (self.total_steps - step) / max(1, self.total_steps - self.warmup_steps)
        return self.peak * ops.maximum(0.0, ops.minimum(rising, falling))

    def get_config(self):
        return {"peak": self.peak, "warmup_steps": self.warmup_steps, "total_steps": self.total_steps}


@keras.saving.register_keras_serializable("keras_bert")
class AdamW(keras.optimizers.AdamW):
    """Keras's AdamW (Loshchilov and Hutter, 2017) with a fused step for float32 variables on TensorFlow."""

    def update_step(self, gradient, variable, learning_rate):
        if kernels.adam_step is None or keras.backend.standardize_dtype(variable.dtype) != "float32":
            return super().update_step(gradient, variable, learning_rate)
        index = self._get_variable_index(variable)
        kernels.adam_step(
            variable, self._momentums[index], self._velocities[index], gradient,
            ops.cast(self.iterations + 1, "float32"), ops.cast(learning_rate, "float32"), self.beta_1, self.beta_2,
            self.epsilon)


def make_optimizer(model, learning_rate, total_steps, warmup_ratio=0.1, weight_decay=0.01):
    """`AdamW` with `WarmupLinearDecay`, gradients clipped to a global norm of 1; biases
    and layer norms do not decay (google-research/bert `optimization.py`).

    Args:
        model: a built model.
        learning_rate: the peak.
        total_steps: steps until the rate is 0.
        warmup_ratio: share of `total_steps` to warm up, in [0, 1).
        weight_decay: decoupled decay a step, times the learning rate.

    Returns:
        an `AdamW`.
    """
    schedule = WarmupLinearDecay(learning_rate, int(total_steps * warmup_ratio), total_steps)
    optimizer = AdamW(schedule, weight_decay=weight_decay, beta_2=0.999, epsilon=1e-6, global_clipnorm=1.0)
    optimizer.exclude_from_weight_decay(
        var_list=[variable for variable in model.trainable_variables if variable.name in ("bias", "gamma", "beta")])
    return optimizer
