"""The heads: beside PyTorch's with the same weights, and as Keras models, on the backend of KERAS_BACKEND."""

import collections
import dataclasses
import itertools

import keras
import numpy as np
import pytest
from keras import ops

from keras_bert import kernels, models
from keras_bert.layers import BertLayer, MaskedLMHead

from conftest import SMALL, Peer, random_inputs, randomize

torch, transformers = Peer("torch"), Peer("transformers")
INPUTS = random_inputs(4, 9)
INPUTS["input_mask"][1, 5:] = INPUTS["input_mask"][3, 7:] = 0
CHOICES = {key: value.reshape(2, 2, 9) for key, value in INPUTS.items()}
POSITIONS = np.array([[1, 4, 8], [2, 3, 0], [7, 0, 0], [1, 2, 6]], "int32")
TAGS = np.where(INPUTS["input_mask"] == 1, INPUTS["input_word_ids"] % 3, -100).astype("int64")
NUMBERS = np.array([[0.5], [-1.0], [2.0], [0.1]], "float32")
CROSS_ENTROPY = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-100)
MEAN_SQUARES = keras.losses.MeanSquaredError()


@pytest.fixture(scope="module")
def bert():
    """An encoder that heads share, as each test gives all weights new values that reads them."""
    return randomize(BertLayer(SMALL))


def numpy(tensor):
    return ops.convert_to_numpy(tensor)


def flat(outputs):
    return [numpy(output) for output in keras.tree.flatten(outputs)]


# PyTorch's modules beside our layers, one by one.
def encoder_pairs(peer, ours):
    yield peer.embeddings.word_embeddings, ours.embeddings.word_embeddings
    yield peer.embeddings.position_embeddings, ours.embeddings.position_embeddings
    yield peer.embeddings.token_type_embeddings, ours.embeddings.segment_embeddings
    yield peer.embeddings.LayerNorm, ours.embeddings.norm
    for their_block, block in zip(peer.encoder.layer, ours.blocks, strict=True):
        yield their_block.attention.self.query, block.attention.query
        yield their_block.attention.self.key, block.attention.key
        yield their_block.attention.self.value, block.attention.value
        yield their_block.attention.output.dense, block.attention.output_dense
        yield their_block.attention.output.LayerNorm, block.attention_norm
        yield their_block.intermediate.dense, block.intermediate
        yield their_block.output.dense, block.output_dense
        yield their_block.output.LayerNorm, block.output_norm
    if peer.pooler is not None:
        yield peer.pooler.dense, ours.pooler


def head_pairs(peer, ours):
    if isinstance(ours, models.BertPretrainer):
        yield peer.cls.predictions.transform.dense, ours.mlm.dense
        yield peer.cls.predictions.transform.LayerNorm, ours.mlm.norm
        yield peer.cls.seq_relationship, ours.next_sentence
    else:
        yield list(peer.children())[-1], ours.layers[-1]  # what comes last is the head


def torch_replica(name, ours, **config):
    """PyTorch's model of that name with our weights, all of them and nothing else."""
    peer = getattr(transformers, name)(transformers.BertConfig(**SMALL.to_dict(), **config)).eval()
    carried = set()

    def carry(parameter, variable, transposed=False):
        array = numpy(variable)
        parameter.data.copy_(torch.tensor(np.ascontiguousarray(array.T if transposed else array)))
        carried.add(parameter)

    for module, layer in (*encoder_pairs(peer.bert, ours.bert), *head_pairs(peer, ours)):
        for parameter, variable in zip(module.parameters(), layer.weights, strict=True):
            carry(parameter, variable, transposed=isinstance(module, torch.nn.Linear) and parameter.ndim == 2)
    if isinstance(ours, models.BertPretrainer):
        carry(peer.cls.predictions.bias, ours.mlm.bias)
    assert carried == set(peer.parameters())
    return peer


