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

import collections
import functools

import numpy as np
import ruler
from keras import backend, losses, optimizers
from peer_models import DECAY, config_of, garden_encoder, kerashub_backbone, policy_of, torch_names, torch_step
from texts import CLASSES, ENGLISH, mixed, tokenizer_of

from keras_bert.data import TextBatches
from keras_bert.layers import BertLayer
from keras_bert.models import BertClassifier
from keras_bert.training.optimizer import make_optimizer

BATCH, LENGTH, LONGEST = 16, 128, 256
RATE, CLIP_NORM = 5e-5, 1.0

# Each function makes a model; returns a function of word ids, mask, segment ids and targets that trains it on them.


def ours(config, dtype):
    model = BertClassifier(BertLayer(config, dtype=policy_of(dtype), layout="unpadded"), CLASSES)
    optimizer = make_optimizer(model, RATE, 10**6, weight_decay=DECAY)
    model.compile(optimizer, losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False)
    return lambda *inputs, targets: model.train_on_batch(list(inputs), targets)


def pytorch(config, dtype, compiled=False):
    import torch
    import transformers

    model = transformers.BertForSequenceClassification(transformers.BertConfig(
        **torch_names(config), num_labels=CLASSES, attn_implementation="sdpa")).train()
    step = torch_step(model, RATE, dtype, CLIP_NORM, compiled=compiled)

    def train_on(*inputs, targets):
        *inputs, labels = (torch.from_numpy(array).long() for array in (*inputs, targets))
        step(*inputs, labels=labels)

    return train_on


def kerashub(config, dtype, jit_compile=False):
    import keras_hub

    model = keras_hub.models.BertTextClassifier(
        kerashub_backbone(config, policy_of(dtype)), CLASSES, preprocessor=None)
    model.compile(optimizers.AdamW(RATE, DECAY, global_clipnorm=CLIP_NORM),
                  losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=jit_compile)
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
    ruler.OURS: ours, "transformers": pytorch, "transformers-compiled": functools.partial(pytorch, compiled=True),
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
    trainers = ruler.installed({name: TRAINERS[name] for name in names}, config, dtype)
    steps = {name: functools.partial(train, step, batches) for name, step in trainers.items()}
    cost = 3 * sum(ruler.forward_cost(config, length) for (_, mask, _), _ in batches for length in mask.sum(1).tolist())
    rows = ruler.report(f"{title}, {dtype}", *ruler.compare(steps, turns, dtype), cost, sequences=len(batches) * BATCH)
    backend.clear_session()
    return rows


def main():
    given = ruler.parser(__doc__, size="base", dtypes=["float32", "bfloat16"], batches=64, turns=3,
                         peers=list(TRAINERS)).parse_args()
    versions, tokenizer = ruler.describe(*ruler.PACKAGES), tokenizer_of(ENGLISH)
    config = config_of(given.size, vocab_size=len(tokenizer.vocabulary))
    texts, before = mixed_texts(tokenizer, given.batches), ruler.resident()
    workloads = {f"{BATCH} x {LENGTH} tokens": full_batch(config),
                 f"{given.batches} x {BATCH} texts": real_batches(texts)}
    rows = [{"batches": title, "dtype": dtype} | row for dtype in given.dtypes for title, batches in workloads.items()
            for row in measure(title, config, dtype, given.peers, batches, given.turns)]
    epoch = texts.training_dataset(BATCH, 0, 0)
    seconds = ruler.take_turns({"input": lambda: collections.deque(epoch, maxlen=0)}, given.turns)["input"]
    rows.append({"batches": "input alone", "milliseconds": 1000 * seconds})
    print(f"\nthe input of {given.batches} x {BATCH} texts, with no training: {1000 * seconds:.0f} ms")
    most = ruler.peak_memory()
    rows.append({"batches": "all", "before_mb": before / 1e6, "most_mb": most / 1e6})
    print(f"most memory: {most / 1e6:,.0f} MB, of which {before / 1e6:,.0f} TensorFlow and the texts")
    ruler.finish("training_step", versions, given, rows)


if __name__ == "__main__":
    main()
