"""Fine-tuning and its scores."""

from keras_bert.training.evaluation import evaluate
from keras_bert.training.fill_mask import fill_mask
from keras_bert.training.finetune import TASKS, finetune
from keras_bert.training.folder import FineTuned, Prediction
from keras_bert.training.labelled import Labelled
from keras_bert.training.loop import enable_determinism
from keras_bert.training.optimizer import WarmupDecay, make_optimizer
from keras_bert.training.pretrain import pretrain

__all__ = [
    "TASKS", "FineTuned", "Labelled", "Prediction", "WarmupDecay", "enable_determinism", "evaluate", "fill_mask",
    "finetune", "make_optimizer", "pretrain",
]
