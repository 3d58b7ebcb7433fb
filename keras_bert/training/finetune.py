"""`finetune`: a pretrained encoder and labelled texts to a classifier."""

import importlib.metadata
import os
import platform
import time

import keras
import numpy as np
import tensorflow as tf

from keras_bert import kernels
from keras_bert.convert import load_pretrained
from keras_bert.data import TextBatches, read_examples
from keras_bert.errors import InputError
from keras_bert.files import check_free, written_beside
from keras_bert.models import BertClassifier
from keras_bert.text import BertTokenizer
from keras_bert.training.folder import FineTuned, write_json
from keras_bert.training.optimizer import make_optimizer
from keras_bert.training.progress import Progress

TASKS = ("intent", "classify")


def finetune(train, valid, init_from, output_dir, *, task="intent", text="text", text_pair=None, label="label",
             epochs=3, batch_size=32, learning_rate=5e-5, warmup_ratio=0.1, weight_decay=0.01, dropout=0.2,
             max_length=128, seed=0, overwrite=False):
    """Fine-tunes a classifier and writes it to a folder (Devlin et al., 2018, section 4.1 and appendix A.3).

    Args:
        train: TSV, CSV or JSON Lines file, see `read_examples`; its labels are the model's.
        valid: file in the same format, scored after each epoch.
        init_from: folder of the pretrained encoder, see `BertLayer.from_pretrained`.
        output_dir: folder to write: the model, its vocabulary, labels and settings, `metrics.json`.
        task: `intent` or `classify`; both are single-label classification of texts or pairs.
        text, text_pair, label: column names; a second text is read where there is a column `text_pair`.
        epochs, batch_size, learning_rate, warmup_ratio, weight_decay: see `make_optimizer`.
        dropout: dropout rate of the pooled output.
        max_length: longest input in tokens, [CLS] and [SEP] included; longer texts are cut.
        seed: of the new head, the order and the dropout; the same seed gives the same model on the same machine.
        overwrite: whether to replace `output_dir`.

    Returns:
        the `FineTuned` model.

    Raises:
        InputError: names the file, row and column, or the argument.
    """
    arguments = locals() | {"train": str(train), "valid": str(valid), "init_from": str(init_from),
                            "output_dir": str(output_dir)}
    _check_arguments(task, epochs, batch_size, learning_rate, max_length)
    check_free(output_dir, overwrite)
    started = time.monotonic()
    train_examples = read_examples(train, text, text_pair, label)
    valid_examples = read_examples(valid, text, text_pair, label)
    labels = sorted({example.label for example in train_examples})
    if len(labels) < 2:
        raise InputError(f"{train}: a classifier needs at least two labels; got {labels[0]}")

    keras.utils.set_random_seed(seed)
    tokenizer = BertTokenizer.from_folder(init_from)
    bert = load_pretrained(init_from)
    _check_fit(init_from, bert.config, tokenizer, max_length)
    model = BertClassifier(bert, len(labels), dropout)

    train_batches = _batches(train, train_examples, labels, tokenizer, max_length)
    valid_batches = _batches(valid, valid_examples, labels, tokenizer, max_length)
    steps = -(-len(train_examples) // batch_size)
    model.compile(
        optimizer=make_optimizer(model, learning_rate, steps * epochs, warmup_ratio, weight_decay),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
        jit_compile="auto" if _compiles() else False,
    )
    history = model.fit(
        train_batches.training_dataset(batch_size, seed), epochs=epochs, steps_per_epoch=steps,
        validation_data=valid_batches.validation_dataset(batch_size), callbacks=[Progress(batch_size)],
        shuffle=False, verbose=0)

    fine_tuned = FineTuned(model, tokenizer, labels, task, max_length, train_examples[0].text_pair is not None)
    metrics = {
        "accuracy": history.history["val_accuracy"][-1],
        "loss": history.history["val_loss"][-1],
        "history": history.history,
        "train_examples": len(train_examples),
        "valid_examples": len(valid_examples),
        "seconds": round(time.monotonic() - started, 1),
        "arguments": arguments,
        "versions": {"python": platform.python_version()}
        | {name: importlib.metadata.version(name) for name in ("keras", "tensorflow")},
    }
    with written_beside(output_dir, overwrite) as folder:
        fine_tuned.save(folder)
        write_json(os.path.join(folder, "metrics.json"), metrics)
    return fine_tuned


def _check_arguments(task, epochs, batch_size, learning_rate, max_length):
    for name, value, rule, holds in (
        ("task", task, f"one of {', '.join(TASKS)}", task in TASKS),
        ("epochs", epochs, "at least 1", epochs >= 1),
        ("batch_size", batch_size, "at least 1", batch_size >= 1),
        ("learning_rate", learning_rate, "positive", learning_rate > 0),
        ("max_length", max_length, "at least 3", max_length >= 3),
    ):
        if not holds:
            raise InputError(f"{name} must be {rule}; got {value!r}")


def _check_fit(folder, config, tokenizer, max_length):
    if len(tokenizer.vocabulary) != config.vocab_size:
        raise InputError(f"{folder}: vocab.txt must have as many pieces as the config's vocab_size "
                         f"({config.vocab_size}); got {len(tokenizer.vocabulary)}")
    if max_length > config.max_position_embeddings:
        raise InputError(f"max_length must be at most the encoder's max_position_embeddings "
                         f"({config.max_position_embeddings}); got {max_length}")


def _batches(path, examples, labels, tokenizer, max_length):
    numbers = {label: number for number, label in enumerate(labels)}
    for example in examples:
        if example.label not in numbers:
            raise InputError(f"{path}: row {example.row}: label {example.label!r} does not occur in the training file")
    pairs = [example.text_pair for example in examples] if examples[0].text_pair is not None else None
    packed = tokenizer.pack([example.text for example in examples], pairs, max_length)
    targets = np.array([numbers[example.label] for example in examples], np.int32)
    return TextBatches(packed, tokenizer.pad_id, targets, length_multiple=16 if _compiles() else 1)


def _compiles():
    """Whether `fit` compiles each shape by XLA: always on JAX; with TensorFlow where there is a GPU."""
    return kernels.BACKEND == "jax" or bool(tf.config.list_physical_devices("GPU"))
