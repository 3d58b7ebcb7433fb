"""Calls SavedModels with TensorFlow alone, as a program without keras_bert does.

`write_golden.py` records what these functions return; `test_golden.py` runs this file as a program and compares. It
reads the JSON object {path: [kind, inputs]} from standard input, and writes {path: answers} to standard output.
"""

import dataclasses
import json
import sys

import numpy as np
import tensorflow as tf


def call_encoder(path, inputs):
    """Calls everything that an encoder SavedModel offers.

    Args:
        path: folder of the SavedModel.
        inputs: dict of `input_word_ids`, `input_mask`, `input_type_ids` and `masked_lm_positions`, nested lists of int.

    Returns:
        a dict of what the calls return, and the `gradient_norms` if there are trainable variables.
    """
    encoder = tf.saved_model.load(path)
    ids = {name: tf.constant(values, tf.int32) for name, values in inputs.items()}
    positions = ids.pop("masked_lm_positions")
    answers = {
        "dict": encoder(ids),
        "list": encoder(list(ids.values())),
        "serving_default": encoder.signatures["serving_default"](**ids),
        "vocabulary": _lines(encoder.vocab_file),
        "config": json.loads("".join(_lines(encoder.bert_config))),
        "lower_case": encoder.do_lower_case,
        "variables": {_name(variable): variable.shape.as_list() for variable in encoder.variables},
    }
    if hasattr(encoder, "mlm"):
        answers["mlm"] = encoder.mlm(ids | {"masked_lm_positions": positions})
        answers["mlm_variables"] = {_name(variable): variable.shape.as_list() for variable in encoder.mlm.variables}
    if encoder.trainable_variables:
        answers["gradient_norms"] = gradient_norms(encoder, encoder.trainable_variables, list(ids.values()))
    return plain(answers)


def gradient_norms(encoder, variables, inputs):
    """The norm of the gradient of a loss on both outputs for each of some variables, a dict by name."""
    with tf.GradientTape() as tape:
        pooled, sequence = encoder(inputs)
        # The plain sum of a sequence output would have no gradient but in the last layer norm.
        loss = tf.reduce_sum(pooled) + tf.reduce_sum(sequence * tf.cos(tf.range(sequence.shape[-1], dtype=tf.float32)))
    gradients = tape.gradient(loss, variables, unconnected_gradients="zero")
    return {_name(variable): plain(tf.norm(gradient)) for variable, gradient in zip(variables, gradients)}


def call_preprocessor(path, inputs):
    """Calls everything that a preprocessor SavedModel offers.

    Args:
        path: folder of the SavedModel.
        inputs: dict of `text` and `text_pair`, lists of str.
    """
    preprocessor = tf.saved_model.load(path)
    texts, pairs = tf.constant(inputs["text"]), tf.constant(inputs["text_pair"])
    tokens, starts, limits = preprocessor.tokenize_with_offsets(texts)
    segments = [preprocessor.tokenize(texts), preprocessor.tokenize(pairs)]
    return plain({
        "root": preprocessor(texts),
        "serving_default": preprocessor.signatures["serving_default"](sentences=texts),
        "tokenize": segments[0].to_list(),
        "tokenize_with_offsets": [part.to_list() for part in (tokens, starts, limits)],
        "bert_pack_inputs": preprocessor.bert_pack_inputs(segments, seq_length=tf.constant(12)),
        "special_tokens": preprocessor.tokenize.get_special_tokens_dict(),
        "vocabulary": _lines(preprocessor.vocab_file),
        "lower_case": preprocessor.do_lower_case,
    })


def call_text_model(path, inputs):
    """Calls the signatures of a raw-text SavedModel; a call of the root runs the function of `serving_default`.

    Args:
        path: folder of the SavedModel.
        inputs: dict of `texts`, a dict of the strings by argument, and `ids`, a dict of nested lists of ints.
    """
    model = tf.saved_model.load(path)
    texts = {name: tf.constant(values) for name, values in inputs["texts"].items()}
    ids = {name: tf.constant(values, tf.int32) for name, values in inputs["ids"].items()}
    answers = {
        "serving_default": model.signatures["serving_default"](**texts),
        "encode": model.signatures["encode"](**ids),
        "vocabulary": _lines(model.vocab_file),
        "config": json.loads("".join(_lines(model.bert_config))),
        "lower_case": model.do_lower_case,
    }
    if hasattr(model, "label_file"):
        answers["labels"] = json.loads("".join(_lines(model.label_file)))
    if "explain" in model.signatures:
        first = {name: values[:2] for name, values in texts.items()}  # attention grows with the square of the length
        answers["explain"] = model.signatures["explain"](**first, layers=tf.constant([1]))
    return plain(answers)


CALLS = {"encoders": call_encoder, "preprocessors": call_preprocessor, "text_models": call_text_model}


def plain(value):
    """A value as JSON holds it: numbers, strings, lists and dicts. Floats are rounded to seven decimal places.

    Args:
        value: a tensor, an array or a dataclass, or dicts and lists of them.
    """
    if dataclasses.is_dataclass(value):
        value = dataclasses.asdict(value)
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    if isinstance(value, bytes):
        return value.decode()
    if not isinstance(value, (tf.Tensor, tf.Variable, np.ndarray, np.generic, float)):
        return value
    array = np.asarray(value)
    if array.dtype.kind == "f":
        return np.round(array.astype(np.float64), 7).tolist()
    return plain(array.tolist())


def _name(variable):
    return variable.name.removesuffix(":0")


def _lines(asset):
    return tf.io.read_file(asset.asset_path).numpy().decode().splitlines()


if __name__ == "__main__":
    # Loading and calling is what is compared; to optimize the graphs as well takes longer than all the rest.
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    answers = {path: CALLS[kind](path, inputs) for path, (kind, inputs) in json.load(sys.stdin).items()}
    assert not {"keras_bert", "tensorflow_text"} & set(sys.modules)
    json.dump(answers, sys.stdout)
