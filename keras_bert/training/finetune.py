"""`finetune`: a pretrained encoder and labelled texts to a classifier."""

import contextlib
import inspect
import os
import shlex
import time

import keras
import tensorflow as tf

from keras_bert import kernels
from keras_bert.convert import load_pretrained, open_source
from keras_bert.errors import InputError
from keras_bert.files import check_free, written_beside
from keras_bert.models import BertClassifier
from keras_bert.training.arguments import check_rules, check_run
from keras_bert.training.checkpoints import Checkpoints, weights_digest
from keras_bert.training.folder import FineTuned
from keras_bert.training.labelled import Labelled, compiles
from keras_bert.training.loop import train as train_epochs
from keras_bert.training.optimizer import make_optimizer
from keras_bert.training.report import describes, write_report

TASKS = ("intent", "classify")
DTYPES = ("float32", "mixed_bfloat16")
# Arguments that say where and how to keep the work, not what comes out of it.
_HOUSEKEEPING = ("output_dir", "overwrite", "save_steps", "log_dir")


def finetune(train, valid, init_from, output_dir, *, task="intent", text="text", text_pair=None, label="label",
             out_of_scope=None, epochs=3, batch_size=32, learning_rate=5e-5, warmup_ratio=0.1, weight_decay=0.01,
             dropout=0.2, max_length=128, early_stopping=None, class_weights=None, freeze_blocks=0, lora_rank=0,
             dtype="float32", devices=None, seed=0, save_steps=500, log_dir=None, overwrite=False):
    """Fine-tunes a classifier and writes it to a folder (Devlin et al., 2018, section 4.1 and appendix A.3).

    The model kept is that of the epoch with the highest accuracy on `valid`, of several the one with the lowest loss.
    A run that was stopped or killed goes on from its last checkpoint when it is called again with the same arguments,
    and ends with the same weights, bit for bit, on one device (a GPU needs `enable_determinism()`, which the command
    line calls). The checkpoints, the last and the best, stand in `output_dir`.checkpoints until the model is written.

    Args:
        train: TSV, CSV or JSON Lines file, see `read_examples`; its labels are the model's.
        valid: file in the same format, scored after each epoch.
        init_from: name or folder of the pretrained encoder, see `find_pretrained`.
        output_dir: folder to write: the model, its vocabulary, labels and settings, `metrics.json`, a model card
            (`README.md`), and pictures where matplotlib is installed.
        task: `classify`, single-label classification of texts or pairs; `intent`, the same with a threshold below which
            an answer counts as out of scope, chosen on `valid`.
        text, text_pair, label: column names; a second text is read where there is a column `text_pair`.
        out_of_scope: label of the texts in `valid` that are out of scope; they choose the threshold and count nowhere
            else. Where there are none, wrongly answered texts stand in for them.
        epochs, batch_size, learning_rate, warmup_ratio, weight_decay: see `make_optimizer`.
        dropout: dropout rate of the pooled output.
        max_length: longest input in tokens, [CLS] and [SEP] included; longer texts are cut.
        early_stopping: epochs without a better score after which to stop.
        class_weights: `balanced` weights each class by the inverse of its frequency.
        freeze_blocks: leaves the embeddings and so many encoder blocks as they are.
        lora_rank: trains low-rank additions of this rank instead of the encoder, see `BertLayer.enable_lora`; the
            model written is a plain one.
        dtype: `float32`, or `mixed_bfloat16` to compute in bfloat16.
        devices: TensorFlow devices, as `GPU:0`, to share each batch out over (`tf.distribute.MirroredStrategy`); a last
            batch that is not full is left out then.
        seed: of the new head, the order and the dropout; the same seed gives the same model on the same machine.
        save_steps: steps between two checkpoints; there is one after each epoch in any case.
        log_dir: folder for TensorBoard's logs.
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
    begun = os.path.exists(f"{output_dir}.checkpoints")
    check_free(output_dir, overwrite or begun)
    started = time.monotonic()
    train_data = Labelled.read(train, text, text_pair, label)
    valid_data = Labelled.read(valid, text, text_pair, label, train_data.labels, out_of_scope)
    if valid_data.pairs != train_data.pairs:
        raise InputError(f"{valid}: must have one text or two a row as {train} has")
    source = open_source(init_from)
    tokenizer = source.needed_tokenizer()
    tokenizer.warn_if_unknown((example.text for example in train_data.examples), train)
    train_batches = train_data.batches(tokenizer, max_length, whole=bool(devices))
    valid_batches = valid_data.only(valid_data.targets >= 0).batches(tokenizer, max_length)
    with _sharing(devices, batch_size, train_batches, valid_batches):
        model = _make_model(source, tokenizer, len(train_data.labels), train_batches.steps(batch_size), arguments)
    pretrained = [variable for variable in model.bert.variables if not variable.name.startswith("lora")]
    run = {"arguments": {name: value for name, value in arguments.items() if name not in _HOUSEKEEPING},
           "sha256": {"train": train_data.digest(), "valid": valid_data.digest(),
                      "init_from": weights_digest(tokenizer, pretrained)}}
    checkpoints = Checkpoints(f"{output_dir}.checkpoints", run, overwrite)
    if begun and describes(output_dir, run):  # killed after the model was written, before the checkpoints were gone
        checkpoints.remove()
        return FineTuned.load(output_dir)
    check_free(output_dir, overwrite)

    progress = train_epochs(
        model, train_batches, valid_batches, checkpoints, epochs=epochs, batch_size=batch_size, seed=seed,
        save_steps=save_steps, patience=early_stopping, log_dir=log_dir,
        class_weight=train_data.balanced_weights() if class_weights else None)
    model.optimizer, model.compiled = None, False  # or they would take two thirds of the file
    fine_tuned = FineTuned(model, tokenizer, train_data.labels, task, max_length, train_data.pairs)
    with written_beside(output_dir, overwrite, workspace=checkpoints.path("output")) as new:
        fine_tuned.save(new)
        if lora_rank or devices:  # the file holds a plain model: sums, and no devices
            fine_tuned = FineTuned.load(new)
        fine_tuned = write_report(new, fine_tuned, valid_data, progress, {
            "command": _command(arguments), **run, "train_examples": len(train_data.examples),
            "seconds": round(time.monotonic() - started, 1)})
    checkpoints.remove()
    return fine_tuned


def _sharing(devices, batch_size, *batches):
    """The scope in which to make a model whose batches several devices share out."""
    if not devices:
        return contextlib.nullcontext()
    if batch_size % len(devices) or any(len(texts.packed) < batch_size for texts in batches):
        raise InputError(f"batch_size must be a multiple of the number of devices ({len(devices)}), and at most that of"
                         f" the texts ({min(len(texts.packed) for texts in batches)}); got {batch_size}")
    here = [device.name.removeprefix("/device:") for device in tf.config.list_logical_devices()]
    if not set(devices) <= set(here):
        raise InputError(f"devices must be some of {', '.join(here)}; got {', '.join(devices)}")
    return tf.distribute.MirroredStrategy(devices).scope()


def _make_model(source, tokenizer, num_labels, steps, arguments):
    """The classifier, compiled, its optimizer built."""
    keras.utils.set_random_seed(arguments["seed"])
    bert = load_pretrained(source, dtype=arguments["dtype"])
    _check_fit(source.path, bert.config, tokenizer, arguments)
    if arguments["lora_rank"]:
        bert.enable_lora(arguments["lora_rank"])
    bert.freeze(arguments["freeze_blocks"])
    model = BertClassifier(bert, num_labels, arguments["dropout"])
    optimizer = make_optimizer(model, arguments["learning_rate"], steps * arguments["epochs"],
                               arguments["warmup_ratio"], arguments["weight_decay"])
    optimizer.build(model.trainable_variables)
    model.compile(
        optimizer=optimizer,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
        jit_compile="auto" if compiles() else False,
    )
    return model


def _check_arguments(task, epochs, batch_size, learning_rate, warmup_ratio, weight_decay, dropout, max_length,
                     early_stopping, class_weights, freeze_blocks, lora_rank, dtype, devices, seed, save_steps, log_dir,
                     **_):
    check_rules(
        ("task", task, f"one of {', '.join(TASKS)}", task in TASKS),
        ("epochs", epochs, "at least 1", epochs >= 1),
        ("batch_size", batch_size, "at least 1", batch_size >= 1),
        ("learning_rate", learning_rate, "positive", learning_rate > 0),
        ("dropout", dropout, "at least 0 and below 1", 0 <= dropout < 1),
        ("max_length", max_length, "at least 3", max_length >= 3),
        ("early_stopping", early_stopping, "at least 1", early_stopping is None or early_stopping >= 1),
        ("class_weights", class_weights, "balanced", class_weights in (None, "balanced")),
        ("freeze_blocks", freeze_blocks, "at least 0", freeze_blocks >= 0),
        ("lora_rank", lora_rank, "at least 0", lora_rank >= 0),
        ("lora_rank", lora_rank, "0 where blocks are frozen", not (lora_rank and freeze_blocks)),
        ("dtype", dtype, f"one of {', '.join(DTYPES)}", dtype in DTYPES),
        ("devices", devices, "empty on the JAX backend", not devices or kernels.BACKEND == "tensorflow"),
    )
    check_run(seed, warmup_ratio, weight_decay, save_steps, log_dir)


def _check_fit(path, config, tokenizer, arguments):
    if len(tokenizer.vocabulary) != config.vocab_size:
        raise InputError(f"{path}: vocab.txt must have as many pieces as the config's vocab_size "
                         f"({config.vocab_size}); got {len(tokenizer.vocabulary)}")
    for name, most in (("max_length", "max_position_embeddings"), ("freeze_blocks", "num_hidden_layers")):
        if arguments[name] > getattr(config, most):
            raise InputError(f"{name} must be at most the encoder's {most} ({getattr(config, most)}); "
                             f"got {arguments[name]}")


def _command(arguments):
    """The command line that does the same."""
    defaults = {name: parameter.default for name, parameter in inspect.signature(finetune).parameters.items()}
    flags = {name: ",".join(value) if isinstance(value, list) else value for name, value in arguments.items()
             if value != defaults[name]}
    return " ".join(["keras-bert finetune", *(shlex.quote(f"--{name}={value}") for name, value in flags.items())])
