"""The example of Ray Data: two actors give the labels of the exported model."""

import importlib.util
import json
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from keras_bert.models import BertClassifier
from keras_bert.tasks import TASKS
from keras_bert.text import BertTokenizer
from keras_bert.training import FineTuned

from conftest import TINY_VOCABULARY

pytestmark = [pytest.mark.slow("the files that actors of Ray write"), pytest.mark.skipif(importlib.util.find_spec("ray") is None,
                                                   reason='needs Ray: pip install "ray[data]"')]
EXAMPLE = pathlib.Path(__file__).parents[1] / "examples/ray_data.py"
TEXTS = [" ".join(np.random.default_rng(i).choice(TINY_VOCABULARY[5:40], 1 + i % 9)) for i in range(1000)]


@pytest.fixture(scope="module")
def answers(source, tmp_path_factory):
    path = tmp_path_factory.mktemp("ray") / "answers"
    FineTuned(BertClassifier(source, 2), BertTokenizer(TINY_VOCABULARY), TASKS["classify"](16, ["a", "b"])).export(path)
    return path


@pytest.fixture
def label(answers, tmp_path):
    """Runs the example on four files. Returns the process and the rows that it has written, by their ids."""
    (tmp_path / "in").mkdir()
    for number in range(4):
        rows = [{"id": str(row), "text": TEXTS[row]} for row in range(number, len(TEXTS), 4)]
        (tmp_path / f"in/{number}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def run(*flags):
        process = subprocess.run([sys.executable, EXAMPLE, f"--model={answers}", f"--input={tmp_path / 'in'}",
                                  f"--output={tmp_path / 'out'}", *flags], capture_output=True, text=True, timeout=300)
        lines = [line for path in tmp_path.glob("out/*.json") for line in path.read_text().splitlines()]
        return process, sorted(map(json.loads, lines), key=lambda row: int(row["id"]))

    return run


def check(rows, answers):
    expected = tf.saved_model.load(answers)(tf.constant(TEXTS))
    labels = [label.decode() for label in expected["label"].numpy()]
    assert [(row["text"], row["label"]) for row in rows] == list(zip(TEXTS, labels))
    np.testing.assert_allclose([row["score"] for row in rows], expected["score"].numpy(), atol=1e-6)


def test_two_actors_give_the_labels_of_the_model(label, answers, tmp_path):
    _, rows = label()
    check(rows, answers)
    again, rows = label()  # would add each row once more
    assert again.returncode == 1 and f"{tmp_path / 'out'}: exists already" in again.stderr
    check(rows, answers)


def test_with_ids_a_run_that_failed_continues(label, answers, tmp_path):
    path = tmp_path / "in/3.jsonl"
    content = path.read_text()
    path.write_text(content + "{")
    assert label("--id_column=id")[0].returncode == 1
    path.write_text(content)
    _, rows = label("--id_column=id")
    check(rows, answers)
    assert "exists already" in label("--id_column=id")[0].stderr
