"""Readers of data files, and batches of their examples. Names are imported on first use, because commands read rows
before they import NumPy and the tokenizers."""

from keras_bert.lazy import importer

_MODULES = {name: f"keras_bert.data.{home}" for home, names in {
    "batches": ("UNLABELLED", "ChoiceBatches", "LabelPairBatches", "PackedBatches", "SameLabelBatches", "TextBatches",
                "TokenBatches", "plan_batches", "sorted_batches", "token_batches"),
    "examples": ("Example", "iterate_examples", "label_of", "number", "read_examples"), "rows": ("iterate_lines",),
}.items() for name in names}
__all__ = sorted(_MODULES)

__getattr__ = importer(__name__, _MODULES)
