"""`pretrain`: trains BERT and its pretraining heads on examples."""

import contextlib
import dataclasses
import functools
import hashlib
import os
from typing import Literal

import keras
import tensorflow as tf

from keras_bert import kernels
from keras_bert.arguments import Count, Path, Positive, PositiveOrZero, Seed, Share, as_list, check, check_rules, plain
from keras_bert.config import SIZES, BertConfig
from keras_bert.convert import load_pretrained, native, open_source
from keras_bert.convert.weights import Weights
from keras_bert.data.pretraining_input import PretrainingInput
from keras_bert.errors import InputError
from keras_bert.files import atomic_folder, check_free
from keras_bert.layers import BertLayer
from keras_bert.models import BertPretrainer, load_model
from keras_bert.text import BertTokenizer
from keras_bert.training.checkpoints import Checkpoints, weights_digest
from keras_bert.training.loop import check_run, enable_determinism
from keras_bert.training.objective import Objective
from keras_bert.training.optimizer import Phased, WarmupDecay, make_pretraining_optimizer
from keras_bert.training.pretraining_report import write_pretraining_report
from keras_bert.training.pretraining_run import Phase, run
from keras_bert.training.progress import PretrainingLog, cost_of_token, peak
from keras_bert.training.report import is_report_of

# Arguments that say how to run and where to save, but do not define the result: they may differ in a resumed run.
_NOT_PART_OF_RUN = ("output_dir", "overwrite", "save_steps", "log_dir", "skip_corrupt", "strategy", "model_parallel")


