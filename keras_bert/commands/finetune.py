"""`keras-bert finetune`."""

import os
from typing import Any

from keras_bert.files.json_files import read_json
from keras_bert.files.paths import check_readable

EXAMPLE = "keras-bert finetune --train=train.tsv --model=minilm --output=my_model"
API = "training/finetune.py", "finetune"


def run(**arguments: Any) -> None:
    """Fine-tune a pretrained encoder on labelled texts."""
    check_readable(*filter(None, (arguments["train"], arguments["valid"])))
    from keras_bert.tasks.score_names import describe_texts, shown_scores
    from keras_bert.training import finetune

    finetune(**arguments)
    folder = arguments["output"]
    metrics = read_json(os.path.join(folder, "metrics.json"))
    scores = [f"{name} {score:.4f}" for name, score in shown_scores(metrics["task"], metrics).items()]
    print(f"{folder}: {', '.join(scores[:2])} on {describe_texts(metrics, metrics['valid_examples'])}, "
          f"epoch {metrics['best_epoch']}, {metrics['seconds']:.0f} s")
    for name in sorted(os.listdir(folder)):
        if name.endswith((".png", ".md")):
            print(os.path.join(folder, name))
