"""AdamW and LAMB, and the learning rate schedule with warm-up that BERT was trained with."""

from collections.abc import Sequence
from typing import Any, Literal

import keras
from keras import ops
from keras.optimizers.schedules import LearningRateSchedule

from keras_bert import kernels
from keras_bert.errors import InputError
from keras_bert.models import BertPretrainer
from keras_bert.types import Tensor


@keras.saving.register_keras_serializable("keras_bert")
class WarmupDecay(LearningRateSchedule):
    """A learning rate that rises linearly from 0 to `peak` over `warmup_steps`, then falls to 0 at `total_steps`. It
    falls as `peak * remaining**power`, where `remaining` is the share of the decay steps still to do: linearly if
    `power` is 1 (Devlin et al., 2018, appendix A.2)."""

    def __init__(self, peak: float, warmup_steps: int, total_steps: int, power: float = 1.0) -> None:
        self.peak = peak
        self.warmup_steps = warmup_steps
        self.total_steps = total_steps
        self.power = power

    def __call__(self, step: Tensor) -> Tensor:
        step = ops.cast(step, "float32")
        rising = step / self.warmup_steps if self.warmup_steps else 1.0
        remaining = ops.maximum(0.0, (self.total_steps - step) / max(1, self.total_steps - self.warmup_steps))
        return self.peak * ops.minimum(rising, ops.power(remaining, self.power))

    def get_config(self) -> dict[str, Any]:
        return dict(vars(self))


class PhasedSchedule(LearningRateSchedule):
    """A sequence of schedules, each of which counts steps from its own start, when the previous one has reached 0."""

    def __init__(self, schedules: list[WarmupDecay]) -> None:
        self.schedules = schedules

    def __call__(self, step: Tensor) -> Tensor:
        step = ops.cast(step, "float32")
        rate = 0.0
        for schedule in self.schedules:
            rate = ops.where(step >= 0, schedule(step), rate)
            step -= schedule.total_steps
        return rate


