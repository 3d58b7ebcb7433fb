"""The task rerank: data, scores and losses beside sentence-transformers', mined negatives, and CrossEncoder folders."""

import json

import numpy as np
import pytest
import record_sentence_transformers
import tensorflow as tf

from keras_bert.convert import convert, open_source
from keras_bert.errors import InputError
from keras_bert.inference.served_model import RequestError
from keras_bert.layers import BertLayer
from keras_bert.models import BertEmbedder, BertRegressor
from keras_bert.serving.rerank import Request
from keras_bert.serving.tensors import Limits
from keras_bert.tasks import Embed, Encoded, Rerank
from keras_bert.tasks.rerank import ranking
from keras_bert.text import BertTokenizer
from keras_bert.text.same import SameTexts
from keras_bert.training import FineTuned, finetune
from keras_bert.training.negatives import NegativeMiner
from keras_bert.weights import huggingface
from keras_bert.weights.format import Weights

import zoo
from conftest import SMALL, TINY_VOCABULARY, Peer, change_json, convert_proven, interrupted_after, randomize, spelled

pytestmark = pytest.mark.usefixtures("eager")

library = Peer("sentence_transformers")
torch = Peer("torch")
ROWS = [{"text": "play music", "text_pair": ["a song", "some music"], "negative": ["the lamp", "stop"]},
        {"text": "turn the light off", "text_pair": "the lamp", "negative": "a song"},
        {"text": "book a flight", "text_pair": "a flight for two", "negative": ["two", "now", "the lamp"]}]
PAIRS = [("play music", "some song", 1), ("play music", "a lamp", 0), ("turn off", "the light", 1),
         ("turn off", "two", 0)]
WORDS = [word for word in TINY_VOCABULARY if word.isalpha()]
TEXTS, DOCUMENTS = ["play music", "", "a lamp " * 20], ["a song", "the light off", "now"]


def read(rows):
    return Rerank.read(Rerank.open(rows, "rows"))


def triples(examples):
    return [(example.text, example.text_pair, example.label) for example in examples]


def reranker(activation_fn="sigmoid"):
    model = randomize(BertRegressor(BertLayer(SMALL)))
    return FineTuned(model, BertTokenizer(TINY_VOCABULARY), Rerank(20, activation_fn))


# Data

def test_lists_of_positives_and_negatives_are_pairs():
    examples = read(ROWS)
    assert [(example.text_pair, example.label, example.row) for example in examples[:5]] == [
        ("a song", 1, 1), ("some music", 1, 1), ("the lamp", 0, 1), ("stop", 0, 1), ("the lamp", 1, 2)]
    assert triples(read(PAIRS)) == PAIRS
    assert triples(read([{"text": "a", "text_pair": "b", "negative": None}])) == [("a", "b", 1)]
    printed = {"text": "a", "text_pair": "['b', 'd']", "negatives": "[]"}  # as in a CSV file
    assert triples(read([printed, {"text": "e", "text_pair": "f", "negatives": '["g"]'}])) == [
        ("a", "b", 1), ("a", "d", 1), ("e", "f", 1), ("e", "g", 0)]


@pytest.mark.parametrize("rows,message", [
    ([{"text": "a"}], "rows: there is no column 'text_pair'; the columns are text"),
    ([{"text": "a", "text_pair": "b", "negative": "c", "label": 1}], "rows: the columns must be text, text_pair and"),
    ([{"text": "a", "text_pair": [1]}], "rows: row 1: 'text_pair' must be a list of texts; got"),
    ([("a", "b", "yes")], "rows: row 1: 'label' must be a number; got 'yes'"),
    ([("a", "b", 0), ("a", "c", 5)], "rows: row 2: 'label' must be from 0 to 1; got 5; divide the labels by the"),
    ([("a", "b"), ("a", "c")], "rows: re-ranking needs documents that are not relevant: a column negative, or labels, "
                               "or mine_negatives=…; every label is 1"),
])
def test_data_that_cannot_be_trained_on_is_named(rows, message):
    with pytest.raises(InputError, match=message):
        Rerank.from_examples("rows", read(rows), max_length=16)


def test_data_that_cannot_be_scored_is_named():
    with pytest.raises(InputError, match="scores need a query with a relevant document and one that is not: a column"):
        Rerank(16).check_encoded("rows", Rerank(16).encode(
            read([("a", "b", 1), ("play", "d", 0)]), BertTokenizer(TINY_VOCABULARY)))
    with pytest.raises(InputError, match="scores need pairs with different labels; every label is 0.5"):
        Rerank(16).check("rows", read([("a", "b", 0.5), ("c", "d", 0.5)]))


# Scores

