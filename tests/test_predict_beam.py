"""`RunInference` with a SavedModel, and `predict --beam`: any number of workers gives the answers of `predict`."""

import functools
import gzip
import json
import os
import pathlib
import re
import sys

import numpy as np
import pytest
import tensorflow as tf

from keras_bert.errors import InputError
from keras_bert.inference.saved_model import Exported

import zoo
from conftest import TINY_VOCABULARY

pytestmark = pytest.mark.peers
load_once = functools.cache(Exported)
WORDS = TINY_VOCABULARY[5:40]
TEXTS = [" ".join(np.random.default_rng(i).choice(WORDS, 1 + i % 9)) for i in range(60)]


@pytest.fixture(scope="module")
def export():
    return zoo.saved_model("intent")


@pytest.fixture(autouse=True)
def loaded_once(monkeypatch):
    """In this process, whose folders do not change."""
    monkeypatch.setattr("keras_bert.integrations.predict_beam.Exported", load_once)


@pytest.fixture
def inputs(tmp_path):
    (tmp_path / "in").mkdir()
    for number in range(2):
        lines = [json.dumps({"text": text, "id": [number, i]}) + "\n" for i, text in enumerate(TEXTS[number::2])]
        (tmp_path / f"in/{number}.jsonl").write_text("".join([*lines, "[]\n"]))
    return tmp_path / "in"


def read(folder, name):
    return sorted((json.loads(line) for path in folder.glob(name) for line in path.read_text().splitlines()),
                  key=lambda row: (row["file"], row["row"]))


def test_run_inference_gives_the_outputs_of_the_saved_model(export):
    import apache_beam as beam
    from apache_beam.ml.inference.base import RunInference
    from apache_beam.testing.util import assert_that

    from keras_bert.integrations.beam import SavedModelHandler

    expected = zoo.loaded(export).signatures["serving_default"](text=tf.constant(TEXTS[:20]))
    expected = dict(zip(TEXTS, zip(expected["label"].numpy(), expected["probabilities"].numpy())))

    def check(results):
        assert {result.example for result in results} == set(TEXTS[:20])
        for result in results:
            label, probabilities = expected[result.example]
            assert result.inference["label"] == [label]
            np.testing.assert_allclose(result.inference["probabilities"], [probabilities], atol=1e-6)

    with beam.Pipeline() as pipeline:  # batches of about two texts
        results = pipeline | beam.Create(TEXTS[:20]) | RunInference(SavedModelHandler(str(export), max_batch_tokens=16))
        assert_that(results, check)


def handler_of(folder, function, inputs, row_wise=False):
    """The handler of a SavedModel of a function of texts."""
    from keras_bert.integrations.beam import SavedModelHandler

    module = tf.Module()
    module.call = tf.function(function, input_signature=[tf.TensorSpec([None], tf.string)] * inputs)
    tf.saved_model.save(module, str(folder), {"serving_default": module.call})
    return SavedModelHandler(str(folder), row_wise)


@pytest.mark.parametrize("row_wise", [False, True])
def test_no_element_gets_the_answer_of_another(tmp_path, row_wise):
    """A foreign model that returns one row per word."""
    handler = handler_of(tmp_path / "words", lambda text: {"words": tf.strings.split(text).values}, 1, row_wise)
    results = handler.run_inference(["alice's secret words", "bob asks this"], handler.load_model())
    assert [list(result.inference["words"]) for result in results] == [
        [b"alice's", b"secret", b"words"], [b"bob", b"asks", b"this"]]


@pytest.fixture
def cluster(monkeypatch):
    """The flags of a job server and a pool of workers, which share nothing with the pipeline but the files."""
    from apache_beam.runners.portability.local_job_service import LocalJobServicer
    from apache_beam.runners.worker.worker_pool_main import BeamFnExternalWorkerPoolServicer

    monkeypatch.setenv("PATH", os.path.dirname(sys.executable), prepend=os.pathsep)  # the pool starts `python`
    jobs = LocalJobServicer()
    address, pool = BeamFnExternalWorkerPoolServicer.start(use_process=True)
    yield (f"--runner=PortableRunner,--job_endpoint=localhost:{jobs.start_grpc_server()},"
           f"--environment_type=EXTERNAL,--environment_config={address}")
    pool.stop(0)
    jobs.stop()


