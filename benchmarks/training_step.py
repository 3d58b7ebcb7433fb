"""Compares a fine-tuning step on 176 classes between libraries: forward, gradients, clipping and AdamW.

    python benchmarks/training_step.py [--size=base --dtypes=float32,bfloat16 --batches=64 --turns=3 --peers=NAME,…]

Measures one batch of 16 x 128 tokens without padding, then `--batches` batches of 16 texts of the mix in `texts.py`,
where one turn is all of these batches. All libraries get the same batches, as `finetune` makes them: texts of similar
length, padded to the longest of the batch. The other libraries' own batches would have more padding. This package
trains as `finetune` does, transformers with SDPA and under autocast, KerasHub and the Model Garden with
`train_on_batch`; XLA compiles again for each length. At the end, measures the time of the mix's input without training,
and the peak memory of the process, which is that of a single library if `--peers` names only one. Takes about two hours
per dtype for `base` on two cores.
"""

import argparse
import collections
import functools
import os
import resource

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras  # noqa: E402
import numpy as np  # noqa: E402
from peer_models import PACKAGES, config_of, garden_encoder, kerashub_backbone, policy_of, torch_names  # noqa: E402
from ruler import OURS, compare, describe, finish, forward_cost, installed, report, resident, take_turns  # noqa: E402
from texts import CLASSES, ENGLISH, mixed, tokenizer_of  # noqa: E402

from keras_bert.data import TextBatches  # noqa: E402
from keras_bert.layers import BertLayer  # noqa: E402
from keras_bert.models import BertClassifier  # noqa: E402
from keras_bert.training.optimizer import make_optimizer  # noqa: E402

BATCH, LENGTH, LONGEST = 16, 128, 256
RATE, DECAY, CLIP_NORM = 5e-5, 0.01, 1.0

# Each function makes a model; returns a function of word ids, mask, segment ids and targets that trains it on them.


def ours(config, dtype):
    model = BertClassifier(BertLayer(config, dtype=policy_of(dtype), layout="unpadded"), CLASSES)
    optimizer = make_optimizer(model, RATE, 10**6, weight_decay=DECAY)
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False)
    return lambda *inputs, targets: model.train_on_batch(list(inputs), targets)


def pytorch(config, dtype, compiled=False):
    import torch
    import transformers

    model = transformers.BertForSequenceClassification(transformers.BertConfig(
        **torch_names(config), num_labels=CLASSES, attn_implementation="sdpa")).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=DECAY, fused=True)
    if compiled:
        torch._dynamo.reset()  # otherwise shapes of earlier models count towards the recompilation limit
    run = torch.compile(model) if compiled else model

    def step(*inputs, targets):
        ids, mask, segments, labels = (torch.from_numpy(array).long() for array in (*inputs, targets))
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16"):
            loss = run(ids, mask, segments, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
        optimizer.step()
        optimizer.zero_grad()

    return step


def kerashub(config, dtype, jit_compile=False):
    import keras_hub

    model = keras_hub.models.BertTextClassifier(
        kerashub_backbone(config, policy_of(dtype)), CLASSES, preprocessor=None)
    model.compile(keras.optimizers.AdamW(RATE, DECAY, global_clipnorm=CLIP_NORM),
                  keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=jit_compile)
    names = ("token_ids", "padding_mask", "segment_ids")
    return lambda *inputs, targets: model.train_on_batch(dict(zip(names, inputs)), targets)


def garden(config, dtype):
    import tf_keras
    from official.nlp.modeling import models

    model = models.BertClassifier(garden_encoder("BertEncoder", config, dtype), CLASSES)
    model.compile(tf_keras.optimizers.AdamW(RATE, DECAY, global_clipnorm=CLIP_NORM),
                  tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    names = ("input_word_ids", "input_mask", "input_type_ids")
    return lambda *inputs, targets: model.train_on_batch(dict(zip(names, inputs)), targets)


TRAINERS = {
    OURS: ours, "transformers": pytorch, "transformers-compiled": functools.partial(pytorch, compiled=True),
    "kerashub": kerashub, "kerashub-xla": functools.partial(kerashub, jit_compile=True), "garden": garden,
}


def full_batch(config, batch=BATCH, length=LENGTH):
    """Returns a list of one batch without padding: (word ids, mask, segment ids), targets."""
    rng = np.random.default_rng(0)
    ids = rng.integers(5, config.vocab_size, (batch, length), np.int32)
    return [((ids, np.ones_like(ids), np.zeros_like(ids)), rng.integers(0, CLASSES, batch, np.int32))]


def mixed_texts(tokenizer, count):
    """Returns the texts of the mix for `count` batches."""
    texts = tokenizer.pack(mixed(count * BATCH), None, LONGEST)
    return TextBatches(texts, tokenizer.pad_id, np.random.default_rng(0).integers(0, CLASSES, len(texts), np.int32))


def real_batches(texts):
    """Returns the batches of the mix, in the form of `full_batch`."""
    batches = texts.training_dataset(BATCH, 0, 0).as_numpy_iterator()
    return [((each["input_word_ids"], each["input_mask"], each["segment_ids"]), targets) for each, targets in batches]


def train(step, batches):
    for inputs, targets in batches:
        step(*inputs, targets=targets)


def measure(title, config, dtype, names, batches, turns):
    """Prints the table of the batches; returns its rows."""
    trainers = installed({name: TRAINERS[name] for name in names}, config, dtype)
    steps = {name: functools.partial(train, step, batches) for name, step in trainers.items()}
    cost = 3 * sum(forward_cost(config, length) for (_, mask, _), _ in batches for length in mask.sum(1).tolist())
    rows = report(f"{title}, {dtype}", *compare(steps, turns, dtype), cost, sequences=len(batches) * BATCH)
    keras.backend.clear_session()
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="base")
    parser.add_argument("--dtypes", default="float32,bfloat16")
    parser.add_argument("--batches", type=int, default=64)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--peers", default=",".join(TRAINERS))
    given = parser.parse_args()
    versions, tokenizer, rows = describe(*PACKAGES), tokenizer_of(ENGLISH), []
    config = config_of(given.size, vocab_size=len(tokenizer.vocabulary))
    texts, before = mixed_texts(tokenizer, given.batches), resident()
    workloads = {f"{BATCH} x {LENGTH} tokens": full_batch(config),
                 f"{given.batches} x {BATCH} texts": real_batches(texts)}
    for dtype in given.dtypes.split(","):
        for title, batches in workloads.items():
            found = measure(title, config, dtype, given.peers.split(","), batches, given.turns)
            rows += [{"batches": title, "dtype": dtype} | row for row in found]
    epoch = texts.training_dataset(BATCH, 0, 0)
    seconds = take_turns({"input": lambda: collections.deque(epoch, maxlen=0)}, given.turns)["input"]
    rows.append({"batches": "input alone", "milliseconds": 1000 * seconds})
    print(f"\nthe input of {given.batches} x {BATCH} texts, with no training: {1000 * seconds:.0f} ms")
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    rows.append({"batches": "all", "before_mb": before / 1e6, "most_mb": most / 1e6})
    print(f"most memory: {most / 1e6:,.0f} MB, of which {before / 1e6:,.0f} TensorFlow and the texts")
    finish("training_step", versions, given, rows)


if __name__ == "__main__":
    main()
