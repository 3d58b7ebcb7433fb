"""What `finetune` needs before its first step: the data, the pretrained weights and the compiled model."""

import dataclasses
import hashlib
import importlib.metadata
import json
import math
import os
from typing import Any

import keras
from keras import ops

from keras_bert import kernels
from keras_bert.arguments import check_rules, not_none
from keras_bert.convert import open_source
from keras_bert.data.examples import warn_of_look_alikes
from keras_bert.data.tables import Rows, unread_columns
from keras_bert.errors import InputError
from keras_bert.files.digests import file_digest
from keras_bert.layers import first_parts
from keras_bert.models.base import BertTask, head_weights
from keras_bert.presets import find_preset, origin
from keras_bert.tasks import TASKS, Embed, Encoded, Task, read_examples, read_settings, restored
from keras_bert.tasks.embed import fields_of
from keras_bert.text import Tokenizer
from keras_bert.text.coverage import shorten
from keras_bert.training.checkpoints import minor_version, model_settings, weights_digest
from keras_bert.training.data_report import DataReport, data_report, report_lines
from keras_bert.training.distillation import Distillation, check_labels_of_teacher, fields_of_teacher
from keras_bert.training.held_out import hold_out
from keras_bert.training.negatives import NegativeMiner
from keras_bert.training.optimizer import make_optimizer
from keras_bert.training.options import REMEMBERED, Options
from keras_bert.training.run import devices_scope
from keras_bert.training.strategy import FewShot, Strategy
from keras_bert.weights import load_pretrained
from keras_bert.weights.format import Source
from keras_bert.weights.kinds import ENCODER
from keras_bert.weights.native import has_settings

_VALID_SHARE = 0.1
_MOST_PADDING = 128  # rows without a token, with which some models fill up their word embeddings to a round number
_NO_SETTINGS = ("name", "trainable", "dtype", "bert", "frozen")  # of a head's config: names, and what arguments say
_LEARNING_RATE = 5e-5  # one of those of Devlin et al., 2018, appendix A.3


@dataclasses.dataclass(frozen=True)
class Prepared:
    options: Options
    task: Task  # with what the training data determine
    tokenizer: Tokenizer
    valid: Encoded  # as `task` encodes the validation examples
    strategy: Strategy  # what the model is trained on and scored by
    model: BertTask  # compiled, with the pretrained weights
    run: dict[str, Any]  # what decides the result, see `Checkpoints`
    base_model: dict[str, str | None]  # see `presets.origin`
    report: DataReport
    lines: list[str]  # to print before training


