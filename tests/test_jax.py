"""The command on JAX; `make test-peers` runs the tests of layers, models and optimizers on it too."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.peers


def on_jax(*arguments):
    """Runs a command of keras-bert on JAX."""
    return subprocess.run([sys.executable, "-m", "keras_bert.cli", *map(str, arguments)],
                          env=os.environ | {"KERAS_BACKEND": "jax"}, capture_output=True, text=True)


@pytest.mark.slow
def test_finetune_and_predict(run, tmp_path, pretrained, intents):
    ended = on_jax("finetune", f"--train={intents[0]}", f"--valid={intents[1]}", f"--model={pretrained}",
                   f"--output={tmp_path / 'out'}", "--epochs=20", "--batch_size=2", "--learning_rate=0.01")
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert "accuracy 1.0000, macro F1 1.0000 on 4 texts" in ended.stdout
    # What JAX trained, TensorFlow answers alike.
    command = "predict", f"--model={tmp_path / 'out'}", "light off"
    answers = on_jax(*command).stdout.splitlines()
    assert answers == run(*command)[1] and answers[0].startswith("light\t")


def test_export_needs_tensorflow(tmp_path, pretrained):
    run = on_jax("export", f"--model={pretrained}", f"--output={tmp_path / 'out'}")
    assert run.returncode == 1
    assert run.stderr.splitlines()[-1].startswith("keras-bert: export runs on TensorFlow")
    assert "Traceback" not in run.stderr
    assert not (tmp_path / "out").exists()
