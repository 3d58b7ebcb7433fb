"""The report in a trained model's folder: scores, pictures and, for a fine-tuned model, a model card."""

import os
import platform
import shlex
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from keras import ops

from keras_bert.arguments import as_flags
from keras_bert.files.json_files import write_json
from keras_bert.inference.fine_tuned import FineTuned
from keras_bert.tasks import Encoded, Intent
from keras_bert.tasks.score_names import describe_threshold
from keras_bert.training import pictures
from keras_bert.training.checkpoints import Progress, made_with
from keras_bert.training.model_card import model_card
from keras_bert.training.options import IN_MEMORY

# The arguments of `finetune` that `evaluate` must be given too, see `TaskModel.encode`.
EVALUATE_ARGUMENTS = ("data_format", "out_of_scope_label")
VERSIONS = {"python": platform.python_version()} | made_with()


def write_report(folder: str, model: FineTuned, encoded: Encoded, progress: Progress, given: dict[str, Any],
                 description: dict[str, Any]) -> FineTuned:
    """Scores a model on its validation examples; writes `metrics.json`, the pictures and `README.md` into the folder in
    which the model is already saved. Returns the model, if its task has a threshold with one chosen on these examples.

    Args:
        given: the arguments of `finetune` that are not defaults; `IN_MEMORY` for data without a file.
        description: more entries of `metrics.json`, about the run.
    """
    scores, model = model.score(encoded, choose_threshold=True)
    model.save_settings(folder)
    if isinstance(model.task, Intent):
        scope = scores["out_of_scope"]
        print("threshold:", describe_threshold(scope) if scope else
              "none, because every validation text is in scope, so answers have no in_scope; FineTuned.calibrate or "
              "evaluate --choose_threshold --out_of_scope_label=LABEL chooses one on other texts", file=sys.stderr)
    is_in_memory = IN_MEMORY in (given["train"], given.get("valid")) or isinstance(given.get("class_weights"), dict)
    metrics = {"task": model.task.name, "main": model.task.main_score(encoded.examples),
               "inputs": model.task.inputs, **scores, "best_epoch": progress.best_epoch, "history": progress.history,
               "valid_examples": len(encoded.examples),
               "command": shlex.join(["keras-bert", "finetune", *as_flags(given)]) if not is_in_memory else None,
               "columns": {name: given[name] for name in EVALUATE_ARGUMENTS if name in given}, **description,
               "versions": VERSIONS, "attention": attention(model, encoded)}
    drawn = write_metrics(folder, metrics, pictures.FINE_TUNING)
    with open(os.path.join(folder, "README.md"), "w", encoding="utf-8") as file:
        file.write(model_card(metrics, [os.path.basename(path) for path in drawn]))
    return model


def write_metrics(folder: str, metrics: dict[str, Any], table: Sequence[pictures.Picture]) -> list[str]:
    """Writes `metrics.json` and, if matplotlib is installed, pictures; returns their paths."""
    write_json(os.path.join(folder, "metrics.json"), metrics)
    try:
        return pictures.draw(metrics, folder, table)
    except ImportError as error:
        print(error, file=sys.stderr)
        return []


# The attention picture shows a text with this many tokens, if there is one, and otherwise the shortest.
_TOKENS = range(6, 17)
# Of longer texts, it shows the beginning: the numbers in metrics.json grow with the square of the tokens.
_MAX_TOKENS = 32


def attention(model: FineTuned, encoded: Encoded) -> dict[str, list]:
    """Returns the attention in a short example: `tokens`, and `layers`, [layer][head][token][token] as lists."""
    batches = encoded.batched(model.tokenizer)
    shortest = int(np.argmin(batches.lengths))
    inputs = batches.inputs([next((i for i, length in enumerate(batches.lengths) if length in _TOKENS), shortest)])
    length = inputs["input_mask"].reshape(-1, inputs["input_mask"].shape[-1])[0].sum()
    shown = [*range(min(length, _MAX_TOKENS) - 1), length - 1]  # the last is [SEP]
    inputs = {name: values.reshape(-1, values.shape[-1])[:1, shown] for name, values in inputs.items()}
    layers = model.model.bert.encode(inputs, return_attention=True).attention_probabilities
    return {"tokens": [model.tokenizer.vocabulary[i] for i in inputs["input_word_ids"][0]], "layers": [
        np.round(ops.convert_to_numpy(ops.cast(layer[0], "float32")).astype(float), 4).tolist() for layer in layers]}
