"""What is set before TensorFlow and Keras are imported."""

import importlib
import os
import pathlib
import re
import subprocess
import sys

import pytest

from keras_bert import startup

ROOT = pathlib.Path(__file__).parents[1]


def run(code, folder=None, **environment):
    paths = [str(path) for path in (folder, ROOT) if path]
    environment = {name: value for name, value in (os.environ | environment).items()
                   if name in environment or not name.startswith("TF_")}
    return subprocess.run([sys.executable, "-c", code], text=True, capture_output=True,
                          env=environment | {"PYTHONPATH": os.pathsep.join(paths)})


@pytest.mark.parametrize("devices,given,level", [
    ([], None, "3"), (["/dev/nvidia0"], None, "2"), ([], "", "3"), (["/dev/nvidia0"], "0", "0")])
def test_the_level_of_the_log(monkeypatch, devices, given, level):
    monkeypatch.setattr("glob.glob", lambda pattern: devices)
    monkeypatch.setattr("os.path.exists", lambda path: False)
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL")
    if given is not None:
        monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", given)
    startup.quiet_tensorflow()
    assert os.environ["TF_CPP_MIN_LOG_LEVEL"] == level


@pytest.mark.slow("an order of the imports in which Keras does not find the package's classes")
@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("imports", ["import keras, keras_bert", "import keras_bert, keras", "import keras_bert",
                                     "import keras_bert, tensorflow", "from keras_bert import BertLayer"])
def test_keras_loads_a_model_after_imports_in_any_order(trained_once, imports):
    done = run(f"{imports}; from keras.models import load_model; from keras.saving import get_custom_objects; "
               "assert all(issubclass(one, object) for one in get_custom_objects().values()); "  # as KerasHub does
               f"print(type(load_model({str(trained_once / 'model.keras')!r})))")
    assert done.stdout == "<class 'keras_bert.models.heads.BertClassifier'>\n", done.stderr


def test_every_class_is_registered():
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "keras_bert").rglob("*.py"))
    classes = [getattr(importlib.import_module(f"keras_bert.{module}"), name)
               for module, names in startup._CLASSES.items() for name in names]
    assert sorted(one.__name__ for one in classes) == sorted(
        re.findall(r"^@keras\.saving\.register_keras_serializable.*\nclass (\w+)", sources, re.M))


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
    assert done.returncode == 0, done.stderr
    assert "Adam object" in done.stdout and done.stderr == ""


@pytest.mark.parametrize(("end", "shown"), [("raise OSError", "Traceback(.|\n)*OSError\n"), ("os.abort()", "")])
def test_what_is_not_of_the_log_is_shown(end, shown, tmp_path):
    (tmp_path / "tensorflow.py").write_text(
        f"import os; os.write(2, b'WARNING: All log messages before absl\\nI0000 a\\nF0000 no AVX\\n'); {end}")
    done = run("from keras_bert import startup; startup.quiet_tensorflow(); import importlib.util; "
               "importlib.util.find_spec('tensorflow'); import tensorflow", tmp_path)
    assert re.fullmatch(f"F0000 no AVX\n{shown}", done.stderr)
