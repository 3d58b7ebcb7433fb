"""The head of a model that was already trained for a task, which another training continues."""

from typing import Any

import keras
from keras import ops

from keras_bert.arguments import given
from keras_bert.models.base import BertTask
from keras_bert.tasks import Embed, Task, read_settings, restored
from keras_bert.text.coverage import shorten
from keras_bert.weights.native import has_settings
from keras_bert.weights.source import Source


def keep_head(model: BertTask, task: Task, source: Source, few_shot: bool) -> tuple[list[str], list]:
    """Gives a new model the head of the `source`, if that is for the same task, and the same labels in any order.

    Returns:
        a line that says so, or why the head is new, none if the source has no head with weights; and the variables that
        got its weights.
    """
    was = (read_settings(source.path)[0] if has_settings(source.path) else
           restored(source.settings | given(labels=source.labels), source.path)[0] if source.settings else None)
    if was is None or isinstance(was, Embed):
        return [], []
    if few_shot:
        return ["new head: few_shot makes it by a logistic regression"], []
    if not (isinstance(was, type(task)) or isinstance(task, type(was))):  # an intent model is a classifier
        return [f"new head: {source.path} is for the task {was.name}, not {task.name}"], []
    labels, old_labels = (getattr(each, "labels", []) for each in (task, was))
    if others := sorted({*labels} ^ {*old_labels}):
        return [f"new head: {source.path} has other labels; only one of the two has {shorten(', '.join(others))}"], []
    old = source.model or source.load()[0].build()
    new_kind, old_kind = (" on ".join(filter(None, [type(each).__name__, getattr(of, "features", None)]))
                          for each, of in ((model, task), (old, was)))
    if new_kind != old_kind:
        return [f"new head: {source.path} is a {old_kind}, the new model a {new_kind}"], []
    classifier: Any = getattr(model, "classifier", None)
    of_labels = {id(variable) for variable in classifier.weights} if labels and classifier else set()
    if labels != old_labels and not (of_labels and classifier.bias.shape == (len(labels),)):
        return [f"new head: {source.path} has the labels in another order"], []
    rows = [old_labels.index(label) for label in labels]
    for variable, value in zip(_weights(model), _weights(old), strict=True):
        variable.assign(ops.take(value, rows, axis=-1) if labels != old_labels and id(variable) in of_labels else value)
    return [f"head: that of {source.path}, which is for the same task and labels"], _weights(model)


def _weights(model: Any) -> list[keras.Variable]:
    """Returns the weights of a model that are not its encoder's."""
    of_encoder = {id(variable) for variable in model.bert.weights}
    return [variable for variable in model.weights if id(variable) not in of_encoder]
