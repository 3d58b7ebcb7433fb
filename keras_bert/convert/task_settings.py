"""The settings of a model's task, as `settings.json` holds them: which ones a model of another library gets."""

import dataclasses
from typing import Any

from keras_bert.arguments import Activation, Count, Path, not_none
from keras_bert.errors import InputError, Option
from keras_bert.files.json_files import Record
from keras_bert.files.paths import at, naming_damage
from keras_bert.tasks import TASKS, restored
from keras_bert.tasks.embed import prompts_of
from keras_bert.weights import open_weights
from keras_bert.weights.format import Source, Weights


def open_source(name: Path, config: Path | None = None, next_sentence_pooler: bool = False,
                allow_inexact: bool = False, takes_texts: bool = False) -> Source:
    """Opens weights of any format as a `Source`, with complete settings of its task.

    Args:
        name: path of a folder or of a TensorFlow checkpoint, or a name as `find_pretrained` takes it.
        config: path of a `bert_config.json`, for weights that come without a config.
        next_sentence_pooler: see `convert`.
        allow_inexact: True to read weights whose files say what this package does not follow, see docs/convert.md.
        takes_texts: True to refuse weights without a vocabulary of WordPiece.

    Raises:
        InputError: the format is unknown, or files are incomplete, invalid or not followed.
    """
    source = open_weights(name, config, next_sentence_pooler, allow_inexact, takes_texts)
    with naming_damage(source.path):
        return with_task(source)


def with_task(source: Source) -> Source:
    """Returns a `Source` with the settings that its kind of model needs. What it does not say is filled in: the first
    of the kind's tasks, inputs of as many tokens as there are positions, and single texts. Raises an InputError if a
    setting is unknown or of another type."""
    tasks = [name for name, task in TASKS.items() if task.weights == source.kind]
    if not tasks:
        return dataclasses.replace(source, settings={})
    given, notes = source.settings, source.notes
    if given.get("task", tasks[0]) not in tasks:
        notes += (f"the settings of the task {given['task']} are ignored, because they are not those of a model for "
                  f"{source.kind.replace('_', ' ')}",)
        given = {}
    positions = source.config.max_position_embeddings
    length = Record(source.path, "", given).get("max_length", Count | None) or positions
    if length > positions:
        notes += (f"max_length {length} exceeds the encoder's positions: {positions}",)
    settings = {"task": tasks[0]} | given | {"max_length": min(length, positions)}
    if source.kind in ("classification", "regression") and settings["task"] != "rerank" and "pairs" not in settings:
        settings["pairs"] = False
        notes += ("the source does not say if its inputs are single texts or pairs: single texts; --pairs for pairs",)
    if source.kind == "regression" and "task" not in given:
        notes += ("the source does not say if its value is the score of a re-ranking: regression; --activation_fn for "
                  "re-ranking",)
    labels, thresholds = source.labels, settings.get("thresholds")
    if isinstance(thresholds, list) and len(thresholds) != len(labels or ()):
        del settings["thresholds"]
        notes += (f"the {len(thresholds)} thresholds are ignored, because the model has {len(labels or ())} labels: "
                  "0.5 for each",)
    if settings["task"] in TASKS:
        task, _ = restored(settings | ({} if labels is None else {"labels": labels}), source.path)
        with at(source.path):
            if tokenizer := source.tokenizer:
                task.check_tokenizer(tokenizer)
    return dataclasses.replace(source, settings=settings, notes=notes)


def with_settings(weights: Weights, activation_fn: Activation | None = None, pairs: bool | None = None,
                  **prompts: str | None) -> Weights:
    """Returns the weights with the settings that are not None: `activation_fn` makes the task rerank; `prompts` are
    those named `query` and `document`. Raises an InputError if one is for other kinds of models."""
    settings = dict(weights.settings)
    if activation_fn is not None:
        if weights.kind != "regression":
            raise InputError(Option("activation_fn"),
                             f" is for models for regression or re-ranking; this one is for {weights.kind}")
        settings.pop("pairs", None)
        settings |= {"task": "rerank", "activation_fn": activation_fn}
    if pairs is not None:
        if "pairs" not in settings:
            raise InputError("pairs is for models for classification or regression; this one is for "
                             f"{settings.get('task', weights.kind)}")
        settings["pairs"] = pairs
    if others := not_none(**prompts):
        if weights.kind != "embedding":
            raise InputError(f"prompts are for models for embeddings; this one is for {weights.kind}")
        before = {name: settings.pop(name) for name in ("prompts", "default_prompt_name") if name in settings}
        settings |= prompts_of(before | {"prompts": before.get("prompts", {}) | others})
    return dataclasses.replace(weights, settings=settings)


def describe(settings: dict[str, Any]) -> str:
    """Returns settings as text: `task intent, max_length 128, pairs False`."""
    return ", ".join(f"{name} {value}" for name, value in settings.items())
