"""The raw-text SavedModel: answers strings, with only TensorFlow's core operations.

    signature serving_default  the strings, by the names below: string [batch]
    signature encode           input_word_ids, input_mask, input_type_ids: int32 [batch, seq]
    signature explain          the strings, and layers: int32 [n], numbers of blocks from 0; empty for all blocks
    root                       the strings, as positional arguments

Each returns a dict of dense tensors. The signature `encode` returns the same as `serving_default` and the root, unless
stated otherwise. For each model, its strings and what it returns:

`BertLayer`: text, and text_pair for pairs. Returns `pooled_output` and `mean_output`, the mean of `sequence_output`
    over the real tokens; both float32 [batch, hidden].
`BertClassifier`: text, and text_pair for pairs. Returns `label`, string [batch]; `score`, its probability, float32
    [batch]; `probabilities`, float32 [batch, labels], in the order of the asset `label_file` (JSON); and, if there is a
    threshold, `in_scope`, bool [batch].
`BertRegressor`: text, and text_pair for pairs. Returns `value`, float32 [batch].
`BertTokenClassifier`: text. Returns `word_start`, `word_end`, int32 [batch, words], padded with -1; `word_label`,
    string, padded with ""; `word_score`, the probability of the label, float32, padded with 0. Returns in the same
    form, for entities, `entity_start`, `entity_end`, `entity_label`, `entity_text` and `entity_score`, the mean score
    of the entity's words. `encode` returns `probabilities`, float32 [batch, seq, labels].
`BertSpanLabeler`: question and context. Returns `answer`, string [batch], "" for no answer; `start`, `end`, int32
    [batch], -1 for no answer; `score`, the probability of the answer among the 20 best spans, float32 [batch]. `encode`
    returns `start_logits`, `end_logits`, float32 [batch, seq].
`BertMultipleChoice`: prompt, and choices, string [batch, n]. Returns `choice`, int32 [batch]; `probabilities`, float32
    [batch, n]. The inputs of `encode` are int32 [batch, n, seq].

`explain` returns `tokens`, string [batch, seq], the WordPiece tokens, "" for padding; `starts`, `ends`, int32
[batch, seq], the position of the token in its text, -1 for [CLS], [SEP] and padding; `segment`, int32 [batch, seq], 0
for the first text, 1 for the second; `attention`, float32 [batch, n, heads, seq, seq], the probabilities with which
each token (first seq) attends to the others. If a text is split into multiple inputs, `explain` reads only the first
one. A `BertMultipleChoice` has no `explain`, as each of its rows consists of n inputs.

Starts and ends count characters (code points) of the text; ends are exclusive.

Attributes: `vocab_file`, `bert_config`, `label_file` (assets), `do_lower_case`.
"""

import dataclasses
import functools
import itertools
import types
from typing import Literal

import keras
import tensorflow as tf

from keras_bert import models
from keras_bert.arguments import Path
from keras_bert.errors import InputError
from keras_bert.files import check_free, write_json
from keras_bert.layers import BertLayer
from keras_bert.models.base import BertTask
from keras_bert.text import BertTokenizer
from keras_bert.text.graph_packing import pack

from .text_heads import (
    Chooser,
    Classifier,
    Embedder,
    Reader,
    Regressor,
    SpanFinder,
    Tagger,
    characters,
    check_same_batch,
    next_of,
)
from .writing import (
    Callable,
    check_dtype,
    check_vocabulary,
    checked,
    encoder_of,
    exportable,
    needs_tensorflow,
    plain_copy,
    save,
    variable_name,
)

_HEADS = {
    BertLayer: Embedder,
    models.BertClassifier: Classifier,
    models.BertFeatureTagger: Tagger,
    models.BertMultipleChoice: Chooser,
    models.BertRegressor: Regressor,
    models.BertSpanLabeler: SpanFinder,
    models.BertTokenClassifier: Tagger,
}


