"""Files to batches."""

from keras_bert.data.batches import TextBatches, plan_batches, sorted_batches
from keras_bert.data.examples import Example, read_examples

__all__ = ["Example", "TextBatches", "plan_batches", "read_examples", "sorted_batches"]
