"""The report in a pretrained model's folder: scores, baseline scores of guesses without a model, and a picture."""

import os
import sys

import numpy as np

from keras_bert.files import write_json
from keras_bert.training import pictures
from keras_bert.training.report import versions


def write_pretraining_report(folder, setup, progress, log, description):
    """Writes `metrics.json` and `pretraining_curve.png`.

    Args:
        folder: folder to write to.
        setup: the `PretrainingSetup`.
        progress: the `Progress`.
        log: the `PretrainingLog`.
        description: dict of more entries of `metrics.json`, about the run.
    """
    phase = setup.phases[-1]
    metrics = {"history": progress.history, **description, "tokens_per_second": round(log.rate),
               "corrupt_records": sum(given.records.corrupt for given in setup.inputs.values()), "versions": versions()}
    if phase.valid:
        scores = {name.removeprefix("valid_"): values[-1] for name, values in progress.history.items()
                  if name.startswith("valid_") and name != "valid_step"}
        batches = phase.valid().take(phase.valid_steps).as_numpy_iterator()
        metrics = {"valid": scores, "baselines": baselines(batches)} | metrics
    write_json(os.path.join(folder, "metrics.json"), metrics)
    try:
        pictures.draw(metrics, folder, PICTURES)
    except ImportError as error:
        print(error, file=sys.stderr)


def baselines(batches):
    """Returns the scores of guesses without a model.

    Args:
        batches: iterable of dicts of arrays, see `PretrainingRecords.dataset`.

    Returns:
        dict of floats: `mlm_majority_accuracy` for always guessing the most frequent token; `mlm_unigram_accuracy` and
        `mlm_unigram_loss` for guessing each token with the probability of its frequency; and, if there are labels,
        `next_sentence_majority_accuracy` for always guessing the most frequent label.
    """
    pieces, labels = [], []
    for batch in batches:
        pieces.append(batch["masked_lm_ids"][batch["masked_lm_weights"] > 0])
        labels.append(batch.get("next_sentence_labels", np.zeros(0)))
    counts = np.bincount(np.concatenate(pieces))
    shares = counts[counts > 0] / counts.sum()
    guesses = {"mlm_majority_accuracy": shares.max(), "mlm_unigram_accuracy": np.square(shares).sum(),
               "mlm_unigram_loss": -(shares * np.log(shares)).sum()}
    if len(labels := np.concatenate(labels)):
        guesses["next_sentence_majority_accuracy"] = max(labels.mean(), 1 - labels.mean())
    return {name: float(value) for name, value in guesses.items()}


def _curve(figure, metrics):
    history, guesses = metrics["history"], metrics.get("baselines", {})
    heads = [head for head in ("mlm", "next_sentence") if f"{head}_loss" in history]
    for row, head in enumerate(heads):
        for column, of in enumerate(("loss", "accuracy")):
            axes = figure.add_axes([5.2 * column, -4.2 * row, 4.5, 3])
            name = f"{head}_{of}"
            axes.plot(history["step"], history[name], color=pictures.TRAINING, label="training")
            if f"valid_{name}" in history:
                axes.plot(history["valid_step"], history[f"valid_{name}"], color=pictures.VALIDATION, marker="s",
                          markersize=4, label="held out")
            guess = guesses.get(f"{head}_unigram_loss" if of == "loss" else f"{head}_majority_accuracy")
            if guess is not None:
                axes.axhline(guess, color=pictures.NEUTRAL, linestyle=":",
                             label="pieces by frequency" if of == "loss" else "always the commonest")
            axes.set_title({"mlm": "Masked tokens", "next_sentence": "Next sentence"}[head] + f": {of}")
            axes.set_xlabel("step")
            axes.grid(alpha=0.3)
            axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=3, frameon=False)


PICTURES = (("pretraining_curve", "history", _curve),)
