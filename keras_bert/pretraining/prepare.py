"""What `pretrain` needs before its first step: the opened examples, the phases, and the trainer with the model."""

import dataclasses
import functools
import hashlib
import os
from collections.abc import Callable
from typing import Any, ClassVar, Literal, NamedTuple, Self

import keras

from keras_bert import kernels
from keras_bert.arguments import Requirement, as_list, check_rules
from keras_bert.config import SIZES, BertConfig
from keras_bert.errors import InputError, Option
from keras_bert.layers import BertLayer
from keras_bert.models import BertPretrainer
from keras_bert.presets import find_vocabulary
from keras_bert.pretraining.input import PretrainingInput
from keras_bert.pretraining.loop import Phase
from keras_bert.pretraining.objective import MakeModel, Objective, Trainer
from keras_bert.text import BertTokenizer, Tokenizer, load_tokenizer
from keras_bert.training.checkpoints import model_settings, weights_digest
from keras_bert.training.optimizer import PhasedSchedule, WarmupDecay, make_pretraining_optimizer
from keras_bert.training.run import RunOptions
from keras_bert.weights import load_pretrained, open_weights
from keras_bert.weights.format import Source

MakeTrainer = Callable[[MakeModel, Objective, int], Trainer]


class PhaseOptions(NamedTuple):
    """The arguments of one phase."""

    train: str
    valid: str | None
    steps: int
    batch_size: int


@dataclasses.dataclass(frozen=True)
class Options(RunOptions):
    """The arguments of `pretrain`, which documents them."""

    not_part_of_run: ClassVar = (*RunOptions.not_part_of_run, "skip_corrupt", "distribution_strategy", "model_parallel")

    train: str | list[str]
    output: str
    steps: int | list[int]
    valid: str | list[str] | None
    model: str | None
    config: str | dict[str, Any] | None
    vocab: str | None
    batch_size: int | list[int]
    learning_rate: float | list[float]
    optimizer: Literal["adamw", "lamb"]
    warmup_ratio: float
    power: float
    weight_decay: float
    global_clipnorm: float | None
    gradient_accumulation_steps: int
    directionality: Literal["bidi", "ltr", "rtl"]
    next_sentence: bool | None
    next_sentence_weight: float
    masking: Literal["static", "dynamic"] | None
    dtype: Literal["float32", "mixed_bfloat16", "mixed_float16"]
    gradient_checkpointing: bool
    distribution_strategy: str
    model_parallel: int
    seed: int
    eval_steps: int | None
    save_steps: int
    skip_corrupt: bool
    log_dir: str | None
    deterministic: bool
    overwrite: bool

    @classmethod
    def checked(cls, function: Callable, arguments: dict[str, Any]) -> Self:
        config = arguments["config"]
        if config is None and arguments["model"] is None:
            config = "base"
        return super().checked(function, arguments | {
            "config": config.to_dict() if isinstance(config, BertConfig) else config})

    def rules(self) -> list[Requirement]:
        on_jax, config = kernels.BACKEND == "jax", self.config
        return [
            ("config", config, "an existing bert_config.json or a size: tiny, mini, small, medium, base, large, "
             "or LN-HM with N of 2, 4, 6, 8, 10, 12 and M of 128, 256, 512, 768",
             config is None or isinstance(config, dict) or config in SIZES or os.path.exists(config)),
            ("config", str(config)[:60], ["left out with ", Option("model"), ", whose weights have a config"],
             not self.model or config is None),
            ("directionality", self.directionality, ["left out with ", Option("model"), ", whose weights decide it"],
             not self.model or self.directionality == "bidi"),
            ("distribution_strategy", self.distribution_strategy, "one on the JAX backend",
             self.distribution_strategy == "one" or not on_jax),
            ("model_parallel", self.model_parallel, "1 unless on the JAX backend", self.model_parallel == 1 or on_jax)]

    def phases(self) -> list[PhaseOptions]:
        lists = {name: as_list(getattr(self, name)) for name in PhaseOptions._fields}
        count = max(map(len, lists.values()))
        check_rules(*((name, len(values), f"one value, or one for each of {count} phases", len(values) in (1, count))
                      for name, values in lists.items()))
        return [PhaseOptions(*(values[phase % len(values)] for values in lists.values())) for phase in range(count)]


