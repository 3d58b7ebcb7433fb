"""`finetune`: a pretrained encoder and labelled texts to a model that answers."""

import contextlib
import functools
import hashlib
import inspect
import os
import shlex
import time

import keras
import numpy as np
import tensorflow as tf

from keras_bert import kernels
from keras_bert.convert import load_pretrained, open_source
from keras_bert.data import PackedBatches
from keras_bert.errors import InputError
from keras_bert.files import check_free, written_beside
from keras_bert.layers import first_parts
from keras_bert.tasks import TASKS
from keras_bert.tasks import run as run_model
from keras_bert.training.arguments import check_rules, check_run
from keras_bert.training.checkpoints import Checkpoints, weights_digest
from keras_bert.training.fine_tuned import FineTuned
from keras_bert.training.loop import compiles, enable_determinism
from keras_bert.training.loop import train as train_epochs
from keras_bert.training.optimizer import make_optimizer
from keras_bert.training.report import describes, write_report

DTYPES = ("float32", "mixed_bfloat16")
# Arguments that say where and how to keep the work, not what comes out of it.
_HOUSEKEEPING = ("output_dir", "overwrite", "save_steps", "log_dir")
# Arguments that some tasks alone take.
_OF_SOME_TASKS = {"out_of_scope": ("intent", "classify"), "class_weights": ("intent", "classify"),
                   "doc_stride": ("span",), "features": ("tag",), "pack": ("intent", "classify", "regress")}


