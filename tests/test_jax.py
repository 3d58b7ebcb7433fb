"""The commands on JAX; `make test-peers` runs the tests of layers, models and optimizers on it too."""

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

from conftest import eagerly, randomize, write_huggingface

pytestmark = pytest.mark.peers


# Runs commands of keras-bert in one process, and prints their exit statuses.
COMMANDS = """
import json, sys
from keras_bert import cli
print([cli.run(command) for command in json.loads(sys.argv[1])])
"""


def on_jax(*commands, **environment):
    """The statuses, the lines of output before them, and those of messages."""
    ended = subprocess.run(
        [sys.executable, "-c", COMMANDS, json.dumps([[*map(str, command)] for command in commands])],
        env=os.environ | {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"} | environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr[-2000:]
    *output, statuses = ended.stdout.splitlines()
    return json.loads(statuses), output, ended.stderr.splitlines()


@pytest.mark.slow("a command that runs on TensorFlow alone")
def test_finetune_predict_and_export(run, tmp_path, pretrained_once, intents):
    predict = "predict", f"--model={tmp_path / 'out'}", "light off"
    statuses, output, messages = on_jax(
        ("finetune", f"--train={intents[0]}", f"--valid={intents[1]}", f"--model={pretrained_once}",
         f"--output={tmp_path / 'out'}", "--epochs=20", "--batch_size=4", "--learning_rate=0.01"),
        predict, ("export", f"--model={pretrained_once}", f"--output={tmp_path / 'no'}"), KERAS_BACKEND="jax")
    assert statuses == [0, 0, 1], messages
    assert any("accuracy 1.0000, macro F1 1.0000 on 4 texts" in line for line in output)
    # What JAX trained, TensorFlow answers alike.
    assert output[-1:] == run(*predict)[1] and output[-1].startswith("light\t")
    assert messages[-1].startswith("keras-bert: export runs on TensorFlow")
    assert not any("Traceback" in line for line in messages) and not (tmp_path / "no").exists()


@pytest.mark.slow("batches and weights that devices share out")
def test_pretraining_equals_tensorflow(tmp_path):
    """Four devices, of which two share the weights, and batches in two parts: the curve and the weights are those of
    TensorFlow on one."""
    config = BertConfig(**CONFIG | {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0})
    begin = write_huggingface(tmp_path / "begin", randomize(BertPretrainer(BertLayer(config))))
    examples = write_examples(tmp_path / "examples")
    with eagerly():
        model = pretrain(examples, output=tmp_path / "tensorflow", steps=10, model=begin, valid=examples,
                         batch_size=16, learning_rate=1e-3, eval_steps=5)
    command = ["pretrain", f"--train={examples}", f"--valid={examples}", f"--model={begin}",
               f"--output={tmp_path}/jax", "--steps=10", "--batch_size=16", "--learning_rate=1e-3", "--eval_steps=5",
               "--backend=jax", "--model_parallel=2", "--gradient_accumulation_steps=2"]
    refused = {
        "--model_parallel=3": "model_parallel must divide the number of devices (4); got 3",
        "--batch_size=18":
            "batch_size must be multiples of --gradient_accumulation_steps (2) times the number of devices that share "
            "it (2); got [18]"}
    statuses, _, messages = on_jax(command, *([*command, "--overwrite", flag] for flag in refused),
                                   XLA_FLAGS="--xla_force_host_platform_device_count=4")
    assert statuses == [0, 1, 1], messages
    messages = [line for line in messages if line.startswith("keras-bert: ")]
    for message, end in zip(messages, refused.values(), strict=True):
        assert message.endswith(end)
    wanted, got = (json.loads((tmp_path / name / "metrics.json").read_text())["history"]
                   for name in ("tensorflow", "jax"))
    for name, values in wanted.items():
        np.testing.assert_allclose(got[name], values, atol=1e-4, err_msg=name)
    # Adam turns rounding in gradients near zero into steps of up to the rate, 1e-3.
    for one, other in zip(model.get_weights(), BertPretrainer.from_pretrained(tmp_path / "jax").get_weights()):
        np.testing.assert_allclose(other, one, atol=2e-3)
