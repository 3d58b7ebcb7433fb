"""The operations whose best implementation depends on the backend; all others come from `keras.ops`.

Randomness: a *seed* is an int32 tensor [2]. Every random operation takes a seed and keeps no state, so the same seed
gives the same result: after resuming, in a recomputation, on any device. A seed of `None` means "no dropout".
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras
from keras import ops

from keras_bert.types import Tensor

BACKEND: str = keras.backend.backend()

if BACKEND == "tensorflow":
    import tensorflow as tf

    class SeedSource:
        """The source of seeds for calls without a seed; has no variables."""

        def next(self) -> Tensor:
            return per_replica(tf.random.uniform([2], minval=tf.int32.min, maxval=tf.int32.max, dtype=tf.int32))

    def per_replica(seed: Tensor) -> Tensor:
        """Returns a different seed for each replica of a `tf.distribute` strategy."""
        replica = tf.distribute.get_replica_context()
        if replica is not None and replica.num_replicas_in_sync > 1:
            seed = fold_in(seed, replica.replica_id_in_sync_group)
        return seed

    def adam_step(variable: tf.Variable, momentum: tf.Variable, velocity: tf.Variable, gradient: Tensor, step: Tensor,
                  learning_rate: Tensor, beta_1: float, beta_2: float, epsilon: float) -> None:
        """Applies one step of Adam, float32, in one pass over memory; separate operations need multiple passes."""
        step = tf.cast(step, tf.float32)
        power_1, power_2 = tf.pow(beta_1, step), tf.pow(beta_2, step)
        tf.raw_ops.ResourceApplyAdam(  # adds epsilon before the bias correction, so epsilon is scaled here
            var=variable.handle, m=momentum.handle, v=velocity.handle, beta1_power=power_1, beta2_power=power_2,
            lr=learning_rate, beta1=beta_1, beta2=beta_2, epsilon=epsilon * tf.sqrt(1 - power_2), grad=gradient)

    def clip_by_global_norm(gradients: Sequence[Tensor], norm: float) -> list[Tensor]:
        """Returns the gradients, scaled down to a global norm of `norm` if it is larger."""
        return tf.clip_by_global_norm(gradients, norm)[0]

    def sum_over_replicas(tensors: Any) -> Any:
        """Sums a nest of tensors over the replicas of a `tf.distribute` strategy, if it is called in a replica."""
        replica = tf.distribute.get_replica_context()
        if replica is None or replica.num_replicas_in_sync == 1:
            return tensors
        return replica.all_reduce(tf.distribute.ReduceOp.SUM, tensors)

    def update_each(update: Callable[..., None], rows: Iterable[Sequence]) -> None:
        """Calls `update(*row)` for each row, a `keras.Variable` followed by other arguments, on each replica; `update`
        gets the replica's own copies, a `tf.Variable` and tensors."""
        def on_each_replica(strategy: tf.distribute.Strategy, rows: list[list]) -> None:
            for variable, *arguments in rows:
                strategy.extended.update(variable, update, arguments, group=False)

        rows = [[value.value if isinstance(value, keras.Variable) else value for value in row] for row in rows]
        # Keras's optimizers use this private function for their updates, too; no public one also works under XLA.
        tf.__internal__.distribute.interim.maybe_merge_call(on_each_replica, tf.distribute.get_strategy(), rows)

    recompute = tf.recompute_grad  # wraps a function: stores only its arguments, recomputes the rest

    def gather(x: Tensor, positions: Tensor) -> Tensor:
        """Returns the rows of x [batch, seq, width] at int32 positions [batch, n]: [batch, n, width]. Unlike
        `take_along_axis`, neither copies x nor expands the positions to the shape of the output."""
        return tf.gather(x, positions, batch_dims=1)

    dense = tf.convert_to_tensor  # turns sparse gradients (`tf.IndexedSlices`) dense: sums rows of one index

    def matmul_transposed(x: Tensor, y: Tensor) -> Tensor:
        """Computes x yᵀ over the last two dimensions without a transposed copy of y."""
        return tf.matmul(x, y, transpose_b=True)

    def _fold_in(seed: Tensor, number: int) -> Tensor:
        return tf.random.fold_in(seed, number)

    def _random_uint16(shape: Tensor, seed: Tensor) -> Tensor:
        size = tf.reduce_prod(tf.cast(shape, tf.int64))
        pairs = tf.random.stateless_uniform([(size + 1) // 2], seed, minval=None, maxval=None, dtype=tf.int32)
        return tf.reshape(tf.reshape(tf.bitcast(pairs, tf.uint16), [-1])[:size], shape)

elif BACKEND == "jax":
    import jax

    adam_step = None  # not needed: XLA fuses the operations
    recompute = jax.checkpoint

    class SeedSource(keras.random.SeedGenerator):
        """The source of seeds for calls without a seed. JAX needs a state for this, which is never saved."""

        def next(self) -> Tensor:
            return ops.cast(super().next(), "int32")

        def save_own_variables(self, store: Any) -> None:
            pass

        def load_own_variables(self, store: Any) -> None:
            pass

    def gather(x: Tensor, positions: Tensor) -> Tensor:
        return ops.take_along_axis(x, ops.expand_dims(positions, -1), axis=1)

    def matmul_transposed(x: Tensor, y: Tensor) -> Tensor:
        return ops.matmul(x, ops.swapaxes(y, -1, -2))

    def _fold_in(seed: Tensor, number: int) -> Tensor:
        return ops.cast(jax.random.key_data(jax.random.fold_in(_key(seed), number)), "int32")

    def clip_by_global_norm(gradients: Sequence[Tensor], norm: float) -> list[Tensor]:
        length = ops.sqrt(sum(ops.sum(ops.square(gradient)) for gradient in gradients))
        return [gradient * (norm / ops.maximum(length, norm)) for gradient in gradients]

    # Gradients are dense, and one program runs on all devices.
    dense = per_replica = sum_over_replicas = lambda tensors: tensors

    def update_each(update: Callable[..., None], rows: Iterable[Sequence]) -> None:
        for row in rows:
            update(*row)

    def _random_uint16(shape: Tensor, seed: Tensor) -> Tensor:
        return jax.random.bits(_key(seed), shape, "uint16")

    def _key(seed: Tensor) -> Tensor:
        return jax.random.wrap_key_data(ops.cast(seed, "uint32"), impl="threefry2x32")

else:
    raise ImportError(f"keras_bert runs on Keras's TensorFlow and JAX backends; KERAS_BACKEND is {BACKEND!r}")


def fold_in(seed: Tensor | None, number: int) -> Tensor | None:
    """Returns a seed derived from `seed` and `number`; None if `seed` is None."""
    return None if seed is None else _fold_in(seed, number)


def drop(x: Tensor, rate: float, seed: Tensor | None) -> Tensor:
    """Zeroes each element with probability `rate`, which is rounded to a multiple of 2**-16, because drawing 16 bits
    takes half the time of 32. Returns `x` if `seed` is None or the rate is zero."""
    if seed is None or rate == 0:
        return x
    kept = ops.greater_equal(_random_uint16(ops.shape(x), seed), ops.cast(_dropped(rate), "uint16"))
    return ops.where(kept, x, ops.zeros((), x.dtype))  # a product with 0 and 1 would store these for the gradient


def scale_kept(x: Tensor, rate: float, seed: Tensor | None) -> Tensor:
    """Multiplies `x` by 1 / (1 - rate), for what `drop` with the same arguments keeps."""
    return x if seed is None or rate == 0 else ops.multiply(x, ops.cast(2**16 / (2**16 - _dropped(rate)), x.dtype))


def dropout(x: Tensor, rate: float, seed: Tensor | None) -> Tensor:
    return drop(scale_kept(x, rate, seed), rate, seed)


def _dropped(rate: float) -> int:
    """Returns how many of 2**16 numbers mean that an element is dropped."""
    return min(round(rate * 2**16), 2**16 - 1)


def prefers_few_shapes() -> bool:
    """Tells whether XLA may compile the model for each shape of a batch: on JAX and on TensorFlow with a GPU, where
    Keras uses XLA (`jit_compile="auto"`), except under op determinism and on multiple devices."""
    return BACKEND == "jax" or bool(tf.config.list_physical_devices("GPU"))
