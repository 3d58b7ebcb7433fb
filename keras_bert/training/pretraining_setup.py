"""What `pretrain` works with: examples, tokenizer, configuration, model."""

import dataclasses
import functools
import hashlib
import os

import keras

from keras_bert.config import SIZES, BertConfig
from keras_bert.convert import load_pretrained, open_source
from keras_bert.data.pretraining_input import PretrainingInput
from keras_bert.errors import InputError
from keras_bert.layers import BertLayer
from keras_bert.models import BertPretrainer
from keras_bert.text import BertTokenizer
from keras_bert.training.arguments import as_list
from keras_bert.training.optimizer import Phased, WarmupDecay, make_pretraining_optimizer
from keras_bert.training.pretraining_run import Phase


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
