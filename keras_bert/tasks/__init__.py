"""Downstream tasks: reading data files, encoding inputs and targets, decoding answers, and scoring."""

from keras_bert.tasks.base import Encoded, Task, run
from keras_bert.tasks.choice import Choice, MultipleChoice
from keras_bert.tasks.classify import Classify, Intent, Prediction
from keras_bert.tasks.multilabel import LabelSet, MultiLabel
from keras_bert.tasks.regress import Regress
from keras_bert.tasks.squad import Answer, Span
from keras_bert.tasks.tag import Entity, Tag

TASKS = {task.name: task for task in (Intent, Classify, MultiLabel, Regress, Tag, Span, MultipleChoice)}

__all__ = ["TASKS", "Answer", "Choice", "Classify", "Encoded", "Entity", "Intent", "LabelSet", "MultiLabel",
           "MultipleChoice", "Prediction", "Regress", "Span", "Tag", "Task", "run"]