def prepare(options: Options) -> Prepared:
    """Reads and makes what the options say."""
    # The data
    task_class = TASKS[options.task]
    with unread_columns() as unread:
        files = [read_examples(task_class, path, **options.given(REMEMBERED))
                 for path in (options.train, options.valid) if path is not None]
    source, base_model = open_source(options.pretrained, takes_texts=True), origin(options.pretrained)
    tokenizer = source.needed_tokenizer().with_normalization(options.normalization)
    fields, mined = _fields_of(options, source), None
    if options.mine_negatives is not None:
        files = NegativeMiner(options.mine_negatives).add(files, task_class(**fields).same_texts(tokenizer))
        mined = Rows("negatives", [vars(example) for examples in files for example in examples])
    task = options.given_task or task_class.from_examples(options.train, files[0], **fields)
    if options.given_task:
        task.check(options.train, files[0])
    if options.teacher is not None:
        check_labels_of_teacher(options, task)
    task.check_tokenizer(tokenizer)
    warn_of_look_alikes(options.train, (
        (label, getattr(example, "row", None)) for example in files[0] for label in task.strata(example)))
    same, valid_share = task.same_texts(tokenizer), None
    names: list[Any] = [options.train, options.valid]
    if options.valid is None:
        valid_share = options.valid_share or _VALID_SHARE
        files = [*hold_out(task, options.train, files[0], valid_share, options.seed, same)]
        names = [f"{options.train} without the held-out texts", f"{options.train} (held-out texts: {len(files[1]):,})"]
    examples, valid_examples = files
    make_strategy = FewShot if options.few_shot else Distillation if options.teacher else Strategy
    _check_fit(source, options)
    make_strategy.check(names[0], examples)
    task.check(names[1], valid_examples, options.out_of_scope_label)
    train = task.for_training(task.encode(examples, tokenizer))
    valid = task.encode(valid_examples, tokenizer)
    task.check_encoded(names[1], valid)

    # The model
    strategy = make_strategy(options, source, tokenizer, task, train, valid)
    steps = math.ceil(strategy.train_batches.steps(options.batch_size) / options.gradient_accumulation_steps)
    preset = None if strategy.task.compares_batch else find_preset(options.pretrained)
    used: dict[str, Any] = {
        "learning_rate": options.learning_rate or (preset and preset.learning_rate) or _LEARNING_RATE,
        "dropout": strategy.task.dropout if options.dropout is None else options.dropout}
    with devices_scope(options.devices, options.batch_size, strategy.train_batches, strategy.valid_batches):
        model = _make_model(source, strategy, options, steps * options.epochs, **used)
        head, kept = _keep_head(model, task, source, options.few_shot)
    run = _run(options, strategy, task, used, mined, tokenizer, model, kept)

    # The report
    report = data_report(task, tokenizer, examples, valid_examples, valid_share, train.cut, train.split,
                         [] if options.data_format else unread, same)
    remarks = strategy.remarks(report["labels"], steps, options.epochs)
    lines = [*(f"data: {line}" for line in (*report_lines(report), *remarks)), *head]
    if options.learning_rate is None:
        lines.append(f"learning rate: {used['learning_rate']:g}, by default")
    return Prepared(options, task, tokenizer, valid, strategy, model, run, base_model, report, lines)


def _fields_of(options: Options, source: Source) -> dict[str, Any]:
    """Returns the fields of the task that the options and the weights determine, as `Task.from_examples` takes them."""
    task_class = TASKS[options.task]
    fields: dict[str, Any] = {}
    length = task_class.length
    if options.teacher is not None:
        return fields_of_teacher(options)
    if issubclass(task_class, Embed) and source.kind == "embedding" and source.settings:
        fields, length = source.options | fields_of(source.settings), source.settings["max_length"]
    if options.given_task:
        source.config.input_length(options.given_task.max_length, length)
    max_length = source.config.input_length(options.max_length, length)
    return {"max_length": max_length} | fields | options.given(task_class.fields)


def _make_model(source: Source, strategy: Strategy, options: Options, total_steps: int, learning_rate: float,
                dropout: float | None) -> BertTask:
    """Returns the compiled model with its optimizer built."""
    task = strategy.task
    keras.utils.set_random_seed(options.seed)
    frozen = [*first_parts(options.freeze_blocks or 0), *task.unused]
    layout = "packed" if options.pack else "padded" if kernels.prefers_few_shapes() else "unpadded"
    arguments: dict[str, Any] = {"dtype": options.dtype, "layout": layout, "frozen": frozen,
                                 "lora_rank": options.lora_rank, "trainable": not options.features}
    bert = (load_pretrained(source, **arguments) if options.layers is None else
            source.load(ENCODER)[0].with_blocks(options.layers).build(**arguments))
    model = task.new_head(bert, dropout or 0.0)
    optimizer = make_optimizer(model, learning_rate, total_steps, options.warmup_ratio, options.weight_decay,
                               accumulates=options.gradient_accumulation_steps > 1)
    model.compile(optimizer, **strategy.loss_arguments())
    return model


def _check_fit(source: Source, options: Options) -> None:
    config, tokens = source.config, len(source.needed_tokenizer().vocabulary)
    rest = config.vocab_size - tokens
    if not 0 <= rest < _MOST_PADDING or (config.vocab_size % 8 and rest > config.vocab_size / 1000):
        raise InputError(f"{source.path}: vocab.txt or tokenizer.json must have as many tokens as the config's "
                         f"vocab_size ({config.vocab_size}); got {tokens}: use the model's own")
    for name, value, most in (("layers", options.layers, "num_hidden_layers"),
                              ("freeze_blocks", options.freeze_blocks, "num_hidden_layers"),
                              ("lora_rank", options.lora_rank, "hidden_size")):
        limit = options.layers or config.num_hidden_layers if name == "freeze_blocks" else getattr(config, most)
        check_rules((name, value, f"at most the encoder's {most} ({limit})", (value or 0) <= limit))


