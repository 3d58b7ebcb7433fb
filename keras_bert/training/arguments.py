"""Rules that the arguments of a training run must keep."""

import importlib.util

from keras_bert import kernels
from keras_bert.errors import InputError


def check_rules(*rules):
    """Refuses the first argument that breaks its rule.

    Args:
        rules: tuples of a name, the value given, what it must be, and whether it is.
    """
    for name, value, rule, holds in rules:
        if not holds:
            raise InputError(f"{name} must be {rule}; got {value!r}")


def check_run(seed, warmup_ratio, weight_decay, save_steps, log_dir, deterministic):
    """Checks what every run has."""
    check_rules(
        ("seed", seed, f"from 0 to {2**31 - 1}", 0 <= seed < 2**31),  # it is an int32 in each batch
        ("warmup_ratio", warmup_ratio, "at least 0 and below 1", 0 <= warmup_ratio < 1),
        ("weight_decay", weight_decay, "at least 0", weight_decay >= 0),
        ("save_steps", save_steps, "at least 1", save_steps >= 1),
        ("deterministic", deterministic, "left out on the JAX backend: XLA_FLAGS=--xla_gpu_deterministic_ops=true does "
         "it there", not deterministic or kernels.BACKEND == "tensorflow"),
    )
    if log_dir and not importlib.util.find_spec("tensorboard"):
        raise InputError('log_dir needs TensorBoard: pip install "keras-bert-hub[report]"')


def as_list(value):
    """A list of what is one value for all phases, or one for each."""
    return list(value) if isinstance(value, (list, tuple)) else [value]
