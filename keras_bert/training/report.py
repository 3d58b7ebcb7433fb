"""What a fine-tuned model's folder says about it: scores, pictures, a model card."""

import importlib.metadata
import os
import platform
import sys

from keras_bert.files import read_json, write_json
from keras_bert.training import pictures
from keras_bert.training.attention import attention
from keras_bert.training.card import model_card


def write_report(folder, model, encoded, progress, description):
    """Scores a model on its validation examples; writes `metrics.json`, the pictures and `README.md` into its folder.

    Args:
        folder: the model's, written already.
        model: a `FineTuned`.
        encoded: the validation examples, labelled, `Encoded`.
        progress: the `Progress` of its training.
        description: more entries of `metrics.json`, about the run.

    Returns:
        the model with its threshold, where its task has one.
    """
    scores, model = model.score(encoded, choose_threshold=True)
    model.save_settings(folder)
    metrics = {"task": model.task.name, "main": model.task.main, **scores, "best_epoch": progress.best_epoch,
               "history": progress.history, "valid_examples": len(encoded.examples), **description,
               "versions": versions(), "attention": attention(model, encoded)}
    write_json(os.path.join(folder, "metrics.json"), metrics)
    try:
        drawn = pictures.draw(metrics, folder)
    except ImportError as error:
        print(error, file=sys.stderr)
        drawn = []
    with open(os.path.join(folder, "README.md"), "w", encoding="utf-8") as file:
        file.write(model_card(metrics, [os.path.basename(path) for path in drawn]))
    return model


def versions():
    """The versions of what a model was made with, a dict."""
    return {"python": platform.python_version()} | {
        name: importlib.metadata.version(name) for name in ("keras-bert-hub", "keras", "tensorflow")}


def describes(folder, run):
    """Whether `folder` holds the report of this run, see `Checkpoints`."""
    path = os.path.join(folder, "metrics.json")
    metrics = read_json(path) if os.path.exists(path) else {}
    return all(metrics.get(key) == value for key, value in run.items())