def finetune(train, valid, init_from, output_dir, *, task="intent", layout=None, text="text", text_pair=None,
             label="label", out_of_scope=None, epochs=3, batch_size=32, learning_rate=5e-5, warmup_ratio=0.1,
             weight_decay=0.01, dropout=None, max_length=None, doc_stride=None, features=None, early_stopping=None,
             class_weights=None, freeze_blocks=0, lora_rank=0, dtype="float32", pack=None, devices=None, seed=0,
             save_steps=500, log_dir=None, deterministic=False, overwrite=False):
    """Fine-tunes a model for a task and writes it to a folder (Devlin et al., 2018, section 4 and appendix A.3).

    The model kept is that of the epoch with the best score on `valid`, of several the one with the lowest loss. A run
    that was stopped or killed resumes from its last checkpoint when it is called again with the same arguments and
    versions (see `Checkpoints`). On one CPU it ends with the same weights, bit for bit; on a GPU with `deterministic`.
    The checkpoints, the last and the best, are kept in `output_dir`.checkpoints until the model is written.

    Args:
        train: labelled file, see the readers of `keras_bert.data`; its labels are the model's.
        valid: file in the same format, scored after each epoch.
        init_from: name or folder of the pretrained encoder, see `find_pretrained`.
        output_dir: folder to write: the model, its vocabulary, labels and settings, `metrics.json`, a model card
            (`README.md`), and pictures where matplotlib is installed.
        task: `classify`, single-label classification of texts or pairs; `intent`, the same with a threshold below which
            an answer counts as out of scope, chosen on `valid`; `regress`, a number for each; `tag`, entities; `span`,
            answers in a context; `choice`, the best of several endings. See `keras_bert.tasks`.
        layout: name of a published file layout, see the readers; that of the file's suffix where None.
        text, text_pair, label: column names; a second text is read where there is a column `text_pair`.
        out_of_scope: label of the texts in `valid` that are out of scope; they choose the threshold and count nowhere
            else. Where there are none, wrongly answered texts stand in for them.
        epochs, batch_size, learning_rate, warmup_ratio, weight_decay: see `make_optimizer`. Of spans and tags a batch
            is of windows.
        dropout: dropout rate of what the head gets; 0.2 for classes and 0.1 for the other tasks where None.
        max_length: longest input in tokens, [CLS] and [SEP] included; longer texts are cut, into windows or parts for
            spans and tags. Where None, 384 for spans and 128 for the other tasks.
        doc_stride: of spans, tokens from the start of one window to that of the next; 128 where None.
        features: of tags, what a frozen encoder gives to a BiLSTM in place of fine-tuning, see `BertFeatures`.
        early_stopping: epochs without a better score after which to stop.
        class_weights: `balanced` weights each class by the inverse of its frequency.
        freeze_blocks: leaves the embeddings and so many encoder blocks as they are.
        lora_rank: trains low-rank additions of this rank instead of the encoder, see `BertLayer.enable_lora`; the
            model written is a plain one.
        dtype: `float32`, or `mixed_bfloat16` to compute in bfloat16.
        pack: lay several texts into each row of `max_length` tokens, for tasks with one answer a text: batches of one
            shape, which XLA compiles once; see `data.PackedBatches`.
        devices: TensorFlow devices, as `GPU:0`, to share each batch out over (`tf.distribute.MirroredStrategy`); a last
            batch that is not full is left out then.
        seed: of the new head, the order and the dropout; the same seed gives the same model on the same machine.
        save_steps: steps between two checkpoints; there is one after each epoch in any case.
        log_dir: folder for TensorBoard's logs.
        deterministic: whether to give the same weights each time on a GPU too, without XLA and slower; this calls
            `enable_determinism`, which holds for the rest of the process.
        overwrite: whether to replace `output_dir`, and the checkpoints of another run.

    Returns:
        the `FineTuned` model.

    Raises:
        InputError: names the file, row and column, or the argument.
        Stopped: Ctrl-C or SIGTERM; all is saved.
    """
    arguments = {name: os.fspath(value) if isinstance(value, os.PathLike) else value
                 for name, value in locals().items()} | {"devices": list(devices) if devices else None}
    _check_arguments(**arguments)
    if deterministic:
        enable_determinism()
    begun = os.path.exists(f"{output_dir}.checkpoints")
    check_free(output_dir, overwrite or begun)
    started = time.monotonic()
    read = functools.partial(TASKS[task].read, format=layout, text=text, text_pair=text_pair, label=label)
    examples, valid_examples = read(train), read(valid)
    task = _learn(arguments, examples)
    task.check(valid, valid_examples, out_of_scope)
    source = open_source(init_from)
    tokenizer = source.needed_tokenizer()
    encoded, valid_encoded = task.encode(examples, tokenizer), task.encode(valid_examples, tokenizer)
    tokenizer.warn_if_unknown(map(task.text, examples), train)
    multiple = 16 if compiles() else 1
    train_batches = (PackedBatches(encoded.rows, tokenizer.pad_id, encoded.targets, task.max_length) if pack
                     else encoded.batched(tokenizer, multiple, whole=bool(devices)))
    valid_batches = (
        PackedBatches(valid_encoded.rows, tokenizer.pad_id, valid_encoded.targets, task.max_length) if pack
        else valid_encoded.batched(tokenizer, multiple))
    with _sharing(devices, batch_size, train_batches, valid_batches):
        model = _make_model(source, tokenizer, task, train_batches.steps(batch_size), arguments)
    pretrained = [variable for variable in model.bert.variables if not variable.name.startswith("lora")]
    run = {"arguments": {name: value for name, value in arguments.items() if name not in _HOUSEKEEPING},
           "sha256": {"train": _digest(train), "valid": _digest(valid),
                      "init_from": weights_digest(tokenizer, pretrained)}}
    checkpoints = Checkpoints(f"{output_dir}.checkpoints", run, overwrite)
    if begun and describes(output_dir, run):  # killed after the model was written, before the checkpoints were gone
        checkpoints.remove()
        return FineTuned.load(output_dir)
    check_free(output_dir, overwrite)

    def validate(after_batch):
        return task.score(valid_encoded, run_model(model, valid_batches, batch_size, after_batch))

    progress = train_epochs(
        model, train_batches, validate, task.main, checkpoints, epochs=epochs, batch_size=batch_size, seed=seed,
        save_steps=save_steps, patience=early_stopping, log_dir=log_dir,
        class_weight=_balanced_weights(encoded.targets) if class_weights else None)
    model.optimizer, model.compiled = None, False  # or they would take two thirds of the file
    fine_tuned = FineTuned(model, tokenizer, task)
    with written_beside(output_dir, overwrite) as new:
        fine_tuned.save(new)
        if lora_rank or devices or pack:  # the file holds a plain, padded model of one device
            fine_tuned = FineTuned.load(new)
        fine_tuned = write_report(new, fine_tuned, valid_encoded, progress, {
            "command": _command(arguments), **run, "train_examples": len(examples),
            "seconds": round(time.monotonic() - started, 1)})
    checkpoints.remove()
    return fine_tuned


def _learn(arguments, examples):
    """The task that the training examples and the arguments describe."""
    task = TASKS[arguments["task"]]
    given = {name: arguments[name] for name in ("doc_stride", "features") if arguments[name] is not None}
    return task.learn(arguments["train"], examples, max_length=arguments["max_length"] or task.length, **given)


