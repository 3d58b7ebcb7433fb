"""Fine-tuning, pretraining, prediction of masked tokens, and feature vectors."""

from keras_bert.tasks import TASKS
from keras_bert.training.feature_vectors import write_features
from keras_bert.training.fill_mask import fill_mask
from keras_bert.training.fine_tuned import FineTuned
from keras_bert.training.finetune import finetune
from keras_bert.training.loop import enable_determinism
from keras_bert.training.optimizer import WarmupDecay, make_optimizer
from keras_bert.training.pretrain import pretrain

__all__ = ["TASKS", "FineTuned", "WarmupDecay", "enable_determinism", "fill_mask", "finetune", "make_optimizer",
           "pretrain", "write_features"]
