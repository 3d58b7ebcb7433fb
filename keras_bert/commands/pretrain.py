"""`keras-bert pretrain`."""

import math
import os
from typing import Any, Literal

from keras_bert.files.json_files import read_json

EXAMPLE = "keras-bert pretrain --train=examples --output=my_bert --steps=10000 --config=L4-H256"
API = "pretraining/pretrain.py", "pretrain"


def run(backend: Literal["tensorflow", "jax"] | None = None, **arguments: Any) -> None:
    """Pretrain an encoder and its heads.

    Args:
        backend: Keras's backend. Default: that of KERAS_BACKEND.
    """
    if backend:
        os.environ["KERAS_BACKEND"] = backend
    from keras_bert.training import pretrain

    pretrain(**arguments)
    folder = arguments["output"]
    metrics = read_json(os.path.join(folder, "metrics.json"))
    for title in ("valid", "baselines"):
        for name, value in metrics.get(title, {}).items():
            print(f"{name} {math.nan if value is None else value:.4f}")
    if metrics["corrupt_records"]:
        print(f"corrupt_records {metrics['corrupt_records']}")
    print(folder)