class _Adam(keras.optimizers.Optimizer):
    """The base class of AdamW and LAMB. A step sums the gradients over all replicas, clips them to `global_clipnorm`,
    and passes them to `_update` together with the two moments of Adam (Kingma and Ba, 2014, algorithm 1).

    `apply` is reimplemented with Keras's public methods, because Keras's own `apply` clips the gradients of each
    replica before it sums them.

    Args:
        weight_decay: decoupled weight decay per step, multiplied by the learning rate; None for no decay.
        beta_1, beta_2: decay rates of the moments, in [0, 1).
        epsilon: added to the root of the second moment after its bias correction, as in Adam's paper and PyTorch. In
            Keras's Adam the same epsilon has 30 times the effect in the first step, and twice the effect after 300.
        no_decay: names of the variables without weight decay. Defaults to biases and layer norms (google-research/bert
            `optimization.py`).
        sum_gradients: False if the caller of `apply` has already summed the gradients over the replicas. A
            `LossScaleOptimizer` needs False, because it must check the sums for overflows.
        options: `global_clipnorm`, `loss_scale_factor` and `name` of `keras.optimizers.Optimizer`.

    Raises:
        InputError: an option or a variable needs a feature of Keras's optimizers that this one does not support.
    """

    def __init__(self, learning_rate: float | LearningRateSchedule = 0.001, weight_decay: float | None = 0.01,
                 beta_1: float = 0.9, beta_2: float = 0.999, epsilon: float = 1e-6,
                 no_decay: Sequence[str] = ("bias", "gamma", "beta"), sum_gradients: bool = True, **options: Any
                 ) -> None:
        for name in ("clipnorm", "clipvalue", "use_ema", "gradient_accumulation_steps", "amsgrad"):
            if options.get(name):
                raise InputError(f"{type(self).__name__} does not support {name}; got {options[name]!r}; leave it out")
        options.pop("amsgrad", None)  # models that version 0.1 saved have it
        super().__init__(learning_rate, weight_decay=weight_decay, **options)
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.epsilon = epsilon
        self.no_decay = tuple(no_decay)
        self.sum_gradients = sum_gradients

    def build(self, variables: list[keras.Variable]) -> None:
        """Creates the moments of model variables. Does nothing if the optimizer is already built."""
        if self.built:
            return
        for variable in variables:
            if variable.constraint is not None or getattr(variable, "overwrite_with_gradient", False):
                raise InputError(f"{type(self).__name__} supports neither constraints nor float8 scales; "
                                 f"{variable.path} has one; use an optimizer of Keras")
            if keras.backend.standardize_dtype(variable.dtype) == "float16":
                raise InputError(f"{type(self).__name__} cannot train float16 variables, in which squares of gradients "
                                 f"vanish; {variable.path} is one; use mixed_float16")
        super().build(variables)
        rows = zip(variables, *self.add_optimizer_variables(variables, ["momentum", "velocity"]))
        moments = {id(row[0]): row for row in rows}
        self._moments = lambda: moments  # Keras would track the variables in a dict as the optimizer's

    def exclude_from_weight_decay(self, var_list: object = None, var_names: object = None) -> None:
        """Raises an InputError, because saved models would not keep the exclusion; use `no_decay` instead."""
        raise InputError(f"{type(self).__name__} does not support exclude_from_weight_decay; pass the names of the "
                         "variables to the constructor, as no_decay")

    def apply(self, grads: list[Tensor], trainable_variables: list[keras.Variable] | None = None) -> None:
        """Updates the variables by one step.

        Args:
            grads: gradients with the shapes of the variables: tensors, `tf.IndexedSlices`, or None for variables that
                are not updated.
            trainable_variables: the variables. Defaults to all variables of `build`, in their order there.
        """
        if not self.built:
            assert trainable_variables is not None  # only a built optimizer knows its variables
            self.build(trainable_variables)
        moments = self._moments()
        if trainable_variables is None:
            trainable_variables = [variable for variable, _, _ in moments.values()]
        rows, gradients = [], []
        for variable, gradient in zip(trainable_variables, grads, strict=True):
            if id(variable) not in moments:
                raise ValueError(f"{variable.path} was not trainable when the optimizer was built; compile the model "
                                 "with a new optimizer")
            if gradient is not None:
                rows.append(moments[id(variable)])
                gradients.append(ops.cast(kernels.dense(gradient), "float32"))
        if not rows:
            raise ValueError("no variable has a gradient; check that the loss depends on the model")
        if self.sum_gradients:
            gradients = kernels.sum_over_replicas(gradients)
        if self.loss_scale_factor:
            gradients = [gradient / self.loss_scale_factor for gradient in gradients]
        if self.global_clipnorm:
            gradients = kernels.clip_by_global_norm(gradients, self.global_clipnorm)
        step, rate = ops.cast(self.iterations + 1, "float32"), self.learning_rate
        kernels.update_each(self._update, [
            (variable, momentum, velocity, ops.cast(gradient, variable.dtype), step, ops.cast(rate, variable.dtype),
             0.0 if variable.name in self.no_decay else self.weight_decay or 0.0)
            for (variable, momentum, velocity), gradient in zip(rows, gradients)])
        self.iterations.assign_add(1)

    def _direction(self, momentum: Any, velocity: Any, gradient: Tensor, step: Tensor) -> Tensor:
        """Updates the moments; returns the first divided by the root of the second, both with bias correction."""
        self.assign_add(momentum, (gradient - momentum) * (1 - self.beta_1))
        self.assign_add(velocity, (ops.square(gradient) - velocity) * (1 - self.beta_2))
        bias_1, bias_2 = (ops.cast(1 - ops.power(beta, step), gradient.dtype) for beta in (self.beta_1, self.beta_2))
        return ops.divide(momentum, bias_1) / (ops.sqrt(ops.divide(velocity, bias_2)) + self.epsilon)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {
            "beta_1": self.beta_1, "beta_2": self.beta_2, "epsilon": self.epsilon, "no_decay": list(self.no_decay),
            "sum_gradients": self.sum_gradients}


