"""The report on a pretraining run: scores, baselines and the picture of the training curve."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from keras_bert.models import BertPretrainer
from keras_bert.pretraining.loop import Phase
from keras_bert.training import pictures
from keras_bert.training.checkpoints import Progress
from keras_bert.training.report import VERSIONS, write_metrics

_COUNTED = 2**16  # training examples whose tokens are counted for the baselines


def write_pretraining_report(folder: str, model: BertPretrainer, phase: Phase, progress: Progress,
                             description: dict[str, Any]) -> None:
    """Writes `metrics.json`, with `description`, and a picture of the training curve. `phase` is the last one."""
    metrics = {"history": progress.history, **description, "versions": VERSIONS}
    if phase.make_valid_dataset:
        scores = {name.removeprefix("valid_"): values[-1] for name, values in progress.history.items()
                  if name.startswith("valid_") and name != "valid_step"}
        trained = phase.make_dataset().take(min(phase.steps, -(-_COUNTED // phase.batch_size)))
        held_out = phase.make_valid_dataset().take(phase.valid_steps)
        guesses = baselines(trained.as_numpy_iterator(), held_out.as_numpy_iterator(),
                            model.bert.config.vocab_size, model.next_sentence is not None)
        metrics = {"valid": scores, "baselines": guesses} | metrics
    write_metrics(folder, metrics, pictures.PRETRAINING)


def baselines(trained: Iterable[dict[str, np.ndarray]], held_out: Iterable[dict[str, np.ndarray]], vocab_size: int,
              next_sentence: bool) -> dict[str, float]:
    """Returns the scores on held-out examples of guesses without a model, which know the training examples alone:
    `majority` always guesses the most frequent token or label; `unigram` guesses each token with the probability of its
    frequency, each token counted once more than it occurs."""
    (known, known_labels), (found, labels) = (
        _counts(batches, vocab_size, next_sentence) for batches in (trained, held_out))
    guessed, found = (known + 1) / (known + 1).sum(), found / max(found.sum(), 1)
    guesses = {"mlm_majority_accuracy": found[known.argmax()], "mlm_unigram_accuracy": found @ guessed,
               "mlm_unigram_loss": -(found @ np.log(guessed))}
    if next_sentence:
        guesses["next_sentence_majority_accuracy"] = labels[known_labels.argmax()] / labels.sum()
    return {name: float(value) for name, value in guesses.items()}


def _counts(batches: Iterable[dict[str, np.ndarray]], vocab_size: int, next_sentence: bool
            ) -> tuple[np.ndarray, np.ndarray]:
    """Counts each masked token, int [vocabulary], and the labels 0 and 1, float [2]."""
    tokens, labels = np.zeros(vocab_size, int), np.zeros(2)
    for batch in batches:
        tokens += np.bincount(batch["masked_lm_ids"][batch["masked_lm_weights"] > 0], minlength=vocab_size)
        if next_sentence:
            labels += np.bincount(batch["next_sentence_labels"], batch.get("example_weights"), minlength=2)
    return tokens, labels