def assert_parity(name, model, inputs, keys, loss, labels, **config):
    """Our outputs and loss are those of PyTorch's class `name`, which calls the outputs `keys` and takes `labels` as
    arguments; `loss` is ours, given our outputs; `config` is what its config has beside `SMALL`."""
    peer = torch_replica(name, randomize(model), **config)
    tensors = {"input_ids": "input_word_ids", "attention_mask": "input_mask", "token_type_ids": "segment_ids"}
    tensors = {key: torch.from_numpy(inputs[ours]).long() for key, ours in tensors.items()}
    with torch.inference_mode():
        wanted = peer(**tensors, **{key: torch.from_numpy(value) for key, value in labels.items()})
    outputs = model(inputs)
    # Values up to 5; two float32 libraries differ by their order of summation.
    for got, key in zip(outputs.values() if isinstance(outputs, dict) else [outputs], keys, strict=True):
        np.testing.assert_allclose(numpy(got), wanted[key].numpy().reshape(got.shape), rtol=0, atol=5e-6)
    assert float(loss(outputs)) == pytest.approx(wanted.loss.item(), abs=5e-6)


@pytest.mark.peers
def test_starts_as_transformers():
    """Deviation and fourth moment of a normal distribution, each to four standard errors of 160,000 draws."""
    torch.manual_seed(0)
    keras.utils.set_random_seed(0)
    peer = transformers.BertForSequenceClassification(transformers.BertConfig(**SMALL.to_dict(), num_labels=10_000))
    ours = models.BertClassifier(BertLayer(SMALL), 10_000)
    for kernel in (peer.classifier.weight.detach().numpy(), numpy(ours.classifier.kernel)):
        drawn = kernel / SMALL.initializer_range
        assert drawn.std() == pytest.approx(1, abs=0.007)
        assert np.mean(drawn**4) == pytest.approx(3, abs=0.1)


@pytest.mark.peers
def test_sequence_classification():
    labels = np.array([2, 0, 1, 1])
    assert_parity("BertForSequenceClassification", models.BertClassifier(BertLayer(SMALL), 3), INPUTS, ["logits"],
                  lambda logits: CROSS_ENTROPY(labels, logits), {"labels": labels}, num_labels=3)


@pytest.mark.peers
def test_regression():
    assert_parity("BertForSequenceClassification", models.BertRegressor(BertLayer(SMALL)), INPUTS, ["logits"],
                  lambda numbers: MEAN_SQUARES(NUMBERS, numbers), {"labels": NUMBERS}, num_labels=1)


@pytest.mark.peers
def test_multiple_choice():
    labels = np.array([1, 0])
    assert_parity("BertForMultipleChoice", models.BertMultipleChoice(BertLayer(SMALL)), CHOICES, ["logits"],
                  lambda logits: CROSS_ENTROPY(labels, logits), {"labels": labels})


@pytest.mark.peers
def test_token_classification():
    assert_parity("BertForTokenClassification", models.BertTokenClassifier(BertLayer(SMALL), 3), INPUTS, ["logits"],
                  lambda logits: CROSS_ENTROPY(TAGS, logits), {"labels": TAGS}, num_labels=3)


@pytest.mark.peers
def test_question_answering():
    """Without padding, among which PyTorch's loss looks for answers too."""
    starts, ends = np.array([1, 0, 3, 5]), np.array([2, 4, 8, 6])
    assert_parity(
        "BertForQuestionAnswering", models.BertSpanLabeler(BertLayer(SMALL)), random_inputs(4, 9),
        ["start_logits", "end_logits"],
        lambda out: (CROSS_ENTROPY(starts, out["start_logits"]) + CROSS_ENTROPY(ends, out["end_logits"])) / 2,
        {"start_positions": starts, "end_positions": ends})


def test_no_answer_is_in_padding(bert):
    inputs, model = random_inputs(2, 9), models.BertSpanLabeler(bert)
    alone = model({name: value[:, :6] for name, value in inputs.items()})
    inputs["input_mask"][:, 6:] = 0
    padded = model(inputs)
    for name in ("start_logits", "end_logits"):
        np.testing.assert_allclose(numpy(padded[name])[:, :6], numpy(alone[name]), atol=2e-6)
        assert (numpy(padded[name])[:, 6:] < -1e8).all()


