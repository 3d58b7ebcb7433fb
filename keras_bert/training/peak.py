"""What a step costs, and what the machine can do."""

import re

import tensorflow as tf

# Dense bfloat16 (V100 and T4: float16) operations a second, without sparsity, from the makers' data sheets. Of several
# names that fit, the first counts.
_PEAKS = {"H200": 989e12, "H100 PCIe": 756e12, "H100 NVL": 835e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12,
          "L4": 121e12, "A10G": 70e12, "A10": 125e12, "V100": 125e12, "T4": 65e12, "TPU v4": 275e12,
          "TPU v5 lite": 197e12, "TPU v5p": 459e12}


def cost_of_token(config, seq_length):
    """Floating point operations to train on a token, forward and back: 6 for each weight that it is multiplied by, and
    for each other token that it is attended with 12 for each element of its vector.

    Args:
        config: a `BertConfig`.
        seq_length: tokens of an example.
    """
    hidden = config.hidden_size
    block = 4 * hidden**2 + 2 * hidden * config.intermediate_size
    head = (hidden**2 + hidden * config.vocab_size) * 0.15  # of the tokens
    return 6 * (config.num_hidden_layers * block + head) + 12 * config.num_hidden_layers * hidden * seq_length


def peak():
    """Operations a second of all accelerators of this process together; None if one is unknown, or if there is none."""
    peaks = [_peak_of(tf.config.experimental.get_device_details(device).get("device_name", ""))
             for kind in ("GPU", "TPU") for device in tf.config.list_physical_devices(kind)]
    return sum(peaks) if peaks and None not in peaks else None


def _peak_of(name):
    """Operations a second of the accelerator that a driver calls `name`, in whole words: an L40 is not an L4."""
    return next((peak for key, peak in _PEAKS.items() if re.search(rf"\b{key}\b", name)), None)
