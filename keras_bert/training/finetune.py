"""`finetune`: trains a pretrained encoder on labelled texts for a task."""

import collections
import dataclasses
import hashlib
import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any, Literal

import keras
import numpy as np

from keras_bert import kernels
from keras_bert.arguments import Count, Data, Delimiter, Length, Path, Positive, PositiveOrZero, Seed, Share, changed
from keras_bert.convert import open_source
from keras_bert.data.batches import PackedBatches, TextBatches
from keras_bert.data.tables import Rows
from keras_bert.errors import InputError, InputWarning, MissingColumn
from keras_bert.files.atomic import atomic_folder, check_free
from keras_bert.inference.fine_tuned import FineTuned
from keras_bert.layers import first_parts
from keras_bert.models.base import BertTask
from keras_bert.models.task_models import loss_arguments, new_head
from keras_bert.presets import find_preset, origin
from keras_bert.tasks import TASKS, Embed, Encoded, Task, run
from keras_bert.text import BertTokenizer
from keras_bert.training import loop
from keras_bert.training.checkpoints import Checkpoints, Progress, weights_digest
from keras_bert.training.data_report import data_report, report_lines
from keras_bert.training.devices import strategy_scope
from keras_bert.training.few_shot import FewShot, recommendation, remarks
from keras_bert.training.held_out import hold_out
from keras_bert.training.optimizer import make_optimizer
from keras_bert.training.options import REMEMBERED, Options
from keras_bert.training.report import is_report_of, write_report
from keras_bert.weights import load_pretrained
from keras_bert.weights.source import Source

_VALID_SHARE = 0.1
_LEARNING_RATE = 5e-5  # one of those of Devlin et al., 2018, appendix A.3


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
    options, started = Options.checked(finetune, dict(locals())), time.monotonic()
    given = changed(finetune, options.as_json())
    if deterministic:
        loop.enable_determinism()
    has_checkpoints = os.path.exists(f"{options.output}.checkpoints")
    check_free(options.output, overwrite or has_checkpoints, options.files())
    prepared = _prepare(options)
    checkpoints = Checkpoints(f"{options.output}.checkpoints", prepared.run, overwrite)
    if has_checkpoints and is_report_of(options.output, prepared.run):  # killed before the checkpoints were removed
        checkpoints.remove()
        return FineTuned.load(options.output)
    check_free(options.output, overwrite)
    for line in prepared.lines:
        print(line, file=sys.stderr)
    progress = _fit(prepared, checkpoints)
    fine_tuned = _write(prepared, progress, given, started)
    checkpoints.remove()
    return fine_tuned


class Plain:
    """The usual way to train a model: the task's own loss on the task's own inputs. See `FewShot` for another."""

    def __init__(self, task: Task, train: Encoded, valid: Encoded) -> None:
        self.task, self.train, self.valid = task, train, valid

    def outputs(self, model: BertTask, train: TextBatches, valid: TextBatches, batch_size: int,
                after_batch: Callable[[Any], None]) -> list:
        return run(model, valid, batch_size, after_batch)

    def finished(self, model: BertTask, train: TextBatches, batch_size: int) -> BertTask:
        return model


@dataclasses.dataclass(frozen=True)
class _Prepared:
    """Everything that training needs.

    Args:
        options: the options, with the learning rate.
        task: the task, with what the training data determine.
        valid: the validation examples, as the task encodes them.
        way: what the model is trained on and scored by.
        model: the compiled model, with the pretrained weights.
        run: what decides the result, see `Checkpoints`.
        entries: further entries of `metrics.json`.
        lines: what is printed before training.
    """

    options: Options
    task: Task
    tokenizer: BertTokenizer
    valid: Encoded
    way: Plain | FewShot
    train_batches: TextBatches
    valid_batches: TextBatches
    model: BertTask
    run: dict[str, Any]
    entries: dict[str, Any]
    lines: list[str]


