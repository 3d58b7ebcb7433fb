"""`pretrain`: trains BERT and its pretraining heads on examples."""

import contextlib
import dataclasses
import functools
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, ParamSpec

import keras
import tensorflow as tf

from keras_bert import kernels
from keras_bert.arguments import Count, Path, Positive, PositiveOrZero, Seed, Share, as_list, check_rules, plain
from keras_bert.config import SIZES, BertConfig
from keras_bert.errors import InputError
from keras_bert.files.atomic import atomic_folder, check_free
from keras_bert.layers import BertLayer
from keras_bert.models import BertPretrainer, load_model
from keras_bert.pretraining.input import PretrainingInput
from keras_bert.pretraining.loop import Phase, train_phases
from keras_bert.pretraining.objective import MakeModel, Objective, Trainer
from keras_bert.pretraining.report import write_pretraining_report
from keras_bert.text import BertTokenizer
from keras_bert.training import loop, report
from keras_bert.training.checkpoints import Checkpoints, weights_digest
from keras_bert.training.optimizer import PhasedSchedule, WarmupDecay, make_pretraining_optimizer
from keras_bert.training.progress import TrainingLog, cost_of_token, peak
from keras_bert.weights import load_pretrained, native, open_weights
from keras_bert.weights.source import Weights

# Arguments that control how to run and where to save, but not the result: they may differ in a resumed run.
_NOT_PART_OF_RUN = ("output", "overwrite", "save_steps", "log_dir", "skip_corrupt", "distribution_strategy",
                    "model_parallel")
P = ParamSpec("P")


def _with_plain_arguments(function: Callable[P, BertPretrainer]) -> Callable[P, BertPretrainer]:
    """Makes a function receive its arguments in the form that JSON has, see `plain`."""
    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> BertPretrainer:
        return function(*map(plain, args), **{name: plain(value) for name, value in kwargs.items()})

    return call