@pytest.mark.parametrize("case", json.loads(record_sentence_transformers.FILE.read_text())["rankings"])
def test_rankings_are_scored_as_in_sentence_transformers(case):
    found = ranking(np.array(case["scores"]), np.array(case["relevant"]))
    assert found == pytest.approx((case["ndcg"], case["mrr"]), abs=1e-12)


def test_equal_scores_are_no_ranking():
    relevant = np.array([True, False, False])
    assert ranking(np.ones(3), relevant) == (pytest.approx(np.mean(1 / np.log2([2, 3, 4]))), 1 / 3)
    assert ranking(np.arange(3), relevant & False) == (0, 0)
    assert ranking(np.array([np.nan, 0, 1]), relevant) == ranking(np.array([-1, 0, 1]), relevant)
    assert ranking(np.full(3, np.nan), relevant) == ranking(np.ones(3), relevant)


def test_scores_are_means_over_the_queries():
    task = Rerank(20)
    encoded = task.encode(read(ROWS), BertTokenizer(TINY_VOCABULARY))
    logits = np.array([3, 1, 2, 0, -1, 1, 2, 1, 0, 0])
    scores = task.score(encoded, logits[:, None])
    assert scores["mrr_at_10"] == pytest.approx((1 + 1 / 2 + 1) / 3)
    first, ideal = (1 + 1 / np.log2(4)), 1 + 1 / np.log2(3)
    assert scores["ndcg_at_10"] == pytest.approx((first / ideal + 1 / np.log2(3) + 1) / 3)
    probabilities = 1 / (1 + np.exp(-logits))
    right = np.where(encoded.targets == 1, probabilities, 1 - probabilities)
    assert scores["loss"] == pytest.approx(-np.log(right).mean())
    assert task.main_score(encoded.examples) == "ndcg_at_10"
    graded = task.encode(read([("a", "b", 0.1), ("a", "i", 0.9), ("b", "a", 0.4)]), BertTokenizer(TINY_VOCABULARY))
    scores = task.score(graded, np.array([[-1], [5], [0]]))
    assert scores["spearman"] == 1 and task.main_score(graded.examples) == "spearman" and scores["pearson"] < 1


@pytest.mark.parametrize("task,rows", [
    (Rerank(20), [(query, document, float(query == document)) for query in ("play", "stop", "now")
                  for document in ("a song", "the lamp", query)]),
    (Embed(20), [("play music", "a song"), ("stop", "a song"), ("play music", "the lamp"), ("now", "a song"),
                 ("the lamp", "two")])])
def test_equal_tokens_are_equal_texts_in_losses_and_scores(task, rows):
    plain, others = (task.encode(task.read(task.open(some, "rows")), BertTokenizer(TINY_VOCABULARY))
                     for some in (rows, spelled(rows)))
    np.testing.assert_array_equal(plain.targets, others.targets)
    outputs = np.arange(len(rows))[:, None] % 4 if task.name == "rerank" else np.sin(
        plain.targets[..., None] * 3 + np.arange(8))
    assert task.score(plain, outputs) == task.score(others, outputs)


# Training

@pytest.fixture(scope="module")
def embedder(tmp_path_factory):
    """A model for embeddings, and its folder."""
    task = Embed(20, prompts={"query": "what ", "document": "it "})
    folder = tmp_path_factory.mktemp("embedder") / "model"
    model = FineTuned(randomize(BertEmbedder(BertLayer(SMALL), "mean")), BertTokenizer(TINY_VOCABULARY), task)
    model.save(folder)
    return model, folder


def test_mined_negatives_are_the_nearest_documents(embedder, tmp_path):
    model, folder = embedder
    rows = [(f"{WORDS[i]} {WORDS[i + 1]}", f"{WORDS[-i - 1]} {WORDS[i]}") for i in range(8)] + [
        ("play music", "now"), ("play music", "stop")]
    mined, = NegativeMiner(folder).add([read(rows)])
    assert triples(mined[:10]) == [(*row, 1) for row in rows]
    documents = [document for _, document in rows]
    found = {query: [example.text_pair for example in mined[10:] if example.text == query] for query, _ in rows}
    assert not any(example.label for example in mined[10:])
    vectors = model.predict(documents, prompt_name="document")
    for query in found:
        question, = model.predict([query], prompt_name="query")
        cosines = vectors @ question / np.linalg.norm(vectors, axis=1)
        nearest = [documents[i] for i in np.argsort(-cosines, kind="stable") if (query, documents[i]) not in rows]
        assert found[query] == nearest[:5]
    assert NegativeMiner(folder).add([read(PAIRS)]) == [read(PAIRS)]  # they have negatives
    reranker().save(tmp_path / "reranker")
    with pytest.raises(InputError, match="mine_negatives must be a model for embeddings; .* for the task rerank"):
        NegativeMiner(tmp_path / "reranker")


