import os
import pathlib
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).parent


@pytest.mark.parametrize("file", ["test_layers.py", "test_parity.py"])
def test_on_jax(file):
    pytest.importorskip("jax")
    run = subprocess.run([sys.executable, "-m", "pytest", "-q", "-m", "not slow", HERE / file],
                         env=os.environ | {"KERAS_BACKEND": "jax"}, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-3000:]


def test_export_and_hub_layer_need_tensorflow(tmp_path, pretrained):
    pytest.importorskip("jax")
    run = subprocess.run(
        [sys.executable, "-m", "keras_bert.cli", "export", f"--model={pretrained}", f"--output={tmp_path / 'out'}"],
        env=os.environ | {"KERAS_BACKEND": "jax"}, capture_output=True, text=True)
    assert run.returncode == 1
    assert run.stderr.splitlines()[-1].startswith("keras-bert: export writes a TensorFlow SavedModel")
    assert "Traceback" not in run.stderr
    assert not (tmp_path / "out").exists()
