"""Our outputs beside other libraries' with the same weights, on the backend of KERAS_BACKEND."""

import dataclasses

import keras
import numpy as np
import pytest
from keras import ops

from keras_bert.config import BertConfig
from keras_bert.data import PackedBatches
from keras_bert.layers import BertLayer
from keras_bert.text import BertTokenizer, pad
from keras_bert.weights.format import Weights
from keras_bert.weights.huggingface_models import TYPES

from conftest import REAL, TINY, Peer, random_inputs, randomize

torch, transformers = Peer("torch"), Peer("transformers")
pytestmark = pytest.mark.peers
on_tensorflow = pytest.mark.backend("tensorflow")


def real_texts(tokenizer):
    """200 texts of 3 to 128 tokens, [CLS] and [SEP] included, twenty of each length: runs of words from books."""
    words = (REAL / "corpora/en/classic_books.txt").read_text(encoding="utf-8").split()
    rng = np.random.default_rng(0)
    lengths = np.repeat(np.geomspace(3, 128, 10).astype(int), 20)
    packed = []
    for length in lengths:
        start = rng.integers(0, len(words) - 400)
        (ids,) = tokenizer.ids([" ".join(words[start:start + 400])])
        packed.append(([tokenizer.cls_id, *ids[:length - 2], tokenizer.sep_id], length))
    assert [len(ids) for ids, _ in packed] == list(lengths)
    return packed


@pytest.mark.slow("rounding of six blocks of a usual width")
def test_transformers_on_200_real_texts(minilm, minilm_bert):
    """Each text in a row of its own, beside shorter and longer ones; and packed. In one shape each: JAX compiles it."""
    peer = transformers.BertModel.from_pretrained(minilm).eval()
    tokenizer = BertTokenizer.from_folder(minilm)
    texts = real_texts(tokenizer)
    of_length = np.arange(200).reshape(10, 20)
    wanted = []
    with torch.inference_mode():
        for group in of_length:
            outputs = peer(torch.tensor([texts[i][0] for i in group]))
            wanted += zip(outputs.pooler_output.numpy(), outputs.last_hidden_state.numpy(), strict=True)
    rows = PackedBatches(texts, tokenizer.pad_id, None, 512)
    batches = dict.fromkeys(("padded", "packed"), of_length.T.reshape(4, 50))
    if keras.backend.backend() == "tensorflow":
        batches["unpadded"] = batches["padded"]
    else:
        batches = {layout: groups[:1] for layout, groups in batches.items()}  # whose code is not optimized in the tests
    largest = dict.fromkeys(batches, 0.0)
    for layout, groups in batches.items():
        for group in groups:
            given = rows.inputs(group) if layout == "packed" else pad([texts[i] for i in group], tokenizer.pad_id)
            pooled, sequence = (ops.convert_to_numpy(output) for output in minilm_bert(given, layout=layout))
            begins = given.get("pooled_positions", np.arange(len(group)) * sequence.shape[1])
            tokens = sequence.reshape(-1, sequence.shape[-1])
            for text, begin, vector in zip(group, begins, pooled, strict=True):
                wanted_vector, states = wanted[text]
                largest[layout] = max(largest[layout], np.abs(vector - wanted_vector).max(),
                                      np.abs(tokens[begin:begin + len(states)] - states).max())
    print("largest differences from transformers:", {name: f"{at:.1e}" for name, at in largest.items()})
    # Values up to 6 through six blocks; two float32 libraries differ by their order of summation.
    assert max(largest.values()) <= 2e-5


def torch_replica(bert, **changes):
    """PyTorch's `BertModel` with the weights of `bert`."""
    config = transformers.BertConfig(**bert.config.to_dict() | changes)
    return carry_encoder(bert, transformers.BertModel._from_config(config)).eval()


def carry_encoder(bert, replica):
    """Gives PyTorch's encoder the weights of ours; it may lack the pooler."""
    arrays = Weights.of(bert).arrays(TYPES["bert"].table("pretraining"))
    state = {name.stored_name: torch.tensor(array) for name, array in arrays}
    missing, more = replica.load_state_dict(state, strict=False)
    assert missing == [] and more in ([], ["pooler.dense.weight", "pooler.dense.bias"])
    return replica


def call_torch(replica, inputs, **kwargs):
    with torch.inference_mode():
        tensors = [torch.from_numpy(inputs[key]).long() for key in ("input_word_ids", "input_mask", "segment_ids")]
        return replica(*tensors, **kwargs)


def test_left_to_right_is_the_mask_of_a_decoder():
    bert = randomize(BertLayer(dataclasses.replace(TINY, directionality="ltr")))
    inputs = random_inputs(3, 9)
    inputs["input_mask"][1, 6:] = 0
    wanted = call_torch(torch_replica(bert, is_decoder=True), inputs).last_hidden_state.numpy()
    real = inputs["input_mask"].astype(bool)
    np.testing.assert_allclose(np.asarray(bert(inputs)[1])[real], wanted[real], atol=5e-6)


@pytest.mark.parametrize("layout,rates", [
    ("padded", (0.2, 0.0)), ("padded", (0.0, 0.4)), pytest.param("unpadded", (0.2, 0.4), marks=on_tensorflow)])
def test_transformers_dropout(layout, rates):
    """One text 12,000 times in a batch: the mean square of what dropout adds to each state."""
    torch.manual_seed(0)
    rates = dict(zip(("hidden_dropout_prob", "attention_probs_dropout_prob"), rates))
    bert = randomize(BertLayer(dataclasses.replace(TINY, **rates)))
    once = random_inputs(1, 6)
    inputs = {name: np.repeat(value, 12_000, axis=0) for name, value in once.items()}
    replica = torch_replica(bert)
    clean = call_torch(replica, once, output_hidden_states=True)
    dropped = call_torch(replica.train(), inputs, output_hidden_states=True)
    options = {"training": True, "seed": np.array([1, 2], np.int32), "layout": layout}
    outputs = bert.encode(inputs, **options)
    ours = [outputs.embedding_output, *outputs.encoder_outputs, bert.pool(inputs, **options)]
    for got, wanted, centre in zip(ours, (*dropped.hidden_states, dropped.pooler_output),
                                   (*clean.hidden_states, clean.pooler_output), strict=True):
        got, wanted = (np.mean((ops.convert_to_numpy(states) - centre.numpy())**2) for states in (got, wanted))
        assert got == pytest.approx(wanted, rel=0.06, abs=1e-12)  # five standard errors of the pooled output's draws


@pytest.mark.parametrize("act", ["gelu", "gelu_new", "gelu_tanh", "relu", "silu"])
def test_transformers_activations_and_epsilon(act):
    bert = randomize(BertLayer(BertConfig.from_dict(TINY.to_dict() | {"hidden_act": act, "layer_norm_eps": 0.01})))
    replica = torch_replica(bert, hidden_act={"gelu_tanh": "gelu_pytorch_tanh"}.get(act, act))
    inputs = random_inputs(3, 9)
    wanted = call_torch(replica, inputs)
    for got, output in zip(bert(inputs), (wanted.pooler_output, wanted.last_hidden_state), strict=True):
        np.testing.assert_allclose(ops.convert_to_numpy(got), output, rtol=0, atol=5e-6)
