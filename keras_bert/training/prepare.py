"""What `finetune` needs before its first step: the data, the pretrained weights and the compiled model."""

import dataclasses
import hashlib
import importlib.metadata
import json
import math
import os
from typing import Any

import keras

from keras_bert import kernels
from keras_bert.arguments import Path
from keras_bert.convert import open_source
from keras_bert.data.examples import warn_of_white_space
from keras_bert.data.tables import Rows
from keras_bert.errors import InputError, Option
from keras_bert.files.digests import file_digest
from keras_bert.layers import first_parts
from keras_bert.models.base import BertTask
from keras_bert.models.task_models import loss_arguments, new_head
from keras_bert.presets import find_preset, origin
from keras_bert.tasks import TASKS, Embed, Encoded, Task, read_examples
from keras_bert.tasks.embed import fields_of
from keras_bert.text import BertTokenizer
from keras_bert.training.checkpoints import minor_version, model_settings, weights_digest
from keras_bert.training.data_report import DataReport, data_report, report_lines
from keras_bert.training.devices import strategy_scope
from keras_bert.training.few_shot import FewShot
from keras_bert.training.head import keep_head
from keras_bert.training.held_out import hold_out
from keras_bert.training.negatives import NegativeMiner
from keras_bert.training.optimizer import make_optimizer
from keras_bert.training.options import Options
from keras_bert.training.way import Way
from keras_bert.weights import load_pretrained
from keras_bert.weights.source import Source

_VALID_SHARE = 0.1
_MOST_PADDING = 128  # rows without a token, with which some models fill up their word embeddings to a round number
_NO_SETTINGS = ("name", "trainable", "dtype", "bert", "frozen")  # of a head's config: names, and what arguments say
_LEARNING_RATE = 5e-5  # one of those of Devlin et al., 2018, appendix A.3


@dataclasses.dataclass(frozen=True)
class Prepared:
    options: Options
    task: Task  # with what the training data determine
    tokenizer: BertTokenizer
    valid: Encoded  # as `task` encodes the validation examples
    way: Way  # what the model is trained on and scored by
    model: BertTask  # compiled, with the pretrained weights
    run: dict[str, Any]  # what decides the result, see `Checkpoints`
    base_model: dict[str, str | None]  # see `presets.origin`
    report: DataReport
    lines: list[str]  # to print before training


def prepare(options: Options) -> Prepared:
    task_class, columns = TASKS[options.task], options.columns()
    examples = read_examples(task_class, options.train, **columns)
    given_valid = None if options.valid is None else read_examples(task_class, options.valid, **columns)
    mined = None
    if options.mine_negatives is not None:
        miner = NegativeMiner(options.mine_negatives)
        examples, given_valid = miner.add(examples), given_valid and miner.add(given_valid)
        mined = Rows("negatives", [vars(example) for example in (*examples, *(given_valid or ()))])
    source, base_model = open_source(options.model), origin(options.model)
    task = _task_of(options, source, examples)
    warn_of_white_space(options.train, {label for example in examples for label in task.classes(example)})
    valid_share, texts = options.valid_share, str(options.train)
    if given_valid is None:
        valid_share, texts = valid_share or _VALID_SHARE, f"{texts} without the held-out texts"
        examples, valid_examples = hold_out(task, options.train, examples, valid_share, options.seed)
        checked: Any = f"{options.train} (held-out texts: {len(valid_examples):,})"
    else:
        valid_examples, checked = given_valid, options.valid
    make_way = FewShot if options.few_shot else Way
    make_way.check(texts, examples)
    task.check(checked, valid_examples, options.out_of_scope_label)
    tokenizer = source.needed_tokenizer()
    train = task.for_training(task.encode(examples, tokenizer))
    valid = task.encode(valid_examples, tokenizer)
    way = make_way(options, source, tokenizer, task, train, valid)
    steps = math.ceil(way.train_batches.steps(options.batch_size) / options.gradient_accumulation_steps)
    learning_rate = options.learning_rate or _default_learning_rate(options.model, way.task)
    dropout = way.task.dropout if options.dropout is None else options.dropout
    with strategy_scope(options.devices, options.batch_size, way.train_batches, way.valid_batches):
        model = _make_model(source, way.task, options, learning_rate, dropout, steps * options.epochs)
        head, kept = keep_head(model, task, source, options.few_shot)
    used = {"learning_rate": learning_rate, "dropout": dropout}
    report = data_report(task, tokenizer, examples, valid_examples, valid_share, train.cut, train.split)
    lines = [f"data: {line}"
             for line in (*report_lines(report), *way.remarks(report["labels"], steps, options.epochs))] + head
    if options.learning_rate is None:
        lines.append(f"learning rate: {learning_rate:g}, by default")
    return Prepared(options, task, tokenizer, valid, way, model,
                    _run(options, task, used, mined, tokenizer, model, kept), base_model, report, lines)


