"""Types, and a number, for modules that import neither TensorFlow nor Keras, too."""

from typing import Any

Tensor = Any  # a tensor of Keras's backend, or a `keras.KerasTensor`; neither has types that mypy knows
Encoder = Any  # a `BertLayer`
Head = Any  # a `BertTask`

COSINE_SCALE = 20.0  # of embeddings, in losses and scores: cosines alone would make a softmax too flat
