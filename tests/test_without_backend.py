"""Texts, labelled data and tasks need NumPy alone: no backend of Keras."""

import json
import subprocess
import sys

from keras_bert.tasks import TASKS

SCRIPT = """
import json, sys

class NoBackend:
    def find_spec(self, name, *_):
        if name.partition(".")[0] in ("tensorflow", "keras", "jax", "torch"):
            raise ImportError(f"{name} must not be imported here")

sys.meta_path.insert(0, NoBackend())
import numpy as np
from keras_bert import data, tasks, text

for name, settings, columns, outputs in json.loads(sys.argv[1]):
    task = tasks.TASKS[name](max_length=16, **settings)
    tokenizer = text.BertTokenizer("[PAD] [UNK] [CLS] [SEP] the light lamp on".split())
    encoded = task.encode(task.arguments(*columns), tokenizer)
    batches = encoded.batched(tokenizer)
    assert isinstance(batches, data.TextBatches)
    inputs = batches.inputs(range(len(encoded.rows)))
    outputs = [{key: np.float32(part) for key, part in output.items()} if isinstance(output, dict)
               else np.float32(output) for output in outputs]
    answers = task.answers(encoded, outputs)
    records = [task.record(example, answer) for example, answer in zip(encoded.examples, answers)]
    print(json.dumps([inputs["input_word_ids"].tolist(), records]))
"""
# The fields of each task, an input, the outputs of a model for its rows, the ids of the rows, and what its answer has.
CASES = {
    "intent": ({"labels": ["off", "on"], "threshold": 0.5}, ["light on"], [[0, 50]], [[2, 5, 7, 3]],
               {"label": "on", "in_scope": True}),
    "classify": ({"labels": ["off", "on"], "pairs": True}, ["light", "on"], [[0, 50]], [[2, 5, 3, 7, 3]],
                 {"label": "on"}),
    "multilabel": ({"labels": ["a", "b"]}, ["light"], [[-50, 50]], [[2, 5, 3]], {"labels": ["b"], "scores": [1.0]}),
    "regress": ({}, ["light"], [[1.5]], [[2, 5, 3]], {"value": 1.5}),
    "tag": ({"labels": ["O", "B-x", "I-x"]}, ["the light on"],
            [[[50, 0, 0], [50, 0, 0], [0, 50, 0], [50, 0, 0], [50, 0, 0]]], [[2, 4, 5, 7, 3]],
            {"entities": [{"label": "x", "text": "light", "start": 4, "end": 9, "score": 1.0}]}),
    "joint": ({"labels": ["off", "on"], "tags": ["O", "B-x"]}, ["light on"],
              [{"label_logits": [0, 50], "tag_logits": [[50, 0], [0, 50], [50, 0], [50, 0]]}], [[2, 5, 7, 3]],
              {"label": "on", "entities": [{"label": "x", "text": "light", "start": 0, "end": 5, "score": 1.0}]}),
    "span": ({}, ["the lamp", "light on"],
             [{"start_logits": [0, 0, 0, 0, 50, 0, 0], "end_logits": [0, 0, 0, 0, 0, 50, 0]}], [[2, 4, 6, 3, 5, 7, 3]],
             {"text": "light on", "start": 0, "end": 8, "score": 1.0}),
    "choice": ({}, ["light", ["on", "the"]], [[0, 50]], [[[2, 5, 3, 7, 3], [2, 5, 3, 4, 3]]],
               {"choice": 1, "text": "the"}),
    "embed": ({}, ["light"], [[[0.5, 0.25]]], [[[2, 5, 3]]], {"embedding": [0.5, 0.25]}),
    "rerank": ({"activation_fn": "identity"}, ["light", "on"], [[1.5]], [[2, 5, 3, 7, 3]], {"score": 1.5}),
}


def test_tasks_encode_and_decode_without_a_backend():
    assert CASES.keys() == TASKS.keys()
    arguments = json.dumps([[name, settings, [[part] for part in texts], outputs]
                            for name, (settings, texts, outputs, *_) in CASES.items()])
    process = subprocess.run([sys.executable, "-c", SCRIPT, arguments], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    for line, (name, (*_, ids, expected)) in zip(process.stdout.splitlines(), CASES.items(), strict=True):
        rows, (record,) = json.loads(line)
        assert rows == ids, name
        assert {field: record[field] for field in expected} == expected, name