def _default_learning_rate(model: Path, task: Task) -> float:
    preset = None if task.compares_batch else find_preset(model)
    return (preset and preset.learning_rate) or _LEARNING_RATE


def _task_of(options: Options, source: Source, examples: list) -> Task:
    """Returns the task with the fields that the options, the training data and the weights determine."""
    task_class = TASKS[options.task]
    fields: dict[str, Any] = {}
    length = task_class.length
    if issubclass(task_class, Embed) and source.kind == "embedding" and source.settings:
        fields, length = source.options | fields_of(source.settings), source.settings["max_length"]
    fields = fields | options.fields_of(task_class)
    return task_class.from_examples(options.train, examples,
                                    max_length=source.config.input_length(options.max_length, length), **fields)


def _make_model(source: Source, task: Task, options: Options, learning_rate: float, dropout: float | None,
                total_steps: int) -> BertTask:
    """Returns the compiled model with its optimizer built."""
    keras.utils.set_random_seed(options.seed)
    _check_fit(source, options)
    frozen = [*first_parts(options.freeze_blocks or 0), *task.unused]
    layout = "packed" if options.pack else "padded" if kernels.prefers_few_shapes() else "unpadded"
    bert = load_pretrained(source, dtype=options.dtype, layout=layout, frozen=frozen, lora_rank=options.lora_rank,
                           trainable=not options.features)
    model = new_head(task, bert, dropout or 0.0)
    optimizer = make_optimizer(model, learning_rate, total_steps, options.warmup_ratio, options.weight_decay,
                               accumulates=options.gradient_accumulation_steps > 1)
    model.compile(optimizer, **loss_arguments(task))
    return model


def _check_fit(source: Source, options: Options) -> None:
    config, tokens = source.config, len(source.needed_tokenizer().vocabulary)
    is_padded = config.vocab_size % 8 == 0 and config.vocab_size - tokens < _MOST_PADDING
    if tokens != config.vocab_size and not is_padded:
        raise InputError(f"{source.path}: vocab.txt or tokenizer.json must have as many tokens as the config's "
                         f"vocab_size ({config.vocab_size}); got {tokens}: use the model's own")
    for name, value, most in (("freeze_blocks", options.freeze_blocks, "num_hidden_layers"),
                              ("lora_rank", options.lora_rank, "hidden_size")):
        if (value or 0) > getattr(config, most):
            raise InputError(Option(name), f" must be at most the encoder's {most} ({getattr(config, most)}); "
                             f"got {value}")


def _run(options: Options, task: Task, used: dict[str, Any], mined: Rows | None, tokenizer: BertTokenizer,
         model: BertTask, kept: list[keras.Variable]) -> dict[str, dict]:
    """Returns what decides the result, see `Checkpoints`: of the arguments, the values that are `used`, also those of
    the task where the argument is None. `kept` are the variables of a head that is not new."""
    arguments = options.of_run()
    used = {name: value for name, value in task.training_settings().items() if arguments.get(name, "") is None} | used
    pretrained = [variable for variable in model.bert.variables if not variable.name.startswith("lora")]
    data = {"train": options.train, "valid": options.valid, "mine_negatives": mined,
            "class_weights": options.weights_file}
    files = {name: _digest(each) for name, each in data.items() if each is not None}
    head = {name: value for name, value in model.get_config().items() if name not in _NO_SETTINGS}
    head |= {"weights": weights_digest(tokenizer, kept) if kept else None}
    if options.few_shot:
        head |= {"scikit-learn": minor_version(importlib.metadata.version("scikit-learn"))}
    return {"arguments": arguments | used,
            "sha256": {**files, "model": weights_digest(tokenizer, pretrained)},
            "settings": model_settings(model.bert.config, tokenizer, task=task.training_settings(), head=head)}


def _digest(data: str | Rows) -> str:
    """Returns the SHA-256 of a file, of the digests of the files in a folder, or of `Rows`."""
    if isinstance(data, Rows):
        return hashlib.sha256(json.dumps(data.rows, default=str).encode()).hexdigest()
    if os.path.isdir(data):
        files = sorted(entry.path for entry in os.scandir(data))
        return hashlib.sha256("".join(map(_digest, files)).encode()).hexdigest()
    return file_digest(data)
