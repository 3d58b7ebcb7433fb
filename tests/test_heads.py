"""The heads: beside PyTorch's with the same weights, and as Keras models, on the backend of KERAS_BACKEND."""

import collections
import dataclasses
import itertools

import keras
import numpy as np
import pytest
from keras import ops
from test_parity import carry_encoder

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


def head_pairs(peer, ours):
    """PyTorch's modules beside our layers."""
    if isinstance(ours, models.BertPretrainer):
        yield peer.cls.predictions.transform.dense, ours.mlm.dense
        yield peer.cls.predictions.transform.LayerNorm, ours.mlm.norm
        yield peer.cls.seq_relationship, ours.next_sentence
    else:
        yield list(peer.children())[-1], ours.layers[-1]  # what comes last is the head


def torch_replica(name, ours, **config):
    """PyTorch's model of that name with our weights, all of them and nothing else."""
    peer = getattr(transformers, name)(transformers.BertConfig(**SMALL.to_dict(), **config)).eval()
    values = {id(parameter): value for module, layer in head_pairs(peer, ours)
              for parameter, value in zip(module.parameters(), map(numpy, layer.weights), strict=True)}
    if isinstance(ours, models.BertPretrainer):
        values[id(peer.cls.predictions.bias)] = numpy(ours.mlm.bias)
    for parameter in set(peer.parameters()) - set(peer.bert.parameters()):
        value = values.pop(id(parameter))
        parameter.data.copy_(torch.tensor(value.T if value.ndim == 2 else value))
    carry_encoder(ours.bert, peer.bert)
    assert not values
    return peer


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


def test_no_answer_is_in_padding(bert):
    inputs, model = random_inputs(2, 9), models.BertSpanLabeler(bert)
    alone = model({name: value[:, :6] for name, value in inputs.items()})
    inputs["input_mask"][:, 6:] = 0
    padded = model(inputs)
    for name in ("start_logits", "end_logits"):
        np.testing.assert_allclose(numpy(padded[name])[:, :6], numpy(alone[name]), atol=2e-6)
        assert (numpy(padded[name])[:, 6:] < -1e8).all()


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


@pytest.mark.parametrize("head", [*HEADS.values(), HEADS["token_classifier"]._replace(
    make=lambda bert: models.BertFeatureTagger(bert, 3, "last", units=5))], ids=[*HEADS, "feature_tagger"])
@pytest.mark.usefixtures("eager")
def test_losses_read_no_keras_mask(head, bert):
    model = randomize(head.make(bert.rebuild(output_mask=True)))
    outputs = keras.tree.map_structure(numpy, model(head.inputs))
    losses = [head.losses[name](head.labels[name], outputs[name]) for name in outputs] if isinstance(
        outputs, dict) else [head.losses(head.labels, outputs)]
    model.compile("sgd", head.losses)
    assert model.evaluate(head.inputs, head.labels, verbose=0, return_dict=True)["loss"] == pytest.approx(
        sum(map(float, losses)), rel=1e-5)


@each_head
def test_saved_and_in_a_functional_model(head, bert, tmp_path):
    model = randomize(head.make(bert))
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert again.get_config() == model.get_config()
    tensors = {key: keras.Input(value.shape[1:], dtype="int32", name=key) for key, value in head.inputs.items()}
    outputs = again(tensors)
    for tensor, got, wanted in zip(keras.tree.flatten(outputs), flat(keras.Model(tensors, outputs)(head.inputs)),
                                   flat(model(head.inputs)), strict=True):
        assert tensor.shape == (None, *got.shape[1:]) and tensor.dtype == "float32"
        np.testing.assert_array_equal(got, wanted)


# PyTorch's class and the number of its labels; our head; what PyTorch calls the outputs and their labels; the share of
# each output in the loss.
EVERY_TOKEN = np.full((4, 9), -100)  # PyTorch predicts every token, and ignores this label
np.put_along_axis(EVERY_TOKEN, POSITIONS, np.take_along_axis(INPUTS["input_word_ids"], POSITIONS, 1), 1)
PEERS = [
    ("BertForSequenceClassification", 3, HEADS["classifier"], {"logits": "labels"}, 1),
    ("BertForSequenceClassification", 1, HEADS["regressor"], {"logits": "labels"}, 1),
    ("BertForMultipleChoice", 1, HEADS["multiple_choice"], {"logits": "labels"}, 1),
    ("BertForTokenClassification", 3, HEADS["token_classifier"], {"logits": "labels"}, 1),
    # Without padding, among which PyTorch's loss looks for answers too.
    ("BertForQuestionAnswering", 2, HEADS["span_labeler"]._replace(inputs=random_inputs(4, 9)),
     {"start_logits": "start_positions", "end_logits": "end_positions"}, 1 / 2),
    ("BertForPreTraining", 2, Head(models.BertPretrainer, INPUTS, HEADS["pretrainer"].labels | {MLM: EVERY_TOKEN},
                                   HEADS["pretrainer"].losses),
     {"prediction_logits": "labels", "seq_relationship_logits": "next_sentence_label"}, 1)]


@pytest.mark.peers
@pytest.mark.parametrize("name,num_labels,head,names,share", PEERS, ids=[f"{row[0]}-{row[1]}" for row in PEERS])
def test_outputs_and_loss_are_those_of_pytorch(name, num_labels, head, names, share):
    model = randomize(head.make(BertLayer(SMALL)))
    peer = torch_replica(name, model, num_labels=num_labels)
    outputs, labels, losses = (each if isinstance(each, dict) else {"logits": each} for each in (
        model(head.inputs), head.labels, head.losses))
    tensors = {"input_ids": "input_word_ids", "attention_mask": "input_mask", "token_type_ids": "segment_ids"}
    tensors = {key: torch.from_numpy(head.inputs[ours]).long() for key, ours in tensors.items()}
    with torch.inference_mode():
        wanted = peer(**tensors, **dict(zip(names.values(), map(torch.tensor, labels.values()), strict=True)))
    # Values up to 5; two float32 libraries differ by their order of summation.
    for key, ours in zip(names, outputs, strict=True):
        got = numpy(outputs[ours])
        np.testing.assert_allclose(got, wanted[key].numpy().reshape(got.shape), rtol=0, atol=5e-6)
    loss = share * sum(float(losses[ours](labels[ours], outputs[ours])) for ours in outputs)
    assert loss == pytest.approx(wanted.loss.item(), abs=5e-6)