@_with_plain_arguments
def pretrain(train: Path | list[Path], *, output: Path, steps: Count | list[Count],
             valid: Path | list[Path] | None = None, model: Path | None = None,
             config: Path | dict | BertConfig = "base", vocab: Path | None = None,
             batch_size: Count | list[Count] = 256, learning_rate: Positive | list[Positive] = 1e-4,
             optimizer: Literal["adamw", "lamb"] = "adamw",
             warmup_ratio: Share = 0.01, power: Positive = 1.0, weight_decay: PositiveOrZero = 0.01,
             global_clipnorm: Positive | None = 1.0, gradient_accumulation_steps: Count = 1,
             directionality: Literal["bidi", "ltr", "rtl"] = "bidi", next_sentence: bool | None = None,
             next_sentence_weight: Positive = 1.0, masking: Literal["static", "dynamic"] | None = None,
             dtype: Literal["float32", "mixed_bfloat16", "mixed_float16"] = "float32",
             gradient_checkpointing: bool = False, distribution_strategy: str = "one", model_parallel: Count = 1,
             seed: Seed = 0, eval_steps: Count | None = None, save_steps: Count = 1000, skip_corrupt: bool = False,
             log_dir: Path | None = None, deterministic: bool = False, overwrite: bool = False) -> BertPretrainer:
    """Pretrains BERT (Devlin et al., 2018, section 3.1 and appendix A.2) and writes it with its heads to a folder.

    Training can have multiple phases, for example of 128 and then of 512 tokens: `train`, `valid`, `steps` and
    `batch_size` are each one value for all phases, or a list with one value per phase.

    If a run is stopped or killed, run the same command again with the same versions (see `Checkpoints`): it resumes
    from its last checkpoint. The final weights are bit-identical on one CPU, and on a GPU with `deterministic`. The
    checkpoint is kept in `output`.checkpoints until training finishes. With multiple workers, run the same command
    on each. The first one writes; all must be able to read the folder. If one is lost, the others end too.

    Args:
        train: Folder of make-pretraining-data, or a glob of TFRecord files with the Model Garden's features; one per
            phase.
        output: Folder to write: the model, its vocabulary, metrics.json, and a picture of the curve if matplotlib
            is installed.
        steps: Optimizer steps; per phase.
        valid: Held-out examples, in the form of train; scored in whole batches.
        model: Weights to start from, in any format: a folder or a name. Missing heads are randomly initialised.
        config: Without model: a size, as base or L4-H256, or a bert_config.json.
        vocab: vocab.txt, or a folder with one. Default: that of model, or of the first training examples.
        batch_size: Examples per step, over all devices; per phase.
        learning_rate: Peak of one schedule over all phases; multiple values for one schedule per phase.
        optimizer: Optimizer.
        warmup_ratio: Share of a schedule's steps in which the learning rate rises.
        power: Power of the decay that follows; 1 for a straight line.
        weight_decay: Decoupled weight decay; biases and layer norms do not decay.
        global_clipnorm: Maximum global gradient norm.
        gradient_accumulation_steps: Number of micro-batches per step and device, to save memory.
        directionality: ltr and rtl train a language model of the next or last token instead (ablations).
        next_sentence: Train the next-sentence head. Default: if the examples were made for it.
        next_sentence_weight: Factor of the next-sentence loss.
        masking: static uses the masks of the examples, dynamic draws new masks at each step. Default: as the
            examples were made.
        dtype: mixed_bfloat16 and mixed_float16 compute in half precision; with mixed_float16 the loss is scaled.
        gradient_checkpointing: Recompute activations for the gradients, to save memory.
        distribution_strategy: one device; mirrored, over this machine's devices; multiworker, over the machines of
            TF_CONFIG; tpu or tpu:NAME. On the JAX backend one, which uses all devices.
        model_parallel: On the JAX backend: number of devices that share the weights; it divides the number of devices.
        seed: Seed of the weights, the order of the examples, the masks and the dropout.
        eval_steps: Steps between two evaluations. Default: a tenth of all steps.
        save_steps: Steps between two checkpoints.
        skip_corrupt: Skip broken records and count them.
        log_dir: Folder for TensorBoard logs.
        deterministic: Make training reproducible on a GPU too, slower; on a CPU it always is. This calls
            enable_determinism, which holds for the rest of the process.
        overwrite: Replace output, and the checkpoint of another run.

    Returns:
        the `BertPretrainer`, in float32.

    Raises:
        InputError: names the file or the argument.
        Stopped: Ctrl-C or SIGTERM; the state is saved.
    """
    config = config.to_dict() if isinstance(config, BertConfig) else config
    arguments = dict(locals())
    on_jax = kernels.BACKEND == "jax"
    loop.check_run(
        pretrain, arguments,
        ("config", config, "an existing bert_config.json or a size: tiny, mini, small, medium, base, large, or LN-HM "
         "with N of 2, 4, 6, 8, 10, 12 and M of 128, 256, 512, 768",
         not isinstance(config, str | os.PathLike) or config in SIZES or os.path.exists(config)),
        ("directionality", directionality, "that of the model's weights", not model or directionality == "bidi"),
        ("distribution_strategy", distribution_strategy, "one on the JAX backend",
         distribution_strategy == "one" or not on_jax),
        ("model_parallel", model_parallel, "1 unless on the JAX backend", model_parallel == 1 or on_jax))
    make_trainer = _trainer_kind(distribution_strategy, model_parallel)  # before any operation of TensorFlow
    if deterministic:
        loop.enable_determinism()
    output = os.path.normpath(output)  # a slash at the end would put the checkpoints into the folder
    has_checkpoints = os.path.exists(f"{output}.checkpoints")
    check_free(output, overwrite or has_checkpoints)
    given = _per_phase(train=train, valid=valid, steps=steps, batch_size=batch_size)
    setup = PretrainingSetup(given, skip_corrupt, model, vocab, config, directionality, next_sentence)
    phases = [setup.phase(**phase, masking=masking, seed=seed) for phase in given]
    schedule = _schedule(learning_rate, [phase.steps for phase in phases], warmup_ratio, power)
    total = sum(phase.steps for phase in phases)

    def make() -> tuple[BertPretrainer, keras.optimizers.Optimizer]:
        keras.utils.set_random_seed(seed)
        new = setup.make_model(dtype=dtype, gradient_checkpointing=gradient_checkpointing)
        return new, make_pretraining_optimizer(new, optimizer, schedule, weight_decay, global_clipnorm)

    trainer = make_trainer(make, Objective(next_sentence_weight), gradient_accumulation_steps)
    sizes = [phase.batch_size for phase in phases]
    parts = trainer.devices * gradient_accumulation_steps
    check_rules(("batch_size", sizes, f"multiples of gradient_accumulation_steps ({gradient_accumulation_steps}) times "
                 f"the number of devices that share it ({trainer.devices})", all(size % parts == 0 for size in sizes)))
    run = {"arguments": {name: value for name, value in arguments.items() if name not in _NOT_PART_OF_RUN},
           "sha256": {"train": setup.examples_digest(),
                      "model": weights_digest(setup.tokenizer, trainer.trainable_variables)}}
    checkpoints = Checkpoints(f"{output}.checkpoints", run, overwrite, trainer.is_chief)
    if not (has_checkpoints and report.is_report_of(output, run)):  # else killed after the model was written
        if trainer.is_chief:
            check_free(output, overwrite)
        log = TrainingLog(total, "tokens", log_dir, peak())
        with _naming_errors(setup.inputs.values(), distribution_strategy, checkpoints.folder):
            progress = train_phases(trainer, phases, checkpoints, log, save_steps=save_steps,
                                         eval_steps=eval_steps or -(-total // 10))
        if trainer.is_chief:
            with atomic_folder(output, overwrite) as new:
                native.write(Weights.of(trainer.model, setup.tokenizer), new)
                write_pretraining_report(new, trainer.model, phases[-1], progress, {
                    **run, "tokens_per_second": round(log.rate),
                    "corrupt_records": sum(examples.records.corrupt for examples in setup.inputs.values())})
    if trainer.is_chief:
        checkpoints.remove()
    trainer.mean_over_processes(0.0)  # the other workers wait for the chief here
    return load_model(output)


def _trainer_kind(strategy: str, model_parallel: int) -> Callable[[MakeModel, Objective, int], Trainer]:
    if kernels.BACKEND == "jax":
        from keras_bert.pretraining.trainer_jax import JaxTrainer

        return functools.partial(JaxTrainer, model_parallel=model_parallel)
    from keras_bert.pretraining.trainer_tensorflow import PretrainingTrainer, make_strategy

    return functools.partial(PretrainingTrainer, strategy=make_strategy(strategy))


@contextlib.contextmanager
def _naming_errors(inputs: Iterable[PretrainingInput], strategy: str, folder: str) -> Iterator[None]:
    """Turns TensorFlow's error for a broken example or a lost worker into an InputError."""
    try:
        with contextlib.ExitStack() as stack:
            for examples in inputs:
                stack.enter_context(examples.records.naming_errors())
            yield
    except tf.errors.InvalidArgumentError as error:
        reason = [line for line in error.message.splitlines() if line.strip() and "{{node" not in line][-1]
        raise InputError(f"train: an example does not match the other examples or the vocabulary: {reason}") from None
    except tf.errors.OpError as error:
        if strategy != "multiworker":
            raise
        raise InputError(f"another worker was lost ({type(error).__name__}); run the same command on all workers again "
                         f"to resume from the checkpoint in {folder}") from None


class PretrainingSetup:
    """The files that the arguments of `pretrain` name, opened and checked. `phases` have a `train` and a `valid`."""

    def __init__(self, phases: list[dict[str, Any]], skip_corrupt: bool, model: Path | None, vocab: Path | None,
                 config: Path | dict, directionality: str, next_sentence: bool | None) -> None:
        self.inputs = {path: PretrainingInput.open(path, skip_corrupt)
                       for phase in phases for path in (phase["train"], phase["valid"]) if path}
        self._source = open_weights(model) if model else None
        self.tokenizer = self._find_tokenizer(vocab, self.inputs[phases[0]["train"]])
        self.config = self._source.config if self._source else self._make_config(config, directionality)
        if next_sentence is None:
            next_sentence = all(examples.settings["next_sentence"] for examples in self.inputs.values())
        self.next_sentence = next_sentence
        self._check_inputs()

    def make_model(self, **modes: Any) -> BertPretrainer:
        """Returns a new model; `modes` are arguments of `BertLayer`."""
        if self._source:
            return load_pretrained(self._source, BertPretrainer, next_sentence=self.next_sentence, **modes)
        return BertPretrainer(BertLayer(self.config, **modes), self.next_sentence)

    def phase(self, train: Path, valid: Path | None, steps: int, batch_size: int,
              masking: Literal["static", "dynamic"] | None, seed: int) -> Phase:
        examples, held_out = self.inputs[train], self.inputs[valid] if valid else None
        batches = functools.partial(PretrainingInput.batches, tokenizer=self.tokenizer, batch_size=batch_size,
                                    directionality=self.config.directionality, masking=masking)
        tokens = batch_size * examples.records.seq_length
        return Phase(
            steps, batch_size, tokens, tokens * cost_of_token(self.config, examples.records.seq_length),
            batches(examples, seed=seed), batches(held_out, seed=0, once=True) if held_out else None,
            -(-len(held_out.records) // batch_size) if held_out else 0)

    def examples_digest(self) -> str:
        """Returns the SHA-256 of the names of all example files and of the checksums of their records."""
        files = [(examples.records.paths, examples.records.digest) for examples in self.inputs.values()]
        return hashlib.sha256(repr(files).encode()).hexdigest()

    def _find_tokenizer(self, vocab: Path | None, first: PretrainingInput) -> BertTokenizer:
        if vocab:
            return BertTokenizer.from_folder(vocab) if os.path.isdir(vocab) else BertTokenizer(vocab)
        tokenizer = self._source.needed_tokenizer() if self._source and self._source.files else first.tokenizer
        if tokenizer is None:
            raise InputError(f"{first.path}: these examples come without a vocabulary; pass vocab=…, the vocab.txt "
                             "that they were made with")
        return tokenizer

    def _make_config(self, config: Path | dict, directionality: str) -> BertConfig:
        if isinstance(config, dict):
            made = BertConfig.from_dict(config)
        elif config in SIZES:
            made = BertConfig.from_size(config, vocab_size=len(self.tokenizer.vocabulary))
        else:
            made = BertConfig.from_json(config)
        return dataclasses.replace(made, directionality=directionality)

    def _check_inputs(self) -> None:
        tokens, limit = len(self.tokenizer.vocabulary), self.config.max_position_embeddings
        if tokens != self.config.vocab_size:
            raise InputError(f"the vocabulary must have as many tokens as the config's vocab_size "
                             f"({self.config.vocab_size}); it has {tokens}")
        for path, examples in self.inputs.items():
            if examples.records.seq_length > limit:
                raise InputError(f"{path}: examples must have at most the encoder's max_position_embeddings ({limit}) "
                                 f"tokens; they have {examples.records.seq_length}")
            if self.next_sentence and not examples.records.has_labels:
                raise InputError(f"{path}: the examples must have next_sentence_labels; otherwise turn next_sentence "
                                 "off")


def _per_phase(**arguments: Any) -> list[dict[str, Any]]:
    """Returns one dict of the arguments per phase."""
    lists = {name: as_list(value) for name, value in arguments.items()}
    count = max(map(len, lists.values()))
    for name, values in lists.items():
        if len(values) not in (1, count):
            raise InputError(f"{name} must be one value, or one for each of {count} phases; got {len(values)}")
    return [{name: values[phase % len(values)] for name, values in lists.items()} for phase in range(count)]


def _schedule(rates: float | list[float], steps: list[int], warmup_ratio: float, power: float) -> PhasedSchedule:
    """Returns one schedule over all phases, or one for each phase if there are multiple `rates`."""
    if not isinstance(rates, list):
        rates, steps = [rates], [sum(steps)]
    if len(rates) != len(steps):
        raise InputError(f"learning_rate must be one value, or one for each of {len(steps)} phases; got {rates}")
    return PhasedSchedule([WarmupDecay(rate, int(count * warmup_ratio), count, power)
                           for rate, count in zip(rates, steps)])
