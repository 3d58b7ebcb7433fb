"""Compares re-ranking with `CrossEncoder` of sentence-transformers: the scores of a search, and the milliseconds of a
request.

    KERAS_BERT_DATA=FOLDER python benchmarks/reranking.py --results=FILE.jsonl [--model=minilm --embedder=minilm
        --seeds=0,1,2 --epochs=2 --learning_rate=2e-4 --negatives=2 --found=10 --max_length=256 --turns=9
        --libraries=keras_bert,sentence-transformers]

FOLDER has `qa/xquad/xquad.en.json` (`real_texts.py`). Needs sentence-transformers, and the extras serve-grpc and
litert: pip install -e ".[serve-grpc,litert]" sentence-transformers.

Scores: the questions of every fifth article are for the test. The others are for training, each with its paragraph and
the nearest others as `--negatives`. The embedder searches all paragraphs for each test question, the re-ranker orders
the `--found` nearest. Both libraries train the same encoder on the same batches in the same order with the same
settings, each run in a process of its own; the same code scores both. `finetune` keeps the epoch that is best on a
tenth of the training questions, which it holds out; sentence-transformers is trained without them, too, and keeps the
last epoch. The seconds are those of the training, and of the answers. Runs that are already in `--results` are skipped.

Requests: a question with 100 paragraphs, and with the first sentences of these, to `/rerank` of `keras-bert serve` with
a SavedModel in float32, and with a LiteRT folder in int8; and to `CrossEncoder.rank`. The scores of the first and the
last must be equal.
"""

import argparse
import collections
import contextlib
import functools
import http.client
import json
import sys
import tempfile
import time

import numpy as np
import ruler
from ruler import OURS

BATCH, HELD_OUT = 32, 0.1
DOCUMENTS = 100  # of a request
THEIRS = "sentence-transformers"
_TOLERANCE = 1e-4


def pairs_of(articles):
    """Returns (question, paragraph) for each question."""
    return [(entry["question"], paragraph["context"]) for article in articles for paragraph in article["paragraphs"]
            for entry in paragraph["qas"]]


# ---------------------------------------------------------------------------------------------------------------------
# Scores


def search(embedder, pairs, texts, found):
    """Returns the scores of the embedder, as (nDCG@10, MRR@10), and the nearest texts for each question."""
    from keras_bert.inference.fine_tuned import load_tuned
    from keras_bert.tasks.embedding_scores import unit_vectors
    from keras_bert.tasks.rerank import ranking

    model = load_tuned(embedder, {})
    prompts = ("query", "document") if model.task.named_prompts else (None, None)
    questions, documents = (unit_vectors(model.predict(some, prompt_name=name)) for some, name in zip(
        ([question for question, _ in pairs], texts), prompts))
    cosines = questions @ documents.T
    scores = [ranking(row, np.array([text == right for text in texts])) for row, (_, right) in zip(cosines, pairs)]
    nearest = np.argsort(-cosines, axis=1, kind="stable")[:, :found]
    return np.mean(scores, axis=0), [[texts[number] for number in row] for row in nearest]


def training_rows(embedder, pairs, negatives):
    """Returns (question, paragraph, label) with the nearest negatives of each question."""
    from keras_bert.tasks import Rerank
    from keras_bert.training.negatives import NegativeMiner

    rows, counts = [], collections.Counter()
    for example in NegativeMiner(embedder).add([Rerank.read(Rerank.open(pairs, "pairs"))])[0]:
        counts[example.text, example.label] += 1
        if example.label or counts[example.text, example.label] <= negatives:
            rows.append((example.text, example.text_pair, example.label))
    return rows


def finetuned(rows, model, seed, epochs, learning_rate, max_length):
    """Returns a function of questions and texts that returns their scores."""
    from keras_bert.training import finetune

    with tempfile.TemporaryDirectory() as folder:
        return finetune(rows, model=model, output=f"{folder}/model", task="rerank", epochs=epochs, batch_size=BATCH,
                        learning_rate=learning_rate, max_length=max_length, seed=seed, valid_share=HELD_OUT).predict


