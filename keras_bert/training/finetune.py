"""`finetune`: trains a pretrained encoder on labelled texts for a task."""

import collections
import contextlib
import functools
import hashlib
import json
import os
import sys
import time
import warnings
from typing import Literal

import keras
import numpy as np
import tensorflow as tf

from keras_bert import kernels
from keras_bert.arguments import (
    Count,
    Data,
    Delimiter,
    Length,
    Path,
    Positive,
    PositiveOrZero,
    Seed,
    Share,
    changed,
    plain,
)
from keras_bert.convert import open_source
from keras_bert.data import PackedBatches
from keras_bert.data.tables import Rows
from keras_bert.errors import InputError, InputWarning, MissingColumn
from keras_bert.files import atomic_folder, check_free
from keras_bert.inference.fine_tuned import FineTuned
from keras_bert.layers import first_parts
from keras_bert.presets import find_preset, origin
from keras_bert.tasks import TASKS
from keras_bert.tasks import run as run_model
from keras_bert.training import few_shot as few_shots
from keras_bert.training import loop
from keras_bert.training.checkpoints import Checkpoints, weights_digest
from keras_bert.training.data_report import data_report, report_lines
from keras_bert.training.held_out import hold_out
from keras_bert.training.optimizer import make_optimizer
from keras_bert.training.report import IN_MEMORY, is_report_of, write_report
from keras_bert.weights import load_pretrained

# Arguments that say where and how to save, but do not define the result: they may differ in a resumed run.
_NOT_PART_OF_RUN = ("output", "overwrite", "save_steps", "log_dir")
# Arguments that the model's folder stores, see `FineTuned.columns`.
REMEMBERED = ("data_format", "text_column", "text_pair_column", "label_column", "label_columns", "label_delimiter")
_VALID_SHARE = 0.1
_LEARNING_RATE = 5e-5  # one of those of Devlin et al., 2018, appendix A.3
# Arguments that only some tasks accept.
_OF_SOME_TASKS = {"out_of_scope_label": ("intent", "classify"), "class_weights": ("intent", "classify"),
                  "label_columns": ("multilabel",), "label_delimiter": ("multilabel",), "doc_stride": ("span",),
                  "features": ("tag",), "pack": ("intent", "classify", "multilabel", "regress"),
                  "few_shot": ("intent", "classify"),
                  "loss": ("embed",), "pooling": ("embed",), "normalize": ("embed",)}
_NOT_WITH_FEW_SHOT = {"pack": "which trains on pairs of texts", "devices": "whose loss compares all texts of a batch"}
# Arguments that are fields of some tasks.
_OF_TASK = "label_columns", "doc_stride", "features", "loss", "pooling", "normalize"