def _sharing(devices, batch_size, *batches):
    """The scope in which to make a model whose batches several devices share out."""
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
    """The model, compiled, its optimizer built."""
    keras.utils.set_random_seed(arguments["seed"])
    _check_fit(source.path, source.config, tokenizer, task, arguments["freeze_blocks"])
    frozen = [*first_parts(arguments["freeze_blocks"]), *task.unused]
    layout = "packed" if arguments["pack"] else "padded" if compiles() else "unpadded"
    bert = load_pretrained(source, dtype=arguments["dtype"], layout=layout, frozen=frozen,
                           lora_rank=arguments["lora_rank"], trainable=not arguments["features"])
    model = task.head(bert, task.dropout if arguments["dropout"] is None else arguments["dropout"])
    optimizer = make_optimizer(model, arguments["learning_rate"], steps * arguments["epochs"],
                               arguments["warmup_ratio"], arguments["weight_decay"])
    model.compile(optimizer, **task.loss())
    return model


def _balanced_weights(targets):
    """For each class the weight that makes all classes count alike (King and Zeng, 2001): a dict."""
    counts = np.bincount(targets)
    return {number: len(targets) / (len(counts) * count) for number, count in enumerate(counts)}


def _digest(path):
    """The SHA-256 of a file, or of those in a folder."""
    if os.path.isdir(path):
        return hashlib.sha256("".join(map(_digest, sorted(os.scandir(path), key=os.fspath))).encode()).hexdigest()
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check_arguments(task, epochs, batch_size, learning_rate, warmup_ratio, weight_decay, dropout, max_length,
                     doc_stride, early_stopping, class_weights, freeze_blocks, lora_rank, dtype, devices, seed,
                     save_steps, log_dir, deterministic, **others):
    given = {"doc_stride": doc_stride, "class_weights": class_weights, **others}
    check_rules(
        ("task", task, f"one of {', '.join(TASKS)}", task in TASKS),
        ("epochs", epochs, "at least 1", epochs >= 1),
        ("batch_size", batch_size, "at least 1", batch_size >= 1),
        ("learning_rate", learning_rate, "positive", learning_rate > 0),
        ("dropout", dropout, "at least 0 and below 1", dropout is None or 0 <= dropout < 1),
        ("max_length", max_length, "at least 3", max_length is None or max_length >= 3),
        ("doc_stride", doc_stride, "at least 1", doc_stride is None or doc_stride >= 1),
        ("early_stopping", early_stopping, "at least 1", early_stopping is None or early_stopping >= 1),
        ("class_weights", class_weights, "balanced", class_weights in (None, "balanced")),
        ("freeze_blocks", freeze_blocks, "at least 0", freeze_blocks >= 0),
        ("lora_rank", lora_rank, "at least 0", lora_rank >= 0),
        ("lora_rank", lora_rank, "0 where blocks are frozen", not (lora_rank and freeze_blocks)),
        ("lora_rank", lora_rank, "0 with features, whose encoder is frozen", not (lora_rank and given["features"])),
        ("dtype", dtype, f"one of {', '.join(DTYPES)}", dtype in DTYPES),
        *((name, given[name], f"left to the task {' or '.join(tasks)}", given[name] in (None, False) or task in tasks)
          for name, tasks in _OF_SOME_TASKS.items()),
        ("devices", devices, "empty on the JAX backend", not devices or kernels.BACKEND == "tensorflow"),
        ("devices", devices, "empty where texts are packed into rows", not (devices and given["pack"])),
    )
    check_run(seed, warmup_ratio, weight_decay, save_steps, log_dir, deterministic)


def _check_fit(path, config, tokenizer, task, freeze_blocks):
    if len(tokenizer.vocabulary) != config.vocab_size:
        raise InputError(f"{path}: vocab.txt must have as many pieces as the config's vocab_size "
                         f"({config.vocab_size}); got {len(tokenizer.vocabulary)}")
    for name, value, most in (("max_length", task.max_length, "max_position_embeddings"),
                              ("freeze_blocks", freeze_blocks, "num_hidden_layers")):
        if value > getattr(config, most):
            raise InputError(f"{name} must be at most the encoder's {most} ({getattr(config, most)}); got {value}")


def _command(arguments):
    """The command line that does the same."""
    defaults = {name: parameter.default for name, parameter in inspect.signature(finetune).parameters.items()}
    flags = {name: ",".join(value) if isinstance(value, list) else value for name, value in arguments.items()
             if value != defaults[name]}
    return " ".join(["keras-bert finetune", *(shlex.quote(f"--{name}={value}") for name, value in flags.items())])
