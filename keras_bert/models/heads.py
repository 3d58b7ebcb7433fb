"""The heads on a `BertLayer`, for each task of the paper (Devlin et al., 2018, sections 3.1 and 4)."""

from typing import Any

import keras
from keras import ops

from keras_bert.layers import BertLayer, MaskedLMHead
from keras_bert.layers.bert import Inputs, standardize_inputs
from keras_bert.models.base import BertTask, DropoutTask
from keras_bert.types import Tensor


@keras.saving.register_keras_serializable("keras_bert")
class BertClassifier(DropoutTask):
    """Dropout and a dense layer on the pooled output (Devlin et al., 2018, section 4.1).

    Args:
        bert: a `BertLayer`.
        num_classes: number of labels.
        dropout: dropout rate of the pooled output.

    Call arguments:
        inputs, training, seed: as for `BertLayer`.

    Returns:
        logits [batch, num_classes], float32.
    """

    def __init__(self, bert: BertLayer, num_classes: int, dropout: float = 0.2, **kwargs: Any) -> None:
        super().__init__(bert, dropout, num_classes, **kwargs)
        self.add_dense()


@keras.saving.register_keras_serializable("keras_bert")
class BertRegressor(DropoutTask):
    """Dropout and a dense layer of width 1 on the pooled output, as for STS-B (Devlin et al., 2018, section 4.1).

    Args:
        bert: a `BertLayer`.
        dropout: dropout rate of the pooled output.

    Call arguments:
        inputs, training, seed: as for `BertLayer`.

    Returns:
        values [batch, 1], float32.
    """

    def __init__(self, bert: BertLayer, dropout: float = 0.1, **kwargs: Any) -> None:
        super().__init__(bert, dropout, **kwargs)
        self.add_dense("regressor")

    @property
    def classifier(self) -> keras.layers.Dense:
        return self.regressor  # .keras files have the layer as `classifier`, the path of its variables as `regressor`


@keras.saving.register_keras_serializable("keras_bert")
class BertTokenClassifier(DropoutTask):
    """Dropout and a dense layer on the sequence output (Devlin et al., 2018, section 5.3).

    Args:
        bert: a `BertLayer`.
        num_classes: number of labels.
        dropout: dropout rate of the sequence output.

    Call arguments:
        inputs, training, seed: as for `BertLayer`.

    Returns:
        logits [batch, seq, num_classes], float32; those of padding are meaningless.
    """

    def __init__(self, bert: BertLayer, num_classes: int, dropout: float = 0.1, **kwargs: Any) -> None:
        super().__init__(bert, dropout, num_classes, **kwargs)
        self.add_dense()

    def encoder_output(self, inputs: Inputs, **options: Any) -> Tensor:
        return self.bert(inputs, **options)[1]


@keras.saving.register_keras_serializable("keras_bert")
class BertJointClassifier(DropoutTask):
    """Dropout and a dense layer on the pooled output, for a class of the text, and the same on the sequence output, for
    a label of each token, from one call of the encoder (JointBERT: Chen et al., 2019, https://arxiv.org/abs/1902.10909,
    section 3.2).

    Args:
        bert: a `BertLayer`.
        num_classes: number of classes of a text.
        num_tags: number of labels of a token.
        dropout: dropout rate of both outputs.

    Call arguments:
        inputs, training, seed: as for `BertLayer`.

    Returns:
        dict of `label_logits` [batch, num_classes] and `tag_logits` [batch, seq, num_tags], float32; those of padding
        are meaningless.
    """

    def __init__(self, bert: BertLayer, num_classes: int, num_tags: int, dropout: float = 0.1, **kwargs: Any) -> None:
        super().__init__(bert, dropout, num_classes, **kwargs)
        self.num_tags = num_tags
        self.tagger = self.make_dense("tagger", num_tags)
        self.add_dense()

    def call(self, inputs: Inputs, training: bool | None = False, seed: Tensor | None = None) -> dict[str, Tensor]:
        seed = self.bert.dropout_seed(inputs, training, seed)
        outputs = self.bert(inputs, training=training, seed=seed)
        pooled, sequence = (self.dropped(part, seed, number) for number, part in enumerate(outputs))
        return {"label_logits": self.classifier(pooled), "tag_logits": self.tagger(sequence)}

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"num_tags": self.num_tags}