def finetune(train: Data, valid: Data | None = None, *, model: Path, output: Path,
             task: Literal["intent", "classify", "multilabel", "regress", "tag", "span", "choice", "embed"] = "intent",
             valid_share: Share | None = None, data_format: str | None = None, text_column: str = "text",
             text_pair_column: str | None = None, label_column: str = "label",
             label_columns: list[str] | None = None, label_delimiter: Delimiter | None = None,
             out_of_scope_label: str | None = None, epochs: Count = 3, batch_size: Count = 32,
             learning_rate: Positive | None = None, warmup_ratio: Share = 0.1, weight_decay: PositiveOrZero = 0.01,
             dropout: Share | None = None, max_length: Length | None = None, doc_stride: Count | None = None,
             features: str | None = None, few_shot: bool = False,
             loss: Literal["multiple_negatives_ranking", "cosent", "cosine_similarity"] | None = None,
             pooling: Literal["mean", "cls", "max"] | None = None, normalize: bool | None = None,
             early_stopping_patience: Count | None = None, class_weights: Literal["balanced"] | None = None,
             freeze_blocks: Count | None = None, lora_rank: Count | None = None,
             dtype: Literal["float32", "mixed_bfloat16"] = "float32", pack: bool = False,
             devices: list[str] | None = None, seed: Seed = 0, save_steps: Count = 500, log_dir: Path | None = None,
             deterministic: bool = False, overwrite: bool = False) -> FineTuned:
    """Fine-tunes a pretrained encoder for a task and writes the model to a folder (Devlin et al., 2018, section 4 and
    appendix A.3).

    Example:
        model = finetune([("lights on", "on"), ("lights off", "off")], [("switch it on", "on")], model="minilm",
                         output="my_model")
        model.predict(["turn on the light"])[0].label

    A report on the data is printed before training, with warnings about likely mistakes: texts that are in both files,
    equal texts with different labels, long texts, words that the vocabulary lacks.

    The model of the epoch with the best score on `valid` is kept, or of several such epochs the one with the lowest
    loss. If a run is stopped or killed, run the same command again with the same versions (see `Checkpoints`): it
    resumes from its last checkpoint. The final weights are bit-identical on one CPU, and on a GPU with `deterministic`.
    Checkpoints are kept in `output`.checkpoints until training finishes.

    `train` and `valid` can also be data in memory: a pandas DataFrame, or a list of dicts from column names to values
    or of tuples. Tuples are (text, label) or (text, text_pair, label) for intent, classify, multilabel and regress,
    (words, tags) for tag, (question, context, answers) for span, (prompt, choices, label) for choice, and (text,
    text_pair) or (text, text_pair, label) for embed. The label of multilabel is a list; `answers` is a dict of two
    lists, `text` and `answer_start`, as in Hugging Face's SQuAD.

    Args:
        train: Training file: .tsv or .csv with a header, .jsonl, .parquet; CoNLL's format for tag, SQuAD's .json for
            span. Its labels are those of the model.
        valid: Validation file in the same format, scored after each epoch. Default: a share of the training file.
        model: Pretrained encoder: a folder or a name, see keras-bert presets.
        output: Folder to write: the model, its vocabulary, labels and settings, metrics.json, a model card
            (README.md), and pictures if matplotlib is installed.
        task: classify: a label for each text or pair of texts; intent: the same, and with an out_of_scope_label, a
            threshold below which a text is out of scope; multilabel: any number of labels, with a threshold for each,
            chosen on the validation file; regress: a number; tag: entities; span: answers in a context;
            choice: the best of several endings; embed: a vector, similar for similar texts.
        valid_share: Without valid: share of the different texts of the training file to hold out for validation, with
            all labels in proportion; for span, of the contexts with their questions. Default: 0.1.
        data_format: Format of a published data set: cola, sst2, mrpc, klue-nli, conll, swag and so on. Default: by the
            file's suffix.
        text_column: Column of the text.
        text_pair_column: Column of the second text. Default: text_pair, if there is such a column.
        label_column: Column of the label. For multilabel: of the labels, a list, or a text with commas between them;
            default: label, or labels if there is no such column.
        label_columns: For multilabel: columns that are 1 if the text has the label of this name, otherwise 0, instead
            of label_column.
        label_delimiter: For multilabel: character between labels in a text. Default: comma.
        out_of_scope_label: Label of the texts in the validation file that are out of scope; they choose the threshold
            of an intent model and are not scored otherwise. Without such texts, there is no threshold.
        epochs: Passes over the training file.
        batch_size: Texts per step; windows for span and tag.
        learning_rate: Peak learning rate. Default: the preset's, 2e-4 for minilm, see keras-bert presets; 5e-5 for
            folders and other weights, for embed, and with few_shot.
        warmup_ratio: Share of the steps in which the learning rate rises.
        weight_decay: Decoupled weight decay; biases and layer norms do not decay.
        dropout: Dropout rate of the head's input, if it has one. Default: 0.2 for classes, 0.1 for other tasks.
        max_length: Longest input in tokens, [CLS] and [SEP] included; longer texts are cut, for span and tag into
            windows. Default: 384 for span, 128 for other tasks, or the encoder's positions if there are fewer; for
            embed, as the pretrained model says if it is one for embeddings.
        doc_stride: For span: tokens from the start of one window to the start of the next. Default: 128.
        features: For tag: train a BiLSTM on the features of the frozen encoder, concat-last-4 for example, see
            keras-bert features.
        few_shot: For intent and classify, with a few texts per label: train the encoder on pairs of texts of the same
            label, then classify its embeddings by a logistic regression (SetFit).
        loss: For embed: multiple_negatives_ranking for pairs of an anchor and its positive, perhaps with a negative;
            cosent, the default, or cosine_similarity for scored pairs; one of the three for labelled texts, by default
            cosent.
        pooling: For embed: the vector of a text is the mean or the maximum of its tokens' vectors, or that of [CLS].
            Default: as the pretrained model says, otherwise mean.
        normalize: For embed: divide vectors by their length. Default: as the pretrained model says, otherwise not.
        early_stopping_patience: Stop after this many epochs without a better score.
        class_weights: balanced weights each class by the inverse of its frequency; with few_shot, in the logistic
            regression.
        freeze_blocks: Freeze the embeddings and this many encoder blocks.
        lora_rank: Train low-rank additions of this rank (LoRA) instead of the encoder; the model written is a plain
            one.
        dtype: mixed_bfloat16 computes in bfloat16.
        pack: For intent, classify, multilabel and regress: put several texts into each row of max_length tokens, so
            that all batches have one shape, which XLA compiles once.
        devices: TensorFlow devices to split each batch across: GPU:0,GPU:1. The last batch is skipped if it is not
            full.
        seed: Seed of the head's weights, the order of the texts, the dropout, and the choice of held-out texts.
        save_steps: Steps between two checkpoints; there is also one after each epoch.
        log_dir: Folder for TensorBoard logs.
        deterministic: Make training reproducible on a GPU too, slower and without XLA; on a CPU it always is. This
            calls enable_determinism, which holds for the rest of the process.
        overwrite: Replace output, and the checkpoints of another run.

    Returns:
        the `FineTuned` model.

    Raises:
        InputError: names the file, row and column, or the argument.
        Stopped: Ctrl-C or SIGTERM; everything is saved.
    """
    arguments = dict(locals())
    loop.check_run(
        finetune, arguments,
        ("lora_rank", lora_rank, "left out with freeze_blocks", not (lora_rank and freeze_blocks)),
        ("lora_rank", lora_rank, "left out with features, whose encoder is frozen", not (lora_rank and features)),
        *((name, arguments[name], f"left out unless task is {' or '.join(tasks)}",
           arguments[name] in (None, False) or task in tasks) for name, tasks in _OF_SOME_TASKS.items()),
        ("valid_share", valid_share, "left out with valid", valid is None or valid_share is None),
        ("valid_share", valid_share, "above 0", valid_share != 0),
        ("out_of_scope_label", out_of_scope_label, "left out without valid",
         valid is not None or out_of_scope_label is None),
        ("devices", devices, "left out on the JAX backend", not devices or kernels.BACKEND == "tensorflow"),
        ("devices", devices, "left out with pack", not (devices and pack)),
        *((name, arguments[name], f"left out with few_shot, {reason}", not (few_shot and arguments[name]))
          for name, reason in _NOT_WITH_FEW_SHOT.items()),
        ("devices", devices, "left out for the task embed, whose losses compare all texts of a batch",
         not (devices and task == "embed")),
        ("dropout", dropout, "left out for the tasks span and embed and with few_shot, whose heads have no dropout",
         dropout is None or not (few_shot or task in ("span", "embed"))),
        ("batch_size", batch_size, "at least 2 for the task embed and with few_shot, whose losses compare the examples "
         "of a batch", batch_size > 1 or not (few_shot or task == "embed")))
    output = os.path.normpath(output)  # a slash at the end would put the checkpoints into the folder
    columns = {name: arguments[name] for name in REMEMBERED if arguments[name] is not None}
    data = {name: TASKS[task].open(arguments[name], name, **columns)
            for name in ("train", "valid") if arguments[name] is not None}
    arguments |= data | {"devices": devices or None}
    arguments = {name: IN_MEMORY if isinstance(value, Rows) else plain(value)
                 for name, value in arguments.items()}
    given = changed(finetune, arguments)
    if deterministic:
        loop.enable_determinism()
    has_checkpoints = os.path.exists(f"{output}.checkpoints")
    check_free(output, overwrite or has_checkpoints, [path for path in data.values() if not isinstance(path, Rows)])
    started = time.monotonic()
    examples, *valid_examples = (_read(TASKS[task], path, columns) for path in data.values())
    source, base_model = open_source(model), origin(model)
    if learning_rate is None:
        preset = None if few_shot or task == "embed" else find_preset(model)
        arguments["learning_rate"] = (preset and preset.learning_rate) or _LEARNING_RATE
    settings, length = {}, TASKS[task].length
    if task == "embed" and source.kind == "embedding" and source.settings:
        settings, length = source.options, source.settings["max_length"]
    settings = settings | {name: arguments[name] for name in _OF_TASK if arguments[name] is not None}
    fitted = TASKS[task].from_examples(
        data["train"], examples, max_length=source.config.input_length(max_length, length), **settings)
    _warn_of_white_space(data["train"], {label for example in examples for label in fitted.classes(example)})
    if valid is None:
        valid_share = valid_share or _VALID_SHARE
        examples, valid_examples = hold_out(fitted, data["train"], examples, valid_share, seed)
    else:
        valid_examples, = valid_examples
    if few_shot:
        few_shots.check(f"{data['train']}{' without the held-out texts' if valid is None else ''}", examples)
    checked = data.get("valid", f"{data['train']} (held-out texts: {len(valid_examples):,})")
    fitted.check(checked, valid_examples, out_of_scope_label)
    tokenizer = source.needed_tokenizer()
    encoded, valid_encoded = fitted.encode(examples, tokenizer), fitted.encode(valid_examples, tokenizer)
    trained, to_train, to_score = fitted, encoded, valid_encoded
    if few_shot:
        trained = few_shots.embedding_task(fitted.max_length, source.options.get("pooling", "mean"))
        to_train, to_score = few_shots.for_training(encoded), few_shots.for_scoring(valid_encoded)

    def batched(encoded, whole=False):
        if pack:
            return PackedBatches(encoded.rows, tokenizer.pad_id, encoded.targets, fitted.max_length,
                                 source.config.directionality == "ltr")
        return encoded.batched(tokenizer, 16 if kernels.prefers_few_shapes() else 1, whole)

    train_batches, valid_batches = batched(to_train, whole=bool(devices)), batched(to_score)
    with _strategy_scope(devices, batch_size, train_batches, valid_batches):
        network = _make_model(source, tokenizer, trained, train_batches.steps(batch_size), arguments)
    pretrained = [variable for variable in network.bert.variables if not variable.name.startswith("lora")]
    run = {"arguments": {name: value for name, value in arguments.items() if name not in _NOT_PART_OF_RUN},
           "sha256": {name: _digest(path) for name, path in data.items()}
           | {"model": weights_digest(tokenizer, pretrained)}}
    checkpoints = Checkpoints(f"{output}.checkpoints", run, overwrite)
    if has_checkpoints and is_report_of(output, run):  # killed before the checkpoints were removed
        checkpoints.remove()
        return FineTuned.load(output)
    check_free(output, overwrite)
    report = data_report(fitted, tokenizer, examples, valid_examples, valid_share)
    lines = [*report_lines(report)]
    if few_shot:
        lines += few_shots.remarks(report["labels"], train_batches.steps(batch_size), epochs)
    elif source.kind == "embedding":
        lines += few_shots.recommendation(fitted, report["labels"])
    for line in lines:
        print(f"data: {line}", file=sys.stderr)
    if learning_rate is None:
        print(f"learning rate: {arguments['learning_rate']:g}, by default", file=sys.stderr)

    def fit(after_batch=None):
        embeddings = few_shots.embed(network, train_batches, batch_size, after_batch)
        return few_shots.regression(embeddings, encoded.targets, class_weights)

    def validate(after_batch):
        if few_shot:
            kernel, bias = fit(after_batch)
            outputs = few_shots.embed(network, valid_batches, batch_size, after_batch) @ kernel + bias
        else:
            outputs = run_model(network, valid_batches, batch_size, after_batch)
        # With the thresholds that are best for this epoch, as the finished model is scored.
        return fitted.calibrated(valid_encoded, outputs).score(valid_encoded, outputs)

    progress = loop.train(
        network, train_batches, validate, fitted.main_score(valid_examples), checkpoints, epochs=epochs,
        batch_size=batch_size, seed=seed, save_steps=save_steps, patience=early_stopping_patience, log_dir=log_dir,
        class_weight=_balanced_weights(encoded.targets) if class_weights and not few_shot else None)
    network.optimizer, network.compiled = None, False  # not saved: the optimizer would take two thirds of the file
    if few_shot:
        network = few_shots.classifier(network, *fit())
    remembered = {name: given[name] for name in REMEMBERED if name in given}
    fine_tuned = FineTuned(network, tokenizer, fitted, remembered)
    with atomic_folder(output, overwrite) as new:
        fine_tuned.save_files(new)
        if lora_rank or devices or pack:  # return the model that was saved: plain, padded, on one device
            fine_tuned = FineTuned.load(new)
        fine_tuned = write_report(new, fine_tuned, valid_encoded, progress, given, {
            "base_model": base_model, **run, "train_examples": len(examples), "data": report,
            "seconds": round(time.monotonic() - started, 1)})
    checkpoints.remove()
    return fine_tuned