def test_no_negative_is_the_query_or_a_positive_of_any_file_in_other_letters(embedder):
    train = [("play", "stop"), ("now", "the lamp"), ("NOW ", "The lamp"), ("two", "a song"), ("stop", "PLAY")]
    mined = NegativeMiner(embedder[1]).add([read(train), read([("Play ", "A  song"), ("two", "Stop")])])
    assert set(triples(mined[0][len(train):])) == {
        ("play", "the lamp", 0), ("now", "stop", 0), ("now", "a song", 0), ("now", "PLAY", 0), ("two", "the lamp", 0),
        ("two", "PLAY", 0), ("stop", "the lamp", 0), ("stop", "a song", 0)}
    assert not mined[1][2:]
    # What is the same for one of the models alone is no negative either.
    cased = SameTexts(BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "play", "Play", "stop", "Stop"], False), None)
    rows = read([("play", "stop"), ("Play", "Stop")])
    assert NegativeMiner(embedder[1]).add([rows], cased) == [rows]


@pytest.mark.slow("a negative that is relevant")
def test_training_with_mined_negatives(embedder, pretrained_once, tmp_path):
    def train():
        return finetune(rows * 2, rows, model=pretrained_once, output=tmp_path / "out", task="rerank", epochs=1,
                        batch_size=8, mine_negatives=folder, save_steps=1)

    def reverse(other):
        for weight in other.model.weights:
            weight.assign(weight[::-1])
        other.save(folder, overwrite=True)

    rows = [example[:2] for example in triples(read(ROWS)) if example[2]]
    folder = zoo.copy(embedder[1], tmp_path / "embedder")
    with interrupted_after(saves=1):
        train()
    reverse(other := FineTuned.load(folder))
    with pytest.raises(InputError, match=r"unfinished run .*other contents of .*embedder \(mine_negatives\)"):
        train()
    reverse(other)
    tuned = train()
    metrics = json.loads((tmp_path / "out/metrics.json").read_text())
    assert metrics["main"] == "ndcg_at_10" and metrics["train_examples"] == 16
    assert metrics["valid_examples"] == 4 + 2 + 3 + 3  # two negatives for a query with two of the four documents
    assert FineTuned.load(tmp_path / "out").task == Rerank(SMALL.max_position_embeddings) == tuned.task


@pytest.mark.parametrize("shape", [(2, 3), (3,)])
def test_a_response_needs_a_logit_for_each_document(shape):
    body = json.dumps({"query": "a", "texts": ["b", "c"]}).encode()
    request = Request(body, Limits(), lambda size: None, "/rerank")
    with pytest.raises(RequestError) as error:
        request.response("words", {"logit": np.zeros(shape, np.float32)}, 3)
    assert error.value.message == f"model: words must return one logit for each document; got the shape {list(shape)}"
    answer = json.loads(request.response("words", {"logit": np.float32([[-9], [0]])}, 3))
    assert [row["index"] for row in answer] == [1, 0] and answer[0]["score"] == 0.5


def test_the_score_may_be_the_logit():
    logits = np.float32([[3.0], [-7.0]])
    task = Rerank(16, "identity")
    assert {name: values.numpy().tolist() for name, values in task.encode_in_graph(
        tf.constant(logits), None).items()} == {"logit": [3, -7], "score": [3, -7]}
    assert task.answers(Encoded([], []), list(logits)) == [3, -7]


# CrossEncoder folders

def without_activation(folder, config=()):
    """Writes a folder that does not say if it re-ranks; returns its path."""
    folder.mkdir()
    huggingface.write(Weights.of(reranker().model, BertTokenizer(TINY_VOCABULARY)), folder)
    change_json(folder / "config.json", **{"problem_type": None} | dict(config))
    return folder


@pytest.mark.parametrize("config,library_config,settings", [
    ({"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}, None,
     {"task": "rerank", "activation_fn": "identity"}),
    ({"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid", "version": "5.0.0"}}, None,
     {"task": "rerank", "activation_fn": "sigmoid"}),
    ({}, {"model_type": "CrossEncoder", "activation_fn": "torch.nn.modules.linear.Identity"},
     {"task": "rerank", "activation_fn": "identity"}),
    ({"keras_bert": {"task": "rerank", "max_length": 12, "activation_fn": "sigmoid"}},  # saved again by the library
     {"model_type": "CrossEncoder", "activation_fn": "torch.nn.modules.linear.Identity"},
     {"task": "rerank", "activation_fn": "identity", "max_length": 12}),
    ({}, {"model_type": "CrossEncoder"}, {"task": "rerank", "activation_fn": "sigmoid"}),
    ({}, None, {"task": "regress", "pairs": False}),
])
def test_folders_of_every_version_of_the_library(tmp_path, config, library_config, settings):
    folder = without_activation(tmp_path / "folder", config)
    if library_config:
        library_config |= {"prompts": {"query": "q: "}}
        (folder / "config_sentence_transformers.json").write_text(json.dumps(library_config))
    source = open_source(folder, allow_inexact=True)
    assert len(source.differences) == bool(library_config)
    assert any("--activation_fn" in note for note in source.notes) == (settings["task"] == "regress")
    assert source.settings | settings == source.settings


