"""The encoders of transformers that have BERT's shape: the names of their classes and weights."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from keras_bert.weights.format import TRANSPOSED, Allowed, Table
from keras_bert.weights.kinds import KINDS

Names = Mapping[str, str]
_SUFFIXES = {"embeddings": ".weight", "kernel": ".weight", "bias": ".bias", "gamma": ".weight", "beta": ".bias"}
_EMBEDDINGS = {  # DistilBERT has no token types: those of the table are zeros
    "bert.embeddings.word_embeddings": "embeddings.word_embeddings",
    "bert.embeddings.position_embeddings": "embeddings.position_embeddings",
    "bert.embeddings.segment_embeddings": "embeddings.token_type_embeddings",
    "bert.embeddings.norm": "embeddings.LayerNorm",
}
_ENCODER = _EMBEDDINGS | {
    "bert.blocks.{i}.attention.query": "encoder.layer.{i}.attention.self.query",
    "bert.blocks.{i}.attention.key": "encoder.layer.{i}.attention.self.key",
    "bert.blocks.{i}.attention.value": "encoder.layer.{i}.attention.self.value",
    "bert.blocks.{i}.attention.output_dense": "encoder.layer.{i}.attention.output.dense",
    "bert.blocks.{i}.attention_norm": "encoder.layer.{i}.attention.output.LayerNorm",
    "bert.blocks.{i}.intermediate": "encoder.layer.{i}.intermediate.dense",
    "bert.blocks.{i}.output_dense": "encoder.layer.{i}.output.dense",
    "bert.blocks.{i}.output_norm": "encoder.layer.{i}.output.LayerNorm",
}
_HEADS = {"classifier": "classifier", "regressor": "classifier", "span": "qa_outputs"}
# RoBERTa's and ELECTRA's head for one label of a text: our pooler and the dense layer on it.
_TWO_LAYERS = {"bert.pooler": "classifier.dense", "classifier": "classifier.out_proj",
               "regressor": "classifier.out_proj"}
_CLASSES = {"encoder": "Model", "pretraining": "ForPreTraining", "masked_lm": "ForMaskedLM",
            "classification": "ForSequenceClassification", "regression": "ForSequenceClassification",
            "token_classification": "ForTokenClassification", "span": "ForQuestionAnswering",
            "multiple_choice": "ForMultipleChoice"}


@dataclasses.dataclass(frozen=True)
class ModelType:
    """A `model_type` of transformers."""

    name: str
    prefix: str  # of the encoder's weights in models with heads
    classes: str  # how the names of its classes begin
    layers: Names  # its names of our layers, as for `Table`
    of_kind: Mapping[str, Names] = dataclasses.field(default_factory=dict)  # the other names in models of a kind
    has_next_sentence: bool = False
    has_pooler: bool = False  # if the encoder without a head has one, of BERT's activation
    skipped_head: str = ""  # a head that has no counterpart here
    has_segments: bool = True
    begins_after_padding: bool = False  # if the first position is the one after the number of the padding's id
    tied: str = ""  # the output layer of the masked LM head; its kernel is the table of word embeddings
    mlm_activation: str | None = None  # of the masked LM head, if it differs from the encoder's
    dropout: Names = dataclasses.field(default_factory=dict)  # the config's field of a kind's head
    summary: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # the config's fields of a head for choices
    fixed: Allowed = dataclasses.field(default_factory=dict)  # as in `Format`

    @functools.cached_property
    def architectures(self) -> dict[str, str]:
        """The class of each kind of model."""
        return {kind: f"{self.classes}{name}" for kind, name in _CLASSES.items()
                if kind != "pretraining" or self.has_next_sentence}

    def table(self, kind: str) -> Table:
        """Returns the names of the weights in a model of a kind, without the prefix."""
        return Table({**self.layers, **self.of_kind.get(kind, {})}, _SUFFIXES, {"kernel": TRANSPOSED})

    def writes_pooler(self, kind: str) -> bool:
        """Returns True if the type's models of a kind have a pooler."""
        return KINDS[kind].is_pooled and (self.has_pooler or kind != "encoder")

    def dropout_field(self, kind: str) -> str:
        return self.dropout.get(kind, "classifier_dropout")


TYPES: dict[Any, ModelType] = {one.name: one for one in (
    ModelType(
        "bert", "bert", "Bert", _ENCODER | _HEADS | {
            "bert.pooler": "pooler.dense", "mlm.dense": "cls.predictions.transform.dense",
            "mlm.norm": "cls.predictions.transform.LayerNorm", "mlm.bias": "cls.predictions.bias",
            "next_sentence": "cls.seq_relationship"},
        has_next_sentence=True, has_pooler=True, tied="cls.predictions.decoder"),
    *(ModelType(
        name, "roberta", classes, _ENCODER | _HEADS | {
            "bert.pooler": "pooler.dense", "mlm.dense": "lm_head.dense", "mlm.norm": "lm_head.layer_norm",
            "mlm.bias": "lm_head.bias"},
        of_kind={"classification": _TWO_LAYERS, "regression": _TWO_LAYERS}, begins_after_padding=True,
        tied="lm_head.decoder", mlm_activation="gelu")
      for name, classes in (("roberta", "Roberta"), ("xlm-roberta", "XLMRoberta"), ("camembert", "Camembert"))),
    ModelType(
        "electra", "electra", "Electra", _ENCODER | _HEADS | _TWO_LAYERS | {
            "bert.embeddings.projection": "embeddings_project", "mlm.dense": "generator_predictions.dense",
            "mlm.norm": "generator_predictions.LayerNorm", "mlm.bias": "generator_lm_head.bias"},
        of_kind={"token_classification": {"classifier": "classifier"},
                 "multiple_choice": {"bert.pooler": "sequence_summary.summary", "classifier": "classifier"}},
        skipped_head="discriminator_predictions", tied="generator_lm_head", mlm_activation="gelu",
        dropout={"multiple_choice": "summary_last_dropout"},
        summary={"summary_type": "first", "summary_use_proj": True, "summary_activation": "gelu"}),
    ModelType(
        "distilbert", "distilbert", "DistilBert", _EMBEDDINGS | _HEADS | {
            "bert.blocks.{i}.attention.query": "transformer.layer.{i}.attention.q_lin",
            "bert.blocks.{i}.attention.key": "transformer.layer.{i}.attention.k_lin",
            "bert.blocks.{i}.attention.value": "transformer.layer.{i}.attention.v_lin",
            "bert.blocks.{i}.attention.output_dense": "transformer.layer.{i}.attention.out_lin",
            "bert.blocks.{i}.attention_norm": "transformer.layer.{i}.sa_layer_norm",
            "bert.blocks.{i}.intermediate": "transformer.layer.{i}.ffn.lin1",
            "bert.blocks.{i}.output_dense": "transformer.layer.{i}.ffn.lin2",
            "bert.blocks.{i}.output_norm": "transformer.layer.{i}.output_layer_norm",
            "bert.pooler": "pre_classifier", "mlm.dense": "vocab_transform", "mlm.norm": "vocab_layer_norm",
            "mlm.bias": "vocab_projector.bias"},
        has_segments=False, tied="vocab_projector",
        dropout=dict.fromkeys(("classification", "regression", "multiple_choice"), "seq_classif_dropout"),
        fixed={"layer_norm_eps": (1e-12,), "type_vocab_size": (1,), "embedding_size": (None,)}),
)}
