"""Pretraining steps on TensorFlow, distributed by `tf.distribute`."""

import itertools

import keras
import tensorflow as tf

from keras_bert import kernels
from keras_bert.errors import InputError
from keras_bert.training.objective import with_own_dropout


class PretrainingTrainer:
    """A trainer for a `BertPretrainer`. The gradient of a global batch does not depend on the number of devices.

    Args:
        make: function that returns the model and an optimizer from `make_pretraining_optimizer`, which clips gradients.
        objective: an `Objective`.
        accumulate: number of micro-batches that each replica's batch is split into.
        strategy: a `tf.distribute.Strategy`. Defaults to the current one.
    """

    def __init__(self, make, objective, accumulate=1, strategy=None):
        self.objective = objective
        self.accumulate = accumulate
        self.strategy = strategy or tf.distribute.get_strategy()
        with self.strategy.scope():
            self.model, self.optimizer = make()
            # Sums over all steps since `reset`.
            self.metrics_variables = [
                keras.Variable(0.0, trainable=False, aggregation="only_first_replica", name=name)
                for name in (*objective.names(self.model), "mlm", "next_sentence")]

    @property
    def trainable_variables(self):
        return self.model.trainable_variables

    @property
    def is_chief(self):
        """True in the one process that writes files."""
        return self.strategy.extended.should_checkpoint

    @property
    def devices(self):
        """The number of devices that each batch is split across."""
        return self.strategy.num_replicas_in_sync

    def feed(self, batches, step):
        """Sets the training data.

        Args:
            batches: function of a step, a shard and the number of shards that returns a dataset, see
                `PretrainingInput.batches`.
            step: the first step to train.
        """
        self._batches = iter(self._distributed(batches, step))

    def train(self, steps):
        """Trains for `steps` steps."""
        self._train(self._batches, tf.constant(steps))

    @tf.function
    def _train(self, batches, steps):
        for _ in tf.range(steps):
            self.strategy.run(self._replica_step, args=(next(batches),))

    def scores(self):
        """Returns the scores of all steps since `reset`, see `Objective.scores`."""
        return self.objective.scores([{total.name: total.numpy() for total in self.metrics_variables}])

    def reset(self):
        """Sets the sums of the scores to 0."""
        for total in self.metrics_variables:
            total.assign(0.0)

    def evaluate(self, batches, steps):
        """Returns the scores of the first `steps` batches of other data. The training scores do not change."""
        batches = itertools.islice(self._distributed(batches, 0), steps)
        return self.objective.scores(map(self._evaluate_step, batches))

    def shared(self, value):
        """Returns the mean of a float over all processes; each process waits here for the others."""
        return float(self._mean(tf.constant(value, tf.float32)))

    @tf.function
    def _mean(self, value):
        means = self.strategy.run(lambda: kernels.sum_over_replicas(value / self.strategy.num_replicas_in_sync))
        return self.strategy.experimental_local_results(means)[0]

    @tf.function
    def _evaluate_step(self, batch):
        sums = self.strategy.run(self._replica_evaluation, args=(batch,))
        return {name: self.strategy.experimental_local_results(value)[0] for name, value in sums.items()}

    def _replica_evaluation(self, batch):
        return kernels.sum_over_replicas(self.objective.sums(self.model, batch) | self.objective.counts(batch))

    def _distributed(self, batches, step):
        """Returns the distributed dataset, with one batch per replica and step."""
        def local(context):
            replicas = context.num_replicas_in_sync // context.num_input_pipelines
            parts = [batches(step, context.input_pipeline_id * replicas + replica, context.num_replicas_in_sync)
                     for replica in range(replicas)]
            turns = tf.data.Dataset.range(replicas).repeat()
            return parts[0] if replicas == 1 else tf.data.Dataset.choose_from_datasets(parts, turns)

        return self.strategy.distribute_datasets_from_function(local)

    def _replica_step(self, batch):
        counts = kernels.sum_over_replicas(self.objective.counts(batch))
        gradients, sums = self._accumulated(batch, counts)
        self.optimizer.apply(kernels.sum_over_replicas(gradients), self.model.trainable_variables)
        sums = kernels.sum_over_replicas(sums) | counts
        for total in self.metrics_variables:
            total.assign_add(sums[total.name])

    def _accumulated(self, batch, counts):
        """Returns this replica's part of the gradients of the global batch's loss, and its `Objective.sums`."""
        if self.accumulate == 1:
            return self._gradients(batch, counts)
        parts = tf.nest.map_structure(
            lambda tensor: tf.reshape(tensor, [self.accumulate, -1, *tensor.shape[1:]]), batch)
        zeros = [tf.zeros_like(variable.value) for variable in self.model.trainable_variables]
        state = zeros, dict.fromkeys(self.objective.names(self.model), tf.constant(0.0))

        def add(index, state):
            part = with_own_dropout(tf.nest.map_structure(lambda tensor: tensor[index], parts), index)
            return index + 1, tf.nest.map_structure(tf.add, state, self._gradients(part, counts))

        return tf.while_loop(lambda index, _: index < self.accumulate, add, (0, state))[1]

    def _gradients(self, batch, counts):
        with tf.GradientTape() as tape:
            sums = self.objective.sums(self.model, batch, training=True)
            loss = self.optimizer.scale_loss(self.objective.loss(sums, counts))
        variables = [variable.value for variable in self.model.trainable_variables]
        gradients = tape.gradient(loss, variables, unconnected_gradients="zero")  # for an unused pooler
        return [tf.convert_to_tensor(gradient) for gradient in gradients], sums


def make_strategy(name):
    """Returns a `tf.distribute.Strategy`.

    Args:
        name: `one` for one device; `mirrored` for the devices of this machine; `multiworker` for the machines in the
            environment variable TF_CONFIG; `tpu` for the TPU of this machine, or `tpu:NAME` for another TPU.

    Raises:
        InputError: the name is unknown, TF_CONFIG is not set, or there is no such TPU.
    """
    kind, _, address = name.partition(":")
    if kind == "one":
        return tf.distribute.get_strategy()
    if kind == "mirrored":
        return tf.distribute.MirroredStrategy()
    if kind == "multiworker":
        cluster = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        if not cluster.cluster_spec().jobs:
            raise InputError("strategy multiworker needs TF_CONFIG in the environment, with cluster and task")
        return tf.distribute.MultiWorkerMirroredStrategy(cluster)
    if kind == "tpu":
        try:
            cluster = tf.distribute.cluster_resolver.TPUClusterResolver(address or "local")
            tf.config.experimental_connect_to_cluster(cluster)
            tf.tpu.experimental.initialize_tpu_system(cluster)
            return tf.distribute.TPUStrategy(cluster)
        except (ValueError, tf.errors.OpError) as error:
            raise InputError(f"strategy {name}: {error}") from None
    raise InputError(f"strategy must be one, mirrored, multiworker or tpu; got {name!r}")
