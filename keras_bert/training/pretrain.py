"""`pretrain`: examples to a BERT with its heads."""

import contextlib
import dataclasses
import functools
import hashlib
import os

import keras
import tensorflow as tf

from keras_bert import kernels
from keras_bert.config import DIRECTIONALITIES, SIZES, BertConfig
from keras_bert.convert import load_pretrained, native, open_source
from keras_bert.convert.weights import Weights
from keras_bert.data.pretraining_input import PretrainingInput
from keras_bert.errors import InputError
from keras_bert.files import check_free, written_beside
from keras_bert.layers import BertLayer
from keras_bert.models import BertPretrainer, load_model
from keras_bert.text import BertTokenizer
from keras_bert.training.arguments import as_list, check_rules, check_run
from keras_bert.training.checkpoints import Checkpoints, weights_digest
from keras_bert.training.loop import enable_determinism
from keras_bert.training.objective import Objective
from keras_bert.training.optimizer import OPTIMIZERS, Phased, WarmupDecay, make_pretraining_optimizer
from keras_bert.training.pretraining_report import write_pretraining_report
from keras_bert.training.pretraining_run import Phase, run
from keras_bert.training.progress import PretrainingLog, cost_of_token, peak
from keras_bert.training.report import describes

DTYPES = ("float32", "mixed_bfloat16", "mixed_float16")
# Arguments that say where and how to keep the work, not what comes out of it.
_HOUSEKEEPING = ("output_dir", "overwrite", "save_steps", "log_dir", "skip_corrupt", "strategy", "model_parallel")


