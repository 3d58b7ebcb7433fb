"""`finetune`: trains a pretrained encoder on labelled texts for a task."""

import contextlib
import functools
import hashlib
import inspect
import os
import shlex
import time
from typing import Literal

import keras
import numpy as np
import tensorflow as tf

from keras_bert import kernels
from keras_bert.arguments import (
    Count,
    CountOrZero,
    Length,
    Path,
    Positive,
    PositiveOrZero,
    Seed,
    Share,
    check,
    check_rules,
    plain,
)
from keras_bert.convert import load_pretrained, open_source
from keras_bert.data import PackedBatches
from keras_bert.errors import InputError
from keras_bert.files import atomic_folder, check_free
from keras_bert.layers import first_parts
from keras_bert.tasks import TASKS
from keras_bert.tasks import run as run_model
from keras_bert.training.checkpoints import Checkpoints, weights_digest
from keras_bert.training.fine_tuned import FineTuned
from keras_bert.training.loop import check_run, enable_determinism, prefers_few_shapes
from keras_bert.training.loop import train as train_epochs
from keras_bert.training.optimizer import make_optimizer
from keras_bert.training.report import is_report_of, write_report

# Arguments that say where and how to save, but do not define the result: they may differ in a resumed run.
_NOT_PART_OF_RUN = ("output_dir", "overwrite", "save_steps", "log_dir")
# Arguments that only some tasks accept.
_OF_SOME_TASKS = {"out_of_scope": ("intent", "classify"), "class_weights": ("intent", "classify"),
                   "doc_stride": ("span",), "features": ("tag",), "pack": ("intent", "classify", "regress")}


