"""What is set before TensorFlow is imported, and what a user sees of that import."""

import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]
# A package in TensorFlow's place, which logs as TensorFlow 2.21 does while it is imported.
TENSORFLOW = '''
import os, sys
NOTE = b"""WARNING: All log messages before absl::InitializeLog() is called are written to STDERR
I0000 00:00:1795383018.5 1 port.cc:153] oneDNN custom operations are on.
I0000 00:00:1795383018.6 1 cpu_feature_guard.cc:227] This TensorFlow binary is optimized.
To enable the following instructions: AVX2, rebuild TensorFlow.
"""
os.write(2, NOTE)
os.write(2, b"E0000 00:00:1795383018.7 1 driver.cc:1] the driver is too old\\n")
'''


def run(code, folder=None, **environment):
    paths = [str(path) for path in (folder, ROOT) if path]
    environment = {name: value for name, value in (os.environ | environment).items()
                   if name in environment or not name.startswith("TF_")}
    return subprocess.run([sys.executable, "-c", code], text=True, capture_output=True,
                          env=environment | {"PYTHONPATH": os.pathsep.join(paths)})


@pytest.fixture
def imported(tmp_path):
    """Runs the import of a package in TensorFlow's place, which ends with some code."""
    def call(code=""):
        (tmp_path / "tensorflow").mkdir()
        (tmp_path / "tensorflow/__init__.py").write_text(TENSORFLOW + code)
        return run("from keras_bert import startup; startup.quiet_tensorflow(); startup.quiet_tensorflow(); "
                   "import tensorflow, sys; print('after', file=sys.stderr)", tmp_path)

    return call


def test_notes_are_hidden_and_errors_are_not(imported):
    done = imported()
    assert done.returncode == 0
    assert done.stderr == "E0000 00:00:1795383018.7 1 driver.cc:1] the driver is too old\nafter\n"


def test_a_crash_keeps_its_last_words(imported):
    done = imported('os.write(2, b"F0000 00:00:1795383018.8 1 cpu.cc:9] AVX is missing\\n"); os.abort()')
    assert done.returncode < 0
    assert done.stderr.splitlines()[-1] == "F0000 00:00:1795383018.8 1 cpu.cc:9] AVX is missing"


def test_an_import_error_is_seen(imported):
    done = imported('raise ImportError("no such library")')
    assert done.returncode == 1
    assert done.stderr.rstrip().endswith("ImportError: no such library")


def test_closed_standard_error_is_no_obstacle(tmp_path):
    (tmp_path / "tensorflow.py").write_text("")
    program = "import os; os.close(2); from keras_bert import startup; startup.quiet_tensorflow(); import tensorflow"
    assert run(program, tmp_path).returncode == 0


@pytest.mark.parametrize("level,letters", [("0", "IWE"), ("1", "WE"), ("2", "E"), ("", "E")])
def test_levels_hide_what_is_below_them(tmp_path, level, letters):
    lines = [f"{letter}0000 00:00:1.0 1 file.cc:1] a message" for letter in "IWE"]
    (tmp_path / "tensorflow.py").write_text(f"import os; os.write(2, {chr(10).join([*lines, '']).encode()!r})")
    done = run("from keras_bert import startup; startup.quiet_tensorflow(); import importlib.util; "
               "importlib.util.find_spec('tensorflow'); import tensorflow", tmp_path, TF_CPP_MIN_LOG_LEVEL=level)
    assert [line[0] for line in done.stderr.splitlines()] == list(letters)


@pytest.mark.slow("a child process that outlives the import")
def test_processes_that_the_import_starts_are_not_waited_for(tmp_path):
    (tmp_path / "tensorflow.py").write_text("import subprocess; child = subprocess.Popen(['sleep', '60'])")
    done = run("from keras_bert import startup; startup.quiet_tensorflow(); import tensorflow; "
               "print(tensorflow.child.poll()); tensorflow.child.kill()", tmp_path)
    assert done.stdout == "None\n"


@pytest.mark.parametrize("machine,environment,value", [
    ("x86_64", {}, "1"), ("AMD64", {}, "1"), ("x86_64", {"TF_ENABLE_ONEDNN_OPTS": "0"}, "0"), ("arm64", {}, None)])
def test_onednn(machine, environment, value):
    done = run(f"import os, platform; platform.machine = lambda: {machine!r}; import keras_bert; "
               "print(os.environ.get('TF_ENABLE_ONEDNN_OPTS'))", **environment)
    assert done.stdout == f"{value}\n"


def test_onednn_is_left_alone_once_tensorflow_is_imported(tmp_path):
    (tmp_path / "tensorflow.py").write_text("")
    done = run("import os, tensorflow, keras_bert; print(os.environ.get('TF_ENABLE_ONEDNN_OPTS'))", tmp_path)
    assert done.stdout == "None\n"


@pytest.mark.slow("a server that imports Keras, or shows notes of the real TensorFlow")
def test_a_server_does_not_import_keras():
    done = run("import keras_bert.serving.worker, sys; keras_bert.startup.quiet_tensorflow(); "
               "assert 'tensorflow' not in sys.modules; keras_bert.serving.worker.import_tensorflow(); "
               "assert not [name for name in sys.modules if name[:5] == 'keras' and name[:10] != 'keras_bert']; "
               "import keras, tensorflow as tf; assert tf.keras.layers.Dense is keras.layers.Dense; "
               "print(tf.keras.optimizers.Adam())")
    assert (done.returncode, done.stderr) == (0, "")
    assert "Adam object" in done.stdout