def pretrain(data, output_dir, steps, *, valid=None, init_from=None, config="base", vocab=None, batch_size=256,
             learning_rate=1e-4, optimizer="adamw", warmup_ratio=0.01, power=1.0, weight_decay=0.01, clip_norm=1.0,
             accumulate=1, directionality="bidi", next_sentence=None, next_sentence_weight=1.0, masking=None,
             dtype="float32", recompute=False, strategy="one", model_parallel=1, seed=0, eval_steps=None,
             save_steps=1000, skip_corrupt=False, log_dir=None, deterministic=False, overwrite=False):
    """Pretrains BERT (Devlin et al., 2018, section 3.1 and appendix A.2) and writes it with its heads to a folder.

    There may be several phases, of 128 and then of 512 tokens say: an argument marked with * is one value for all, or a
    list of one a phase.

    A run that was stopped or killed resumes from its last checkpoint when it is called again with the same arguments
    and versions (see `Checkpoints`). On one CPU it ends with the same weights, bit for bit; on a GPU with
    `deterministic`. The checkpoint is kept in `output_dir`.checkpoints until the model is written. With several workers
    each runs the same command; the first one writes, and all must see the folder. If one is lost, the others end too.

    Args:
        data: *a folder of `make_pretraining_data`, or a glob of TFRecord files with the Model Garden's features.
        output_dir: folder to write: the model, its vocabulary, `metrics.json`, and a picture of the curve where
            matplotlib is installed.
        steps: *optimizer steps.
        valid: *held-out examples, as `data`; scored now and then in whole batches.
        init_from: name or folder of what to go on from, in any format, see `load_pretrained`; a head that it does not
            hold is new.
        config: what to begin anew without `init_from`: one of `SIZES`, a `bert_config.json` or a `BertConfig`.
        vocab: `vocab.txt` or a folder with it; that of `init_from` or of the first `data` where None.
        batch_size: *examples a step, of all devices together.
        learning_rate: the peak of one schedule over all phases; or a list, for a schedule a phase.
        optimizer: `adamw` or `lamb`.
        warmup_ratio: share of a schedule's steps in which the learning rate rises, in [0, 1).
        power: of the decay that follows, 1 for a straight line.
        weight_decay: decoupled weight decay, of neither biases nor norms.
        clip_norm: most of the gradients' global norm; None for any.
        accumulate: parts that a device's share of a batch is computed in, one after the other, to save memory.
        directionality: `bidi`; `ltr` and `rtl` train a language model of the next or last token instead (ablations).
        next_sentence: whether to train that head; None as the examples were made.
        next_sentence_weight: factor of its loss beside that of masked tokens.
        masking: `dynamic` masks anew at each step, `static` takes the masks of the examples; None as they were made.
        dtype: float32, mixed_bfloat16, or mixed_float16 with its loss scaled.
        recompute: keep less of the forward pass, and compute it again for the gradients.
        strategy: see `make_strategy`; `one` on the JAX backend, which shares batches out over all its devices.
        model_parallel: on the JAX backend, devices that share out the weights; a divisor of their number.
        seed: of the weights, the order, the masks and the dropout.
        eval_steps: steps between two evaluations; a tenth of all where None.
        save_steps: steps between two checkpoints.
        skip_corrupt: pass over broken records and count them instead of ending.
        log_dir: folder for TensorBoard's logs.
        deterministic: whether to give the same weights each time on a GPU too, and slower; this calls
            `enable_determinism`, which holds for the rest of the process.
        overwrite: whether to replace `output_dir`, and the checkpoint of another run.

    Returns:
        the `BertPretrainer`, in float32.

    Raises:
        InputError: names the file or the argument.
        Stopped: Ctrl-C or SIGTERM; all is saved.
    """
    arguments = {name: _plain(value) for name, value in locals().items()}
    _check_arguments(**arguments)
    make_trainer = _trainer_kind(strategy, model_parallel)  # a strategy of several machines must come first
    if deterministic:
        enable_determinism()
    begun = os.path.exists(f"{output_dir}.checkpoints")
    check_free(output_dir, overwrite or begun)
    setup = Setup(arguments)
    trainer = make_trainer(setup.make, Objective(next_sentence_weight), accumulate)
    parts = trainer.devices * accumulate
    sizes = [phase.batch_size for phase in setup.phases]
    check_rules(("batch_size", sizes, f"multiples of accumulate ({accumulate}) times the number of devices that share "
                 f"it ({trainer.devices})", all(size % parts == 0 for size in sizes)))
    description = {
        "arguments": {name: value for name, value in arguments.items() if name not in _HOUSEKEEPING},
        "sha256": {"data": setup.sizes_digest(),
                   "init_from": weights_digest(setup.tokenizer, trainer.trainable_variables)}}
    checkpoints = Checkpoints(f"{output_dir}.checkpoints", description, overwrite, trainer.is_chief)
    if not (begun and describes(output_dir, description)):  # else killed after the model was written
        if trainer.is_chief:
            check_free(output_dir, overwrite)
        log = PretrainingLog(setup.steps, functools.partial(cost_of_token, setup.config), peak(), log_dir)
        with _naming_errors(setup.inputs.values(), strategy, checkpoints.folder):
            progress = run(trainer, setup.phases, checkpoints, log, save_steps=save_steps,
                           eval_steps=eval_steps or -(-setup.steps // 10))
        if trainer.is_chief:
            with written_beside(output_dir, overwrite) as new:
                native.write(Weights.of(trainer.model, setup.tokenizer), new)
                write_pretraining_report(new, setup, progress, log, description)
    if trainer.is_chief:
        checkpoints.remove()
    trainer.shared(0.0)  # until then the others wait
    return load_model(output_dir)


def _plain(value):
    """An argument as JSON holds it."""
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    if isinstance(value, BertConfig):
        return value.to_dict()
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _trainer_kind(strategy, model_parallel):
    """Function of `Setup.make`, an `Objective` and `accumulate` that returns the trainer of the backend."""
    if kernels.BACKEND == "jax":
        from keras_bert.training.pretraining_jax import JaxTrainer

        return functools.partial(JaxTrainer, model_parallel=model_parallel)
    from keras_bert.training.pretraining_tensorflow import PretrainingTrainer, make_strategy

    return functools.partial(PretrainingTrainer, strategy=make_strategy(strategy))


@contextlib.contextmanager
def _naming_errors(inputs, strategy, folder):
    """Turns what TensorFlow raises for a broken example or a lost worker into an InputError."""
    try:
        with contextlib.ExitStack() as stack:
            for given in inputs:
                stack.enter_context(given.records.naming_errors())
            yield
    except tf.errors.InvalidArgumentError as error:
        reason = [line for line in error.message.splitlines() if line.strip() and "{{node" not in line][-1]
        raise InputError(f"data: an example fits neither the others nor the vocabulary: {reason}") from None
    except tf.errors.OpError as error:
        if strategy != "multiworker":
            raise
        raise InputError(f"another worker was lost ({type(error).__name__}); start all of them again by the "
                         f"same command, and they go on from the checkpoint in {folder}") from None


def _check_arguments(steps, batch_size, learning_rate, optimizer, warmup_ratio, power, weight_decay, clip_norm,
                     accumulate, directionality, next_sentence_weight, masking, dtype, strategy, model_parallel, seed,
                     save_steps, eval_steps, log_dir, init_from, deterministic, **_):
    on_jax = kernels.BACKEND == "jax"
    steps, batch_size, learning_rate = map(as_list, (steps, batch_size, learning_rate))
    check_rules(
        ("steps", steps, "at least 1", min(steps, default=0) >= 1),
        ("accumulate", accumulate, "at least 1", accumulate >= 1),
        ("batch_size", batch_size, "at least 1", min(batch_size, default=0) >= 1),
        ("learning_rate", learning_rate, "positive", min(learning_rate, default=0) > 0),
        ("optimizer", optimizer, f"one of {', '.join(OPTIMIZERS)}", optimizer in OPTIMIZERS),
        ("power", power, "positive", power > 0),
        ("clip_norm", clip_norm, "positive", clip_norm is None or clip_norm > 0),
        ("directionality", directionality, f"one of {', '.join(DIRECTIONALITIES)}", directionality in DIRECTIONALITIES),
        ("directionality", directionality, "that of init_from's weights", not init_from or directionality == "bidi"),
        ("next_sentence_weight", next_sentence_weight, "positive", next_sentence_weight > 0),
        ("masking", masking, "static or dynamic", masking in (None, "static", "dynamic")),
        ("dtype", dtype, f"one of {', '.join(DTYPES)}", dtype in DTYPES),
        ("strategy", strategy, "one on the JAX backend", strategy == "one" or not on_jax),
        ("model_parallel", model_parallel, "at least 1", model_parallel >= 1),
        ("model_parallel", model_parallel, "1 but on the JAX backend", model_parallel == 1 or on_jax),
        ("eval_steps", eval_steps, "at least 1", eval_steps is None or eval_steps >= 1),
    )
    check_run(seed, warmup_ratio, weight_decay, save_steps, log_dir, deterministic)


class Setup:
    """Opens and checks what the arguments of `pretrain` name.

    Args:
        arguments: dict of them.

    Attributes:
        inputs: dict of paths to `PretrainingInput`s.
        phases: list of `Phase`.
        tokenizer: `BertTokenizer`.
        config: `BertConfig`.
        next_sentence: whether there is such a head.

    Raises:
        InputError: names the file or the argument.
    """

    def __init__(self, arguments):
        self.arguments = arguments
        phases = _per_phase(arguments, ("data", "valid", "steps", "batch_size"))
        self.inputs = {path: PretrainingInput.open(path, arguments["skip_corrupt"])
                       for phase in phases for path in (phase["data"], phase["valid"]) if path}
        self._source = open_source(arguments["init_from"]) if arguments["init_from"] else None
        self.tokenizer = self._find_tokenizer(self.inputs[phases[0]["data"]])
        self.config = self._source.config if self._source else self._make_config()
        self.next_sentence = arguments["next_sentence"]
        if self.next_sentence is None:
            self.next_sentence = all(given.settings["next_sentence"] for given in self.inputs.values())
        self._check()
        self.phases = [self._phase(phase) for phase in phases]
        self.steps = sum(phase.steps for phase in self.phases)

    def make(self):
        """The model and its optimizer, built."""
        keras.utils.set_random_seed(self.arguments["seed"])
        modes = {name: self.arguments[name] for name in ("dtype", "recompute")}
        if self._source:
            model = load_pretrained(self._source, BertPretrainer, next_sentence=self.next_sentence, **modes)
        else:
            model = BertPretrainer(BertLayer(self.config, **modes), self.next_sentence)
        return model, make_pretraining_optimizer(
            model, self.arguments["optimizer"], self._schedule(), self.arguments["weight_decay"],
            self.arguments["clip_norm"])

    def sizes_digest(self):
        """The SHA-256 of names and sizes of all files of examples; their contents would take long."""
        files = [path for given in self.inputs.values() for path in given.records.paths]
        return hashlib.sha256(repr([(path, os.path.getsize(path)) for path in files]).encode()).hexdigest()

    def _phase(self, phase):
        read = functools.partial(self._batches, batch_size=phase["batch_size"])
        data, valid = self.inputs[phase["data"]], phase["valid"] and self.inputs[phase["valid"]]
        return Phase(phase["steps"], phase["batch_size"], data.records.seq_length,
                     read(data, seed=self.arguments["seed"]), valid and read(valid, seed=0),
                     max(1, len(valid.records) // phase["batch_size"]) if valid else 0)

    def _batches(self, given, batch_size, seed):
        return given.batches(self.tokenizer, batch_size, seed, self.config.directionality, self.arguments["masking"])

    def _find_tokenizer(self, first):
        vocab = self.arguments["vocab"]
        if vocab:
            return BertTokenizer.from_folder(vocab) if os.path.isdir(vocab) else BertTokenizer(vocab)
        tokenizer = self._source and self._source.tokenizer or first.tokenizer
        if tokenizer is None:
            raise InputError(f"{first.path}: files without a folder need vocab, the vocabulary they were made with")
        return tokenizer

    def _make_config(self):
        config, pieces = self.arguments["config"], len(self.tokenizer.vocabulary)
        if isinstance(config, dict):
            config = BertConfig.from_dict(config)
        elif config in SIZES:
            config = BertConfig.from_size(config, vocab_size=pieces)
        else:
            config = BertConfig.from_json(config)
        return dataclasses.replace(config, directionality=self.arguments["directionality"])

    def _check(self):
        pieces, most = len(self.tokenizer.vocabulary), self.config.max_position_embeddings
        if pieces != self.config.vocab_size:
            raise InputError(f"the vocabulary must have as many pieces as the config's vocab_size "
                             f"({self.config.vocab_size}); got {pieces}")
        for path, given in self.inputs.items():
            if given.records.seq_length > most:
                raise InputError(f"{path}: examples must have at most the encoder's max_position_embeddings ({most}) "
                                 f"tokens; they have {given.records.seq_length}")
            if self.next_sentence and not given.records.has_labels:
                raise InputError(f"{path}: must hold next_sentence_labels, or next_sentence be off")

    def _schedule(self):
        rates, steps = self.arguments["learning_rate"], [phase.steps for phase in self.phases]
        if not isinstance(rates, (list, tuple)):  # one schedule over all
            rates, steps = [rates], [sum(steps)]
        if len(rates) != len(steps):
            raise InputError(f"learning_rate must be one value, or one for each of {len(steps)} phases; got {rates}")
        return Phased([WarmupDecay(rate, int(count * self.arguments["warmup_ratio"]), count, self.arguments["power"])
                       for rate, count in zip(rates, steps)])


def _per_phase(arguments, names):
    """A dict of the named arguments for each phase."""
    lists = {name: as_list(arguments[name]) for name in names}
    count = max(map(len, lists.values()))
    for name, values in lists.items():
        if len(values) not in (1, count):
            raise InputError(f"{name} must be one value, or one for each of {count} phases; got {len(values)}")
    return [{name: values[phase % len(values)] for name, values in lists.items()} for phase in range(count)]
