"""A step of masked-LM training beside KerasHub's and PyTorch's: forward, gradients and AdamW, tokens a second.

    python benchmarks/pretraining_step.py [--size=base --batch=16 --length=128 --dtypes=float32,bfloat16 --turns=5]

The same ids, masks and positions for all, 15% of the tokens to guess, dropout 0.1. Each library as its documentation
trains it: ours by `PretrainingTrainer`, KerasHub's `BertMaskedLM` by `compile` and `train_on_batch`, once as
TensorFlow's operations and once by XLA, transformers' `BertForMaskedLM` with SDPA, in bfloat16 under autocast. Theirs
have no next sentences; ours goes without too. They take turns; the first two turns are not counted. A product of two
large matrices in the same dtype says what the machine can do. About fifteen minutes for `base` on two cores.
"""

import argparse
import importlib.metadata
import json
import os
import platform
import statistics
import time

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
import torch  # noqa: E402

from keras_bert.config import BertConfig  # noqa: E402
from keras_bert.layers import BertLayer  # noqa: E402
from keras_bert.models import BertPretrainer  # noqa: E402
from keras_bert.training.objective import Objective  # noqa: E402
from keras_bert.training.optimizer import WarmupDecay, make_pretraining_optimizer  # noqa: E402
from keras_bert.training.peak import cost_of_token  # noqa: E402
from keras_bert.training.pretraining_loop import PretrainingTrainer  # noqa: E402

RATE, DECAY = 1e-4, 0.01
OURS = "keras_bert"


def ours(config, batch, dtype):
    policy = "float32" if dtype == "float32" else f"mixed_{dtype}"

    def make():
        model = BertPretrainer(BertLayer(config, dtype=policy), next_sentence=False)
        return model, make_pretraining_optimizer(model, "adamw", WarmupDecay(RATE, 1, 10**6), DECAY, clip_norm=None)

    seeds = {"dropout_seed": np.zeros((len(batch["input_word_ids"]), 2), np.int32)}
    trainer = PretrainingTrainer(make, Objective())
    trainer.feed(lambda *_: tf.data.Dataset.from_tensors(batch | seeds).repeat(), 0)
    return lambda: trainer.train(1)


def kerashub(config, batch, dtype, jit_compile):
    import keras_hub

    policy = "float32" if dtype == "float32" else f"mixed_{dtype}"
    backbone = keras_hub.models.BertBackbone(
        vocabulary_size=config.vocab_size, num_layers=config.num_hidden_layers, num_heads=config.num_attention_heads,
        hidden_dim=config.hidden_size, intermediate_dim=config.intermediate_size, dropout=config.hidden_dropout_prob,
        max_sequence_length=config.max_position_embeddings, dtype=policy)
    model = keras_hub.models.BertMaskedLM(backbone=backbone, preprocessor=None)
    model.compile(keras.optimizers.AdamW(RATE, DECAY), keras.losses.SparseCategoricalCrossentropy(from_logits=True),
                  jit_compile=jit_compile)
    inputs = {"token_ids": batch["input_word_ids"], "padding_mask": batch["input_mask"],
              "segment_ids": batch["input_type_ids"], "mask_positions": batch["masked_lm_positions"]}
    return lambda: model.train_on_batch(inputs, batch["masked_lm_ids"], batch["masked_lm_weights"])


def pytorch(config, batch, dtype):
    import transformers

    names = {name: value for name, value in config.to_dict().items() if name not in ("model_type", "directionality")}
    model = transformers.BertForMaskedLM(transformers.BertConfig(**names, attn_implementation="sdpa")).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=DECAY, fused=True)
    labels = np.full_like(batch["input_word_ids"], -100)
    np.put_along_axis(labels, batch["masked_lm_positions"], batch["masked_lm_ids"], axis=1)
    inputs = {"input_ids": batch["input_word_ids"], "attention_mask": batch["input_mask"],
              "token_type_ids": batch["input_type_ids"], "labels": labels}
    inputs = {name: torch.from_numpy(values).long() for name, values in inputs.items()}

    def step():
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16"):
            loss = model(**inputs).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def product(dtype, size=2048):
    """Operations a second of a matrix product, a function that does one and its cost."""
    matrix = tf.cast(tf.random.normal([size, size]), dtype)
    return lambda: tf.linalg.matmul(matrix, matrix).numpy(), 2 * size**3


def make_batch(config, batch, length):
    rng = np.random.default_rng(0)
    count = round(0.15 * length)
    positions = np.sort([rng.choice(np.arange(1, length), count, replace=False) for _ in range(batch)], axis=1)
    return {"input_word_ids": rng.integers(5, config.vocab_size, (batch, length), np.int32),
            "input_mask": np.ones((batch, length), np.int32), "input_type_ids": np.zeros((batch, length), np.int32),
            "masked_lm_positions": positions.astype(np.int32),
            "masked_lm_ids": rng.integers(5, config.vocab_size, (batch, count), np.int32),
            "masked_lm_weights": np.ones((batch, count), np.float32)}


def measure(steps, turns):
    """Median seconds of each step, by name."""
    seconds = {name: [] for name in steps}
    for turn in range(turns + 2):
        for name, step in steps.items():
            started = time.perf_counter()
            step()
            if turn > 1:
                seconds[name].append(time.perf_counter() - started)
    return {name: statistics.median(times) for name, times in seconds.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--size", default="base")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--dtypes", default="float32,bfloat16")
    parser.add_argument("--turns", type=int, default=5)
    given = parser.parse_args()
    config = BertConfig.from_size(given.size)
    batch = make_batch(config, given.batch, given.length)
    tokens = given.batch * given.length
    versions = {name: importlib.metadata.version(name)
                for name in ("tensorflow", "keras", "keras-hub", "torch", "transformers")}
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, "
          + ", ".join(f"{name} {version}" for name, version in versions.items()))
    print(f"BERT-{given.size}, {given.batch} x {given.length} tokens, {given.turns} turns")
    rows = []
    for dtype in given.dtypes.split(","):
        multiply, cost = product(dtype)
        steps = {OURS: ours(config, batch, dtype), "PyTorch transformers": pytorch(config, batch, dtype),
                 "KerasHub": kerashub(config, batch, dtype, jit_compile=False),
                 "KerasHub, XLA": kerashub(config, batch, dtype, jit_compile=True), "matrix product": multiply}
        seconds = measure(steps, given.turns)
        limit = cost / seconds.pop("matrix product")
        print(f"\n{dtype}; a matrix product reaches {limit / 1e9:.0f} GFLOP/s\n"
              f"{'library':24}{'seconds':>9}{'tokens/s':>10}{'of product':>12}{'ours is':>9}")
        for name, value in seconds.items():
            rows.append({"dtype": dtype, "library": name, "seconds": value, "tokens_per_second": tokens / value,
                         "share": tokens / value * cost_of_token(config, given.length) / limit,
                         "ratio": value / seconds[OURS]})
            print(f"{name:24}{value:9.2f}{tokens / value:10.0f}{rows[-1]['share']:12.0%}{rows[-1]['ratio']:8.2f}x")
        keras.backend.clear_session()
    print(json.dumps({"benchmark": "pretraining_step", "versions": versions, "config": vars(given), "rows": rows}))


if __name__ == "__main__":
    main()