class TextModel(Callable):
    """The root object of the SavedModel.

    Args:
        model: an instance of a key of `_HEADS`; its variables are copied.
        head: the `Head` of the model.
        tokenizer: the `BertTokenizer` of the model.
        max_length: maximum length of an input, in tokens.
        dtype: dtype of the encoder, see `EncoderModule`.
        jit_compile: see `export_text_model`.
    """

    def __init__(self, model, head, tokenizer, max_length, dtype, jit_compile=False):
        super().__init__()
        # The replica runs with `self.weights`. It is not an attribute, because the SavedModel would then contain its
        # weights, too.
        replica = plain_copy(model, dtype, layout="padded" if jit_compile else "unpadded")
        bert = encoder_of(replica)
        self.weights = [
            tf.Variable(tf.cast(source.value, target.dtype), trainable=False, name=variable_name(source))
            for source, target in zip(model.weights, replica.weights, strict=True)
        ]

        def run(*inputs):
            with keras.StatelessScope(state_mapping=list(zip(replica.weights, self.weights))):
                return replica(list(inputs))

        if jit_compile:
            run = _compiled(run)

        def attend(*inputs):
            with keras.StatelessScope(state_mapping=list(zip(replica.weights, self.weights))):
                return bert.encode(inputs, return_attention=True).attention_probabilities

        def encode(*inputs):
            inputs = checked(inputs, bert.config) if jit_compile else inputs
            return head.encode(run(*inputs), inputs[1])

        ids = [tf.TensorSpec(head.ids, tf.int32, name) for name in ("input_word_ids", "input_mask", "input_type_ids")]
        reader = Reader(run, tokenizer, max_length, lengths_up_to(max_length) if jit_compile else None)
        self.__call__ = tf.function(
            functools.partial(head.answer, reader), input_signature=head.texts, autograph=False)
        self.encode = tf.function(encode, input_signature=ids, autograph=False)
        if head.explains:
            explainer = Explainer(head, reader, attend, tokenizer.vocabulary)
            self.explain = tf.function(explainer, input_signature=explainer.arguments, autograph=False)


def lengths_up_to(max_length):
    """Returns the lengths to which a compiled model pads its inputs: 16, 32, 64, …, and finally `max_length`."""
    return [*itertools.takewhile(lambda length: length < max_length, (2**i for i in itertools.count(4))), max_length]


def _compiled(run):
    """Returns `run` compiled by XLA. As each shape is compiled once, rows are padded to a power of two."""
    compiled = tf.function(run, jit_compile=True, autograph=False)

    def call(*inputs):
        rows = tf.shape(inputs[0])[0]
        more = next_of([2**i for i in range(31)], rows) - rows
        padded = [tf.pad(part, [[0, more], *[[0, 0]] * (part.shape.rank - 1)]) for part in inputs]
        return tf.nest.map_structure(lambda output: output[:rows], compiled(*padded))

    return call


def export_text_model(model: BertLayer | BertTask, tokenizer: BertTokenizer, path: Path, *, max_length: int = 128,
                      dtype: Literal["float32", "bfloat16"] = "float32", jit_compile: bool = False,
                      overwrite: bool = False, **options) -> None:
    """Writes a raw-text SavedModel. Output is written atomically.

    Args:
        model: a `BertLayer`, for embeddings, or a model with a head, see this module.
        tokenizer: the `BertTokenizer` of the model.
        path: folder to write.
        max_length: maximum length of an input, in tokens. Longer texts are cut, in pairs the longer text first; but the
            texts of a `BertTokenClassifier` and the contexts of a `BertSpanLabeler` are split into multiple inputs.
        dtype: dtype of the encoder: float32, or bfloat16, which takes half the size.
        jit_compile: If True (for GPUs), XLA compiles the model, but not the tokenization. Inputs are padded to a few
            lengths (16, 32, 64, … up to `max_length`), and the number of rows to a power of two, as each shape is
            compiled separately. If False, padding is skipped, which is faster on CPUs.
        overwrite: If True, replaces an existing `path`.
        options: `labels`, `threshold` and `pairs` for a `BertClassifier`; `pairs` for a `BertLayer` and a
            `BertRegressor`; `labels` for a `BertTokenClassifier`; `doc_stride`, `max_query_length`, `max_answer_length`
            and `null_threshold` for a `BertSpanLabeler`: see `Classifier`, `Tagger` and `SpanFinder`.

    Raises:
        InputError: `path` exists or cannot be written, an argument is out of its range, or Keras does not run on
            TensorFlow.
    """
    needs_tensorflow()
    check_dtype(dtype)
    head = make_head(model, options)
    config = encoder_of(model).config
    check_vocabulary(tokenizer, config)
    longest = config.max_position_embeddings
    if not head.shortest <= max_length <= longest:
        raise InputError(f"max_length must be {head.shortest} to {longest}, the encoder's longest; got {max_length}")
    if head.labels is not None and len(head.labels) != model.num_classes:
        raise InputError(f"labels must be the names of {model.num_classes} classes; got {len(head.labels)}")
    check_free(path, overwrite)
    module = TextModel(exportable(model), head, tokenizer, max_length, dtype, jit_compile)
    # tf.functions instead of concrete functions, which would be traced and saved in the graph twice.
    signatures = {"serving_default": module.__call__, "encode": module.encode}
    if head.explains:
        signatures["explain"] = module.explain
    assets = {"bert_config": ("bert_config.json", config.to_json)}
    if head.labels is not None:
        assets["label_file"] = ("labels.json", lambda file: write_json(file, head.labels))
    save(module, path, signatures, tokenizer, assets, overwrite)


