import os
import pathlib
import subprocess
import sys

import pytest

pytestmark = pytest.mark.peers
HERE = pathlib.Path(__file__).parent


LONG = "200_real or padding_never or fit or functional"  # XLA compiles each shape


@pytest.mark.slow
@pytest.mark.parametrize("chosen", [f"not ({LONG})", LONG])
def test_on_jax(chosen):
    run = subprocess.run([sys.executable, "-m", "pytest", "-q", "-k", chosen,
                          *(HERE / f"test_{name}.py" for name in ("layers", "parity", "heads", "packed", "lowering"))],
                         env=os.environ | {"KERAS_BACKEND": "jax"}, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-3000:]


def on_jax(*arguments):
    """Runs a command of keras-bert on JAX."""
    return subprocess.run([sys.executable, "-m", "keras_bert.cli", *map(str, arguments)],
                          env=os.environ | {"KERAS_BACKEND": "jax"}, capture_output=True, text=True)


@pytest.mark.slow
def test_finetune_and_predict(tmp_path, pretrained, intents):
    run = on_jax("finetune", f"--train={intents[0]}", f"--valid={intents[1]}", f"--model={pretrained}",
                 f"--output={tmp_path / 'out'}", "--epochs=20", "--batch_size=2", "--learning_rate=0.01")
    assert run.returncode == 0, run.stderr[-2000:]
    assert "accuracy 1.0000, macro F1 1.0000 on 4 texts" in run.stdout
    # What JAX trained, TensorFlow answers alike.
    answers = [on_jax("predict", f"--model={tmp_path / 'out'}", "light off").stdout]
    answers.append(subprocess.run(
        [sys.executable, "-m", "keras_bert.cli", "predict", f"--model={tmp_path / 'out'}", "light off"],
        capture_output=True, text=True).stdout)
    assert answers[0] == answers[1] and answers[0].startswith("light\t")


def test_export_needs_tensorflow(tmp_path, pretrained):
    run = on_jax("export", f"--model={pretrained}", f"--output={tmp_path / 'out'}")
    assert run.returncode == 1
    assert run.stderr.splitlines()[-1].startswith("keras-bert: export writes a TensorFlow SavedModel")
    assert "Traceback" not in run.stderr
    assert not (tmp_path / "out").exists()
