"""Benchmarks run to their line of JSON, on texts that every clone has or can download."""

import contextlib
import dataclasses
import functools
import hashlib
import http.server
import importlib
import io
import json
import os
import pathlib
import sys
import threading
import types
from unittest import mock

import pytest
from tensorflow.python.framework import test_util

from keras_bert.config import BertConfig
from keras_bert.models import BertEmbedder
from keras_bert.weights import sentence_transformers
from keras_bert.weights.format import Weights

import zoo
from conftest import REAL, TINY

BENCHMARKS = pathlib.Path(__file__).parents[1] / "benchmarks"
LITE = "keras_bert", "keras_bert-litert", "keras_bert-litert-int8"


@pytest.fixture
def benchmark_module(monkeypatch):
    """A function that imports a module of the benchmarks, which reads the bundled data; each test has its own."""
    monkeypatch.delenv("KERAS_BERT_DATA", raising=False)
    monkeypatch.syspath_prepend(BENCHMARKS)
    yield importlib.import_module
    for path in BENCHMARKS.glob("*.py"):
        sys.modules.pop(path.stem, None)


@pytest.fixture
def run_benchmark(benchmark_module, monkeypatch, capsys):
    """A function that runs a benchmark in this process, with a tiny encoder, a small matrix product and without turns
    that do not count, and returns the lines of its output."""
    def run(name, *flags):
        monkeypatch.setattr(benchmark_module("peer_models"), "config_of", lambda size, **changes: BertConfig(
            **{"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32} | changes))
        for constant, value in ("_PRODUCT", 64), ("SETTLING", 0), ("UNCOUNTED", 0):
            monkeypatch.setattr(benchmark_module("ruler"), constant, value)
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *map(str, flags)])
        with mock.patch.dict(os.environ):
            benchmark_module(name).main()
        return capsys.readouterr().out.splitlines()

    return run


@pytest.fixture
def in_this_process(benchmark_module, monkeypatch):
    """The programs that benchmarks start run in this process, where TensorFlow is imported already."""
    def run_alone(path, *flags, input=""):
        output = io.StringIO()
        with monkeypatch.context() as patch, contextlib.redirect_stdout(output):
            patch.setattr(sys, "argv", [path, *flags])
            patch.setattr(sys, "stdin", io.StringIO(input))
            benchmark_module(pathlib.Path(path).stem).main()
        return json.loads(output.getvalue().splitlines()[-1])

    monkeypatch.setattr(benchmark_module("ruler"), "run_alone", run_alone)


@pytest.fixture
def few_intents(benchmark_module, monkeypatch):
    """The corpus has 16 texts."""
    corpora = benchmark_module("texts").CORPORA
    read, *rest = corpora["intents"]
    monkeypatch.setitem(corpora, "intents", (lambda: read()[:16], *rest))


@pytest.mark.slow("a benchmark that fails")
def test_forward_ends_in_a_line_of_json(run_benchmark):
    lines = run_benchmark("forward", "--size=L2-H128", "--dtypes=float32", "--shapes=2x8,1x4",
                          f"--peers={','.join(LITE)}", "--turns=1")
    result = json.loads(lines[-1])
    assert result["benchmark"] == "forward" and result["config"]["size"] == "L2-H128"
    assert [(row["library"], row["dtype"], row["shape"]) for row in result["rows"]] == [
        (library, "float32", shape) for shape in ("2x8", "1x4") for library in LITE]
    assert [row["ratio"] for row in result["rows"] if row["library"] == "keras_bert"] == [1, 1]
    for row, batch in zip(result["rows"], (2, 2, 2, 1, 1, 1)):
        assert row["share"] > 0
        assert abs(row["sequences_per_second"] * row["milliseconds"] / 1000 - batch) < 1e-9
        assert any(line.startswith(f"{row['library']} ") and f" {row['milliseconds']:.1f} " in line for line in lines)


@pytest.mark.slow("a benchmark that fails")
@pytest.mark.usefixtures("few_intents")
def test_embeddings_end_in_a_line_of_json(run_benchmark, benchmark_module, bert, tokenizer, monkeypatch):
    """With the tiny encoder in place of MiniLM."""
    def write(_, folder, form):
        os.mkdir(folder)
        settings = {"task": "embed", "max_length": TINY.max_position_embeddings}
        sentence_transformers.write(Weights.of(BertEmbedder(bert, "mean"), tokenizer, settings=settings), folder)

    monkeypatch.setattr(benchmark_module("embeddings"), "convert", write)
    result = json.loads(run_benchmark(
        "embeddings", "--corpora=intents", "--peers=keras_bert-litert", "--turns=1")[-1])
    assert result["benchmark"] == "embeddings"
    assert [(row["corpus"], row["library"]) for row in result["rows"]] == [
        ("intents", "keras_bert"), ("intents", "keras_bert-litert")]
    assert result["rows"][0]["arrival_ratio"] == result["rows"][0]["sorted_ratio"] == 1
    assert all(row["sorted_tokens_per_second"] > row["sorted_texts_per_second"] > 0 for row in result["rows"])


@pytest.mark.slow("a benchmark that fails")
@pytest.mark.usefixtures("few_intents")
def test_texts_end_in_a_line_of_json(run_benchmark):
    result = json.loads(run_benchmark("texts", "--corpora=intents", "--size=L2-H128", "--peers=", "--turns=1")[-1])
    assert result["benchmark"] == "texts" and {row["library"] for row in result["rows"]} == {
        f"{library}{suffix}" for library in LITE for suffix in ("", "-predict")}


@pytest.mark.slow("a benchmark that fails")
def test_the_first_answer_on_litert_needs_no_tensorflow(run_benchmark):
    lines = run_benchmark("cold_start", "--size=L2-H128", "--turns=1", "--peers=keras_bert,keras_bert-litert-int8")
    ours, lite = json.loads(lines[-1])["rows"]
    assert [row["library"] for row in (ours, lite)] == ["keras_bert", "keras_bert-litert-int8"]
    for row in ours, lite:
        assert row["seconds"] > row["import_seconds"] + row["load_seconds"] + row["answer_seconds"]
    assert lite["peak_mb"] < ours["peak_mb"] / 2 and lite["disk_mb"] < ours["disk_mb"] / 2


@pytest.mark.slow("a benchmark that fails")
@pytest.mark.usefixtures("eager")
def test_scores_on_litert_end_in_a_line_of_json(run_benchmark, benchmark_module, pretrained_once, monkeypatch):
    runs = benchmark_module("task_scores").RUNS
    monkeypatch.setitem(runs, "clinc-hwu-176", dataclasses.replace(runs["clinc-hwu-176"], epochs=1, batch_size=256))
    rows = json.loads(run_benchmark(
        "litert_scores", "--tasks=clinc-hwu-176", f"--model={pretrained_once}")[-1])["rows"]
    assert [(row["library"], row["examples"]) for row in rows] == [
        ("keras", 176), ("litert-float32", 176), ("litert-int8", 176), ("saved_model", 176)]
    for row in rows[:2]:
        assert row["points_lost"] == 0 and row["equal"] == 1 and 0 < row["score"] <= 1 and row["seconds"] > 0
    assert rows[3]["equal"] == 1 and all(row["milliseconds"] > 0 for row in rows)
    assert rows[2]["megabytes"] < rows[1]["megabytes"] < 1.1 * rows[3]["megabytes"]


@pytest.mark.slow("a benchmark that fails")
@pytest.mark.usefixtures("in_this_process", "eager")
@pytest.mark.filterwarnings("ignore::UserWarning")  # of texts that are cut
def test_ways_to_read_long_texts_end_in_a_line_of_json(run_benchmark, real_texts, pretrained_once, tmp_path,
                                                       monkeypatch):
    rows = [f"{' '.join([word] * 200)}\t{label}" for word, label in (("play", "a"), ("light", "b"))] * 8
    (tmp_path / "long").mkdir()
    for name in ("train", "test"):
        unlike = [f"{zoo.WORDS[number]} {row}" for number, row in enumerate(rows)]  # to the model, too
        (tmp_path / f"long/authors_{name}.tsv").write_text("\n".join(["text\tlabel", *unlike]) + "\n")
    (tmp_path / "ner/wnut17").mkdir(parents=True)
    for name, count in (("train", 12), ("dev", 60)):
        (tmp_path / f"ner/wnut17/{name}.conll").write_text("".join(
            f"play\tO\nthe\tB-song\nlight\tI-song\nmusic\tI-song\nnow\tO\nplease\tO\n"
            f"{zoo.WORDS[number // 10]}\tO\n{zoo.WORDS[number % 10]}\tO\n\n"
            for number in range(count)))
    monkeypatch.setattr(real_texts, "find", tmp_path.joinpath)
    for _ in range(2):  # the second reads the results
        rows = json.loads(run_benchmark(
            "long_texts", f"--results={tmp_path}/results.jsonl", "--seeds=0", f"--model={pretrained_once}",
            "--methods=cut-128,windows,entities")[-1])["rows"]
        assert [(row["method"], row["read"]) for row in rows] == [
            ("cut-128", "cut at 128"), ("cut-128", "windows of 128, mean"), ("cut-128", "windows of 128, max"),
            ("windows", "windows of 128, mean"), ("windows", "windows of 128, max"),
            *(("entities", name) for name in ("sentences, each alone", "documents, consecutive windows",
                                              "documents, a window every 64 tokens"))]
        assert all(0 <= row.get("accuracy", row.get("f1_score")) <= 1 for row in rows)
        assert all(row["seconds"] > 0 and row["peak_mb"] > 0 for row in rows)
        assert all(row.get("divided") != 0 for row in rows)


@pytest.mark.slow("a benchmark that fails")
@pytest.mark.usefixtures("in_this_process", "eager")
@pytest.mark.filterwarnings("ignore::UserWarning")  # of texts that are cut
def test_re_ranking_ends_in_a_line_of_json(run_benchmark, pretrained_once, tmp_path):
    embedder, trained, *requests = json.loads(run_benchmark(
        "reranking", f"--results={tmp_path}/results.jsonl", "--seeds=0", f"--model={pretrained_once}",
        f"--embedder={zoo.model('mean')}", "--epochs=1", "--negatives=1", "--found=5", "--max_length=16", "--turns=1",
        "--libraries=keras_bert")[-1])["rows"]
    assert (embedder["library"], trained["library"], trained["texts"]) == ("embedder", "keras_bert", 40)
    assert trained["pairs"] == 383 and 0 < trained["mrr_score"] <= trained["ndcg_score"] < embedder["ndcg_score"] < 1
    assert [(row["documents"], row["library"]) for row in requests] == [
        (documents, library) for documents in ("paragraphs", "sentences")
        for library in ("keras_bert", "keras_bert-litert-int8")]
    assert all(row["milliseconds"] > 0 for row in requests)


# In place of MediaPipe, which has an environment of its own.
TEXT_CLASSIFIER = """
from types import SimpleNamespace as Result


class TextClassifier:
    @classmethod
    def create_from_model_path(cls, path):
        assert open(path, "rb").read()
        return cls()

    def classify(self, text):
        if len(text.split()) > 128:
            raise RuntimeError("CalculatorGraph::Run() failed")
        categories = [Result(category_name=label, score=label in text) for label in ("light", "music")]
        return Result(classifications=[Result(categories=categories)])
"""


@pytest.mark.slow("a benchmark that fails")
@pytest.mark.filterwarnings("ignore:texts cut at max_length")
def test_answers_are_compared_with_those_of_mediapipe(run_benchmark, trained_once, intents, tmp_path, monkeypatch):
    (tmp_path / "mediapipe/tasks/python").mkdir(parents=True)
    (tmp_path / "mediapipe/tasks/python/text.py").write_text(TEXT_CLASSIFIER)
    (tmp_path / "mediapipe-1.0.dist-info").mkdir()
    (tmp_path / "mediapipe-1.0.dist-info/METADATA").write_text("Name: mediapipe\nVersion: 1.0\n")
    (tmp_path / "more.txt").write_text("play some music\nPLAY sóme music\n" + 200 * "music ")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{BENCHMARKS.parent}")
    result = json.loads(run_benchmark(
        "mediapipe_texts", f"--mediapipe={sys.executable}", f"--model={trained_once}", f"--data={intents[1]}",
        f"--texts={tmp_path / 'more.txt'}")[-1])
    assert result["versions"]["mediapipe"] == "1.0"
    labelled, _, more, _ = result["rows"]
    assert [row["library"] for row in result["rows"]] == [
        "valid, float32", "valid, int8", "more, float32", "more, int8"]
    assert labelled["texts"] == 4 and labelled["mediapipe_accuracy"] == 0.75 and labelled["difference"] > 0
    assert (more["texts"], more["long"], more["accents"], more["failed"]) == (3, 1, 1, 1)
    assert more["lite_accuracy"] is None


def test_why_ids_differ_from_those_of_mediapipe(benchmark_module):
    compared, texts = benchmark_module("mediapipe_texts"), benchmark_module("texts")
    tokenizer = texts.tokenizer_of(texts.ENGLISH)
    assert {text: compared.cause(text, tokenizer, 8) for text in (
        "Hello, world-wide!", "北京 $5", "a café", "서울", "soft\u00adware", "the " * 9)} == {
        "Hello, world-wide!": None, "北京 $5": None, "a café": "accents", "서울": "hangul", "soft\u00adware": "other",
        "the " * 9: "long"}


def test_the_machine_is_described(benchmark_module, monkeypatch, capsys):
    monkeypatch.delenv("XLA_FLAGS")
    for onednn, word in ("1", "on"), ("0", "off"):
        monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", onednn)
        monkeypatch.setattr(test_util, "IsMklEnabled", lambda word=word: word == "on")  # the variable is read once
        benchmark_module("ruler").describe("tensorflow", "nothing-of-this-name")
        line = capsys.readouterr().out
        assert f" oneDNN {word}, load " in line and f"TF_ENABLE_ONEDNN_OPTS={onednn}; tensorflow 2." in line
        assert line.endswith(", nothing-of-this-name not installed\n")


@pytest.mark.slow("a benchmark that fails")
@pytest.mark.parametrize("training", [(), ("--training",)])
def test_operations_of_an_encoder_and_of_a_step(run_benchmark, benchmark_module, monkeypatch, training):
    for constant in "WARM_UP", "CALLS":
        monkeypatch.setattr(benchmark_module("operations"), constant, 1)
    lines = run_benchmark("operations", "--size=L2-H128", "--shape=mixed", "--peers=keras_bert", *training)
    (row,) = json.loads(lines[-1])["rows"]
    assert row["library"] == "keras_bert" and any("MatMul" in kind for kind in row["milliseconds"])
    assert ("ResourceApplyAdam" in row["milliseconds"]) == bool(training)


@pytest.mark.slow("a benchmark that fails")
def test_the_gpu_benchmark_runs_on_a_cpu(run_benchmark, benchmark_module, monkeypatch):
    """On TensorFlow, in this process."""
    def rows_of(name, folders, given, reference, *_):
        rows = []
        gpu.run_library(name, folders, given, reference, types.SimpleNamespace(send=rows.append))
        return iter(rows)

    gpu = benchmark_module("gpu")
    monkeypatch.setattr(gpu, "rows_of", rows_of)
    monkeypatch.setattr(gpu, "COMPARED", (2, 16))
    rows = json.loads(run_benchmark("gpu", "--tiny", "--libraries=keras_bert-tensorflow")[-1])["rows"]
    found = {(row["library"], row.get("dtype", row.get("work"))) for row in rows}
    works = ["float32", "bfloat16", "inference, L2-H128, 16 tokens", "training, L2-H128, 16 tokens"]
    assert found == {(f"keras_bert-tensorflow, {layout}", work) for layout in ("padded", "packed") for work in works}
    for row in rows:
        if "difference" in row:
            assert row["difference"] < (1e-4 if row["dtype"] == "float32" else 0.1)
        else:
            assert row["share"] > 0 and row["tokens_per_second"] > 0


@pytest.mark.slow("a benchmark that fails")
def test_the_gpu_benchmark_needs_a_gpu(run_benchmark, benchmark_module, monkeypatch, capsys):
    """In a process of the library's own."""
    gpu = benchmark_module("gpu")
    monkeypatch.setattr(gpu, "rows_of", lambda *arguments, rows_of=gpu.rows_of: (
        iter([()]) if arguments[3] is None else rows_of(*arguments)))
    with pytest.raises(SystemExit, match=r"^gpu\.py: no library could be measured$"):
        run_benchmark("gpu", "--sizes=L2-H128", "--lengths=16", "--libraries=keras_bert-tensorflow")
    assert capsys.readouterr().err == "keras_bert-tensorflow: it finds no GPU\n"


def test_the_mixed_texts_are_the_bundled_ones(benchmark_module, monkeypatch, capsys):
    """Even if there is another folder of data."""
    monkeypatch.setenv("KERAS_BERT_DATA", "elsewhere")
    assert len(set(benchmark_module("texts").mixed())) == 340
    assert capsys.readouterr().out.splitlines() == [
        f"70 texts from {REAL}/corpora/en/classic_books.txt", f"20 texts from {REAL}/qa/xquad/xquad.en.json",
        f"250 texts from {REAL}/intent/intent176/train.tsv"]


def test_a_missing_file_is_named(run_benchmark, benchmark_module, monkeypatch):
    monkeypatch.setenv("KERAS_BERT_DATA", "elsewhere")
    with pytest.raises(SystemExit, match=r"^elsewhere/corpora/en/classic_books\.txt does not exist; set KERAS_BERT_DA"):
        run_benchmark("pretraining_data")


@pytest.fixture
def real_texts(benchmark_module):
    return benchmark_module("real_texts")


@pytest.fixture
def official(real_texts, tmp_path, monkeypatch):
    """A folder whose file `a.txt` a local server has under the name `a`, with its checksum."""
    folder = tmp_path / "official"
    folder.mkdir()
    (folder / "a.txt").write_text("official")
    handler = functools.partial(Handler, directory=folder)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        digest = hashlib.sha256(b"official").hexdigest()
        address = f"http://127.0.0.1:{server.server_port}/a.txt"
        monkeypatch.setattr(real_texts, "OFFICIAL", {"a": (address, digest)})
        yield folder
        server.shutdown()
        thread.join()


class Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def test_files_are_downloaded_once(real_texts, official, tmp_path):
    path = real_texts.fetch("a", tmp_path)
    assert path == tmp_path / "a" and path.read_text() == "official"
    (official / "a.txt").unlink()
    assert real_texts.fetch("a", tmp_path) == path
    path.write_text("offic")
    with pytest.raises(SystemExit, match=r"a\.txt: cannot be downloaded: HTTP Error 404"):
        real_texts.fetch("a", tmp_path)


def test_a_download_with_another_checksum_is_rejected(real_texts, official, tmp_path):
    (official / "a.txt").write_text("another")
    with pytest.raises(SystemExit, match=r"a\.txt: the SHA-256 must be .{64}; got .{64}$"):
        real_texts.fetch("a", tmp_path)
    with pytest.raises(SystemExit, match="^b cannot be downloaded; set KERAS_BERT_DATA to .*: a$"):
        real_texts.fetch("b", tmp_path)
    assert not (tmp_path / "a").exists()


def test_every_download_is_read_by_a_run(real_texts, benchmark_module):
    files = {name for run in benchmark_module("task_scores").RUNS.values() for name in run.files}
    assert set(real_texts.OFFICIAL) - files == set()


@pytest.mark.parametrize("task, examples", [
    ("demo-176", [5280, 1407]), ("clinc-hwu-176", [704, 176]), ("xquad", [7, 1])])
def test_tasks_have_their_files(benchmark_module, task, examples, tmp_path):
    """Two data sets have 176 intents; `xquad` is split by articles."""
    module = benchmark_module("task_scores")
    texts = {path: path.read_text() for path in module.files_of(module.RUNS[task], tmp_path)}
    assert [len(json.loads(text)["data"] if path.suffix == ".json" else text.splitlines()[1:])
            for path, text in texts.items()] == examples


def test_entities_inside_tokens_are_counted(run_benchmark, tmp_path):
    sentence = [("두", "B-QT"), (" ", "I-QT"), ("사", "I-QT"), ("람", "I-QT"), ("이", "O"), (" ", "O"), ("서", "B-LC"),
                ("울", "I-LC")]
    path = tmp_path / "dev.tsv"
    path.write_text("".join(f"{character}\t{tag}\n" for character, tag in sentence))
    lines = run_benchmark("entity_ceiling", path, "--data_format=klue-ner")
    result = json.loads(lines[-1])
    assert result["entities"] == 2 and [row["types"] for row in result["rows"]] == 2 * [{"QT": 0, "LC": 1}]
    assert lines[0].endswith("vocab.txt: 1 of 2 entities")
