"""The settings of a model's task, as `settings.json` holds them: which ones a model of another library gets."""

import dataclasses
from collections import Counter

from keras_bert.convert.kinds import KINDS
from keras_bert.errors import InputError
from keras_bert.tasks import TASKS, restored


def with_task(source):
    """Returns a `Source` with the settings and labels that its kind of model needs.

    What the source does not say is filled in: the first of the kind's tasks, inputs of as many tokens as there are
    positions, single texts, and the labels LABEL_0, LABEL_1, … of transformers.

    Raises:
        InputError: the labels are not different names, one for each class, a setting is unknown or of another type, or
            the dropout rate is not a rate.
    """
    tasks, given = KINDS[source.kind].tasks, source.settings or {}
    dropout = source.options.get("dropout", 0.0)
    if not isinstance(dropout, (int, float)) or not 0 <= dropout < 1:
        raise InputError(f"{source.path}: the dropout rate of the head must be at least 0 and below 1; "
                         f"got {dropout!r:.40}")
    if not tasks:
        return dataclasses.replace(source, settings=None, labels=None)
    notes = source.notes
    if given.get("task", tasks[0]) not in tasks:
        notes += (f"the settings of the task {given['task']} are ignored, because they are not those of a model for "
                  f"{source.kind.replace('_', ' ')}",)
        given = {}
    settings = {"task": tasks[0]} | given
    settings["max_length"] = _max_length(source, given.get("max_length"))
    if (length := given.get("max_length")) is not None and length > settings["max_length"]:
        notes += (f"max_length {length} exceeds the encoder's positions: {settings['max_length']}",)
    if source.kind in ("classification", "regression") and "pairs" not in settings:
        settings["pairs"] = False
        notes += ("the source does not say if its inputs are single texts or pairs: single texts; --pairs for pairs",)
    labels, unnamed = _labels(source)
    if unnamed:
        notes += (f"the source does not name all labels: {', '.join(unnamed[:5])}{', …' if unnamed[5:] else ''}",)
    thresholds = settings.get("thresholds")
    if isinstance(thresholds, list) and len(thresholds) != len(labels or ()):
        del settings["thresholds"]
        notes += (f"the {len(thresholds)} thresholds are ignored, because the model has {len(labels or ())} labels: "
                  "0.5 for each",)
    if settings["task"] in TASKS:
        restored(settings | ({} if labels is None else {"labels": labels}), source.path)
    return dataclasses.replace(source, settings=settings, labels=labels, notes=notes)


def with_pairs(weights, pairs):
    """Returns the weights with another value of the setting `pairs`.

    Raises:
        InputError: the task has no such setting.
    """
    if "pairs" not in (weights.settings or {}):
        raise InputError(f"pairs is for models for classification or regression; this one is for {weights.kind}")
    return dataclasses.replace(weights, settings=weights.settings | {"pairs": pairs})


def describe(settings):
    """Returns settings as text: `task intent, max_length 128, pairs False`."""
    return ", ".join(f"{name} {value}" for name, value in settings.items())


def _max_length(source, value):
    positions = source.config.max_position_embeddings
    if value is None:
        return positions
    if type(value) is not int or value < 1:
        raise InputError(f"{source.path}: max_length must be a number of tokens; got {value!r:.40}")
    return min(value, positions)


def _labels(source):
    """Returns (names of the classes or None, list of those that the source does not name)."""
    count = source.options.get("num_classes")
    if count is None:
        return None, []
    if type(count) is not int or count < 1:
        raise InputError(f"{source.path}: the head must have at least one class; got {count!r:.40}")
    given = [None] * count if source.labels is None else source.labels
    if not isinstance(given, list) or len(given) != count or not all(isinstance(label, str | None) for label in given):
        raise InputError(f"{source.path}: labels must be the names of the {count} classes; got {given!r:.100}")
    labels = [f"LABEL_{i}" if label is None else label for i, label in enumerate(given)]
    if repeated := [label for label, number in Counter(labels).items() if number > 1]:
        raise InputError(f"{source.path}: labels must be different names; {repeated[0]!r} is repeated")
    return labels, [label for label, name in zip(labels, given) if name is None]