def finetune(train: Path, valid: Path, init_from: Path, output_dir: Path, *,
             task: Literal["intent", "classify", "regress", "tag", "span", "choice"] = "intent",
             layout: str | None = None, text: str = "text", text_pair: str | None = None, label: str = "label",
             out_of_scope: str | None = None, epochs: Count = 3, batch_size: Count = 32,
             learning_rate: Positive = 5e-5, warmup_ratio: Share = 0.1, weight_decay: PositiveOrZero = 0.01,
             dropout: Share | None = None, max_length: Length | None = None, doc_stride: Count | None = None,
             features: str | None = None, early_stopping: Count | None = None,
             class_weights: Literal["balanced"] | None = None, freeze_blocks: CountOrZero = 0,
             lora_rank: CountOrZero = 0, dtype: Literal["float32", "mixed_bfloat16"] = "float32", pack: bool = False,
             devices: list[str] | None = None, seed: Seed = 0, save_steps: Count = 500, log_dir: Path | None = None,
             deterministic: bool = False, overwrite: bool = False) -> FineTuned:
    """Fine-tunes a pretrained encoder for a task and writes the model to a folder (Devlin et al., 2018, section 4 and
    appendix A.3).

    The model of the epoch with the best score on `valid` is kept, or of several such epochs the one with the lowest
    loss. If a run is stopped or killed, run the same command again with the same versions (see `Checkpoints`): it
    resumes from its last checkpoint. The final weights are bit-identical on one CPU, and on a GPU with `deterministic`.
    Checkpoints are kept in `output_dir`.checkpoints until training finishes.

    Args:
        train: Training file: .tsv or .csv with a header, .jsonl, .parquet; CoNLL's format for tag, SQuAD's .json for
            span. Its labels are those of the model.
        valid: Validation file in the same format, scored after each epoch.
        init_from: Pretrained encoder: a folder or a name, see keras-bert presets.
        output_dir: Folder to write: the model, its vocabulary, labels and settings, metrics.json, a model card
            (README.md), and pictures if matplotlib is installed.
        task: classify: a label for each text or pair of texts; intent: the same, with a threshold below which a text is
            out of scope, chosen on the validation file; regress: a number; tag: entities; span: answers in a context;
            choice: the best of several endings.
        layout: Layout of a published file: cola, sst2, mrpc, klue-nli, conll, swag and so on. Default: by the file's
            suffix.
        text: Column of the text.
        text_pair: Column of the second text. Default: text_pair, if there is such a column.
        label: Column of the label.
        out_of_scope: Label of the texts in the validation file that are out of scope; they choose the threshold and are
            not scored otherwise. Without such texts, misclassified validation texts are used.
        epochs: Passes over the training file.
        batch_size: Texts per step; windows for span and tag.
        learning_rate: Peak learning rate.
        warmup_ratio: Share of the steps in which the learning rate rises.
        weight_decay: Decoupled weight decay; biases and layer norms do not decay.
        dropout: Dropout rate of the head's input. Default: 0.2 for classes, 0.1 for other tasks.
        max_length: Longest input in tokens, [CLS] and [SEP] included; longer texts are cut, for span and tag into
            windows. Default: 384 for span, 128 for other tasks.
        doc_stride: For span: tokens from the start of one window to the start of the next. Default: 128.
        features: For tag: train a BiLSTM on the features of the frozen encoder, concat-last-4 for example, see
            keras-bert features.
        early_stopping: Stop after this many epochs without a better score.
        class_weights: balanced weights each class by the inverse of its frequency.
        freeze_blocks: Freeze the embeddings and this many encoder blocks.
        lora_rank: Train low-rank additions of this rank (LoRA) instead of the encoder; the model written is a plain
            one.
        dtype: mixed_bfloat16 computes in bfloat16.
        pack: For intent, classify and regress: put several texts into each row of max_length tokens, so that all
            batches have one shape, which XLA compiles once.
        devices: TensorFlow devices to split each batch across: GPU:0,GPU:1. The last batch is skipped if it is not
            full.
        seed: Seed of the head's weights, the order of the texts and the dropout.
        save_steps: Steps between two checkpoints; there is also one after each epoch.
        log_dir: Folder for TensorBoard logs.
        deterministic: Make training reproducible on a GPU too, slower and without XLA; on a CPU it always is. This
            calls enable_determinism, which holds for the rest of the process.
        overwrite: Replace output_dir, and the checkpoints of another run.

    Returns:
        the `FineTuned` model.

    Raises:
        InputError: names the file, row and column, or the argument.
        Stopped: Ctrl-C or SIGTERM; all is saved.
    """
    arguments = {name: plain(value) for name, value in locals().items()} | {"devices": plain(devices) or None}
    _check_arguments(arguments)
    if deterministic:
        enable_determinism()
    has_checkpoints = os.path.exists(f"{output_dir}.checkpoints")
    check_free(output_dir, overwrite or has_checkpoints)
    started = time.monotonic()
    read = functools.partial(TASKS[task].read, format=layout, text=text, text_pair=text_pair, label=label)
    examples, valid_examples = read(train), read(valid)
    learned = _make_task(arguments, examples)
    learned.check(valid, valid_examples, out_of_scope)
    source = open_source(init_from)
    tokenizer = source.needed_tokenizer()
    encoded, valid_encoded = learned.encode(examples, tokenizer), learned.encode(valid_examples, tokenizer)
    tokenizer.warn_if_unknown(map(learned.text, examples), train)
    multiple = 16 if prefers_few_shapes() else 1
    train_batches = (PackedBatches(encoded.rows, tokenizer.pad_id, encoded.targets, learned.max_length) if pack
                     else encoded.batched(tokenizer, multiple, whole=bool(devices)))
    valid_batches = (
        PackedBatches(valid_encoded.rows, tokenizer.pad_id, valid_encoded.targets, learned.max_length) if pack
        else valid_encoded.batched(tokenizer, multiple))
    with _strategy_scope(devices, batch_size, train_batches, valid_batches):
        model = _make_model(source, tokenizer, learned, train_batches.steps(batch_size), arguments)
    pretrained = [variable for variable in model.bert.variables if not variable.name.startswith("lora")]
    run = {"arguments": {name: value for name, value in arguments.items() if name not in _NOT_PART_OF_RUN},
           "sha256": {"train": _digest(train), "valid": _digest(valid),
                      "init_from": weights_digest(tokenizer, pretrained)}}
    checkpoints = Checkpoints(f"{output_dir}.checkpoints", run, overwrite)
    if has_checkpoints and is_report_of(output_dir, run):  # killed before the checkpoints were removed
        checkpoints.remove()
        return FineTuned.load(output_dir)
    check_free(output_dir, overwrite)

    def validate(after_batch):
        return learned.score(valid_encoded, run_model(model, valid_batches, batch_size, after_batch))

    progress = train_epochs(
        model, train_batches, validate, learned.main, checkpoints, epochs=epochs, batch_size=batch_size, seed=seed,
        save_steps=save_steps, patience=early_stopping, log_dir=log_dir,
        class_weight=_balanced_weights(encoded.targets) if class_weights else None)
    model.optimizer, model.compiled = None, False  # not saved: the optimizer would take two thirds of the file
    fine_tuned = FineTuned(model, tokenizer, learned)
    with atomic_folder(output_dir, overwrite) as new:
        fine_tuned.save(new)
        if lora_rank or devices or pack:  # return the model that was saved: plain, padded, on one device
            fine_tuned = FineTuned.load(new)
        fine_tuned = write_report(new, fine_tuned, valid_encoded, progress, {
            "command": _command(arguments), **run, "train_examples": len(examples),
            "seconds": round(time.monotonic() - started, 1)})
    checkpoints.remove()
    return fine_tuned


