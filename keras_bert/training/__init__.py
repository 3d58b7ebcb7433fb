"""Fine-tuning."""

from keras_bert.training.finetune import TASKS, finetune
from keras_bert.training.folder import FineTuned, Prediction
from keras_bert.training.optimizer import WarmupLinearDecay, make_optimizer

__all__ = ["TASKS", "FineTuned", "Prediction", "WarmupLinearDecay", "finetune", "make_optimizer"]