def _keep_head(model: BertTask, task: Task, source: Source, few_shot: bool) -> tuple[list[str], list]:
    """Gives a new model the head of the `source`, if that is for the same task, and the same labels in any order.
    Returns a line that says so, or why the head is new, none if the source has no head with weights; and the variables
    that got its weights."""
    was = (read_settings(source.path)[0] if has_settings(source.path) else
           restored(source.settings | not_none(labels=source.labels), source.path)[0] if source.settings else None)
    if was is None or isinstance(was, Embed):
        return [], []
    if few_shot:
        return ["new head: few_shot makes it by a logistic regression"], []
    if not (isinstance(was, type(task)) or isinstance(task, type(was))):  # an intent model is a classifier
        return [f"new head: {source.path} is for the task {was.name}, not {task.name}"], []
    if getattr(task, "tags", None) != getattr(was, "tags", None):
        return [f"new head: {source.path} has other tags"], []
    labels, old_labels = (getattr(each, "labels", []) for each in (task, was))
    if others := sorted({*labels} ^ {*old_labels}):
        return [f"new head: {source.path} has other labels; only one of the two has {shorten(', '.join(others))}"], []
    old = source.model or source.load()[0].build()
    new_kind, old_kind = (" on ".join(filter(None, [type(each).__name__, getattr(of, "features", None)]))
                          for each, of in ((model, task), (old, was)))
    if new_kind != old_kind:
        return [f"new head: {source.path} is a {old_kind}, the new model a {new_kind}"], []
    classifier: Any = getattr(model, "classifier", None)
    of_labels = {id(variable) for variable in classifier.weights} if labels and classifier else set()
    if labels != old_labels and not (of_labels and classifier.bias.shape == (len(labels),)):
        return [f"new head: {source.path} has the labels in another order"], []
    rows = [old_labels.index(label) for label in labels]
    for variable, value in zip(head_weights(model), head_weights(old), strict=True):
        variable.assign(ops.take(value, rows, axis=-1) if labels != old_labels and id(variable) in of_labels else value)
    return [f"head: that of {source.path}, which is for the same task and labels"], head_weights(model)


def _run(options: Options, strategy: Strategy, task: Task, used: dict[str, Any], mined: Rows | None,
         tokenizer: Tokenizer, model: BertTask, kept: list[keras.Variable]) -> dict[str, dict]:
    """Returns what decides the result, see `Checkpoints`: of the arguments, the values that are `used`, also those of
    the task where the argument is None. `kept` are the variables of a head that is not new."""
    arguments = options.of_run()
    used = {name: value for name, value in task.training_settings().items() if arguments.get(name, "") is None} | used
    pretrained = [variable for variable in model.bert.variables if not variable.name.startswith("lora")]
    data = {"train": options.train, "valid": options.valid, "mine_negatives": mined,
            "class_weights": options.weights_file, "unlabelled": options.unlabelled}
    files = {name: _digest(each) for name, each in data.items() if each is not None} | strategy.digests
    head = {name: value for name, value in model.get_config().items() if name not in _NO_SETTINGS}
    head |= {"weights": weights_digest(tokenizer, kept) if kept else None}
    if options.few_shot:
        head |= {"scikit-learn": minor_version(importlib.metadata.version("scikit-learn"))}
    return {"arguments": arguments | used, "sha256": {**files, "model": weights_digest(tokenizer, pretrained)},
            "settings": model_settings(model.bert.config, tokenizer, task=task.training_settings(), head=head)}


def _digest(data: str | Rows) -> str:
    """Returns the SHA-256 of a file, of the digests of the files in a folder, or of `Rows`."""
    if isinstance(data, Rows):
        return hashlib.sha256(json.dumps(data.rows, default=str).encode()).hexdigest()
    if os.path.isdir(data):
        files = sorted(entry.path for entry in os.scandir(data))
        return hashlib.sha256("".join(map(_digest, files)).encode()).hexdigest()
    return file_digest(data)