@pytest.mark.peers
def test_pretraining():
    # PyTorch predicts every token and ignores the labels of those that are not masked.
    labels, following = np.full((4, 9), -100), np.array([0, 1, 1, 0])
    np.put_along_axis(labels, POSITIONS, np.take_along_axis(INPUTS["input_word_ids"], POSITIONS, 1), 1)
    assert_parity(
        "BertForPreTraining", models.BertPretrainer(BertLayer(SMALL)), INPUTS,
        ["prediction_logits", "seq_relationship_logits"],
        lambda out: CROSS_ENTROPY(labels, out["mlm_logits"]) + CROSS_ENTROPY(following, out["next_sentence_logits"]),
        {"labels": labels, "next_sentence_label": following})


def test_masked_positions_alone(bert):
    model = models.BertPretrainer(bert)
    some, every = model(INPUTS | {"masked_lm_positions": POSITIONS}), model(INPUTS)
    wanted = np.take_along_axis(numpy(every["mlm_logits"]), POSITIONS[:, :, None], axis=1)
    np.testing.assert_allclose(numpy(some["mlm_logits"]), wanted, atol=2e-6)
    np.testing.assert_allclose(numpy(some["next_sentence_logits"]), numpy(every["next_sentence_logits"]), atol=1e-6)


@pytest.mark.parametrize("activation,eps,formula", [
    ("relu", 1e-5, lambda x: np.maximum(x, 0)),
    ("gelu_tanh", 0.5, lambda x: x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))),
])
def test_masked_lm_head_with_another_activation_and_epsilon(activation, eps, formula):
    head = randomize(MaskedLMHead(SMALL, activation, eps))
    rng = np.random.default_rng(0)
    x, embeddings = rng.normal(size=(2, 3, 16)).astype("float32"), rng.normal(size=(60, 16)).astype("float32")
    y = formula(x @ numpy(head.dense.kernel) + numpy(head.dense.bias))
    y = (y - y.mean(-1, keepdims=True)) / np.sqrt(y.var(-1, keepdims=True) + eps)
    wanted = (y * numpy(head.norm.gamma) + numpy(head.norm.beta)) @ embeddings.T + numpy(head.bias)
    again = MaskedLMHead.from_config(head.get_config())
    again.set_weights(head.get_weights())
    for each in (head, again):
        np.testing.assert_allclose(numpy(each(x, embeddings)), wanted, atol=1e-5)
    with pytest.raises(ValueError, match="hidden_act must be one of.*tanh"):
        MaskedLMHead(SMALL, "tanh")


# How a head is made on an encoder, what it is trained on, and how the paths of those weights end to which its loss
# gives no gradient but rounding: key/bias, and `still`.
Head = collections.namedtuple("Head", "make inputs labels losses still", defaults=[()])
POOLER = ("pooler/kernel", "pooler/bias")
MLM, NEXT, START, END = "mlm_logits", "next_sentence_logits", "start_logits", "end_logits"
HEADS = {
    "classifier": Head(lambda bert: models.BertClassifier(bert, 3), INPUTS, np.array([2, 0, 1, 1]), CROSS_ENTROPY),
    "regressor": Head(models.BertRegressor, INPUTS, NUMBERS, MEAN_SQUARES),
    # In a softmax over choices or positions, what is added to all of them cancels.
    "multiple_choice": Head(models.BertMultipleChoice, CHOICES, np.array([1, 0]), CROSS_ENTROPY, ("classifier/bias",)),
    "span_labeler": Head(models.BertSpanLabeler, INPUTS, {START: np.arange(4), END: np.arange(4) + 2},
                         {START: CROSS_ENTROPY, END: CROSS_ENTROPY}, (*POOLER, "span/bias", "0/output_norm/beta")),
    "token_classifier": Head(lambda bert: models.BertTokenClassifier(bert, 3), INPUTS, TAGS, CROSS_ENTROPY, POOLER),
    "pretrainer": Head(lambda bert: models.BertPretrainer(bert, mlm_activation="relu", mlm_layer_norm_eps=1e-5),
                       INPUTS | {"masked_lm_positions": POSITIONS}, {MLM: POSITIONS + 7, NEXT: np.array([0, 1, 1, 0])},
                       {MLM: CROSS_ENTROPY, NEXT: CROSS_ENTROPY}),
    "mlm": Head(lambda bert: models.BertPretrainer(bert, next_sentence=False), INPUTS, {MLM: TAGS},
                {MLM: CROSS_ENTROPY}, POOLER),
    "embedder": Head(lambda bert: models.BertEmbedder(bert, "mean", normalize=True), INPUTS,
                     np.eye(4, SMALL.hidden_size), MEAN_SQUARES, POOLER),
}
each_head = pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)