def cross_encoder(rows, model, seed, epochs, learning_rate, max_length):
    """Returns what `finetuned` returns, of a `CrossEncoder`."""
    import torch
    from sentence_transformers import CrossEncoder
    from task_scores_torch import Model, train_epochs
    from torch.nn import functional

    from keras_bert.convert import convert, open_source
    from keras_bert.tasks import Rerank
    from keras_bert.training.held_out import hold_out

    torch.manual_seed(seed)
    examples, tokenizer = Rerank.read(Rerank.open(rows, "rows")), open_source(model).needed_tokenizer()
    task = Rerank.from_examples("rows", examples, max_length=max_length)
    examples, _ = hold_out(task, "rows", examples, HELD_OUT, seed, task.same_texts(tokenizer))
    with tempfile.TemporaryDirectory() as folder:
        convert(model, f"{folder}/encoder", "huggingface", allow_inexact=True)
        trained = CrossEncoder(f"{folder}/encoder", num_labels=1, max_length=max_length, device="cpu")
    batches = task.encode(examples, tokenizer).batched(tokenizer)
    for _ in train_epochs(
            trained, Model(trained.model),
            lambda logits, targets: functional.binary_cross_entropy_with_logits(logits[:, 0], targets),
            batches, epochs, BATCH, learning_rate, "float32", seed):
        pass
    return lambda questions, texts: trained.predict(list(zip(questions, texts)))


LIBRARIES = {OURS: finetuned, THEIRS: cross_encoder}


def work(library):
    """Reads what to do from standard input, and writes the result as the last line of standard output."""
    from keras_bert.tasks.rerank import ranking

    given = json.load(sys.stdin)
    started = time.monotonic()
    score = LIBRARIES[library](*(given[name] for name in (
        "rows", "model", "seed", "epochs", "learning_rate", "max_length")))
    training, started = time.monotonic() - started, time.monotonic()
    nearest = given["nearest"]
    questions = [question for (question, _), some in zip(given["pairs"], nearest) for _ in some]
    scores = np.reshape(score(questions, [text for some in nearest for text in some]), (len(nearest), -1))
    seconds = time.monotonic() - started
    ndcg, mrr = np.mean([ranking(row, np.array([text == right for text in some]))
                         for row, some, (_, right) in zip(scores, nearest, given["pairs"])], axis=0)
    print(json.dumps({"ndcg_score": ndcg, "mrr_score": mrr, "training_seconds": training, "seconds": seconds}))


def compare_scores(given, articles):
    """Prints the scores of each run and their means; returns the rows."""
    from task_scores import append, matching

    test = pairs_of(articles[4::5])
    train = pairs_of([article for number, article in enumerate(articles, 1) if number % 5])
    texts = list(dict.fromkeys(text for _, text in pairs_of(articles)))
    (ndcg, mrr), nearest = search(given.embedder, test, texts, given.found)
    rows = training_rows(given.embedder, train, given.negatives)
    print(f"{len(train)} training questions with {len(rows)} pairs; {len(test)} test questions, {len(texts)} texts")
    results = [{"library": "embedder", "seed": None, "ndcg_score": ndcg, "mrr_score": mrr, "training_seconds": None,
                "seconds": None}]
    for seed in given.seeds:
        for library in given.libraries:
            wanted = {"library": library, "seed": seed, "pairs": len(rows), "texts": len(texts)} | {
                name: getattr(given, name)
                for name in ("model", "embedder", "epochs", "learning_rate", "negatives", "found", "max_length")}
            if not (found := matching(given.results, wanted)):
                found = [wanted | ruler.run_alone(
                    __file__, f"--work={library}", f"--results={given.results}",
                    input=json.dumps(wanted | {"rows": rows, "pairs": test, "nearest": nearest}))]
                append(given.results, found[0])
            results += found
            print("{library}, seed {seed}: nDCG@10 {ndcg_score:.4f}, MRR@10 {mrr_score:.4f}".format(**found[0]),
                  flush=True)
    by_library = {}
    for row in results:
        by_library.setdefault(row["library"], []).append(row)
    ruler.print_table(f"search in {len(texts)} texts, {given.found} of them re-ranked; means over {len(given.seeds)} "
                      "seeds", [{"library": name} | {column: _mean([row[column] for row in some]) for column in (
                          "ndcg_score", "mrr_score", "training_seconds", "seconds")}
                          for name, some in by_library.items()])
    return results