def _prepare(options: Options) -> _Prepared:
    """Reads the data and the pretrained weights, and makes the model."""
    kind, columns = TASKS[options.task], options.columns()
    examples = _read(kind, options.train, columns)
    given_valid = None if options.valid is None else _read(kind, options.valid, columns)
    source, base_model = open_source(options.model), origin(options.model)
    if by_default := options.learning_rate is None:
        options = dataclasses.replace(options, learning_rate=_default_learning_rate(options))
    task = _task_of(options, source, examples)
    _warn_of_white_space(options.train, {label for example in examples for label in task.classes(example)})
    valid_share, texts = options.valid_share, str(options.train)
    if given_valid is None:
        valid_share, texts = valid_share or _VALID_SHARE, f"{texts} without the held-out texts"
        examples, valid_examples = hold_out(task, options.train, examples, valid_share, options.seed)
        checked: Any = f"{options.train} (held-out texts: {len(valid_examples):,})"
    else:
        valid_examples, checked = given_valid, options.valid
    if options.few_shot:
        FewShot.check(texts, examples)
    task.check(checked, valid_examples, options.out_of_scope_label)
    tokenizer = source.needed_tokenizer()
    train, valid = task.encode(examples, tokenizer), task.encode(valid_examples, tokenizer)
    way = (FewShot(task, train, valid, source.options.get("pooling", "mean"), options.class_weights)
           if options.few_shot else Plain(task, train, valid))
    train_batches = _batches(way.train, options, task, tokenizer, source, whole=bool(options.devices))
    valid_batches = _batches(way.valid, options, task, tokenizer, source)
    with strategy_scope(options.devices, options.batch_size, train_batches, valid_batches):
        model = _make_model(source, tokenizer, way.task, train_batches.steps(options.batch_size), options)
    pretrained = [variable for variable in model.bert.variables if not variable.name.startswith("lora")]
    run = {"arguments": options.of_run(), "sha256": {
        "train": _digest(options.train), **({"valid": _digest(options.valid)} if options.valid is not None else {}),
        "model": weights_digest(tokenizer, pretrained)}}
    report = data_report(task, tokenizer, examples, valid_examples, valid_share)
    found = report_lines(report)
    if options.few_shot:
        found += remarks(report["labels"], train_batches.steps(options.batch_size), options.epochs)
    elif source.kind == "embedding":
        found += recommendation(task, report["labels"])
    lines = [f"data: {line}" for line in found]
    if by_default:
        lines.append(f"learning rate: {options.learning_rate:g}, by default")
    entries = {"base_model": base_model, **run, "train_examples": len(examples), "data": report}
    return _Prepared(options, task, tokenizer, valid, way, train_batches, valid_batches, model, run, entries, lines)


def _fit(prepared: _Prepared, checkpoints: Checkpoints) -> Progress:
    """Trains the model to the end, from the last checkpoint if there is one."""
    options, way = prepared.options, prepared.way

    def validate(after_batch: Callable[[Any], None]) -> dict[str, Any]:
        outputs = way.outputs(prepared.model, prepared.train_batches, prepared.valid_batches, options.batch_size,
                              after_batch)
        # With the thresholds that are best for this epoch, as the finished model is scored.
        return prepared.task.calibrated(prepared.valid, outputs).score(prepared.valid, outputs)

    weighted = options.class_weights and not options.few_shot
    return loop.train(
        prepared.model, prepared.train_batches, validate, prepared.task.main_score(prepared.valid.examples),
        checkpoints, epochs=options.epochs, batch_size=options.batch_size, seed=options.seed,
        save_steps=options.save_steps, patience=options.early_stopping_patience, log_dir=options.log_dir,
        class_weight=_balanced_weights(way.train.targets) if weighted else None)


def _write(prepared: _Prepared, progress: Progress, given: dict[str, Any], started: float) -> FineTuned:
    """Writes the folder of the trained model; returns the model that it holds."""
    options, model = prepared.options, prepared.model
    model.optimizer, model.compiled = None, False  # not saved: the optimizer would take two thirds of the file
    model = prepared.way.finished(model, prepared.train_batches, options.batch_size)
    remembered = {name: given[name] for name in REMEMBERED if name in given}
    fine_tuned = FineTuned(model, prepared.tokenizer, prepared.task, remembered)
    with atomic_folder(options.output, options.overwrite) as new:
        fine_tuned.save_files(new)
        if options.lora_rank or options.devices or options.pack:  # what is returned is plain, padded, on one device
            fine_tuned = FineTuned.load(new)
        seconds = round(time.monotonic() - started, 1)
        return write_report(new, fine_tuned, prepared.valid, progress, given, prepared.entries | {"seconds": seconds})


def _read(task: type[Task], path: str | Rows, columns: dict[str, Any]) -> list:
    """Returns the examples of a file; for a file of another task, an error names that task."""
    try:
        return task.read(path, **columns)
    except InputError as error:
        suffix = os.path.splitext(str(path))[1].lower()
        for other in TASKS.values():
            contents, suffixes = other.files
            # A table may be JSON, too: only without the columns is it taken for a file of another task.
            if (not task.files[0] and suffix in suffixes and "data_format" not in columns
                    and (suffix != ".json" or isinstance(error, MissingColumn))):
                raise InputError(f"{error}; for {contents}, pass task={other.name!r}") from None
        raise


