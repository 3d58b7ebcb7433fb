"""Pretraining steps on JAX, distributed over all its devices by `keras.distribution`."""

import jax
import keras
from jax import numpy as jnp
from keras import distribution

from keras_bert.errors import InputError
from keras_bert.training.objective import with_own_dropout

# How a block's weights are split if multiple devices share them (Shoeybi et al., 2019, arXiv:1909.08053, section 3):
# the attention heads and the intermediate layer by columns, the two output layers by rows. All other weights are copied
# to each device.
_CUTS = {
    r".*/(query|key|value|intermediate)/kernel": (None, "model"),
    r".*/(query|key|value|intermediate)/bias": ("model",),
    r".*block_\d+/(attention/)?output_dense/kernel": ("model", None),
}


class JaxTrainer:
    """The counterpart of `PretrainingTrainer` on JAX, with the same methods; they are described there.

    Args:
        make, objective, accumulate: see `PretrainingTrainer`.
        model_parallel: number of devices that the weights are split across.
    """

    is_chief = True

    def __init__(self, make, objective, accumulate=1, model_parallel=1):
        self.objective = objective
        self.accumulate = accumulate
        self._distribution = _distribution(model_parallel)
        distribution.set_distribution(self._distribution)
        self.model, self.optimizer = make()
        self.metrics_variables = [keras.Variable(0.0, trainable=False, name=name)
                                  for name in (*objective.names(self.model), "mlm", "next_sentence")]
        self._step = jax.jit(self._train_step, donate_argnums=0)
        self._sums = jax.jit(self._evaluate_step)

    @property
    def trainable_variables(self):
        return self.model.trainable_variables

    @property
    def devices(self):
        return self._distribution.device_mesh.shape[0]

    def feed(self, batches, step):
        self._iterator = batches(step).as_numpy_iterator()

    def train(self, steps):
        groups = self.trainable_variables, self.optimizer.variables, self.metrics_variables
        state = [[variable.value for variable in group] for group in groups]
        for _ in range(steps):
            state = self._step(state, self._shared_out(next(self._iterator)))
        for group, values in zip(groups, state):
            for variable, value in zip(group, values):
                variable.assign(value)

    def scores(self):
        return self.objective.scores([{variable.name: variable.value for variable in self.metrics_variables}])

    def reset(self):
        for variable in self.metrics_variables:
            variable.assign(0.0)

    def evaluate(self, batches, steps):
        values = [variable.value for variable in self.trainable_variables]
        batches = batches().take(steps).as_numpy_iterator()
        return self.objective.scores(self._sums(values, self._shared_out(batch)) for batch in batches)

    def shared(self, value):
        return float(value)  # there is one process

    def _shared_out(self, batch):
        return {name: distribution.distribute_tensor(values, self._distribution.get_data_layout(values.shape))
                for name, values in batch.items()}

    def _train_step(self, state, batch):
        trainable, optimizer, totals = state
        counts = self.objective.counts(batch)

        def loss(trainable, part):
            variables = [*zip(self.trainable_variables, trainable), *zip(self.optimizer.variables, optimizer)]
            with keras.StatelessScope(variables):
                sums = self.objective.sums(self.model, part, training=True)
                return self.optimizer.scale_loss(self.objective.loss(sums, counts)), sums

        gradient = jax.grad(loss, has_aux=True)
        # A part has every nth row (n = accumulate), so that each device splits its own rows.
        parts = {name: jnp.moveaxis(values.reshape(-1, self.accumulate, *values.shape[1:]), 1, 0)
                 for name, values in batch.items()}
        zeros = jax.tree.map(jnp.zeros_like, trainable), dict.fromkeys(self.objective.names(self.model), jnp.zeros(()))

        def add(done, part):
            return jax.tree.map(jnp.add, done, gradient(trainable, with_own_dropout(*part))), None

        (gradients, sums), _ = jax.lax.scan(add, zeros, (parts, jnp.arange(self.accumulate)))
        trainable, optimizer = self.optimizer.stateless_apply(optimizer, gradients, trainable)
        totals = [total + (sums | counts)[variable.name] for variable, total in zip(self.metrics_variables, totals)]
        return trainable, optimizer, totals

    def _evaluate_step(self, values, batch):
        with keras.StatelessScope(zip(self.trainable_variables, values)):
            return self.objective.sums(self.model, batch) | self.objective.counts(batch)


def _distribution(model_parallel):
    devices = distribution.list_devices()
    if len(devices) % model_parallel:
        raise InputError(f"model_parallel must divide the number of devices ({len(devices)}); got {model_parallel}")
    mesh = distribution.DeviceMesh((len(devices) // model_parallel, model_parallel), ("batch", "model"), devices)
    layouts = distribution.LayoutMap(mesh)
    if model_parallel > 1:
        for path, axes in _CUTS.items():
            layouts[path] = axes
    return distribution.ModelParallel(layout_map=layouts, batch_dim_name="batch")
