"""Types that several packages name."""

from typing import Any

Tensor = Any  # a tensor of Keras's backend, or a `keras.KerasTensor`; neither has types that mypy knows
