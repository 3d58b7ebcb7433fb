"""The options of `pretrain`, and the rules that several of them must obey together."""

import dataclasses
import os
from collections.abc import Callable
from typing import Any, ClassVar, Literal, Self

from keras_bert import kernels
from keras_bert.arguments import Requirement, as_list
from keras_bert.config import SIZES, BertConfig
from keras_bert.errors import InputError, Option
from keras_bert.training.run import RunOptions


@dataclasses.dataclass(frozen=True)
class PhaseOptions:
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
            ("directionality", self.directionality, "that of the model's weights",
             not self.model or self.directionality == "bidi"),
            ("distribution_strategy", self.distribution_strategy, "one on the JAX backend",
             self.distribution_strategy == "one" or not on_jax),
            ("model_parallel", self.model_parallel, "1 unless on the JAX backend", self.model_parallel == 1 or on_jax)]

    def phases(self) -> list[PhaseOptions]:
        lists = {field.name: as_list(getattr(self, field.name)) for field in dataclasses.fields(PhaseOptions)}
        count = max(map(len, lists.values()))
        for name, values in lists.items():
            if len(values) not in (1, count):
                raise InputError(Option(name),
                                 f" must be one value, or one for each of {count} phases; got {len(values)}")
        return [PhaseOptions(**{name: values[phase % len(values)] for name, values in lists.items()})
                for phase in range(count)]