class Prepared(NamedTuple):
    tokenizer: Tokenizer
    inputs: list[PretrainingInput]
    phases: list[Phase]
    trainer: Trainer
    run: dict[str, dict]  # what decides the result, see `Checkpoints`


def trainer_kind(options: Options) -> MakeTrainer:
    """Returns what makes the backend's trainer. This must come before any operation of TensorFlow."""
    if kernels.BACKEND == "jax":
        from keras_bert.pretraining.trainer_jax import JaxTrainer

        return functools.partial(JaxTrainer, model_parallel=options.model_parallel)
    from keras_bert.pretraining.trainer_tensorflow import PretrainingTrainer, make_strategy

    return functools.partial(PretrainingTrainer, strategy=make_strategy(options.distribution_strategy))


def prepare(options: Options, make_trainer: MakeTrainer) -> Prepared:
    given = options.phases()
    inputs = {path: PretrainingInput.open(path, options.skip_corrupt)
              for phase in given for path in (phase.train, phase.valid) if path}
    source = open_weights(options.model) if options.model else None
    tokenizer = _find_tokenizer(options.vocab, source, inputs[given[0].train])
    config = source.config if source else _make_config(options, tokenizer)
    next_sentence = options.next_sentence
    if next_sentence is None:
        next_sentence = any(examples.settings["next_sentence"] for examples in inputs.values())
    _check_inputs(inputs, tokenizer, config, next_sentence)
    phases = [_make_phase(phase, inputs, tokenizer, config, options) for phase in given]
    schedule = _schedule(options, [phase.steps for phase in phases])
    modes: dict[str, Any] = {"dtype": options.dtype, "gradient_checkpointing": options.gradient_checkpointing}

    def make() -> tuple[BertPretrainer, keras.optimizers.Optimizer]:
        keras.utils.set_random_seed(options.seed)
        model = (load_pretrained(source, BertPretrainer, next_sentence=next_sentence, **modes) if source
                 else BertPretrainer(BertLayer(config, **modes), next_sentence))
        return model, make_pretraining_optimizer(model, options.optimizer, schedule, options.weight_decay,
                                                 options.global_clipnorm)

    trainer = make_trainer(make, Objective(options.next_sentence_weight), options.gradient_accumulation_steps)
    _check_batches(options, [phase.batch_size for phase in phases], trainer.devices)
    files = [(examples.records.paths, examples.records.digest) for examples in inputs.values()]
    run = {"arguments": options.of_run(),
           "sha256": {"train": hashlib.sha256(repr(files).encode()).hexdigest(),
                      "model": weights_digest(tokenizer, trainer.trainable_variables)},
           "settings": model_settings(config, tokenizer, examples={
               "settings": [examples.settings for examples in inputs.values()], "next_sentence": next_sentence})}
    return Prepared(tokenizer, list(inputs.values()), phases, trainer, run)


def _find_tokenizer(vocab: str | None, source: Source | None, first: PretrainingInput) -> Tokenizer:
    if vocab:
        vocab = find_vocabulary(vocab)
        return load_tokenizer(vocab) if os.path.isdir(vocab) else BertTokenizer(vocab)
    tokenizer = source.needed_tokenizer() if source and source.files else first.tokenizer
    if tokenizer is None:
        raise InputError(f"{first.path}: these examples come without a vocabulary; pass ", Option("vocab=…"),
                         ", the vocab.txt that they were made with")
    return tokenizer


