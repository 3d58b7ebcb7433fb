"""The head and the loss that a task is trained with."""

from typing import Any

import keras
from keras import ops

from keras_bert import models
from keras_bert.layers import BertLayer
from keras_bert.models.base import BertTask
from keras_bert.models.embedding_losses import LOSSES
from keras_bert.tasks import Classify, Embed, MultiLabel, MultipleChoice, Regress, Rerank, Span, Tag, Task
from keras_bert.types import Tensor

# The models that a task can have.
HEADS: dict[type[Task], tuple[type[BertTask], ...]] = {
    Classify: (models.BertClassifier, models.BertEmbeddingClassifier),
    MultiLabel: (models.BertClassifier,),
    Regress: (models.BertRegressor,),
    Rerank: (models.BertRegressor,),
    MultipleChoice: (models.BertMultipleChoice,),
    Tag: (models.BertTokenClassifier, models.BertFeatureTagger),
    Span: (models.BertSpanLabeler,),
    Embed: (models.BertEmbedder,),
}


def new_head(task: Task, bert: BertLayer, dropout: float) -> BertTask:
    """Returns a new model for a task on an encoder. `dropout` is the rate of the head's input, if it has dropout."""
    match task:
        case Classify() | MultiLabel():
            return models.BertClassifier(bert, len(task.labels), dropout)
        case Regress() | Rerank():
            return models.BertRegressor(bert, dropout)
        case MultipleChoice():
            return models.BertMultipleChoice(bert, dropout)
        case Tag() if task.features:
            return models.BertFeatureTagger(bert, len(task.labels), task.features, dropout=dropout)
        case Tag():
            return models.BertTokenClassifier(bert, len(task.labels), dropout)
        case Span():
            return models.BertSpanLabeler(bert)
        case Embed():
            return models.BertEmbedder(bert, task.pooling, task.normalize)
    raise TypeError(f"no head for {task}")


def loss_arguments(task: Task) -> dict[str, Any]:
    """Returns the arguments of `compile` for a task: `loss`, and perhaps `metrics` and `loss_weights`."""
    match task:
        case Classify():
            return {"loss": _of_classes(), "metrics": [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]}
        case MultiLabel() | Rerank():
            return {"loss": keras.losses.BinaryCrossentropy(from_logits=True)}
        case Regress():
            return {"loss": keras.losses.MeanSquaredError()}
        case MultipleChoice():
            return {"loss": _of_classes()}
        case Tag():
            return {"loss": _of_tokens}
        case Span():
            logits = ("start_logits", "end_logits")
            return {"loss": {name: _of_classes() for name in logits}, "loss_weights": {name: 0.5 for name in logits}}
        case Embed(loss_name=str(name)):
            return {"loss": LOSSES[name]}
    raise TypeError(f"no loss for {task}")


def _of_classes() -> keras.losses.Loss:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def _of_tokens(targets: Tensor, logits: Tensor) -> Tensor:
    """Computes the cross-entropy of each token, which counts with the weight that `TokenBatches` gives it."""
    return ops.sparse_categorical_crossentropy(ops.maximum(targets, 0), logits, from_logits=True)