def _read(task, path, columns):
    """Returns the examples of a file; for a file of another task, an error names that task."""
    try:
        return task.read(path, **columns)
    except InputError as error:
        suffix = os.path.splitext(str(path))[1].lower()
        if task.name not in ("tag", "span") and "data_format" not in columns:
            if suffix in (".conll", ".bio", ".iob"):
                raise InputError(f"{error}; for tagged words, pass task='tag'") from None
            if suffix == ".json" and isinstance(error, MissingColumn):
                raise InputError(f"{error}; for questions as in SQuAD, pass task='span'") from None
        raise


def _warn_of_white_space(path: str | Rows, labels: set[str]) -> None:
    """Warns of labels that differ from one another in white space alone."""
    alike = collections.defaultdict(list)
    for label in sorted(labels):
        alike["".join(label.split())].append(label)
    groups = [" and ".join(f"{label!r:.60}" for label in group) for group in alike.values() if len(group) > 1]
    if groups:
        others = f" ({len(groups) - 1:,} more such groups)" * (len(groups) > 1)
        warnings.warn(f"{path}: labels differ in white space alone: {groups[0]}{others}; they are different labels; "
                      "if they should be one, write them alike", InputWarning, stacklevel=3)


def _strategy_scope(devices, batch_size, *batches):
    """Returns the scope in which to make a model whose batches are split across multiple devices."""
    if not devices:
        return contextlib.nullcontext()
    here = [device.name.removeprefix("/device:") for device in tf.config.list_logical_devices()]
    if not set(devices) <= set(here):
        raise InputError(f"devices must be some of {', '.join(here)}; got {', '.join(devices)}")
    if batch_size % len(devices):
        raise InputError(f"batch_size must be a multiple of the number of devices, {len(devices)}; got {batch_size}")
    for name, texts in zip(("train", "valid"), batches):
        if len(texts.packed) < batch_size:
            raise InputError(f"{name} must have at least as many texts as a batch with devices, {batch_size}; got "
                             f"{len(texts.packed)}")
    return _strategy(tuple(devices)).scope()