def test_a_pipeline_answers_as_the_processes_of_one_machine(run, export, inputs, tmp_path, cluster):
    command = ("predict", f"--model={export}", f"--input={inputs}/*", "--keep_columns=id")
    run(*command, f"--output={tmp_path / 'processes'}", "--processes=1")
    status, lines, messages = run(*command, f"--output={tmp_path / 'beam'}", "--beam", f"--beam_args={cluster}")
    assert (status, lines) == (1, [f"{tmp_path / 'beam'}: 60 answers"]) and "left out: 2; see" in messages[-1]
    answers = read(tmp_path / "beam", "answers-*.jsonl")
    expected = [{"file": str(inputs / path.name)} | json.loads(line) for path in
                sorted((tmp_path / "processes").glob("*.jsonl")) for line in path.read_text().splitlines()]
    assert all(row["id"] == [int(row["file"][-7]), row["row"] - 1] for row in answers)
    assert [row | {"score": 0} for row in answers] == [row | {"score": 0} for row in expected]
    np.testing.assert_allclose([row["score"] for row in answers], [row["score"] for row in expected], atol=1e-6)
    assert [row["reason"] for row in read(tmp_path / "beam", "invalid-*.jsonl")] == ["must be an object; got []"] * 2


def test_the_pipeline_of_the_page_writes_labels(export, tmp_path, monkeypatch):
    page = (pathlib.Path(__file__).parents[1] / "docs/clusters.md").read_text()
    (tmp_path / "texts.txt").write_text("".join(f"{text}\n" for text in TEXTS[:20]))
    monkeypatch.setattr(sys, "argv", ["label.py", f"{tmp_path}/*.txt", str(export), f"{tmp_path}/labelled"])
    exec(re.search("```python\n(.*?)```", page, re.S)[1], {"__name__": "__main__"})
    rows = [json.loads(line) for path in tmp_path.glob("labelled-*.jsonl") for line in path.read_text().splitlines()]
    labels = zoo.loaded(export)(tf.constant(TEXTS[:20]))["label"].numpy()
    assert sorted(map(str, rows)) == sorted(str({"text": text, "label": label.decode()})
                                            for text, label in zip(TEXTS, labels))


def test_an_element_that_lacks_an_input_is_refused(tmp_path):
    handler = handler_of(tmp_path / "join", lambda prompt, text: {"joined": prompt + text}, 2)
    model = handler.load_model()
    [result] = handler.run_inference([{"prompt": "a", "text": "b"}], model)
    assert result.inference["joined"] == [b"ab"]
    for element in ("b", {"text": "b"}):
        with pytest.raises(InputError, match="an element must have values of prompt, text; .* is missing in "):
            handler.run_inference([element], model)


def test_a_file_that_cannot_be_read_is_named_without_a_traceback(run, export, inputs, tmp_path, caplog):
    path = inputs / "cut.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"text": "a"}\n' * 5000)[:-9])
    status, _, messages = run("predict", f"--model={export}", f"--input={path}", "--beam",
                              f"--output={tmp_path / 'out'}")
    assert status == 1 and messages[-1].startswith(f"keras-bert: {path}: cannot be read: Compressed file ended")
    assert not (tmp_path / "out").exists() and "Traceback" not in caplog.text


def test_what_is_refused(run, export, inputs, tmp_path):
    command = ("predict", f"--input={inputs}/*", f"--output={tmp_path / 'out'}", "--beam")
    folder = zoo.model("intent")
    refused = f"{folder}: must be a SavedModel with --beam: keras-bert export text-model"
    assert run(*command, f"--model={folder}") == (1, [], [f"keras-bert: {refused}"])
    for flag, message in (
            ("--beam_args=--runner=Nobody", "--beam_args: "),
            ("--beam_args=--nosuch=3,--direct_num_workers=1", "--beam_args: DirectRunner has no flag --nosuch"),
            ("--keep_columns=file", "--keep_columns must differ from the columns of the answers, file, "),
            ("--keep_columns=url", f"{inputs / '0.jsonl'}: there is no column 'url'; the columns are text, id; leave")):
        status, _, messages = run(*command, f"--model={export}", flag)
        assert status == 1 and message in messages[-1] and not (tmp_path / "out").exists()
    assert run(*command, f"--model={export}", "--processes=2")[2] == ["keras-bert: --processes needs --nobeam"]