def make_head(model, options):
    """Returns the `Head` of a model, with the `options` that `export_text_model` accepts for this kind of model."""
    make = next((head for kind, head in _HEADS.items() if isinstance(model, kind)), None)
    if make is None:
        raise InputError(f"a raw-text model must be one of {', '.join(kind.__name__ for kind in _HEADS)}; "
                         f"got {type(model).__name__}")
    known = [field.name for field in dataclasses.fields(make)] if dataclasses.is_dataclass(make) else []
    for name in sorted(options.keys() - known):
        raise InputError(f"{name} is no option of a {type(model).__name__}, which has {', '.join(known) or 'none'}")
    if "labels" in known and not options.get("labels"):
        raise InputError(f"labels must be the names of the classes of a {type(model).__name__}; got "
                         f"{options.get('labels')!r}")
    return make(**options)


_NO_PIECE = types.SimpleNamespace(cls_id=0, sep_id=0, pad_id=0)


class Explainer:
    """The function of the signature `explain`.

    Args:
        head: a `Head` whose `explains` is True.
        reader: the `Reader` of the model.
        attend: a function of int32 word ids, mask and segment ids [batch, seq] that returns the attention
            probabilities, a list of one [batch, heads, seq, seq] per block.
        vocabulary: list of the vocabulary's tokens.

    Attributes:
        arguments: list of the `tf.TensorSpec` of each argument of a call.
    """

    def __init__(self, head, reader, attend, vocabulary):
        self._head, self._reader, self._attend = head, reader, attend
        self._vocabulary = tf.constant(vocabulary)
        self.arguments = [*head.texts, tf.TensorSpec([None], tf.int32, "layers")]

    def __call__(self, *arguments):
        *texts, layers = arguments
        if len(texts) > 1:
            check_same_batch(**{spec.name: part for spec, part in zip(self._head.texts, texts)})
        pieces = self._head.read(self._reader, *texts)
        inputs = self._reader.pack(*(ids for ids, _, _ in pieces), truncator=self._head.truncator)
        ids, mask, segments = inputs
        starts, ends = self._places(texts, pieces, tf.shape(ids)[1])
        # In a branch, because TensorFlow repeatedly goes through each function while it loads a model, but not through
        # the branches.
        attention = tf.cond(tf.size(ids) > 0, lambda: self._attention(inputs, layers), lambda: tf.zeros(5 * [0]))
        return {"tokens": tf.where(mask > 0, tf.gather(self._vocabulary, ids), ""), "starts": starts, "ends": ends,
                "segment": segments, "attention": attention}

    def _attention(self, inputs, layers):
        """Computes the attention probabilities of the blocks `layers`: float32 [batch, n, heads, seq, seq]."""
        attention = tf.stack(self._attend(*inputs), axis=1)
        layers = tf.cond(tf.size(layers) > 0, lambda: layers, lambda: tf.range(tf.shape(attention)[1]))
        return tf.cast(tf.gather(attention, layers, axis=1), tf.float32)

    def _places(self, texts, pieces, length):
        """Returns the first character of each packed token and the one after its last, -1 if it has none: two int32
        [batch, seq]."""
        count, numbers, starts, ends = 1, [], [[-1]], [[-1]]  # tokens are numbered from 1; 0 is for no token
        for text, (ids, start, limit) in zip(texts, pieces):
            numbers.append(ids.with_values(tf.range(tf.size(ids.values)) + count))
            count += tf.size(ids.values)
            starts.append(characters(text, ids.value_rowids(), start.values))
            ends.append(characters(text, ids.value_rowids(), limit.values))
        packed = pack(numbers, length, _NO_PIECE, self._head.truncator)["input_word_ids"]
        return tf.gather(tf.concat(starts, 0), packed), tf.gather(tf.concat(ends, 0), packed)