@functools.cache
def _strategy(devices):
    """Returns the strategy of the devices. A second one would number its collective operations from the start again,
    and TensorFlow would take them for those of the first."""
    return tf.distribute.MirroredStrategy(devices)


def _make_model(source, tokenizer, task, steps, arguments):
    """Returns the compiled model with its optimizer built."""
    keras.utils.set_random_seed(arguments["seed"])
    _check_fit(source.path, source.config, tokenizer, arguments["freeze_blocks"], arguments["lora_rank"])
    frozen = [*first_parts(arguments["freeze_blocks"]), *task.unused]
    layout = "packed" if arguments["pack"] else "padded" if kernels.prefers_few_shapes() else "unpadded"
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
    """Returns the SHA-256 of a file, of the digests of the files in a folder, or of `Rows`."""
    if isinstance(path, Rows):
        return hashlib.sha256(json.dumps(path.rows, default=str).encode()).hexdigest()
    if os.path.isdir(path):
        return hashlib.sha256("".join(map(_digest, sorted(os.scandir(path), key=os.fspath))).encode()).hexdigest()
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check_fit(path, config, tokenizer, freeze_blocks, lora_rank):
    if len(tokenizer.vocabulary) != config.vocab_size:
        raise InputError(f"{path}: vocab.txt or tokenizer.json must have as many tokens as the config's vocab_size "
                         f"({config.vocab_size}); got {len(tokenizer.vocabulary)}: use the model's own")
    for name, value, most in (("freeze_blocks", freeze_blocks, "num_hidden_layers"),
                              ("lora_rank", lora_rank, "hidden_size")):
        if (value or 0) > getattr(config, most):
            raise InputError(f"{name} must be at most the encoder's {most} ({getattr(config, most)}); got {value}")
