"""`BertConfig`: the hyperparameters of an encoder, with the names of `bert_config.json`."""

import dataclasses
import sys
from typing import Any, Self

from keras_bert.arguments import Path, check_rules
from keras_bert.errors import InputError
from keras_bert.files.json_files import declared, read_object, write_json
from keras_bert.files.paths import at

# Activation names. `gelu` is the erf form, as in Google's and Hugging Face's configs.
ACTIVATIONS = ("gelu", "gelu_new", "gelu_tanh", "relu", "silu")

# Which tokens each token attends to: all; itself and those before it; itself and those after it.
DIRECTIONALITIES = ("bidi", "ltr", "rtl")

# Other spellings in config files, mapped to the names used here.
_ACTIVATION_ALIASES = {"gelu_pytorch_tanh": "gelu_tanh", "gelu_approximate": "gelu_tanh", "swish": "silu"}

_UNCASED_ENGLISH, _CASED_ENGLISH, _CHINESE, _MULTILINGUAL = 30522, 28996, 21128, 119547

# The fields that a config file must have.
_REQUIRED = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")


def _size(layers: int, hidden: int, vocab: int = _UNCASED_ENGLISH) -> dict[str, Any]:
    """Returns the fields of a size. `initializer_range` times the square root of the width is that of BERT-base: with
    0.02, narrow encoders predict only token frequencies for a long time (docs/pretraining.md)."""
    return {"vocab_size": vocab, "hidden_size": hidden, "num_hidden_layers": layers, "intermediate_size": 4 * hidden,
            "num_attention_heads": hidden // 64, "initializer_range": round(0.02 * max(1, 768 / hidden) ** 0.5, 4)}


# Google's 24 miniatures (Turc et al., 2019, https://arxiv.org/abs/1908.08962) as "L<layers>-H<hidden>", five of them by
# name, too; BERT-large; the cased, multilingual and Chinese models (Devlin et al., 2018).
SIZES = {
    f"L{layers}-H{hidden}": _size(layers, hidden) for layers in (2, 4, 6, 8, 10, 12) for hidden in (128, 256, 512, 768)
} | {
    "tiny": _size(2, 128), "mini": _size(4, 256), "small": _size(4, 512), "medium": _size(8, 512),
    "base": _size(12, 768), "large": _size(24, 1024),
    "base-cased": _size(12, 768, _CASED_ENGLISH), "large-cased": _size(24, 1024, _CASED_ENGLISH),
    "multilingual-cased": _size(12, 768, _MULTILINGUAL), "chinese": _size(12, 768, _CHINESE),
}

# Names of BERT's fields in DistilBERT's configs.
_DISTILBERT = {"hidden_size": "dim", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads",
               "intermediate_size": "hidden_dim", "hidden_act": "activation", "hidden_dropout_prob": "dropout",
               "attention_probs_dropout_prob": "attention_dropout"}

# The `model_type` of this package's own configs whose pooler is not BERT's: version 0.2, which ignores
# `pooler_activation`, refuses it.
_OWN = "keras_bert"

ROBERTA = "roberta", "xlm-roberta", "camembert"  # types that differ in their vocabularies alone
# What the configs of encoders of BERT's shape do not say, because it is part of their type.
_IMPLIED: dict[str, dict[str, Any]] = {
    "bert": {},
    **dict.fromkeys(ROBERTA, {"pad_token_id": 1}),
    "electra": {"embedding_size": 128, "pooler_activation": "gelu"},
    "distilbert": {"type_vocab_size": 1, "layer_norm_eps": 1e-12, "pooler_activation": "relu"},
}

# Why encoders of other types cannot be read.
_OTHERS = {
    "albert": "its blocks share their weights",
    **dict.fromkeys(("mpnet", "deberta", "deberta-v2"), "its attention depends on relative positions"),
    "modernbert": "its positions are rotations of queries and keys, and its vocabulary is one of byte-level BPE",
}

_INSTEAD = ("use transformers or KerasHub for it, or one of the encoders that `keras-bert presets` lists, for Korean "
            "klue-roberta-base")

# The activations of the dense layer on the pooled token: BERT's and RoBERTa's, ELECTRA's, DistilBERT's.
POOLER_ACTIVATIONS = ("tanh", "gelu", "relu")


@dataclasses.dataclass(frozen=True)
class BertConfig:
    """Hyperparameters of a BERT encoder; the defaults are BERT-base, uncased English.

    Args:
        vocab_size: number of WordPiece tokens in the vocabulary.
        hidden_size: width H of the encoder.
        num_hidden_layers: number of encoder blocks.
        num_attention_heads: attention heads per block; must divide `hidden_size`.
        intermediate_size: width of the feed-forward layer.
        hidden_act: one of `gelu` (erf), `gelu_new` and `gelu_tanh` (tanh), `relu`, `silu`.
        hidden_dropout_prob: dropout rate of the embeddings and of both sub-layers' outputs, in [0, 1).
        attention_probs_dropout_prob: dropout rate of the attention probabilities, in [0, 1).
        max_position_embeddings: maximum sequence length.
        type_vocab_size: number of segment types.
        initializer_range: standard deviation of the normal distribution that initializes kernels and embedding tables;
            it is truncated at two standard deviations for the encoder, but not for the heads.
        layer_norm_eps: epsilon of every layer normalization.
        pad_token_id: id of [PAD].
        directionality: `bidi`; or, for the paper's ablations, `ltr`, which hides the tokens after each token, or `rtl`,
            which hides those before it.
        embedding_size: width of the embeddings, if they are narrower or wider than the blocks: after their layer
            normalization, a dense layer projects them to `hidden_size` (ELECTRA: Clark et al., 2020,
            https://arxiv.org/abs/2003.10555). None if they have this width.
        pooler_activation: activation of the pooler: `tanh`, `gelu` (erf) or `relu`.

    Raises:
        InputError: a value is invalid; the message names the field, the rule and the value.
    """

    vocab_size: int = _UNCASED_ENGLISH
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-12
    pad_token_id: int = 0
    directionality: str = "bidi"
    embedding_size: int | None = None
    pooler_activation: str = "tanh"

    def __post_init__(self) -> None:
        if self.embedding_size == self.hidden_size:
            object.__setattr__(self, "embedding_size", None)
        values = vars(self)
        for field in dataclasses.fields(self):
            value, kind = values[field.name], int if field.default is None else type(field.default)
            fits = isinstance(value, (int, float) if kind is float else kind) and not isinstance(value, bool)
            _check(fits or (value, field.default) == (None, None), f"{field.name} must be {kind.__name__}", value)
        object.__setattr__(self, "hidden_act", _ACTIVATION_ALIASES.get(self.hidden_act, self.hidden_act))
        sizes = {name: values[name] for name in (*_REQUIRED, "max_position_embeddings", "type_vocab_size")}
        for name, size in (sizes | {"embedding_size": self.embedding_width}).items():
            _check(1 <= size < 2**31, f"{name} must be at least 1 and below 2**31", size)
        for name in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
            _check(0 <= values[name] < 1, f"{name} must be in [0, 1)", values[name])
        for name in ("initializer_range", "layer_norm_eps"):
            _check(0 < values[name] < sys.float_info.max, f"{name} must be positive and finite", values[name])
        for name, choices in (("hidden_act", ACTIVATIONS), ("directionality", DIRECTIONALITIES),
                              ("pooler_activation", POOLER_ACTIVATIONS)):
            _check(values[name] in choices, f"{name} must be one of {', '.join(choices)}", values[name])
        _check(self.hidden_size % self.num_attention_heads == 0,
               f"hidden_size must be a multiple of num_attention_heads ({self.num_attention_heads})", self.hidden_size)
        _check(0 <= self.pad_token_id < self.vocab_size,
               f"pad_token_id must be below vocab_size ({self.vocab_size})", self.pad_token_id)

    @property
    def head_size(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_attention_heads

    @property
    def embedding_width(self) -> int:
        """Width of the embeddings: `embedding_size`, or `hidden_size` if it is None."""
        return self.hidden_size if self.embedding_size is None else self.embedding_size

    def input_length(self, max_length: int | None, default: int) -> int:
        """Returns the maximum length of an input in tokens: `max_length`, or if it is None, `default` or the number of
        positions if that is less. Raises an InputError if `max_length` exceeds the number of positions."""
        limit = self.max_position_embeddings
        if max_length is None:
            return min(default, limit)
        check_rules(("max_length", max_length, f"at most {limit}, the encoder's positions", max_length <= limit))
        return max_length

    @classmethod
    def from_size(cls, name: str, **changes: Any) -> Self:
        """Returns the config of a named size (`SIZES`), e.g. `"base"` or `"L4-H256"`; `changes` override its fields.
        `initializer_range` is 0.02 from BERT-base's width on, and more for narrower encoders."""
        _check(name in SIZES, f"a size must be one of {', '.join(SIZES)}", name)
        return cls(**SIZES[name] | changes)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Reads the dict of a `bert_config.json`, or of the `config.json` of one of Hugging Face's encoders of BERT's
        shape: BERT, RoBERTa, ELECTRA, DistilBERT. Ignores keys that do not describe the encoder; `open_source` refuses
        undeclared ones (docs/convert.md). Raises an InputError if a required key is missing, or values contradict one
        another or BERT's architecture."""
        model_type = values.get("model_type", "bert")
        if model_type not in [*_IMPLIED, _OWN]:
            reason = _OTHERS.get(str(model_type), "it is another architecture")
            raise InputError(f"model_type must be one of {', '.join(_IMPLIED)}; got {model_type!r}: {reason}; "
                             f"{_INSTEAD}")
        values = as_bert(values)
        for key, rule in declared()["config.json"].differences(values).items():
            raise InputError(f"{key} {rule}: it is another architecture; {_INSTEAD}")
        names = _DISTILBERT if model_type == "distilbert" else {}
        for name in _REQUIRED:
            if name not in values:
                *needed, last = (names.get(name, name) for name in _REQUIRED)
                raise InputError(f"a config of type {model_type} must have the keys {', '.join(needed)} and {last}; "
                                 f"{names.get(name, name)} is missing")
        fields = {field.name for field in dataclasses.fields(cls)}
        config = cls(**{name: value for name, value in values.items() if name in fields and value is not None})
        for name, derived in (("head_size", config.head_size), ("attention_head_size", config.head_size),
                              ("hidden_activation", config.hidden_act)):
            found = values.get(name)
            _check(found is None or found == derived or _ACTIVATION_ALIASES.get(str(found)) == derived,
                   f"{name} contradicts the other values, which give {derived}", found)
        return config

    @classmethod
    def from_json(cls, path: Path) -> Self:
        """Reads Google's `bert_config.json` or Hugging Face's `config.json`; error messages name the file."""
        values = read_object(path, required=True)
        with at(path):
            return cls.from_dict(values)

    def to_dict(self, model_type: str | None = None) -> dict[str, Any]:
        """Returns the field names and values, as Google and Hugging Face write them, without those that BERT's configs
        lack if they have BERT's values. `model_type` is `bert`, `electra` or `distilbert`; None means `bert`, or if the
        pooler's activation is not BERT's, `keras_bert`, which only this package reads."""
        model_type = model_type or ("bert" if self.pooler_activation == "tanh" else _OWN)
        names = _DISTILBERT if model_type == "distilbert" else {}
        values = {names.get(name, name): value for name, value in dataclasses.asdict(self).items()}
        if model_type == "electra":
            return {"model_type": model_type} | values | {"embedding_size": self.embedding_width}
        absent = {"embedding_size": None, "pooler_activation": "tanh"}
        return {"model_type": model_type} | {
            name: value for name, value in values.items() if name not in absent or value != absent[name]}

    def to_json(self, path: Path) -> None:
        """Writes the file that `from_json` reads; Google's and Hugging Face's BERT read it if the pooler is BERT's."""
        write_json(path, self.to_dict())


def as_bert(values: dict[str, Any]) -> dict[str, Any]:
    """Returns the values of a `config.json` of any type under the names, and with the meanings, of BERT's configs.
    RoBERTa's positions begin after the id of its padding: it has fewer than its table has rows."""
    model_type = values.get("model_type", "bert")
    implied = _IMPLIED.get(model_type, {}) if isinstance(model_type, str) else {}
    given = {name: value for name, value in values.items() if value is not None or name not in implied}
    if model_type == "distilbert":
        given |= {name: values[own] for name, own in _DISTILBERT.items() if own in values}
    found = implied | given
    rows, padding = found.get("max_position_embeddings", 512), found.get("pad_token_id")
    if model_type in ROBERTA and isinstance(rows, int) and isinstance(padding, int):
        found["max_position_embeddings"] = rows - padding - 1
    return found


def _check(condition: bool, rule: str, value: Any) -> None:
    if not condition:
        raise InputError(f"{rule}; got {value!r}")
