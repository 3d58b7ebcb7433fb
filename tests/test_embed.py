"""The task embed: losses, scores and data, compared with what sentence-transformers computed; training; folders."""

import functools
import itertools
import json
import re

import numpy as np
import pytest
import record_sentence_transformers
import tensorflow as tf
from keras import ops
from sklearn import metrics

from keras_bert.convert import convert, open_source
from keras_bert.data import LabelPairBatches, SameLabelBatches
from keras_bert.data.tables import unread_columns
from keras_bert.errors import InputError
from keras_bert.layers import BertLayer
from keras_bert.models import BertEmbedder
from keras_bert.models.embedding_losses import LOSSES
from keras_bert.tasks import TASKS, Embed, embedding_scores
from keras_bert.tasks.embedding_scores import unit_vectors
from keras_bert.text import BertTokenizer
from keras_bert.training import FineTuned, finetune
from keras_bert.training.data_report import data_report, report_lines

from conftest import DATA, TINY, TINY_VOCABULARY, eagerly, interrupted_after, needs_data, random_inputs

RECORDED = json.loads(record_sentence_transformers.FILE.read_text())
PAIRS = [("play music", "play a song"), ("turn on the light", "the lamp on please"), ("stop", "stop it now"),
         ("book a flight", "book a flight for two"), ("what time is it", "time please"), ("a table", "a table for two")]
