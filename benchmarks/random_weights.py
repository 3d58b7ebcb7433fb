"""Copies a folder of transformers with random weights in place of the pretrained ones, to see what these are worth.

    python benchmarks/random_weights.py FOLDER OUTPUT

Matrices are drawn from a normal distribution with a standard deviation of 0.02, as BERT's initial ones. Norms are 1,
and biases 0.
"""

import pathlib
import shutil
import sys

import numpy as np
from safetensors.numpy import load_file, save_file

WEIGHTS = "model.safetensors"


def main(folder, output):
    shutil.copytree(folder, output)
    generator, weights = np.random.default_rng(0), load_file(pathlib.Path(folder, WEIGHTS))
    for name, weight in weights.items():
        fill = np.ones_like if name.endswith("LayerNorm.weight") else np.zeros_like
        weights[name] = fill(weight) if weight.ndim == 1 else generator.normal(0, 0.02, weight.shape).astype(np.float32)
    save_file(weights, pathlib.Path(output, WEIGHTS), metadata={"format": "pt"})


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
