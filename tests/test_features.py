"""A frozen encoder's features, beside PyTorch's hidden states, and the tagger; on the backend of KERAS_BACKEND."""

import dataclasses

import keras
import numpy as np
import pytest
from keras import ops

from keras_bert.errors import InputWarning
from keras_bert.layers import BertLayer
from keras_bert.models.feature_tagger import BertFeatures, BertFeatureTagger, features_of

from conftest import TINY, random_inputs, randomize, write_huggingface

BLOCKS = 5
INPUTS = random_inputs(3, 5)
INPUTS["input_mask"][1, 2:] = INPUTS["input_mask"][2, 4:] = 0
REAL = INPUTS["input_mask"] == 1
TAGS = np.where(REAL, INPUTS["input_word_ids"] % 3, -100)
CROSS_ENTROPY = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-100)


@pytest.fixture
def bert():
    return deep_bert()


def deep_bert(**kwargs):
    return randomize(BertLayer(dataclasses.replace(TINY, num_hidden_layers=BLOCKS), **kwargs))


def numpy(tensor):
    return ops.convert_to_numpy(tensor)


def values(model):
    return {weight.path: numpy(weight) for weight in model.weights}


def softmax(x):
    return np.exp(x) / np.exp(x).sum()


def hidden_states(folder, inputs):
    """PyTorch's outputs of the embeddings and of all blocks of the encoder in a folder, [batch, seq, hidden] each."""
    import torch
    import transformers

    model = transformers.BertModel.from_pretrained(folder).eval()
    tensors = [torch.from_numpy(inputs[key]) for key in ("input_word_ids", "input_mask", "segment_ids")]
    with torch.inference_mode():
        return [state.numpy() for state in model(*tensors, output_hidden_states=True).hidden_states]


