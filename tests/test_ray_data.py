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
from keras_bert.training import FineTuned

from conftest import TINY_VOCABULARY

pytestmark = [pytest.mark.slow, pytest.mark.skipif(importlib.util.find_spec("ray") is None,
                                                   reason='needs Ray: pip install "ray[data]"')]
EXAMPLE = pathlib.Path(__file__).parents[1] / "examples/ray_data.py"
TEXTS = [" ".join(np.random.default_rng(i).choice(TINY_VOCABULARY[5:40], 1 + i % 9)) for i in range(1000)]


def test_two_actors_give_the_labels_of_the_model(bert, tokenizer, tmp_path):
    FineTuned(BertClassifier(bert, 2), tokenizer, TASKS["classify"](16, ["a", "b"])).export(tmp_path / "answers")
    (tmp_path / "in").mkdir()
    for number in range(4):
        lines = [json.dumps({"text": text}) + "\n" for text in TEXTS[number::4]]
        (tmp_path / f"in/{number}.jsonl").write_text("".join(lines))
    command = [sys.executable, EXAMPLE, f"--model={tmp_path / 'answers'}", f"--input={tmp_path / 'in'}",
               f"--output={tmp_path / 'out'}"]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    again = subprocess.run(command, capture_output=True, text=True, timeout=300)  # would add each row once more
    assert again.returncode == 1 and f"{tmp_path / 'out'}: exists already" in again.stderr
    rows = [json.loads(line) for path in (tmp_path / "out").glob("*.json")
            for line in path.read_text().splitlines()]
    expected = tf.saved_model.load(tmp_path / "answers")(tf.constant(TEXTS))
    labels = [label.decode() for label in expected["label"].numpy()]
    rows.sort(key=lambda row: (row["text"], row["label"]))
    order = sorted(range(len(TEXTS)), key=lambda index: (TEXTS[index], labels[index]))
    assert [(row["text"], row["label"]) for row in rows] == [(TEXTS[index], labels[index]) for index in order]
    np.testing.assert_allclose([row["score"] for row in rows], expected["score"].numpy()[order], atol=1e-6)
