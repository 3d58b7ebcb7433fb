"""Calls SavedModels with TensorFlow alone, as a program without keras_bert does.

`write_golden.py` records the answers of this program, and `test_golden.py` compares them. It reads the JSON object
{path: [kind, inputs, names of calls to leave out]} from standard input, and writes {path: answers} to standard output.
"""

import dataclasses
import gc
import json
import sys

import numpy as np
import tensorflow as tf


def encoder_calls(path, inputs):
    """Everything that an encoder SavedModel offers.

    Args:
        path: folder of the SavedModel.
        inputs: dict of `input_word_ids`, `input_mask`, `input_type_ids` and `masked_lm_positions`, nested lists of int.

    Returns:
        a dict of each call's name to a function that makes it; `gradient_norms` if there are trainable variables.
    """
    encoder = tf.saved_model.load(path)
    ids = {name: tf.constant(values, tf.int32) for name, values in inputs.items()}
    positions = ids.pop("masked_lm_positions")
    calls = {
        "dict": lambda: encoder(ids),
        "list": lambda: encoder(list(ids.values())),
        "serving_default": lambda: encoder.signatures["serving_default"](**ids),
        "vocabulary": lambda: _lines(encoder.vocab_file),
        "config": lambda: json.loads("".join(_lines(encoder.bert_config))),
        "lower_case": lambda: encoder.do_lower_case,
        "variables": lambda: {_name(variable): variable.shape.as_list() for variable in encoder.variables},
    }
    if hasattr(encoder, "mlm"):
        calls["mlm"] = lambda: encoder.mlm(ids | {"masked_lm_positions": positions})
        calls["mlm_variables"] = lambda: {
            _name(variable): variable.shape.as_list() for variable in encoder.mlm.variables}
    if encoder.trainable_variables:
        calls["gradient_norms"] = lambda: gradient_norms(encoder, encoder.trainable_variables, list(ids.values()))
    return calls


def gradient_norms(encoder, variables, inputs):
    """The norm of the gradient of a loss on both outputs for each of some variables, a dict by name."""
    with tf.GradientTape() as tape:
        pooled, sequence = encoder(inputs)
        # The plain sum of a sequence output would have no gradient but in the last layer norm.
        loss = tf.reduce_sum(pooled) + tf.reduce_sum(sequence * tf.cos(tf.range(sequence.shape[-1], dtype=tf.float32)))
    gradients = tape.gradient(loss, variables, unconnected_gradients="zero")
    return {_name(variable): plain(tf.norm(gradient)) for variable, gradient in zip(variables, gradients)}


def preprocessor_calls(path, inputs):
    """Everything that a preprocessor SavedModel offers, as `encoder_calls`.

    Args:
        path: folder of the SavedModel.
        inputs: dict of `text` and `text_pair`, lists of str.
    """
    preprocessor = tf.saved_model.load(path)
    texts, pairs = tf.constant(inputs["text"]), tf.constant(inputs["text_pair"])
    segments = [preprocessor.tokenize(texts), preprocessor.tokenize(pairs)]
    return {
        "root": lambda: preprocessor(texts),
        "serving_default": lambda: preprocessor.signatures["serving_default"](sentences=texts),
        "tokenize": lambda: segments[0].to_list(),
        "tokenize_with_offsets": lambda: [part.to_list() for part in preprocessor.tokenize_with_offsets(texts)],
        "bert_pack_inputs": lambda: preprocessor.bert_pack_inputs(segments, seq_length=tf.constant(12)),
        "special_tokens": preprocessor.tokenize.get_special_tokens_dict,
        "vocabulary": lambda: _lines(preprocessor.vocab_file),
        "lower_case": lambda: preprocessor.do_lower_case,
    }


def text_model_calls(path, inputs):
    """The signatures of a raw-text SavedModel, as `encoder_calls`; its root runs the function of `serving_default`.

    Args:
        path: folder of the SavedModel.
        inputs: dict of `texts`, a dict of the strings by argument, and `ids`, a dict of nested lists of ints.
    """
    model = tf.saved_model.load(path)
    texts = {name: tf.constant(values) for name, values in inputs["texts"].items()}
    ids = {name: tf.constant(values, tf.int32) for name, values in inputs["ids"].items()}
    calls = {
        "serving_default": lambda: model.signatures["serving_default"](**texts),
        "encode": lambda: model.signatures["encode"](**ids),
        "vocabulary": lambda: _lines(model.vocab_file),
        "config": lambda: json.loads("".join(_lines(model.bert_config))),
        "lower_case": lambda: model.do_lower_case,
    }
    if hasattr(model, "label_file"):
        calls["labels"] = lambda: json.loads("".join(_lines(model.label_file)))
    if "word_weights" in model.signatures:
        calls["word_weights"] = lambda: model.signatures["word_weights"](**texts)
    if "explain" in model.signatures:  # of versions up to 0.3
        first = {name: values[:2] for name, values in texts.items()}  # attention grows with the square of the length
        calls["explain"] = lambda: model.signatures["explain"](**first, layers=tf.constant([1]))
    return calls


CALLS = {"encoders": encoder_calls, "preprocessors": preprocessor_calls, "text_models": text_model_calls}


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
    gc.freeze()
    gc.disable()  # it would go through all graphs, again and again
    answers = {}
    for path, (kind, inputs, left_out) in json.load(sys.stdin).items():
        calls = CALLS[kind](path, inputs)
        answers[path] = {name: plain(call()) for name, call in calls.items() if name not in left_out}
        del calls
        gc.collect()
    assert not {"keras_bert", "tensorflow_text"} & set(sys.modules)
    json.dump(answers, sys.stdout)