SCORES = [1.0, 0.8, 0.6, 0.4, 0.2, 0.0]
DATA_OF = {  # rows of each kind of data, with the score that selects the epoch
    "pairs": ([{"text": text, "text_pair": pair} for text, pair in PAIRS], "ndcg_at_10"),
    "triplets": ([{"text": text, "text_pair": pair, "negative": PAIRS[i - 1][1]}
                  for i, (text, pair) in enumerate(PAIRS)], "ndcg_at_10"),
    "scored": ([{"text": text, "text_pair": PAIRS[i // 2][1], "label": SCORES[i]}
                for i, (text, _) in enumerate(PAIRS)], "spearman"),
    "binary": ([{"text": text, "text_pair": PAIRS[i // 2][1], "label": i % 2}
                for i, (text, _) in enumerate(PAIRS)], "average_precision"),
    "labelled": ([{"text": text, "label": "ab"[i % 2]} for i, (text, _) in enumerate(PAIRS)], "ndcg_at_10"),
}


def numpy(tensor):
    return ops.convert_to_numpy(tensor)


def encode(rows, **settings):
    """The rows as `Encoded` examples of the task that they are for."""
    path = Embed.open(rows, "train")
    examples = Embed.read(path)
    task = Embed.from_examples(path, examples, max_length=16, **settings)
    return task, task.encode(examples, BertTokenizer(TINY_VOCABULARY))


# Losses

@pytest.mark.parametrize("name", [name for name in RECORDED["losses"] if name.split()[0] in LOSSES])
def test_losses_and_gradients_are_those_of_sentence_transformers(name):
    loss, texts = name.split()
    embeddings = tf.constant(RECORDED["losses"]["embeddings"])[:, :int(texts)]
    targets = np.arange(5 * int(texts)).reshape(5, -1) if loss == "multiple_negatives_ranking" else np.float32(
        RECORDED["losses"]["scores"])
    wanted = RECORDED["losses"][name]
    with tf.GradientTape() as tape:
        tape.watch(embeddings)
        value = tf.reduce_mean(LOSSES[loss](targets, embeddings))
    np.testing.assert_allclose(value, wanted["loss"], rtol=0, atol=1e-5)
    np.testing.assert_allclose(tape.gradient(value, embeddings), wanted["gradient"], rtol=0, atol=1e-5)


def test_texts_that_are_right_answers_are_not_negatives():
    # Texts 0 and 1 are repeated: as anchors, as positives, as a negative, and as both.
    numbers = np.array([[0, 1, 2], [0, 3, 4], [5, 1, 6], [1, 7, 0], [8, 9, 1], [0, 1, 10]])
    embeddings = np.random.default_rng(0).normal(size=(11, 4))[numbers]
    vectors, wanted = unit_vectors(embeddings), []
    for i, (anchor, positive, _) in enumerate(numbers):
        own, others = np.exp(20 * vectors[i, 0] @ vectors[i, 1]), 0.0
        for j, column in itertools.product(range(len(numbers)), (1, 2)):
            is_answer = column == 1 and numbers[j, 0] == anchor
            if not is_answer and numbers[j, column] not in (anchor, positive):
                others += np.exp(20 * vectors[i, 0] @ vectors[j, column])
        wanted.append(-np.log(own / (own + others)))
    got = numpy(LOSSES["multiple_negatives_ranking"](ops.convert_to_tensor(numbers, "float32"),
                                                     ops.convert_to_tensor(embeddings, "float32")))
    np.testing.assert_allclose(got, wanted, rtol=1e-5)


# Scores

def check_scores(got, wanted):
    """Compares scores with those of an evaluator of sentence-transformers."""
    names = {"spearman": "spearman_cosine", "pearson": "pearson_cosine", "average_precision": "cosine_ap",
             "f1": "cosine_f1", "f1_threshold": "cosine_f1_threshold", "precision": "cosine_precision",
             "recall": "cosine_recall", "accuracy": "cosine_accuracy",
             "accuracy_threshold": "cosine_accuracy_threshold",
             "ndcg_at_10": "cosine_ndcg@10", "mrr_at_10": "cosine_mrr@10",
             **{f"recall_at_{k}": f"cosine_recall@{k}" for k in (1, 5, 10)}}
    assert {name: value for name, value in got.items() if name != "loss"} == {
        name: pytest.approx(wanted[names[name]], abs=2e-5) for name in got if name != "loss"}


def test_scores_are_those_of_sentence_transformers():
    vectors = unit_vectors(np.float32(RECORDED["vectors"]))
    cosines = (vectors[:12] * vectors[12:]).sum(1)
    # Their threshold that accepts all pairs is the lowest cosine itself.
    check_scores(embedding_scores.pair_classification(cosines, np.array(RECORDED["labels"]) == 1),
                 RECORDED["pair_classification"] | dict.fromkeys(
                     ("cosine_accuracy_threshold", "cosine_f1_threshold"), (cosines.min() - 1) / 2))
    queries, documents = (unit_vectors(np.float32(RECORDED[name])) for name in ("queries", "documents"))
    relevant = np.zeros((8, 30), bool)
    for query, found in enumerate(RECORDED["relevant"]):
        relevant[query, found] = True
    check_scores(embedding_scores.retrieval(queries, documents, lambda some: relevant[some],
                                            lambda some: np.zeros((len(some), 30), bool)), RECORDED["retrieval"])


@pytest.mark.parametrize("kind,loss", [
    ("scored", "cosent"), ("binary", "cosent"), ("pairs", "multiple_negatives_ranking")])
def test_the_validation_loss_is_that_of_all_examples(kind, loss):
    _, encoded = encode(DATA_OF[kind][0])
    outputs = np.float32(np.random.default_rng(0).normal(size=(6, 2, 8)))
    wanted = ops.mean(LOSSES[loss](ops.convert_to_tensor(encoded.targets, "float32"), ops.convert_to_tensor(outputs)))
    assert Embed(16).score(encoded, outputs)["loss"] == pytest.approx(float(wanted), rel=1e-5)


@pytest.mark.parametrize("kind", ["labelled", "pairs", "triplets"])
@pytest.mark.parametrize("different", [1, 3])
def test_the_order_of_rows_decides_nothing_between_equal_vectors(kind, different):
    """Equal but for their lengths. The gains of texts of a label are those of scikit-learn."""
    texts = [" ".join(words) for words in itertools.permutations("play stop book turn now".split(), 3)]
    columns = {"text": texts[:20]} | {"labelled": {"label": "abbcd" * 4}, "pairs": {"text_pair": texts[20:40]},
                                      "triplets": {"text_pair": texts[20:40], "negative": texts[40:]}}[kind]
    rows, rng = [dict(zip(columns, row)) for row in zip(*columns.values())], np.random.default_rng(0)
    vectors = rng.normal(size=(different, 33)).astype("float32")[rng.integers(0, different, (20, 3))]
    vectors = (vectors * 2 ** rng.integers(0, 4, (20, 3, 1)))[:, :1 if kind == "labelled" else len(columns)]
    scores, *others = (Embed(16).score(encode([rows[row] for row in order])[1], vectors[order])
                       for order in (np.arange(20), *(rng.permutation(20) for _ in range(5))))
    assert others == [pytest.approx(scores, rel=1e-6)] * 5
    if kind == "labelled":
        units, is_other = unit_vectors(np.float64(vectors[:, 0])), ~np.eye(20, dtype=bool)
        alike, cosines = np.equal.outer(*[list(columns["label"])] * 2), (units @ units.T).round(6)
        alike, cosines = (table[is_other].reshape(20, 19) for table in (alike, cosines))
        assert scores["ndcg_at_10"] == pytest.approx(metrics.ndcg_score(alike, cosines, k=10))


@pytest.mark.slow("wrong scores of real embeddings")
@pytest.mark.parametrize("name", [
    pytest.param(name, marks=[] if name == "KorSTS" else needs_data) for name in RECORDED if "STS" in name.upper()
    or name.endswith(".tsv")])
def test_minilm_scores_as_in_sentence_transformers(minilm, name):
    path = record_sentence_transformers.KORSTS if name == "KorSTS" else DATA / "glue/STS-B" / name
    source = open_source(minilm)
    tuned = FineTuned(BertEmbedder.from_pretrained(minilm, layout="unpadded"), source.tokenizer,
                      Embed(source.settings["max_length"]))
    check_scores(tuned.evaluate(path, data_format="korsts" if name == "KorSTS" else "stsb"),
                 RECORDED[name]["similarity"])
    first, second, scores = record_sentence_transformers.sts(path)
    check_scores(tuned.evaluate([(*pair, int(score >= 0.6)) for *pair, score in zip(first, second, scores)]),
                 RECORDED[name]["pair_classification"])
    check_scores(tuned.evaluate(list(zip(first, second))), RECORDED[name]["retrieval"])


# Model and batches

@pytest.mark.parametrize("layout", ["padded", "unpadded"])
def test_several_texts_per_example_are_embedded_as_single_ones(bert, layout):
    inputs = random_inputs(6, 9)
    inputs["input_mask"][1:3, 5:] = 0
    model = BertEmbedder(bert.rebuild(layout=layout), "mean", normalize=True)
    grouped = {name: values.reshape(2, 3, 9) for name, values in inputs.items()}
    np.testing.assert_array_equal(numpy(model(grouped)), numpy(model(inputs)).reshape(2, 3, -1))


@pytest.mark.slow("a pair of texts with other labels")
def test_pairs_of_labelled_texts():
    labels = np.array([2, 0, 1, 0, 0, 2, 2, 2])  # the text of label 1 has no other of its label
    batches = LabelPairBatches([[([i, i + 9], 2)] for i in range(8)], 0, labels)
    epochs = []
    for epoch in range(20):
        dataset = list(batches.training_dataset(4, 0, epoch).as_numpy_iterator())
        assert len(dataset) == batches.steps(4) == 4
        pairs = np.concatenate([inputs["input_word_ids"][:, :, 0] for inputs, _ in dataset])
        targets = np.concatenate([targets for _, targets in dataset])
        np.testing.assert_array_equal(labels[pairs[:, 0]] == labels[pairs[:, 1]], targets == 1)
        assert (pairs[:, 0] != pairs[:, 1]).all()
        assert sorted(pairs[targets == 1, 0]) == [0, 1, 3, 4, 5, 6, 7] and sorted(pairs[targets == 0, 0]) == [*range(8)]
        epochs.append({(*map(int, pair),) for pair in pairs})
    assert epochs[0] != epochs[1]
    drawn = set.union(*epochs)
    assert drawn == {(i, j) for i, j in itertools.permutations(range(8), 2)}


def test_pairs_of_one_label_for_the_ranking_loss():
    task, encoded = encode(DATA_OF["labelled"][0], loss="multiple_negatives_ranking")
    batches = encoded.batched(BertTokenizer(TINY_VOCABULARY))
    assert isinstance(batches, SameLabelBatches) and batches.steps(4) == 2
    for epoch in range(5):
        inputs, targets = map(list, zip(*batches.training_dataset(6, 0, epoch).as_numpy_iterator()))
        assert inputs[0]["input_word_ids"].shape[:2] == (6, 2)
        assert sorted(map(tuple, targets[0].tolist())) == [(0, 0)] * 3 + [(1, 1)] * 3
        first, second = inputs[0]["input_word_ids"].swapaxes(0, 1)
        assert (first != second).any(1).all() and len(np.unique(first, axis=0)) == 6
    with pytest.raises(InputError, match="multiple_negatives_ranking needs a label with at least two texts"):
        encode([{"text": "a", "label": "x"}, {"text": "b", "label": "y"}], loss="multiple_negatives_ranking")


# Data

@pytest.mark.parametrize("rows,message", [
    ([{"text": "a"}], "train: the columns must be text and text_pair, and perhaps negative or label; or text and "
                      "label; they are text; pass text_column=…, text_pair_column=… or label_column=…"),
    ([{"text": "a", "negative": "b"}], "the columns must be text and text_pair, and"),
    ([{"text": "a", "text_pair": "b", "negative": "c", "label": 1}], "the columns must be text and text_pair, and"),
    ([{"text": "a", "text_pair": "b", "label": "yes"}], "train: row 1: 'label' must be a number; got 'yes'"),
    ([{"text": "a", "text_pair": "b"}, {"text": "a"}], "train: row 2: 'text_pair' must be a text; got None"),
    ([{"text": "a", "label": "x"}, {"text": "b", "label": "x"}],
     "train: labelled texts must have at least two labels; every text has the label 'x'"),
])
def test_data_that_cannot_be_trained_on_is_named(rows, message):
    with pytest.raises(InputError) as error:
        encode(rows)
    assert message in str(error.value) and "\n" not in str(error.value)


ORIGINAL = {"text_column": "sentence1", "text_pair_column": "sentence2"}


@pytest.mark.parametrize("task,columns,options,kind,read", [
    ("embed", "sentence1 sentence2 score id", ORIGINAL, "pairs with scores", "sentence1 sentence2 score"),
    ("embed", "text text_pair labels", {}, "pairs with scores", "text text_pair labels"),
    ("embed", "text labels label_text", {}, "labelled texts", "text labels"),
    ("embed", "text text_pair label score", {"label_column": "score"}, "pairs with scores", "text text_pair score"),
    ("embed", "text text_pair negative_10 negative_9 x", {}, "anchors with a positive and 2 negatives",
     "text text_pair negative_9 negative_10"),
    ("embed", "text text_pair negative", {}, "anchors with a positive and a negative", "text text_pair negative"),
    ("embed", "text text_pair x", {}, "pairs", "text text_pair"),
    ("rerank", "sentence1 sentence2 score id", ORIGINAL, "pairs with scores", "sentence1 sentence2 score"),
    ("rerank", "text text_pair negative_2 x negatives", {}, "pairs of a query and a document (2 relevant)",
     "text text_pair negatives negative_2"),
    ("classify", "text text_pair label score", {}, "pairs", "text text_pair label"),
    ("regress", "text label", {}, "texts with scores", "text label"),
])
def test_columns_that_change_the_meaning_are_read_or_named(task, columns, options, kind, read, tmp_path):
    columns, read = columns.split(), read.split()
    rows = [{name: value if re.match("label|score", name) else f"{name} {value}" for name in columns}
            for value in (0.5, 1)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with unread_columns() as unread:
        examples = TASKS[task].read(tmp_path / "a.jsonl", **options)
    fitted = TASKS[task].from_examples("a", examples, max_length=16)
    lines = report_lines(data_report(fitted, BertTokenizer(TINY_VOCABULARY), examples, [], unread=unread))
    assert f" {kind} for training, 0 for validation" in lines[0] and unread == [x for x in columns if x not in read]
    assert (lines[1] == f"columns that are not read: {', '.join(unread)}") == bool(unread)
    texts = [example.texts if task == "embed" else (example.text, example.text_pair) for example in examples]
    wanted = [rows[0][name] for name in read if isinstance(rows[0][name], str)]
    assert [*dict.fromkeys(text for of_one in texts for text in of_one if text and "0.5" in text)] == wanted


@pytest.mark.parametrize("task,columns,message", [
    *((task, f"text text_pair {columns}", f"the column '{columns.split()[-1]}' would change what the ")
      for task in ("embed", "rerank")
      for columns in ("label score", "labels scores", "Similarity", "neg_1", "is_duplicate", "y")),
    ("embed", "text score", "the column 'score' would change"), ("embed", "text label score", "the column 'score' wou"),
])
def test_columns_that_contradict_one_another_are_refused(task, columns, message):
    with pytest.raises(InputError, match=f"^data: {message}"):
        TASKS[task].read(TASKS[task].open([dict.fromkeys(columns.split(), "1")], "data"))


@pytest.mark.parametrize("kind,loss,message", [
    ("pairs", "cosent", "loss must be multiple_negatives_ranking for pairs, as train has; got 'cosent'"),
    ("scored", "multiple_negatives_ranking", "loss must be cosent or cosine_similarity for scored pairs, as"),
])
def test_losses_are_for_kinds_of_data(kind, loss, message):
    with pytest.raises(InputError, match=message):
        encode(DATA_OF[kind][0], loss=loss)


def test_scores_beyond_cosines():
    rows = [row | {"label": 5 * row["label"]} for row in DATA_OF["scored"][0]]
    with pytest.raises(InputError, match="train: row 1: 'label' must be from -1 to 1, as cosines are, for "
                                         "loss=cosine_similarity; got 5.0; divide the labels by the highest one"):
        encode(rows, loss="cosine_similarity")
    assert encode(rows)[0].loss_name == "cosent"


@pytest.mark.parametrize("task", ["embed", "rerank"])
def test_scores_of_published_files_are_divided(task):
    examples = TASKS[task].read(record_sentence_transformers.KORSTS, data_format="korsts")
    labels = record_sentence_transformers.sts(record_sentence_transformers.KORSTS)[2]
    assert [example.label for example in examples] == labels


@pytest.mark.parametrize("rows,message", [
    ([{"text": "a", "text_pair": "b", "label": 0.5}] * 2,
     "scores need pairs with different labels; every label is 0.5"),
    ([{"text": "a", "text_pair": "b"}] * 2, "scores need at least two different texts to find; got 1"),
    ([{"text": "a", "label": "x"}, {"text": "b", "label": "y"}], "scores need two labels, and a label with two texts"),
])
def test_data_that_cannot_be_scored_is_named(rows, message):
    path = Embed.open(rows, "valid")
    with pytest.raises(InputError, match=f"valid: {message}"):
        Embed(16).check(path, examples := Embed.read(path))
        Embed(16).check_encoded(path, Embed(16).encode(examples, BertTokenizer(TINY_VOCABULARY)))


def test_what_is_held_out_together():
    pairs, scored, labelled = (Embed.read(Embed.open(DATA_OF[kind][0], "train"))[0]
                               for kind in ("pairs", "scored", "labelled"))
    task = Embed(16)
    assert task.group(pairs) == ("play music",) and task.group(scored) == ("play a song", "play music")
    assert (task.classes(pairs), task.classes(scored), task.classes(labelled)) == ([], [], ["a"])


# Training

def train(encoder, output, kind, **options):
    return finetune(DATA_OF[kind][0] * 2, DATA_OF[kind][0], **{
        "model": encoder, "output": output, "task": "embed", "epochs": 2, "batch_size": 4, "learning_rate": 0.01,
    } | options)


@pytest.fixture(scope="module")
def learned(pretrained_once, tmp_path_factory):
    """A function of a kind of data that returns a model trained on it, and its folder."""
    @functools.cache
    def learn(kind):
        folder = tmp_path_factory.mktemp(kind) / "out"
        with eagerly():
            epochs = {"scored": 12, "binary": 8}.get(kind, 4)
            return train(pretrained_once, folder, kind, epochs=epochs, pooling="cls", normalize=True), folder

    return learn


@pytest.mark.slow("a loss that does not train embeddings")
@pytest.mark.parametrize("kind", DATA_OF)
def test_each_kind_of_data_is_learned(learned, eager, kind):
    rows, main = DATA_OF[kind]
    tuned, folder = learned(kind)
    metrics = json.loads((folder / "metrics.json").read_text())
    assert metrics["main"] == main and metrics["inputs"] == ["text"]
    assert metrics["history"]["loss"][-1] < 0.9 * metrics["history"]["loss"][0]
    scores = tuned.evaluate(rows)
    assert scores == pytest.approx({name: metrics[name] for name in scores}, abs=1e-6)


@pytest.mark.slow("an embedder that answers otherwise in its folder or export")
@pytest.mark.usefixtures("eager")
def test_the_folder_of_an_embedder(learned, tmp_path):
    rows, _ = DATA_OF["pairs"]
    tuned, folder = learned("pairs")
    vectors = tuned.predict(["play music", "now"])
    assert vectors.shape == (2, TINY.hidden_size) and vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
    again = FineTuned.load(folder)
    assert isinstance(again.model, BertEmbedder) and again.task == Embed(TINY.max_position_embeddings)
    np.testing.assert_array_equal(again.predict(["play music", "now"]), vectors)
    np.testing.assert_allclose(tuned.model(again.tokenizer(["play music", "now"])), vectors, rtol=0, atol=1e-6)
    metrics, scores = json.loads((folder / "metrics.json").read_text()), again.evaluate(rows)
    assert scores == pytest.approx({name: metrics[name] for name in scores}, abs=1e-6)
    again.save(tmp_path / "copy")
    np.testing.assert_array_equal(FineTuned.load(tmp_path / "copy").predict(["now"]), again.predict(["now"]))
    card = (folder / "README.md").read_text()
    assert "\n- embed\n" in card
    assert all(f"| {name} | {value} |" in card for name, value in (
        ("loss", "multiple_negatives_ranking"), ("pooling", "cls"), ("normalize", "True")))


@pytest.mark.slow("a trained embedder that is converted wrongly")
@pytest.mark.usefixtures("eager")
def test_a_finished_folder_becomes_one_of_sentence_transformers(pretrained_once, tmp_path):
    rows = [{"first": row["text"], "text_pair": row["text_pair"]} for row in DATA_OF["pairs"][0]]
    tuned = finetune(rows, rows, model=pretrained_once, output=tmp_path / "out", task="embed", epochs=1, batch_size=4,
                     pooling="max", normalize=True, max_length=20, text_column="first")
    convert(tmp_path / "out", tmp_path / "st", "sentence_transformers")
    source = open_source(tmp_path / "st")
    assert source.options == {"pooling": "max", "normalize": True} and source.settings["max_length"] == 20
    convert(tmp_path / "st", tmp_path / "back", "keras_bert")
    again = FineTuned.load(tmp_path / "back")
    np.testing.assert_array_equal(again.predict(["play music"]), tuned.predict(["play music"]))
    assert again.task == tuned.task.__class__(20) and again.columns == {"text_column": "first"}
    assert again.evaluate(rows)["ndcg_at_10"] == tuned.evaluate(rows)["ndcg_at_10"]
    # Trained again, it keeps its pooling and its maximum length unless others are given.
    for options, wanted in (({}, ("max", True, 20)),
                            ({"pooling": "cls", "normalize": False, "max_length": 30}, ("cls", False, 30))):
        more = train(tmp_path / "st", tmp_path / "more", "scored", epochs=1, overwrite=True, **options)
        assert (more.model.pooling, more.model.normalize, more.task.max_length) == wanted


@pytest.mark.slow("a resumed run that ends otherwise")
@pytest.mark.usefixtures("eager")
def test_an_interrupted_run_ends_as_one_that_was_not(pretrained_once, tmp_path):
    """Of labelled texts, whose pairs are drawn again in each epoch."""
    with interrupted_after(saves=7):
        train(pretrained_once, tmp_path / "out", "labelled", save_steps=1)
    again, whole = (train(pretrained_once, tmp_path / name, "labelled", save_steps=1) for name in ("out", "whole"))
    for one, other in zip(again.model.get_weights(), whole.model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.slow("embeddings under LoRA in bfloat16")
@pytest.mark.usefixtures("eager")
def test_lora_and_bfloat16(pretrained_once, tmp_path):
    tuned = train(pretrained_once, tmp_path / "lora", "pairs", lora_rank=2, dtype="mixed_bfloat16", epochs=4)
    history = json.loads((tmp_path / "lora/metrics.json").read_text())["history"]
    assert history["loss"][-1] < history["loss"][0] and tuned.model.bert.lora_rank is None
    before = BertLayer.from_pretrained(pretrained_once)
    changed = [new.path for old, new in zip(before.weights, tuned.model.bert.weights, strict=True)
               if (numpy(old) != numpy(new)).any()]
    assert changed and all("query" in path or "value" in path for path in changed)
    assert tuned.model.bert.compute_dtype == "bfloat16" and tuned.predict(["now"]).dtype == np.float32


@pytest.mark.slow("commands that do not fit together")
@pytest.mark.usefixtures("eager")
def test_commands(pretrained_once, tmp_path, run):
    rows = DATA_OF["triplets"][0]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert run("finetune", "--task=embed", f"--train={tmp_path / 'train.jsonl'}", f"--valid={tmp_path / 'train.jsonl'}",
               f"--model={pretrained_once}", f"--output={tmp_path / 'out'}", "--epochs=1", "--nonormalize")[0] == 0
    model = f"--model={tmp_path / 'out'}"
    vectors = FineTuned.load(tmp_path / "out").predict([row["text"] for row in rows])
    status, lines, _ = run("predict", model, f"--input={tmp_path / 'train.jsonl'}")
    assert status == 0 and [line.split("\t")[1] for line in lines] == [row["text"] for row in rows]
    np.testing.assert_allclose([[float(part) for part in line.split("\t")[0].split()] for line in lines], vectors,
                               rtol=1e-4, atol=1e-6)
    assert run("export", "text-model", model, f"--output={tmp_path / 'export'}")[0] == 0
    found = []
    for path in (model, f"--model={tmp_path / 'export'}"):
        records = [json.loads(line) for line in run("predict", path, "--output_format=jsonl", "stop", "now\tit")[1]]
        assert [record["text"] for record in records] == ["stop", "now\tit"] and len(records[0]["embedding"]) == 16
        found.append([record["embedding"] for record in records])
    np.testing.assert_allclose(found[0], found[1], rtol=0, atol=1e-5)
    status, lines, _ = run("evaluate", model, f"--data={tmp_path / 'train.jsonl'}")
    assert status == 0 and [line.rpartition(" ")[0].strip() for line in lines] == [
        "nDCG@10", "MRR@10", "recall@1", "recall@5", "recall@10", "loss"]
    for arguments, message in ((("predict", model, "--top_k=2", "a"), "--top_k must be 1 for the task embed"),
                               (("evaluate", model, "--choose_threshold", f"--data={tmp_path / 'train.jsonl'}"),
                                "--choose_threshold is for the tasks intent and multilabel")):
        status, _, messages = run(*arguments)
        assert status == 1 and len(messages) == 1 and message in messages[0]


@pytest.mark.parametrize("options,message", [
    ({"dropout": 0.1}, "dropout must be left out for the tasks span and embed and with few_shot, whose"),
    ({"task": "span", "dropout": 0.1}, "dropout must be left out for the tasks span and embed and with few_shot,"),
    ({"batch_size": 1}, "batch_size must be at least 2 for the task embed and with few_shot, whose losses "),
    ({"devices": ["CPU:0"]}, "devices must be left out for the task embed, whose losses compare all texts of a batch"),
    ({"pack": True}, "pack must be left out unless task is classify or intent"),
    ({"task": "classify", "loss": "cosent"}, "loss must be left out unless task is embed; got 'cosent'"),
    ({"pooling": "sum"}, "pooling must be one of mean, cls, max; got 'sum'"),
])
def test_bad_options(pretrained_once, tmp_path, options, message):
    with pytest.raises(InputError) as error:
        train(pretrained_once, tmp_path / "out", "pairs", **options)
    assert str(error.value).startswith(message)
    assert not (tmp_path / "out").exists()
