"""Files to batches. Names are imported when first used: workers that make examples do not need TensorFlow."""

import importlib

_HOMES = {
    "Example": "keras_bert.data.examples",
    "TextBatches": "keras_bert.data.batches",
    "plan_batches": "keras_bert.data.batches",
    "read_examples": "keras_bert.data.examples",
    "sorted_batches": "keras_bert.data.batches",
}
__all__ = sorted(_HOMES)


def __getattr__(name):
    if name not in _HOMES:
        raise AttributeError(f"module 'keras_bert.data' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