def pretrain(data: Path | list[Path], output_dir: Path, steps: Count | list[Count], *,
             valid: Path | list[Path] | None = None, init_from: Path | None = None,
             config: Path | dict | BertConfig = "base", vocab: Path | None = None,
             batch_size: Count | list[Count] = 256, learning_rate: Positive | list[Positive] = 1e-4,
             optimizer: Literal["adamw", "lamb"] = "adamw",
             warmup_ratio: Share = 0.01, power: Positive = 1.0, weight_decay: PositiveOrZero = 0.01,
             clip_norm: Positive | None = 1.0, accumulate: Count = 1,
             directionality: Literal["bidi", "ltr", "rtl"] = "bidi", next_sentence: bool | None = None,
             next_sentence_weight: Positive = 1.0, masking: Literal["static", "dynamic"] | None = None,
             dtype: Literal["float32", "mixed_bfloat16", "mixed_float16"] = "float32", recompute: bool = False,
             strategy: str = "one", model_parallel: Count = 1, seed: Seed = 0, eval_steps: Count | None = None,
             save_steps: Count = 1000, skip_corrupt: bool = False, log_dir: Path | None = None,
             deterministic: bool = False, overwrite: bool = False) -> BertPretrainer:
    """Pretrains BERT (Devlin et al., 2018, section 3.1 and appendix A.2) and writes it with its heads to a folder.

    There may be several phases, of 128 and then of 512 tokens for example: `data`, `valid`, `steps` and `batch_size`
    are each one value for all phases, or a list with one value per phase.

    If a run is stopped or killed, run the same command again with the same versions (see `Checkpoints`): it resumes
    from its last checkpoint. The final weights are bit-identical on one CPU, and on a GPU with `deterministic`. The
    checkpoint is kept in `output_dir`.checkpoints until training finishes. With several workers, run the same command
    on each; the first one writes, and all must see the folder. If one is lost, the others end too.

    Args:
        data: Folder of make-pretraining-data, or a glob of TFRecord files with the Model Garden's features; one per
            phase.
        output_dir: Folder to write: the model, its vocabulary, metrics.json, and a picture of the curve if matplotlib
            is installed.
        steps: Optimizer steps; per phase.
        valid: Held-out examples, as data; scored in whole batches.
        init_from: Weights to start from, in any format: a folder or a name. Heads that they lack are initialised.
        config: Without init_from: a size, as base or L4-H256, or a bert_config.json.
        vocab: vocab.txt, or a folder with one. Default: that of init_from, or of the first data.
        batch_size: Examples per step, over all devices; per phase.
        learning_rate: Peak of one schedule over all phases; several values for one schedule per phase.
        optimizer: Optimizer.
        warmup_ratio: Share of a schedule's steps in which the learning rate rises.
        power: Power of the decay that follows; 1 for a straight line.
        weight_decay: Decoupled weight decay; biases and layer norms do not decay.
        clip_norm: Maximum global gradient norm.
        accumulate: Number of parts that a device computes its share of a batch in, to save memory.
        directionality: ltr and rtl train a language model of the next or last token instead (ablations).
        next_sentence: Train the next-sentence head. Default: if the examples were made for it.
        next_sentence_weight: Factor of the next-sentence loss.
        masking: static uses the masks of the examples, dynamic masks other tokens at each step. Default: as the
            examples were made.
        dtype: mixed_bfloat16 and mixed_float16 compute in half precision; with mixed_float16 the loss is scaled.
        recompute: Recompute activations for the gradients, to save memory.
        strategy: one device; mirrored, over this machine's devices; multiworker, over the machines of TF_CONFIG; tpu or
            tpu:NAME. On the JAX backend one, which uses all devices.
        model_parallel: On the JAX backend: number of devices that share the weights; it divides the number of devices.
        seed: Seed of the weights, the order of the examples, the masks and the dropout.
        eval_steps: Steps between two evaluations. Default: a tenth of all steps.
        save_steps: Steps between two checkpoints.
        skip_corrupt: Skip broken records and count them.
        log_dir: Folder for TensorBoard logs.
        deterministic: Make training reproducible on a GPU too, slower; on a CPU it always is. This calls
            enable_determinism, which holds for the rest of the process.
        overwrite: Replace output_dir, and the checkpoint of another run.

    Returns:
        the `BertPretrainer`, in float32.

    Raises:
        InputError: names the file or the argument.
        Stopped: Ctrl-C or SIGTERM; all is saved.
    """
    arguments = {name: plain(value.to_dict() if isinstance(value, BertConfig) else value)
                 for name, value in locals().items()}
    _check_arguments(arguments)
    make_trainer = _trainer_kind(strategy, model_parallel)  # a multi-machine strategy must be made first
    if deterministic:
        enable_determinism()
    has_checkpoints = os.path.exists(f"{output_dir}.checkpoints")
    check_free(output_dir, overwrite or has_checkpoints)
    setup = PretrainingSetup(arguments)
    trainer = make_trainer(setup.make, Objective(next_sentence_weight), accumulate)
    parts = trainer.devices * accumulate
    sizes = [phase.batch_size for phase in setup.phases]
    check_rules(("batch_size", sizes, f"multiples of accumulate ({accumulate}) times the number of devices that share "
                 f"it ({trainer.devices})", all(size % parts == 0 for size in sizes)))
    description = {
        "arguments": {name: value for name, value in arguments.items() if name not in _NOT_PART_OF_RUN},
        "sha256": {"data": setup.sizes_digest(),
                   "init_from": weights_digest(setup.tokenizer, trainer.trainable_variables)}}
    checkpoints = Checkpoints(f"{output_dir}.checkpoints", description, overwrite, trainer.is_chief)
    if not (has_checkpoints and is_report_of(output_dir, description)):  # else killed after the model was written
        if trainer.is_chief:
            check_free(output_dir, overwrite)
        log = PretrainingLog(setup.steps, functools.partial(cost_of_token, setup.config), peak(), log_dir)
        with _naming_errors(setup.inputs.values(), strategy, checkpoints.folder):
            progress = run(trainer, setup.phases, checkpoints, log, save_steps=save_steps,
                           eval_steps=eval_steps or -(-setup.steps // 10))
        if trainer.is_chief:
            with atomic_folder(output_dir, overwrite) as new:
                native.write(Weights.of(trainer.model, setup.tokenizer), new)
                write_pretraining_report(new, setup, progress, log, description)
    if trainer.is_chief:
        checkpoints.remove()
    trainer.shared(0.0)  # the other workers wait for the first one here
    return load_model(output_dir)


def _trainer_kind(strategy, model_parallel):
    """Returns a function of `Setup.make`, an `Objective` and `accumulate` that makes the backend's trainer."""
    if kernels.BACKEND == "jax":
        from keras_bert.training.pretraining_jax import JaxTrainer

        return functools.partial(JaxTrainer, model_parallel=model_parallel)
    from keras_bert.training.pretraining_tensorflow import PretrainingTrainer, make_strategy

    return functools.partial(PretrainingTrainer, strategy=make_strategy(strategy))


@contextlib.contextmanager
def _naming_errors(inputs, strategy, folder):
    """Turns TensorFlow's error for a broken example or a lost worker into an InputError."""
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


def _check_arguments(arguments):
    check(pretrain, arguments)
    on_jax = kernels.BACKEND == "jax"
    check_rules(
        ("directionality", arguments["directionality"], "that of init_from's weights",
         not arguments["init_from"] or arguments["directionality"] == "bidi"),
        ("strategy", arguments["strategy"], "one on the JAX backend", arguments["strategy"] == "one" or not on_jax),
        ("model_parallel", arguments["model_parallel"], "1 unless on the JAX backend",
         arguments["model_parallel"] == 1 or on_jax),
    )
    check_run(arguments["log_dir"], arguments["deterministic"])


class PretrainingSetup:
    """The inputs that the arguments of `pretrain` name, opened and checked.

    Args:
        arguments: dict of the arguments of `pretrain`.

    Attributes:
        inputs: dict of paths to `PretrainingInput`s.
        phases: list of `Phase`.
        tokenizer: `BertTokenizer`.
        config: `BertConfig`.
        next_sentence: True if the model has a next-sentence head.

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
        """Returns the model and its optimizer, both built."""
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
        """Returns the SHA-256 of the names and sizes of all example files; hashing their contents would take long."""
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
        if not isinstance(rates, (list, tuple)):  # one schedule over all phases
            rates, steps = [rates], [sum(steps)]
        if len(rates) != len(steps):
            raise InputError(f"learning_rate must be one value, or one for each of {len(steps)} phases; got {rates}")
        return Phased([WarmupDecay(rate, int(count * self.arguments["warmup_ratio"]), count, self.arguments["power"])
                       for rate, count in zip(rates, steps)])


def _per_phase(arguments, names):
    """Returns a list with one dict of the named arguments per phase."""
    lists = {name: as_list(arguments[name]) for name in names}
    count = max(map(len, lists.values()))
    for name, values in lists.items():
        if len(values) not in (1, count):
            raise InputError(f"{name} must be one value, or one for each of {count} phases; got {len(values)}")
    return [{name: values[phase % len(values)] for name, values in lists.items()} for phase in range(count)]
