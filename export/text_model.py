"""The raw-text SavedModel: strings to labels, or to embeddings, by TensorFlow's core operations alone.

    signature serving_default  text, and text_pair for pairs: string [batch]
    signature encode           input_word_ids, input_mask, input_type_ids: int32 [batch, seq]
    root                       the texts, as one or two positional arguments

Each returns a dict. Of a classifier: `label`, string [batch]; `score`, its probability, float32 [batch];
`probabilities`, float32 [batch, labels], in the order of the asset `label_file` (JSON); `in_scope`, bool [batch], if it
has a threshold. Of an encoder, float32 [batch, hidden]: `pooled_output`, and `mean_output`, the mean of
`sequence_output` over the real tokens.

Attributes: `vocab_file`, `bert_config`, `label_file` (assets), `do_lower_case`.
"""

import keras
import tensorflow as tf

from keras_bert.errors import InputError
from keras_bert.files import check_free, write_json
from keras_bert.layers import BertLayer
from keras_bert.models import BertClassifier
from keras_bert.text.graph_packing import flatten, pack
from keras_bert.text.graph_tokenizer import GraphTokenizer

from .writing import Callable, check_dtype, needs_tensorflow, save, variable_name

_INPUTS = [tf.TensorSpec([None, None], tf.int32, name) for name in ("input_word_ids", "input_mask", "input_type_ids")]


class TextModel(Callable):
    """The root object.

    Args:
        model: a `BertClassifier`, or a `BertLayer` for embeddings; its variables are copied.
        tokenizer: its `BertTokenizer`.
        labels: names of the classes, None for embeddings.
        threshold: a lower score is out of scope; or None.
        max_length: longest input in tokens; longer texts are cut, of a pair the longer one first.
        pairs: whether it takes pairs of texts.
        dtype: of the encoder, see `EncoderModule`.
    """

    def __init__(self, model, tokenizer, labels, threshold, max_length, pairs, dtype):
        super().__init__()
        # A twin runs over copies of the weights and stays out of sight: a SavedModel would save its own once more.
        twin = BertLayer(_config(model), dtype=dtype)
        twin = twin if labels is None else BertClassifier(twin, model.num_classes)
        self.weights = [
            tf.Variable(tf.cast(source.value, target.dtype), trainable=False, name=variable_name(source))
            for source, target in zip(model.weights, twin.weights)
        ]
        graph = GraphTokenizer(tokenizer)

        def encode(*inputs):
            with keras.StatelessScope(state_mapping=list(zip(twin.weights, self.weights))):
                outputs = twin(list(inputs))
            return _embeddings(outputs, inputs[1]) if labels is None else _answers(outputs, labels, threshold)

        def answer(*texts):
            if pairs:
                tf.debugging.assert_equal(*map(tf.shape, texts), "text and text_pair must be as many")
            segments = [flatten(graph.tokenize(part)) for part in texts]
            specials = len(segments) + 1
            longest = tf.reduce_max(tf.add_n([tf.cast(segment.row_lengths(), tf.int32) for segment in segments]))
            length = tf.clip_by_value(longest, 0, max_length - specials) + specials
            return encode(*pack(segments, length, tokenizer, "round_robin").values())

        names = ("text", "text_pair") if pairs else ("text",)
        texts = [tf.TensorSpec([None], tf.string, name) for name in names]
        self.__call__ = tf.function(answer, input_signature=texts, autograph=False)
        self.encode = tf.function(encode, input_signature=_INPUTS, autograph=False)


def _answers(logits, labels, threshold):
    probabilities = tf.nn.softmax(logits)
    score = tf.reduce_max(probabilities, axis=1)
    outputs = {"label": tf.gather(tf.constant(labels), tf.argmax(probabilities, axis=1)), "score": score,
               "probabilities": probabilities}
    return outputs if threshold is None else outputs | {"in_scope": score >= threshold}


def _embeddings(outputs, mask):
    pooled, sequence = (tf.cast(output, tf.float32) for output in outputs)
    is_real = tf.cast(mask, tf.float32)[:, :, None]
    count = tf.maximum(tf.reduce_sum(is_real, axis=1), 1.0)
    return {"pooled_output": pooled, "mean_output": tf.reduce_sum(sequence * is_real, axis=1) / count}


def export_text_model(model, tokenizer, path, *, labels=None, threshold=None, max_length=128, pairs=False,
                      dtype="float32", overwrite=False):
    """Writes a raw-text SavedModel; it stands at `path` whole or not at all.

    Args:
        path: folder to write.
        overwrite: whether to replace what stands at `path`.
        The others: see `TextModel`.

    Raises:
        InputError: `path` is taken or cannot be written, an argument is out of its range, or Keras does not run on
            TensorFlow.
    """
    needs_tensorflow()
    check_dtype(dtype)
    config = _config(model)
    if not 4 <= max_length <= config.max_position_embeddings:
        raise InputError(f"max_length must be 4 to {config.max_position_embeddings}, the encoder's longest; "
                         f"got {max_length}")
    check_free(path, overwrite)
    module = TextModel(model, tokenizer, labels, threshold, max_length, pairs, dtype)
    signatures = {"serving_default": module.__call__.get_concrete_function(),
                  "encode": module.encode.get_concrete_function()}
    assets = {"bert_config": ("bert_config.json", config.to_json)}
    if labels is not None:
        assets["label_file"] = ("labels.json", lambda file: write_json(file, labels))
    save(module, path, signatures, tokenizer, assets, overwrite)


def _config(model):
    return (model if isinstance(model, BertLayer) else model.bert).config