@keras.saving.register_keras_serializable("keras_bert")
class BertSpanLabeler(BertTask):
    """A dense layer of width 2 on the sequence output, for the start and the end of a span (Devlin et al., 2018,
    section 4.2); without dropout before it, as in google-research/bert `run_squad.py`.

    Args:
        bert: a `BertLayer`.

    Call arguments:
        inputs, training, seed: as for `BertLayer`.

    Returns:
        dict of `start_logits` and `end_logits`, each [batch, seq], float32; -1e9 for padding, which no answer contains.
    """

    def __init__(self, bert: BertLayer, **kwargs: Any) -> None:
        super().__init__(bert, **kwargs)
        self.span = self.make_dense("span", 2)
        self.build()

    def call(self, inputs: Inputs, training: bool | None = False, seed: Tensor | None = None) -> dict[str, Tensor]:
        _, sequence = self.bert(inputs, training=training, seed=seed)
        is_padding = ops.equal(standardize_inputs(inputs)[1], 0)
        logits = ops.where(ops.expand_dims(is_padding, 2), -1e9, self.span(sequence))
        return {"start_logits": logits[..., 0], "end_logits": logits[..., 1]}


@keras.saving.register_keras_serializable("keras_bert")
class BertMultipleChoice(DropoutTask):
    """Dropout and a dense layer of width 1 on the pooled output of each choice (Devlin et al., 2018, section 4.4).

    Args:
        bert: a `BertLayer`.
        dropout: dropout rate of the pooled output.

    Call arguments:
        inputs: as for `BertLayer`, but int32 [batch, choices, seq].
        training, seed: as for `BertLayer`.

    Returns:
        logits [batch, choices], float32.
    """

    def __init__(self, bert: BertLayer, dropout: float = 0.1, **kwargs: Any) -> None:
        super().__init__(bert, dropout, **kwargs)
        self.add_dense()

    def call(self, inputs: Inputs, training: bool | None = False, seed: Tensor | None = None) -> Tensor:
        seed = self.bert.dropout_seed(inputs, training, seed)
        tensors = standardize_inputs(inputs, ("batch", "choices", "seq"))
        _, choices, length = ops.shape(tensors[0])
        flat_inputs = [ops.reshape(tensor, (-1, length)) for tensor in tensors]
        return ops.reshape(super().call(flat_inputs, training, seed), (-1, choices))


@keras.saving.register_keras_serializable("keras_bert")
class BertPretrainer(BertTask):
    """The masked language model and next-sentence heads, without dropout (Devlin et al., 2018, section 3.1).

    Args:
        bert: a `BertLayer`.
        next_sentence: If True (default), adds a next-sentence head; otherwise the attribute `next_sentence` is None.
        mlm_activation, mlm_layer_norm_eps: see `MaskedLMHead`.

    Call arguments:
        inputs: as for `BertLayer`; a dict may also hold `masked_lm_positions`, int32 [batch, n].
        training, seed: as for `BertLayer`.

    Returns:
        dict, float32: `mlm_logits` [batch, n, vocab], of all positions if none are given; and `next_sentence_logits`
        [batch, 2], if there is that head, where class 0 means that the second text follows the first.
    """

    def __init__(self, bert: BertLayer, next_sentence: bool = True, mlm_activation: str | None = None,
                 mlm_layer_norm_eps: float | None = None, **kwargs: Any) -> None:
        super().__init__(bert, **kwargs)
        self.mlm = MaskedLMHead(bert.config, mlm_activation, mlm_layer_norm_eps, dtype=self.dtype_policy, name="mlm")
        self.next_sentence = self.make_dense("next_sentence", 2) if next_sentence else None
        self.build()

    def call(self, inputs: Inputs, training: bool | None = False, seed: Tensor | None = None) -> dict[str, Tensor]:
        positions = inputs.get("masked_lm_positions") if isinstance(inputs, dict) else None
        outputs = self.bert.encode(inputs, training=training, seed=seed, positions=positions)
        sequence = ops.copy(outputs.sequence_output)  # without a Keras mask, as in `DropoutTask`
        logits = {"mlm_logits": self.mlm(sequence, self.bert.embeddings.word_table())}
        if self.next_sentence is not None:
            logits["next_sentence_logits"] = self.next_sentence(outputs.pooled_output)
        return logits

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {
            "next_sentence": self.next_sentence is not None, "mlm_activation": self.mlm.config.hidden_act,
            "mlm_layer_norm_eps": self.mlm.config.layer_norm_eps}
