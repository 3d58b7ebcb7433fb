"""Compares a masked-LM training step with KerasHub's and PyTorch's, in tokens per second.

    python benchmarks/pretraining_step.py [--size=base --batch=16 --length=128 --dtypes=float32,bfloat16 --turns=5]

A step is the forward pass, the gradients and AdamW. All libraries get the same ids, masks and positions; 15% of the
tokens are predicted, and the dropout is 0.1. Each library trains as its documentation says: this package with
`PretrainingTrainer`; KerasHub's `BertMaskedLM` with `compile` and `train_on_batch`, once with TensorFlow's operations
and once with XLA; transformers' `BertForMaskedLM` with SDPA, in bfloat16 under autocast. The other libraries' models
have no next-sentence prediction, so this package trains without it too. Takes about fifteen minutes for `base` on two
cores.
"""

import functools

import numpy as np
import ruler
import tensorflow as tf
from keras import backend, losses, optimizers
from peer_models import DECAY, config_of, kerashub_backbone, policy_of, torch_names, torch_step

from keras_bert.layers import BertLayer
from keras_bert.models import BertPretrainer
from keras_bert.pretraining.objective import Objective
from keras_bert.pretraining.prepare import cost_of_token
from keras_bert.pretraining.trainer_tensorflow import PretrainingTrainer
from keras_bert.training.optimizer import WarmupDecay, make_pretraining_optimizer

RATE = 1e-4


def ours(config, batch, dtype):
    def make():
        model = BertPretrainer(BertLayer(config, dtype=policy_of(dtype)), next_sentence=False)
        return model, make_pretraining_optimizer(model, "adamw", WarmupDecay(RATE, 1, 10**6), DECAY,
                                                 global_clipnorm=None)

    seeds = {"dropout_seed": np.zeros((len(batch["input_word_ids"]), 2), np.int32)}
    trainer = PretrainingTrainer(make, Objective())
    trainer.feed(lambda *_: tf.data.Dataset.from_tensors(batch | seeds).repeat(), 0)
    return lambda: trainer.train(1)


def kerashub(config, batch, dtype, jit_compile=False):
    import keras_hub

    model = keras_hub.models.BertMaskedLM(kerashub_backbone(config, policy_of(dtype)), preprocessor=None)
    model.compile(optimizers.AdamW(RATE, DECAY), losses.SparseCategoricalCrossentropy(from_logits=True),
                  jit_compile=jit_compile)
    inputs = {"token_ids": batch["input_word_ids"], "padding_mask": batch["input_mask"],
              "segment_ids": batch["input_type_ids"], "mask_positions": batch["masked_lm_positions"]}
    return lambda: model.train_on_batch(inputs, batch["masked_lm_ids"], batch["masked_lm_weights"])


def pytorch(config, batch, dtype):
    import torch
    import transformers

    model = transformers.BertForMaskedLM(
        transformers.BertConfig(**torch_names(config), attn_implementation="sdpa")).train()
    labels = np.full_like(batch["input_word_ids"], -100)
    np.put_along_axis(labels, batch["masked_lm_positions"], batch["masked_lm_ids"], axis=1)
    *inputs, labels = (torch.from_numpy(values).long() for values in (
        batch["input_word_ids"], batch["input_mask"], batch["input_type_ids"], labels))
    return functools.partial(torch_step(model, RATE, dtype), *inputs, labels=labels)


TRAINERS = {ruler.OURS: ours, "transformers": pytorch, "kerashub": kerashub,
            "kerashub-xla": functools.partial(kerashub, jit_compile=True)}


def make_batch(config, batch, length):
    rng = np.random.default_rng(0)
    count = round(0.15 * length)
    positions = np.sort([rng.choice(np.arange(1, length), count, replace=False) for _ in range(batch)], axis=1)
    return {"input_word_ids": rng.integers(5, config.vocab_size, (batch, length), np.int32),
            "input_mask": np.ones((batch, length), np.int32), "input_type_ids": np.zeros((batch, length), np.int32),
            "masked_lm_positions": positions.astype(np.int32),
            "masked_lm_ids": rng.integers(5, config.vocab_size, (batch, count), np.int32),
            "masked_lm_weights": np.ones((batch, count), np.float32)}


def main():
    given = ruler.parser(__doc__, size="base", batch=16, length=128, dtypes=["float32", "bfloat16"],
                         turns=5).parse_args()
    versions, rows = ruler.describe("tensorflow", "keras", "keras-hub", "torch", "transformers"), []
    config = config_of(given.size)
    batch, tokens = make_batch(config, given.batch, given.length), given.batch * given.length
    for dtype in given.dtypes:
        steps = ruler.installed(TRAINERS, config, batch, dtype)
        cost, results = tokens * cost_of_token(config, given.length), ruler.compare(steps, given.turns, dtype)
        found = ruler.report(f"{dtype}, {given.batch} x {given.length} tokens", *results, cost, tokens=tokens)
        rows += [{"dtype": dtype} | row for row in found]
        backend.clear_session()
    ruler.finish("pretraining_step", versions, given, rows)


if __name__ == "__main__":
    main()