def _default_learning_rate(options: Options) -> float:
    compares = options.few_shot or TASKS[options.task].compares_batch
    preset = None if compares else find_preset(options.model)
    return (preset and preset.learning_rate) or _LEARNING_RATE


def _task_of(options: Options, source: Source, examples: list) -> Task:
    """Returns the task with the fields that the options, the training data and the weights determine."""
    task = TASKS[options.task]
    settings: dict[str, Any] = {}
    length = task.length
    if issubclass(task, Embed) and source.kind == "embedding" and source.settings:
        settings, length = source.options, source.settings["max_length"]
    max_length = source.config.input_length(options.max_length, length)
    return task.from_examples(options.train, examples, max_length=max_length, **settings | options.fields_of(task))


def _batches(encoded: Encoded, options: Options, task: Task, tokenizer: BertTokenizer, source: Source,
             whole: bool = False) -> TextBatches:
    if options.pack:
        return PackedBatches(encoded.rows, tokenizer.pad_id, encoded.targets, task.max_length,
                             source.config.directionality == "ltr")
    return encoded.batched(tokenizer, 16 if kernels.prefers_few_shapes() else 1, whole)


def _warn_of_white_space(path: str | Rows, labels: set[str]) -> None:
    """Warns of labels that differ from one another in white space alone."""
    alike = collections.defaultdict(list)
    for label in sorted(labels):
        alike["".join(label.split())].append(label)
    groups = [" and ".join(f"{label!r:.60}" for label in group) for group in alike.values() if len(group) > 1]
    if groups:
        others = f" ({len(groups) - 1:,} more such groups)" * (len(groups) > 1)
        warnings.warn(f"{path}: labels differ in white space alone: {groups[0]}{others}; they are different labels; "
                      "if they should be one, write them alike", InputWarning, stacklevel=4)


def _make_model(source: Source, tokenizer: BertTokenizer, task: Task, steps: int, options: Options) -> BertTask:
    """Returns the compiled model with its optimizer built. `steps` is the number of steps per epoch."""
    keras.utils.set_random_seed(options.seed)
    _check_fit(source, tokenizer, options)
    frozen = [*first_parts(options.freeze_blocks or 0), *task.unused]
    layout = "packed" if options.pack else "padded" if kernels.prefers_few_shapes() else "unpadded"
    bert = load_pretrained(source, dtype=options.dtype, layout=layout, frozen=frozen, lora_rank=options.lora_rank,
                           trainable=not options.features)
    model = new_head(task, bert, options.dropout if options.dropout is not None else task.dropout or 0.0)
    assert options.learning_rate is not None  # `_prepare` has filled it in
    optimizer = make_optimizer(model, options.learning_rate, steps * options.epochs, options.warmup_ratio,
                               options.weight_decay)
    model.compile(optimizer, **loss_arguments(task))
    return model


def _balanced_weights(targets: np.ndarray) -> dict[int, float]:
    """Returns a dict of class numbers to weights that give all classes the same total weight (King and Zeng, 2001)."""
    counts = np.bincount(targets)
    return {number: len(targets) / (len(counts) * count) for number, count in enumerate(counts)}


def _digest(path: str | Rows) -> str:
    """Returns the SHA-256 of a file, of the digests of the files in a folder, or of `Rows`."""
    if isinstance(path, Rows):
        return hashlib.sha256(json.dumps(path.rows, default=str).encode()).hexdigest()
    if os.path.isdir(path):
        files = sorted(entry.path for entry in os.scandir(path))
        return hashlib.sha256("".join(map(_digest, files)).encode()).hexdigest()
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check_fit(source: Source, tokenizer: BertTokenizer, options: Options) -> None:
    config = source.config
    if len(tokenizer.vocabulary) != config.vocab_size:
        raise InputError(f"{source.path}: vocab.txt or tokenizer.json must have as many tokens as the config's "
                         f"vocab_size ({config.vocab_size}); got {len(tokenizer.vocabulary)}: use the model's own")
    for name, value, most in (("freeze_blocks", options.freeze_blocks, "num_hidden_layers"),
                              ("lora_rank", options.lora_rank, "hidden_size")):
        if (value or 0) > getattr(config, most):
            raise InputError(f"{name} must be at most the encoder's {most} ({getattr(config, most)}); got {value}")
