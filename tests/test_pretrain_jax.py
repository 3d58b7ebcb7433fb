"""`pretrain --backend=jax`, over devices that share out batches and weights."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from test_pretrain import CONFIG, write_examples

from keras_bert.config import BertConfig
from keras_bert.layers import BertLayer
from keras_bert.models import BertPretrainer
from keras_bert.training import pretrain

from conftest import randomize, write_huggingface

# Runs commands of keras-bert in one process, and prints their exit statuses.
COMMANDS = """
import json, sys
from keras_bert import cli
print([cli.run(command) for command in json.loads(sys.argv[1])])
"""


@pytest.mark.peers
@pytest.mark.slow
def test_equals_tensorflow(tmp_path):
    """Four devices, of which two share the weights, and batches in two parts: the curve and the weights are those of
    TensorFlow on one."""
    config = BertConfig(**CONFIG | {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0})
    begin = write_huggingface(tmp_path / "begin", randomize(BertPretrainer(BertLayer(config))))
    examples = write_examples(tmp_path / "examples")
    model = pretrain(examples, output=tmp_path / "tensorflow", steps=20, model=begin, valid=examples, batch_size=16,
                     learning_rate=1e-3, eval_steps=10)
    command = ["pretrain", f"--train={examples}", f"--valid={examples}", f"--model={begin}",
               f"--output={tmp_path}/jax", "--steps=20", "--batch_size=16", "--learning_rate=1e-3", "--eval_steps=10",
               "--backend=jax", "--model_parallel=2", "--gradient_accumulation_steps=2"]
    refused = {
        "--model_parallel=3": "model_parallel must divide the number of devices (4); got 3",
        "--batch_size=18":
            "batch_size must be multiples of --gradient_accumulation_steps (2) times the number of devices that share "
            "it (2); got [18]"}
    commands = [command, *([*command, "--overwrite", flag] for flag in refused)]
    ended = subprocess.run([sys.executable, "-c", COMMANDS, json.dumps(commands)], capture_output=True, text=True,
                           env=os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=4"})
    assert ended.stdout.endswith("[0, 1, 1]\n"), ended.stderr
    messages = [line for line in ended.stderr.splitlines() if line.startswith("keras-bert: ")]
    for message, end in zip(messages, refused.values(), strict=True):
        assert message.endswith(end)
    wanted, got = (json.loads((tmp_path / name / "metrics.json").read_text())["history"]
                   for name in ("tensorflow", "jax"))
    for name, values in wanted.items():
        np.testing.assert_allclose(got[name], values, atol=1e-4, err_msg=name)
    # Adam turns rounding in gradients near zero into steps of up to the rate, 1e-3.
    for one, other in zip(model.get_weights(), BertPretrainer.from_pretrained(tmp_path / "jax").get_weights()):
        np.testing.assert_allclose(other, one, atol=2e-3)