def _mean(values):
    return None if None in values else sum(values) / len(values)


# ---------------------------------------------------------------------------------------------------------------------
# Requests


def compare_requests(given, articles):
    """Prints the milliseconds of a request with long and with short documents; returns the rows."""
    from serving import running

    from keras_bert.convert import convert, load_pretrained, open_source
    from keras_bert.inference.fine_tuned import FineTuned
    from keras_bert.models import BertRegressor
    from keras_bert.tasks import Rerank

    pairs, rows = pairs_of(articles), []
    question, texts = pairs[0][0], list(dict.fromkeys(text for _, text in pairs))[:DOCUMENTS]
    source = open_source(given.model)
    tuned = FineTuned(load_pretrained(source, BertRegressor), source.needed_tokenizer(),
                      Rerank(given.max_length))
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        tuned.export(f"{folder}/saved")
        tuned.export_litert(f"{folder}/int8", dtype="int8")
        steps = {name: request(stack.enter_context(running(f"{folder}/{kind}"))[1])
                 for name, kind in ((OURS, "saved"), (f"{OURS}-litert-int8", "int8"))}
        if THEIRS in given.libraries:
            tuned.save(f"{folder}/model")
            convert(f"{folder}/model", f"{folder}/encoder", "huggingface")
            steps |= ruler.installed({THEIRS: rank}, f"{folder}/encoder", given.max_length)
        for name, documents in (("paragraphs", texts), ("sentences", [text.partition(". ")[0] for text in texts])):
            if THEIRS in steps:
                np.testing.assert_allclose(*(steps[library](question, documents) for library in (OURS, THEIRS)),
                                           rtol=0, atol=_TOLERANCE)
            seconds = ruler.take_turns(
                {library: functools.partial(step, question, documents) for library, step in steps.items()},
                given.turns)
            ratio = ruler.ratios(seconds)
            rows += [{"documents": name, "library": library, "milliseconds": 1000 * value, "ratio": ratio[library]}
                     for library, value in seconds.items()]
            ruler.print_table(f"a question and {len(documents)} {name}", [
                {column: row[column] for column in ("library", "milliseconds", "ratio")}
                for row in rows if row["documents"] == name])
    return rows


def request(port):
    """Returns a function of a question and texts that asks a server, and returns the scores in the order of the
    texts."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=90)

    def rerank(question, texts):
        connection.request("POST", "/rerank", json.dumps({"query": question, "texts": texts}))
        response = connection.getresponse()
        body = json.loads(response.read())
        if response.status != 200:
            sys.exit(f"reranking.py: {body}")
        return [row["score"] for row in sorted(body, key=lambda row: row["index"])]

    return rerank


def rank(folder, max_length):
    """Returns what `request` returns, of a `CrossEncoder`."""
    from sentence_transformers import CrossEncoder

    model = CrossEncoder(folder, max_length=max_length, device="cpu")
    return lambda question, texts: [
        row["score"] for row in sorted(model.rank(question, texts), key=lambda row: row["corpus_id"])]


def main():
    parser = ruler.parser(__doc__, results=str, model="minilm", embedder="minilm", seeds=[0, 1, 2], epochs=2,
                          learning_rate=2e-4, negatives=2, found=10, max_length=256, turns=9,
                          libraries=list(LIBRARIES))
    parser.add_argument("--work", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        return work(given.work)
    from real_texts import announce, find

    versions = ruler.describe("tensorflow", "keras", "torch", "transformers", "sentence-transformers", "ai-edge-litert")
    path = find("qa/xquad/xquad.en.json")
    articles = json.loads(path.read_text(encoding="utf-8"))["data"]
    announce(path, len(articles), "articles")
    rows = compare_scores(given, articles) + compare_requests(given, articles)
    ruler.finish("reranking", versions, given, rows)


if __name__ == "__main__":
    main()