@keras.saving.register_keras_serializable("keras_bert")
class AdamW(_Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2017). On TensorFlow, the Adam step of each float32
    variable is one fused operation."""

    def _update(self, variable: Any, momentum: Any, velocity: Any, gradient: Tensor, step: Tensor,
                learning_rate: Tensor, decay: float) -> None:
        if decay:
            self.assign_sub(variable, ops.multiply(variable, learning_rate * decay))
        if kernels.adam_step is None or keras.backend.standardize_dtype(variable.dtype) != "float32":
            self.assign_sub(variable, learning_rate * self._direction(momentum, velocity, gradient, step))
        else:
            kernels.adam_step(variable, momentum, velocity, gradient, step, learning_rate, self.beta_1, self.beta_2,
                              self.epsilon)


class AccumulatingAdamW(AdamW):
    """AdamW that updates the variables after several batches, by the weighted mean of their gradients, which is then
    clipped. On TensorFlow and one device alone: the variables are changed in a branch of the graph.

    Attributes:
        examples: float32 variable. Before each batch, the caller assigns the number of its examples.
        total: float32 variable. Before the last batch of an update, the caller assigns the number of examples of all
            its batches; before all others 0. After an update nothing is left of its gradients, so checkpoints need not
            have them.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.examples, self.total = (keras.Variable(1.0, dtype="float32", trainable=False, name=name)
                                     for name in ("examples", "total"))

    def build(self, variables: list[keras.Variable]) -> None:
        if self.built:
            return
        super().build(variables)
        sums = {id(variable): keras.Variable(ops.zeros(variable.shape), dtype="float32", trainable=False)
                for variable in variables}
        self._sums = lambda: sums  # for the same reason as the moments

    def apply(self, grads: list[Tensor], trainable_variables: list[keras.Variable] | None = None) -> None:
        variables = trainable_variables or [variable for variable, _, _ in self._moments().values()]
        given = [(variable, self._sums()[id(variable)], gradient)
                 for variable, gradient in zip(variables, grads, strict=True) if gradient is not None]
        for _, total, gradient in given:
            total.assign_add(self.examples * ops.cast(kernels.dense(gradient), "float32"))

        def update() -> None:
            AdamW.apply(self, [total / self.total for _, total, _ in given], [variable for variable, _, _ in given])
            for _, total, _ in given:
                total.assign(ops.zeros(total.shape))

        ops.cond(self.total > 0, update, lambda: None)


@keras.saving.register_keras_serializable("keras_bert")
class Lamb(_Adam):
    """LAMB (You et al., 2019, https://arxiv.org/abs/1904.00962): Adam with each variable's update scaled to the norm of
    the variable, before the learning rate is applied. As in the paper, weight decay is added to the update before it
    is scaled, and variables without weight decay get Adam's update."""

    def _update(self, variable: Any, momentum: Any, velocity: Any, gradient: Tensor, step: Tensor,
                learning_rate: Tensor, decay: float) -> None:
        update = self._direction(momentum, velocity, gradient, step)
        if decay:
            value = ops.convert_to_tensor(variable)
            update += decay * value
            norm, target = ops.norm(update), ops.norm(value)
            is_scaled = ops.logical_and(norm > 0, target > 0)
            update *= ops.where(is_scaled, target / ops.where(is_scaled, norm, 1.0), 1.0)
        self.assign_sub(variable, learning_rate * update)


OPTIMIZERS = {"adamw": AdamW, "lamb": Lamb}


def make_optimizer(model: keras.Model, learning_rate: float, total_steps: int, warmup_ratio: float = 0.1,
                   weight_decay: float = 0.01, accumulates: bool = False) -> AdamW:
    """Returns the optimizer of `finetune`, built for the variables that are trainable now: `AdamW` with `WarmupDecay`,
    and gradients clipped to a global norm of 1.

    Args:
        model: a built model; its biases and layer norms do not decay.
        learning_rate: peak learning rate.
        total_steps: number of steps after which the learning rate is 0.
        warmup_ratio: share of `total_steps` in which the learning rate rises, in [0, 1).
        weight_decay: decoupled weight decay per step, multiplied by the learning rate.
        accumulates: True for an `AccumulatingAdamW`.
    """
    schedule = WarmupDecay(learning_rate, int(total_steps * warmup_ratio), total_steps)
    optimizer = (AccumulatingAdamW if accumulates else AdamW)(schedule, weight_decay, global_clipnorm=1.0)
    optimizer.build(model.trainable_variables)
    return optimizer


def make_pretraining_optimizer(model: BertPretrainer, name: Literal["adamw", "lamb"], schedule: LearningRateSchedule,
                               weight_decay: float, global_clipnorm: float | None) -> keras.optimizers.Optimizer:
    """Returns an optimizer, built, for gradients that are already summed over all replicas; for mixed_float16 it is
    wrapped in a `keras.optimizers.LossScaleOptimizer`."""
    optimizer = OPTIMIZERS[name](schedule, weight_decay, global_clipnorm=global_clipnorm, sum_gradients=False)
    if model.bert.dtype_policy.name == "mixed_float16":
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    optimizer.build(model.trainable_variables)
    return optimizer
