"""The example of Optuna: an interrupted search continues its trial, and the scores are those of the models."""

import importlib.util
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

import zoo

pytestmark = [
    pytest.mark.slow("what Optuna's study has after a kill"),
    pytest.mark.skipif(importlib.util.find_spec("optuna") is None, reason="needs Optuna: pip install optuna")]
SCRIPT = pathlib.Path(__file__).parents[1] / "examples/search_settings.py"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_an_interrupted_search_continues(number, intents, tmp_path):
    import optuna

    train, valid = intents
    command = [sys.executable, SCRIPT, f"--train={train}", f"--valid={valid}", f"--encoder={zoo.pretrained()}",
               f"--output={tmp_path / 'search'}", "--epochs=2"]
    with subprocess.Popen([*command, "--trials=4"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while not (trained := {path.parent for path in tmp_path.glob("search/*/metrics.json")}) or all(
                path.parent.with_suffix("") in trained for path in tmp_path.glob("search/[!.]*.checkpoints/*")):
            assert process.poll() is None
            time.sleep(0.1)
        os.kill(process.pid, number)
    done = subprocess.run([*command, "--trials=4"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    study = optuna.load_study(study_name="settings", storage=f"sqlite:///{tmp_path}/search/study.db")
    states = [trial.state.name for trial in study.get_trials()]
    assert states.count("COMPLETE") + states.count("PRUNED") == 4 and "RUNNING" not in states
    listed = dict(reversed(line.split("  ")) for line in done.stdout.splitlines())
    assert listed == {str(path.parent): f"{json.loads(path.read_text())['accuracy']:.4f}"
                      for path in tmp_path.glob("search/*/metrics.json")}
    assert sum(path.is_dir() for path in tmp_path.glob("search/[!.]*")) == len(listed) == states.count("COMPLETE")
    assert not [*tmp_path.glob("search/[!.]*.checkpoints")]
    other = subprocess.run([*command, "--epochs=3"], capture_output=True, text=True, timeout=300)
    assert other.returncode == 1 and "search: holds a search with {" in other.stderr.splitlines()[-1]