@pytest.mark.peers
def test_all_features_beside_pytorch(bert, tmp_path):
    states = hidden_states(write_huggingface(tmp_path / "bert", bert), INPUTS)
    wanted = {"embeddings": states[0], "last": states[-1], "second-to-last": states[4], "sum-all": sum(states[1:]),
              **{f"sum-last-{n}": sum(states[-n:]) for n in range(1, BLOCKS + 1)},
              **{f"concat-last-{n}": np.concatenate(states[-n:], axis=-1) for n in range(1, BLOCKS + 1)},
              "weighted-all": 0.7 * sum(w * x for w, x in zip(softmax(np.arange(5) / 4), states[1:], strict=True)),
              **{f"layer-{n}": states[n] for n in range(BLOCKS + 1)}}
    assert wanted.keys() == features_of(BLOCKS).keys()
    for name, expected in wanted.items():
        model = BertFeatures(bert, name)
        if name == "weighted-all":
            np.testing.assert_allclose(numpy(model(INPUTS))[REAL], np.mean(states[1:], axis=0)[REAL], atol=5e-6)
            model.mix.set_weights([np.arange(5) / 4, np.array(0.7)])
        got = numpy(model(INPUTS))
        assert got.shape == (3, 5, model.width) == expected.shape
        # Sums of five values up to 4; two float32 libraries differ by their order of summation.
        np.testing.assert_allclose(got[REAL], expected[REAL], rtol=0, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("blocks,name,message", [
    (3, "sum-last-4", "features must be one of .*; got 'sum-last-4'"),
    (1, "second-to-last", "features must be one of .*; got 'second-to-last'"),
    (3, "layer-4", "features must be one of embeddings, last, second-to-last, sum-all, weighted-all, layer-N, "
                   "sum-last-N, concat-last-N, of an encoder with 3 blocks; got 'layer-4'"),
    (3, "concat-last-0", "features must be one of .*; got 'concat-last-0'"),
])
def test_features_that_there_are_not(blocks, name, message):
    bert = BertLayer(dataclasses.replace(TINY, num_hidden_layers=blocks))
    with pytest.raises(ValueError, match=f"^{message}$"):
        BertFeatures(bert, name)
    assert bert.trainable_weights == bert.weights


def test_features_are_float32(bert):
    mixed = BertFeatures(deep_bert(dtype="mixed_bfloat16"), "weighted-all")(INPUTS)
    assert keras.backend.standardize_dtype(mixed.dtype) == "float32"
    plain = BertFeatures(bert, "weighted-all")(INPUTS)
    np.testing.assert_allclose(numpy(mixed)[REAL], numpy(plain)[REAL], atol=0.1)  # eight bits, values up to 4


def numpy_lstm(x, kernel, recurrent, bias):
    """Hochreiter and Schmidhuber's, with Keras's order of gates; x [seq, width]."""
    h = c = np.zeros(recurrent.shape[0])
    outputs = []
    for step in x.astype(float):
        i, f, g, o = np.split(step @ kernel + h @ recurrent + bias, 4)
        c = c / (1 + np.exp(-f)) + np.tanh(g) / (1 + np.exp(-i))
        h = np.tanh(c) / (1 + np.exp(-o))
        outputs.append(h)
    return np.array(outputs)


def test_the_tagger_is_two_bidirectional_lstms_and_a_classifier(bert):
    model = randomize(BertFeatureTagger(bert, 3, units=7))
    wanted = numpy(BertFeatures(bert, "concat-last-4")(INPUTS))
    got = numpy(model(INPUTS))
    assert got.shape == (3, 5, 3) and got.dtype == "float32"
    for row, length in enumerate(REAL.sum(axis=1)):
        x = wanted[row, :length]
        for layer in (model.first, model.second):
            forward, backward = layer.get_weights()[:3], layer.get_weights()[3:]
            x = np.concatenate([numpy_lstm(x, *forward), numpy_lstm(x[::-1], *backward)[::-1]], axis=-1)
        logits = x @ numpy(model.classifier.kernel) + numpy(model.classifier.bias)
        np.testing.assert_allclose(got[row, :length], logits, rtol=0, atol=2e-6)


def test_the_tagger_has_the_width_of_the_paper(bert):
    model = BertFeatureTagger(bert, 3)
    assert [layer.get_weights()[0].shape for layer in (model.first, model.second, model.classifier)] == [
        (4 * 16, 4 * 384), (768, 4 * 384), (768, 3)]


@pytest.mark.slow("an encoder that learns though it is frozen")
@pytest.mark.usefixtures("eager")
def test_the_encoder_stays_and_the_rest_learns(bert):
    model = randomize(BertFeatureTagger(bert, 3, "weighted-all", units=7, dropout=0.0))
    before = values(model)
    model.compile(keras.optimizers.Adam(0.01), CROSS_ENTROPY)
    history = model.fit(INPUTS, TAGS, epochs=3, verbose=0).history["loss"]
    assert history[2] < history[0]
    moved = {path for path, value in values(model).items() if (value != before[path]).any()}
    assert moved == before.keys() - {weight.path for weight in bert.weights}
    assert {weight.path for weight in model.trainable_weights} == moved and len(moved) == 2 + 4 * 3 + 2


def test_nothing_drops_out_but_what_the_classifier_reads(bert):
    model = randomize(BertFeatureTagger(bert, 3, units=7, dropout=0.5))
    first, again, other = (numpy(model(INPUTS, training=True, seed=np.array(seed, "int32")))
                           for seed in ([1, 2], [1, 2], [1, 3]))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 1e-3
    without = randomize(BertFeatureTagger(bert, 3, units=7, dropout=0.0))
    np.testing.assert_array_equal(numpy(without(INPUTS, training=True)), numpy(without(INPUTS)))


@pytest.mark.parametrize("make", [
    lambda bert: BertFeatures(bert, "layer-2"),
    lambda bert: BertFeatureTagger(bert, 3, "weighted-all", units=5, dropout=0.3)])
def test_keras_file_round_trip(make, bert, tmp_path):
    model = randomize(make(bert))
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert again.get_config() == model.get_config() and len(again.trainable_weights) == len(model.trainable_weights)
    np.testing.assert_array_equal(numpy(again(INPUTS)), numpy(model(INPUTS)))


@pytest.mark.slow("a head that Keras cannot rebuild")
def test_in_a_functional_model(bert):
    model = randomize(BertFeatureTagger(bert, 3, units=7))
    tensors = {key: keras.Input((5,), dtype="int32", name=key) for key in INPUTS}
    outputs = model(tensors)
    assert outputs.shape == (None, 5, 3) and model.features(tensors).shape == (None, 5, 64)
    np.testing.assert_array_equal(numpy(keras.Model(tensors, outputs)(INPUTS)), numpy(model(INPUTS)))


def test_from_pretrained(bert, tmp_path):
    folder = write_huggingface(tmp_path / "bert", bert)
    got = BertFeatures.from_pretrained(folder, features="last")(INPUTS)
    np.testing.assert_array_equal(numpy(got), numpy(bert(INPUTS)[1]))
    with pytest.warns(InputWarning, match="randomly initialised"):
        tagger = BertFeatureTagger.from_pretrained(folder, num_classes=3, features="last", units=7)
    np.testing.assert_array_equal(numpy(tagger.features(INPUTS)), numpy(got))


def test_a_copy_on_an_encoder_of_another_name(bert):
    """The layer of the features holds the encoder, which keeps its own account of what is frozen."""
    model = BertFeatureTagger(bert, 3, "last", units=7)
    model.second.trainable = False
    config = model.get_config()
    assert config["frozen"] == ["second"]
    another = keras.saving.serialize_keras_object(BertLayer(bert.config, trainable=False))
    other = BertFeatureTagger.from_config(config | {"bert": another})
    assert len(other.trainable_variables) == len(model.trainable_variables) == 8
