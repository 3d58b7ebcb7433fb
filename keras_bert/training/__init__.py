"""Fine-tuning, and what fine-tuning and pretraining share."""

from keras_bert.inference.features import write_features
from keras_bert.inference.fill_mask import fill_mask
from keras_bert.inference.fine_tuned import FineTuned
from keras_bert.lazy import importer
from keras_bert.tasks import TASKS
from keras_bert.training.finetune import finetune
from keras_bert.training.optimizer import WarmupDecay, make_optimizer
from keras_bert.training.run import enable_determinism

__all__ = ["TASKS", "FineTuned", "WarmupDecay", "enable_determinism", "fill_mask", "finetune", "make_optimizer",
           "pretrain", "write_features"]

# Imported when it is first used, because `keras_bert.pretraining` imports this package.
__getattr__ = importer(__name__, {"pretrain": "keras_bert.pretraining.pretrain"})
