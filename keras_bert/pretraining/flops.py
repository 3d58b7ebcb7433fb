"""Floating point operations: what training on a token takes, and the peak of the accelerators."""

import re

import tensorflow as tf

from keras_bert.config import BertConfig

# Peak operations per second in dense bfloat16 (V100 and T4: float16), from the vendors' data sheets.
# If more than one name matches, the first one is used.
_PEAKS = {"H200": 989e12, "H100 PCIe": 756e12, "H100 NVL": 835e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12,
          "L4": 121e12, "A10G": 70e12, "A10": 125e12, "V100": 125e12, "T4": 65e12, "TPU v4": 275e12,
          "TPU v5 lite": 197e12, "TPU v5p": 459e12}


def cost_of_token(config: BertConfig, seq_length: int) -> float:
    """Returns the floating point operations to train on one token, forward and backward: 6 for each weight that it is
    multiplied by; and in each block, for each token that it attends to, 12 for each element of its vector."""
    hidden, width = config.hidden_size, config.embedding_width
    block = 4 * hidden**2 + 2 * hidden * config.intermediate_size
    head = (hidden * width + width * config.vocab_size) * 0.15  # 15% of the tokens are predicted
    weights = config.num_hidden_layers * block + head + (width * hidden if config.embedding_size else 0)
    return 6 * weights + 12 * config.num_hidden_layers * hidden * seq_length


def peak() -> float | None:
    """Returns the peak operations per second of all accelerators together; None if there is none, or one is unknown."""
    names = [tf.config.experimental.get_device_details(device).get("device_name", "")
             for kind in ("GPU", "TPU") for device in tf.config.list_physical_devices(kind)]
    # Only whole words match: an L40 is not an L4.
    peaks = [next((peak for key, peak in _PEAKS.items() if re.search(rf"\b{key}\b", name)), 0.0) for name in names]
    return sum(peaks) if peaks and all(peaks) else None
