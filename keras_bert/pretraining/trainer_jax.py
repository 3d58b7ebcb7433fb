"""Pretraining steps on JAX, distributed over all its devices by `keras.distribution`."""

from collections.abc import Iterator

import jax
import keras

from keras_bert.errors import InputError, Option
from keras_bert.pretraining.input import MakeDataset
from keras_bert.pretraining.objective import Batch, MakeModel, Objective, Sums, Trainer

# How a block's weights are split if multiple devices share them (Shoeybi et al., 2019, arXiv:1909.08053, section 3):
# the attention heads and the intermediate layer by columns, the two output layers by rows. All other weights are copied
# to each device.
_SPLIT_AXES = {
    r".*/(query|key|value|intermediate)/kernel": (None, "model"),
    r".*/(query|key|value|intermediate)/bias": ("model",),
    r".*block_\d+/(attention/)?output_dense/kernel": ("model", None),
}


class JaxTrainer(Trainer):
    """The trainer for JAX, with the weights split across `model_parallel` devices."""

    is_chief = True

    def __init__(self, make: MakeModel, objective: Objective, accumulation_steps: int, model_parallel: int) -> None:
        devices = keras.distribution.list_devices()
        self.devices = len(devices) // model_parallel
        if len(devices) % model_parallel:
            raise InputError(Option("model_parallel"),
                             f" must divide the number of devices ({len(devices)}); got {model_parallel}")
        layouts = keras.distribution.LayoutMap(
            keras.distribution.DeviceMesh((self.devices, model_parallel), ("batch", "model"), devices))
        if model_parallel > 1:
            for path, axes in _SPLIT_AXES.items():
                layouts[path] = axes
        self._distribution = keras.distribution.ModelParallel(layout_map=layouts, batch_dim_name="batch")
        keras.distribution.set_distribution(self._distribution)
        super().__init__(make, objective, accumulation_steps)
        self._step = jax.jit(self._train_step, donate_argnums=0)
        self._sums = jax.jit(self._stateless_sums)

    def train(self, steps: int) -> None:
        variables = [self.trainable_variables, self.optimizer.variables, self.metrics_variables]
        state = keras.tree.map_structure(lambda variable: variable.value, variables)
        for _ in range(steps):
            state = self._step(state, next(self._batches))
        keras.tree.map_structure(lambda variable, value: variable.assign(value), variables, state)

    def mean_over_processes(self, value: float) -> float:
        return float(value)  # there is one process

    def _distributed(self, make_dataset: MakeDataset, step: int) -> Iterator[Batch]:
        for batch in make_dataset(step).as_numpy_iterator():
            yield {name: keras.distribution.distribute_tensor(
                values, self._distribution.get_data_layout(values.shape)) for name, values in batch.items()}

    def _evaluate_step(self, batch: Batch) -> Sums:
        return self._sums([variable.value for variable in self.trainable_variables], batch)

    def _stateless_sums(self, values: list[jax.Array], batch: Batch) -> Sums:
        with keras.StatelessScope(zip(self.trainable_variables, values)):
            return self.objective.sums(self.model, batch) | self.objective.counts(batch)

    def _train_step(self, state: list[list[jax.Array]], batch: Batch) -> list[list[jax.Array]]:
        trainable, optimizer, totals = state
        counts = self.objective.counts(batch)

        def loss(trainable: list[jax.Array], part: Batch) -> tuple[jax.Array, Sums]:
            variables = [*zip(self.trainable_variables, trainable), *zip(self.optimizer.variables, optimizer)]
            with keras.StatelessScope(variables):
                sums = self.objective.sums(self.model, part, training=True)
                return self.optimizer.scale_loss(self.objective.loss(sums, counts)), sums

        gradient = jax.grad(loss, has_aux=True)
        # A part has every nth row (n = accumulation_steps), so that each device splits its own rows.
        parts = {name: jax.numpy.moveaxis(values.reshape(-1, self.accumulation_steps, *values.shape[1:]), 1, 0)
                 for name, values in batch.items()}
        gradients, sums = self._accumulated(parts, lambda part: gradient(trainable, part))
        trainable, optimizer = self.optimizer.stateless_apply(optimizer, gradients, trainable)
        totals = [total + (sums | counts)[variable.name] for variable, total in zip(self.metrics_variables, totals)]
        return [trainable, optimizer, totals]
