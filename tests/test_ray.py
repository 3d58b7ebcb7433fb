"""The examples of Ray: two actors of Ray Data, and Ray Serve, give the labels of the exported model."""

import importlib.util
import json
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

import zoo
from conftest import TINY_VOCABULARY

pytestmark = [
    pytest.mark.slow("the files that actors of Ray write"),
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason='needs Ray: pip install "ray[data]"')]
EXAMPLES = pathlib.Path(__file__).parents[1] / "examples"
TEXTS = [" ".join(np.random.default_rng(i).choice(TINY_VOCABULARY[5:40], 1 + i % 9)) for i in range(1000)]


def test_two_actors_give_the_labels_of_the_model_and_a_run_that_failed_continues(tmp_path):
    model = zoo.saved_model("intent")
    (tmp_path / "in").mkdir()
    for number in range(4):
        rows = [{"id": str(row), "text": TEXTS[row]} for row in range(number, len(TEXTS), 4)]
        (tmp_path / f"in/{number}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def run():
        return subprocess.run([sys.executable, EXAMPLES / "ray_data.py", f"--model={model}",
                               f"--input={tmp_path / 'in'}", f"--output={tmp_path / 'out'}", "--id_column=id"],
                              capture_output=True, text=True, timeout=300)

    path = tmp_path / "in/3.jsonl"
    content = path.read_text()
    path.write_text(content + "{")
    assert run().returncode == 1
    path.write_text(content)
    run()
    again = run()  # would add each row once more
    assert again.returncode == 1 and f"{tmp_path / 'out'}: exists already" in again.stderr
    lines = [line for path in tmp_path.glob("out/*.json") for line in path.read_text().splitlines()]
    rows = sorted(map(json.loads, lines), key=lambda row: int(row["id"]))
    expected = zoo.loaded(model)(tf.constant(TEXTS))
    labels = [label.decode() for label in expected["label"].numpy()]
    assert [(row["text"], row["label"]) for row in rows] == list(zip(TEXTS, labels))
    np.testing.assert_allclose([row["score"] for row in rows], expected["score"].numpy(), atol=1e-6)


def test_ray_serve_answers_as_the_model(tmp_path):
    model = zoo.saved_model("intent")
    code = ("import json, sys; from ray import serve; from ray_serve import build;"
            "handle = serve.run(build({'model': sys.argv[1]}));"
            "found = [handle.answer.remote(text) for text in json.load(sys.stdin)];"
            "print(json.dumps([each.result() for each in found]))")
    found = subprocess.run([sys.executable, "-c", code, model], cwd=EXAMPLES, input=json.dumps(TEXTS[:50]),
                           capture_output=True, text=True, timeout=300)
    assert found.returncode == 0, found.stderr[-3000:]
    answers, expected = json.loads(found.stdout.splitlines()[-1]), zoo.loaded(model)(tf.constant(TEXTS[:50]))
    assert [answer["label"] for answer in answers] == [label.decode() for label in expected["label"].numpy()]
    np.testing.assert_allclose([answer["score"] for answer in answers], expected["score"].numpy(), atol=1e-6)
