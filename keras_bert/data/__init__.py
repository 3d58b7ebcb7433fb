"""Files to batches. Names are imported when first used: workers that make examples do not need TensorFlow."""

from keras_bert.lazy import importer

_HOMES = {
    "Example": "keras_bert.data.examples",
    "TextBatches": "keras_bert.data.batches",
    "plan_batches": "keras_bert.data.batches",
    "read_examples": "keras_bert.data.examples",
    "sorted_batches": "keras_bert.data.batches",
}
__all__ = sorted(_HOMES)

__getattr__ = importer(__name__, _HOMES)
