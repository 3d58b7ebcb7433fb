"""Types that several packages name."""

from typing import Any, Literal

Tensor = Any  # a tensor of Keras's backend, or a `keras.KerasTensor`; neither has types that mypy knows
Pooling = Literal["mean", "cls", "max"]  # how the vectors of tokens become one