@each_head
def test_keras_file_round_trip(head, bert, tmp_path):
    model = randomize(head.make(bert))
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert again.get_config() == model.get_config()
    for got, wanted in zip(flat(again(head.inputs)), flat(model(head.inputs)), strict=True):
        np.testing.assert_array_equal(got, wanted)


# On JAX, which compiles each: choices, masked positions and a single head.
@pytest.mark.parametrize("head", [
    pytest.param(head, id=name, marks=[pytest.mark.backend("tensorflow")] * (
        name not in ("classifier", "multiple_choice", "pretrainer"))) for name, head in HEADS.items()])
@pytest.mark.usefixtures("eager")
def test_fit(head, bert):
    model = randomize(head.make(bert))
    model.compile("sgd", head.losses)
    before = {weight.path: numpy(weight) for weight in model.weights}
    # Both steps drop out alike, so that the losses can be compared.
    seeds = np.tile(np.array([1, 2], "int32"), (len(head.inputs["input_mask"]), 1))
    fitted = model.fit(head.inputs | {"dropout_seed": seeds}, head.labels, epochs=2, shuffle=False, verbose=0)
    assert fitted.history["loss"][1] < fitted.history["loss"][0]
    unmoved = [weight.path for weight in model.weights if (before[weight.path] == numpy(weight)).all()]
    assert all(path.endswith(("key/bias", *head.still)) for path in unmoved), unmoved


@pytest.mark.parametrize("head,layout", [*zip(HEADS.values(), itertools.cycle(["padded", "unpadded"]))], ids=HEADS)
def test_a_batch_without_rows(head, bert, layout):
    if layout == "unpadded" and kernels.BACKEND == "jax":
        pytest.skip("only on TensorFlow")
    model = head.make(bert.rebuild(layout=layout))
    shapes = [(0, *output.shape[1:]) for output in flat(model(head.inputs))]
    empty = {key: value[:0] for key, value in head.inputs.items()}
    for outputs in (model(empty), model.predict_on_batch(empty)):
        assert [output.shape for output in flat(outputs)] == shapes


@each_head
def test_dropout_follows_the_seed(head, bert):
    model = randomize(head.make(bert))
    first, again, other = (flat(model(head.inputs, training=True, seed=np.array(seed, "int32")))
                           for seed in ([1, 2], [1, 2], [1, 3]))
    for one, same, different in zip(first, again, other, strict=True):
        np.testing.assert_array_equal(one, same)
        assert np.abs(one - different).max() > 1e-3


@pytest.mark.parametrize("name", ["classifier", "regressor", "multiple_choice", "token_classifier"])
def test_a_head_drops_out_what_it_reads(name):
    bert = BertLayer(dataclasses.replace(SMALL, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))
    model, inputs = randomize(HEADS[name].make(bert)), HEADS[name].inputs
    dropped = model(inputs, training=True, seed=np.array([1, 2], "int32"))
    assert np.abs(numpy(dropped) - numpy(model(inputs))).max() > 1e-3


@each_head
def test_logits_are_float32(head, bert):
    mixed = BertLayer(SMALL, dtype="mixed_bfloat16")
    plain, model = randomize(head.make(bert)), head.make(mixed)
    model.set_weights(plain.get_weights())
    for got, wanted in zip(flat(model(head.inputs)), flat(plain(head.inputs)), strict=True):
        assert got.dtype == "float32"
        np.testing.assert_allclose(got, wanted, atol=0.03)  # logits up to 1.4, through eight bits


@each_head
def test_in_a_functional_model(head, bert):
    model = randomize(head.make(bert))
    tensors = {key: keras.Input(value.shape[1:], dtype="int32", name=key) for key, value in head.inputs.items()}
    outputs = model(tensors)
    for tensor, got, wanted in zip(keras.tree.flatten(outputs), flat(keras.Model(tensors, outputs)(head.inputs)),
                                   flat(model(head.inputs)), strict=True):
        assert tensor.shape == (None, *got.shape[1:]) and tensor.dtype == "float32"
        np.testing.assert_array_equal(got, wanted)