def _make_config(options: Options, tokenizer: Tokenizer) -> BertConfig:
    assert options.config is not None  # `Options.checked` has set it
    if isinstance(options.config, dict):
        config = BertConfig.from_dict(options.config)
    elif options.config in SIZES:
        config = BertConfig.from_size(options.config, vocab_size=len(tokenizer.vocabulary))
    else:
        config = BertConfig.from_json(options.config)
    return dataclasses.replace(config, directionality=options.directionality)


def _check_inputs(inputs: dict[str, PretrainingInput], tokenizer: Tokenizer, config: BertConfig,
                  next_sentence: bool) -> None:
    tokens, limit = len(tokenizer.vocabulary), config.max_position_embeddings
    if tokens != config.vocab_size:
        raise InputError(f"the vocabulary must have as many tokens as the config's vocab_size ({config.vocab_size}); "
                         f"it has {tokens}")
    for path, examples in inputs.items():
        if examples.records.seq_length > limit:
            raise InputError(f"{path}: examples must have at most the encoder's max_position_embeddings ({limit}) "
                             f"tokens; they have {examples.records.seq_length}")
        if examples.settings["next_sentence"] and config.type_vocab_size == 1:
            raise InputError(f"{path}: examples of pairs need an encoder with a type_vocab_size of at least 2; got 1; "
                             "make the examples with ", Option("next_sentence=False"))
        if next_sentence and not examples.settings["next_sentence"]:
            raise InputError(f"{path}: the examples must be pairs with next_sentence_labels, made with ",
                             Option("next_sentence=True"), "; otherwise train with ", Option("next_sentence=False"))


def _make_phase(phase: PhaseOptions, inputs: dict[str, PretrainingInput], tokenizer: Tokenizer,
                config: BertConfig, options: Options) -> Phase:
    examples, held_out = inputs[phase.train], inputs[phase.valid] if phase.valid else None
    batches = functools.partial(PretrainingInput.batches, tokenizer=tokenizer, batch_size=phase.batch_size,
                                directionality=config.directionality, masking=options.masking)
    tokens = phase.batch_size * examples.records.seq_length
    return Phase(
        phase.steps, phase.batch_size, tokens, tokens * cost_of_token(config, examples.records.seq_length),
        batches(examples, seed=options.seed), batches(held_out, seed=0, once=True) if held_out else None,
        -(-len(held_out.records) // phase.batch_size) if held_out else 0)


def _schedule(options: Options, steps: list[int]) -> PhasedSchedule:
    """Returns one schedule over all phases, or one for each phase if there are multiple learning rates."""
    rates = options.learning_rate
    if not isinstance(rates, list):
        rates, steps = [rates], [sum(steps)]
    check_rules(("learning_rate", rates, f"one value, or one for each of {len(steps)} phases",
                 len(rates) == len(steps)))
    return PhasedSchedule([WarmupDecay(rate, int(count * options.warmup_ratio), count, options.power)
                           for rate, count in zip(rates, steps)])


def _check_batches(options: Options, sizes: list[int], devices: int) -> None:
    parts = devices * options.gradient_accumulation_steps
    check_rules(("batch_size", sizes, ["multiples of ", Option("gradient_accumulation_steps"), " "
                 f"({options.gradient_accumulation_steps}) times the number of devices that share it ({devices})"],
                 all(size % parts == 0 for size in sizes)))


def cost_of_token(config: BertConfig, seq_length: int) -> float:
    """Returns the floating point operations to train on one token: 6 for each weight that it is multiplied by; and in
    each block, for each token that it attends to, 12 for each element of its vector."""
    hidden, width = config.hidden_size, config.embedding_width
    block = 4 * hidden**2 + 2 * hidden * config.intermediate_size
    head = (hidden * width + width * config.vocab_size) * 0.15  # 15% of the tokens are predicted
    weights = config.num_hidden_layers * block + head + (width * hidden if config.embedding_size else 0)
    return 6 * weights + 12 * config.num_hidden_layers * hidden * seq_length