def _make_task(arguments, examples):
    """Returns the task that the training examples and the arguments describe."""
    task = TASKS[arguments["task"]]
    given = {name: arguments[name] for name in ("doc_stride", "features") if arguments[name] is not None}
    return task.from_examples(arguments["train"], examples, max_length=arguments["max_length"] or task.length, **given)


def _strategy_scope(devices, batch_size, *batches):
    """Returns the scope in which to make a model whose batches are split across multiple devices."""
    if not devices:
        return contextlib.nullcontext()
    here = [device.name.removeprefix("/device:") for device in tf.config.list_logical_devices()]
    if not set(devices) <= set(here):
        raise InputError(f"devices must be some of {', '.join(here)}; got {', '.join(devices)}")
    if batch_size % len(devices) or any(len(texts.packed) < batch_size for texts in batches):
        raise InputError(f"batch_size must be a multiple of the number of devices ({len(devices)}), and at most that of"
                         f" the texts ({min(len(texts.packed) for texts in batches)}); got {batch_size}")
    return tf.distribute.MirroredStrategy(devices).scope()


def _make_model(source, tokenizer, task, steps, arguments):
    """Returns the compiled model with its optimizer built."""
    keras.utils.set_random_seed(arguments["seed"])
    _check_fit(source.path, source.config, tokenizer, task, arguments["freeze_blocks"])
    frozen = [*first_parts(arguments["freeze_blocks"]), *task.unused]
    layout = "packed" if arguments["pack"] else "padded" if prefers_few_shapes() else "unpadded"
    bert = load_pretrained(source, dtype=arguments["dtype"], layout=layout, frozen=frozen,
                           lora_rank=arguments["lora_rank"], trainable=not arguments["features"])
    model = task.head(bert, task.dropout if arguments["dropout"] is None else arguments["dropout"])
    optimizer = make_optimizer(model, arguments["learning_rate"], steps * arguments["epochs"],
                               arguments["warmup_ratio"], arguments["weight_decay"])
    model.compile(optimizer, **task.loss())
    return model


def _balanced_weights(targets):
    """Returns a dict of class numbers to weights that give all classes the same total weight (King and Zeng, 2001)."""
    counts = np.bincount(targets)
    return {number: len(targets) / (len(counts) * count) for number, count in enumerate(counts)}


def _digest(path):
    """Returns the SHA-256 of a file, or of the digests of the files in a folder."""
    if os.path.isdir(path):
        return hashlib.sha256("".join(map(_digest, sorted(os.scandir(path), key=os.fspath))).encode()).hexdigest()
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check_arguments(arguments):
    check(finetune, arguments)
    blocks, rank, devices, pack = (arguments[name] for name in ("freeze_blocks", "lora_rank", "devices", "pack"))
    check_rules(
        ("lora_rank", rank, "0 if blocks are frozen", not (rank and blocks)),
        ("lora_rank", rank, "0 with features, whose encoder is frozen", not (rank and arguments["features"])),
        *((name, arguments[name], f"left out unless task is {' or '.join(tasks)}",
           arguments[name] in (None, False) or arguments["task"] in tasks) for name, tasks in _OF_SOME_TASKS.items()),
        ("devices", devices, "left out on the JAX backend", not devices or kernels.BACKEND == "tensorflow"),
        ("devices", devices, "left out with pack", not (devices and pack)),
    )
    check_run(arguments["log_dir"], arguments["deterministic"])


def _check_fit(path, config, tokenizer, task, freeze_blocks):
    if len(tokenizer.vocabulary) != config.vocab_size:
        raise InputError(f"{path}: vocab.txt must have as many pieces as the config's vocab_size "
                         f"({config.vocab_size}); got {len(tokenizer.vocabulary)}")
    for name, value, most in (("max_length", task.max_length, "max_position_embeddings"),
                              ("freeze_blocks", freeze_blocks, "num_hidden_layers")):
        if value > getattr(config, most):
            raise InputError(f"{name} must be at most the encoder's {most} ({getattr(config, most)}); got {value}")


def _command(arguments):
    """Returns the command line that is equivalent to the arguments."""
    defaults = {name: parameter.default for name, parameter in inspect.signature(finetune).parameters.items()}
    flags = {name: ",".join(value) if isinstance(value, list) else value for name, value in arguments.items()
             if value != defaults[name]}
    return " ".join(["keras-bert finetune", *(shlex.quote(f"--{name}={value}") for name, value in flags.items())])