@pytest.mark.slow("an activation that a conversion loses")
def test_convert_says_keeps_and_replaces_the_activation(embedder, tmp_path):
    folder = without_activation(tmp_path / "folder")
    convert(folder, tmp_path / "model", "keras_bert", activation_fn="identity")
    assert FineTuned.load(tmp_path / "model").task == Rerank(SMALL.max_position_embeddings, "identity")
    assert max(convert(tmp_path / "model", tmp_path / "hf", "huggingface").values()) == 0
    convert(tmp_path / "hf", tmp_path / "other", "huggingface", activation_fn="sigmoid")
    for name, activation_fn in (("hf", "identity"), ("other", "sigmoid")):
        config = json.loads((tmp_path / name / "config.json").read_text())
        assert config["architectures"] == ["BertForSequenceClassification"] and config["id2label"] == {"0": "LABEL_0"}
        assert config["sentence_transformers"]["activation_fn"].lower().endswith(activation_fn)
        assert open_source(tmp_path / name).settings["activation_fn"] == activation_fn
    with pytest.raises(InputError, match="pairs is for models for classification or regression; this one is for rera"):
        convert(folder, tmp_path / "pairs", "keras_bert", activation_fn="sigmoid", pairs=True)
    with pytest.raises(InputError, match="activation_fn is for models for regression or re-ranking; this one is for e"):
        convert(embedder[1], tmp_path / "none", "keras_bert", activation_fn="sigmoid")


@pytest.mark.peers
@pytest.mark.parametrize("activation_fn", ["sigmoid", "identity"])
def test_sentence_transformers_reads_what_is_written_and_the_other_way(tmp_path, activation_fn):
    model = reranker(activation_fn)
    model.save(tmp_path / "model")
    convert(tmp_path / "model", tmp_path / "hf", "huggingface")
    theirs = library.CrossEncoder(str(tmp_path / "hf"), device="cpu")
    pairs, asked = list(zip(TEXTS, DOCUMENTS)), model.task.arguments(TEXTS, DOCUMENTS)
    wanted = model.answer(asked)
    np.testing.assert_allclose(theirs.predict(pairs), wanted, rtol=0, atol=1e-5)
    theirs.save(str(tmp_path / "saved"))
    convert_proven(tmp_path / "saved", tmp_path / "back")
    again = FineTuned.load(tmp_path / "back")
    assert again.task == Rerank(20, activation_fn)
    np.testing.assert_allclose(again.answer(asked), wanted, rtol=0, atol=1e-6)
    if activation_fn == "sigmoid":  # a folder that says none is read as with this one
        theirs = library.CrossEncoder(str(without_activation(tmp_path / "folder")), device="cpu")
        longer = model.with_task(Rerank(SMALL.max_position_embeddings)).answer(asked)
        np.testing.assert_allclose(theirs.predict(pairs), longer, rtol=0, atol=1e-5)


@pytest.mark.peers
def test_loss_and_gradient_are_those_of_a_cross_encoder(tmp_path):
    from sentence_transformers.cross_encoder.losses import BinaryCrossEntropyLoss

    model = reranker()
    model.save(tmp_path / "model")
    convert(tmp_path / "model", tmp_path / "hf", "huggingface")
    theirs = library.CrossEncoder(str(tmp_path / "hf"), device="cpu").eval()  # without dropout
    texts, documents, labels = zip(*PAIRS)
    loss = BinaryCrossEntropyLoss(theirs)([texts, documents], torch.tensor(labels))
    loss.backward()
    wanted = dict(theirs.named_parameters())["0.model.bert.pooler.dense.bias"].grad.numpy()
    with tf.GradientTape() as tape:
        value = model.task.loss_arguments()["loss"](np.float32(labels), model.model(
            model.tokenizer(texts, documents, 20)))
    np.testing.assert_allclose(value, loss.item(), rtol=0, atol=1e-6)
    np.testing.assert_allclose(tape.gradient(value, model.model.bert.pooler.bias.value), wanted, rtol=0, atol=1e-6)
