"""Pretraining steps on TensorFlow, distributed by `tf.distribute`."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import tensorflow as tf

from keras_bert import kernels
from keras_bert.errors import InputError, Option
from keras_bert.pretraining.input import MakeDataset
from keras_bert.pretraining.objective import Batch, MakeModel, Objective, Sums, Trainer
from keras_bert.training.run import mirrored_strategy


class PretrainingTrainer(Trainer):
    """The trainer for TensorFlow, by default in the current strategy."""

    def __init__(self, make: MakeModel, objective: Objective, accumulation_steps: int = 1,
                 strategy: tf.distribute.Strategy | None = None) -> None:
        self.strategy = strategy or tf.distribute.get_strategy()
        self.devices = self.strategy.num_replicas_in_sync
        self.is_chief = self.strategy.extended.should_checkpoint
        with self.strategy.scope():
            super().__init__(make, objective, accumulation_steps)

    def train(self, steps: int) -> None:
        self._train(self._batches, tf.constant(steps))

    @tf.function
    def _train(self, batches: Iterator[Batch], steps: tf.Tensor) -> None:
        for _ in tf.range(steps):
            self.strategy.run(self._replica_step, args=(next(batches),))

    def mean_over_processes(self, value: float) -> float:
        return float(self._mean(tf.constant(value, tf.float32)))

    @tf.function
    def _mean(self, value: tf.Tensor) -> tf.Tensor:
        return self._sum_of_replicas(lambda: value / self.devices)

    @tf.function
    def _evaluate_step(self, batch: Batch) -> Sums:
        return self._sum_of_replicas(
            lambda batch: self.objective.sums(self.model, batch) | self.objective.counts(batch), batch)

    def _sum_of_replicas(self, function: Callable, *arguments: Batch) -> Any:
        """Runs a function on each replica; returns the sum of its results."""
        sums = self.strategy.run(lambda *arguments: kernels.sum_over_replicas(function(*arguments)), arguments)
        return tf.nest.map_structure(lambda value: self.strategy.experimental_local_results(value)[0], sums)

    def _distributed(self, make_dataset: MakeDataset, step: int) -> Iterable[Batch]:
        def local(context: tf.distribute.InputContext) -> tf.data.Dataset:
            replicas = context.num_replicas_in_sync // context.num_input_pipelines
            first = context.input_pipeline_id * replicas
            shards = [make_dataset(step, first + replica, self.devices) for replica in range(replicas)]
            turns = tf.data.Dataset.range(replicas).repeat()
            return shards[0] if replicas == 1 else tf.data.Dataset.choose_from_datasets(shards, turns)

        return self.strategy.distribute_datasets_from_function(local)

    def _replica_step(self, batch: Batch) -> None:
        counts = kernels.sum_over_replicas(self.objective.counts(batch))
        if self.accumulation_steps == 1:
            gradients, sums = self._gradients(batch, counts)
        else:
            parts = tf.nest.map_structure(
                lambda tensor: tf.reshape(tensor, [self.accumulation_steps, -1, *tensor.shape[1:]]), batch)
            gradients, sums = self._accumulated(parts, lambda part: self._gradients(part, counts))
        self.optimizer.apply(kernels.sum_over_replicas(gradients), self.model.trainable_variables)
        sums = kernels.sum_over_replicas(sums) | counts
        for total in self.metrics_variables:
            total.assign_add(sums[total.name])

    def _gradients(self, batch: Batch, counts: Sums) -> tuple[list[tf.Tensor], Sums]:
        """Returns this replica's part of the gradients of the global batch's loss, and its `Objective.sums`."""
        with tf.GradientTape() as tape:
            sums = self.objective.sums(self.model, batch, training=True)
            loss = self.optimizer.scale_loss(self.objective.loss(sums, counts))
        variables = [variable.value for variable in self.model.trainable_variables]
        gradients = tape.gradient(loss, variables, unconnected_gradients="zero")  # for an unused pooler
        return [tf.convert_to_tensor(gradient) for gradient in gradients], sums


def make_strategy(name: str) -> tf.distribute.Strategy:
    """Returns the strategy of `distribution_strategy`, see `pretrain`. Raises an InputError if the name is unknown,
    TF_CONFIG is not set, or there is no such TPU."""
    if name == "one":
        return tf.distribute.get_strategy()
    if name == "mirrored":
        devices = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
        return mirrored_strategy([device.name.removeprefix("/device:") for device in devices])
    if name == "multiworker":
        cluster = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        if not cluster.cluster_spec().jobs:
            raise InputError(Option("distribution_strategy=multiworker"),
                             " needs TF_CONFIG in the environment, with cluster and task")
        return tf.distribute.MultiWorkerMirroredStrategy(cluster)
    if name.partition(":")[0] == "tpu":
        try:
            cluster = tf.distribute.cluster_resolver.TPUClusterResolver(name.partition(":")[2] or "local")
            tf.config.experimental_connect_to_cluster(cluster)
            tf.tpu.experimental.initialize_tpu_system(cluster)
            return tf.distribute.TPUStrategy(cluster)
        except (ValueError, tf.errors.OpError) as error:
            raise InputError(Option(f"distribution_strategy={name}"), f": {error}") from None
    raise InputError(Option("distribution_strategy"), f" must be one, mirrored, multiworker or tpu; got {name!r}")
