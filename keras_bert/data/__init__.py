"""Files to batches. Names are imported when first used: workers that make examples do not need TensorFlow."""

from keras_bert.lazy import importer

_HOMES = {name: f"keras_bert.data.{home}" for home, names in {
    "batches": ("UNLABELLED", "ChoiceBatches", "TextBatches", "TokenBatches", "plan_batches", "sorted_batches",
                "token_batches"),
    "choices": ("ChoiceExample", "read_choices"),
    "examples": ("Example", "iterate_examples", "number", "read_examples"),
    "packed_batches": ("PackedBatches",),
    "questions": ("QuestionExample", "read_questions"),
    "tagged": ("TaggedExample", "read_tagged"),
}.items() for name in names}
__all__ = sorted(_HOMES)

__getattr__ = importer(__name__, _HOMES)
