"""What the tests share: a tiny encoder, MiniLM, and the folder of real data."""

import collections
import contextlib
import dataclasses
import gc
import importlib
import inspect
import itertools
import json
import os
import pathlib
import shutil
import subprocess
import tarfile
import tempfile

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")  # two workers of pytest-xdist share two cores
os.environ.setdefault("TF_NUM_INTEROP_THREADS", "1")
# LLVM's optimizations would lengthen XLA's compilation, nearly all of the time of its tests, by a third.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true")

import numpy as np
import pytest

from keras_bert.config import BertConfig
from keras_bert.presets import find_pretrained
from keras_bert.text import BertTokenizer

TINY = BertConfig(vocab_size=60, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, intermediate_size=32,
                  max_position_embeddings=128)
SMALL = dataclasses.replace(TINY, num_hidden_layers=1)  # where the blocks are not the subject
TINY_VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]",
                   *"the a i to my is it play some music song stop turn on off light lamp book flight table for two "
                    "please now what time weather today ##s ##ing , . ?".split()]
TINY_VOCABULARY += [f"[unused{i}]" for i in range(TINY.vocab_size - len(TINY_VOCABULARY))]
gc.set_threshold(100_000, 50, 100)  # graphs are large: collecting garbage more rarely saves time
# Real texts, vocabularies and task data: those of the repository, and another folder of the same layout if one is set.
REAL = pathlib.Path(__file__).parent / "data/real"
GOLDEN = pathlib.Path(__file__).parent / "data/golden"
DATA = pathlib.Path(os.environ.get("KERAS_BERT_DATA", REAL))

needs_data = pytest.mark.skipif(DATA == REAL, reason="reads complete data sets: set KERAS_BERT_DATA to a folder with "
                                                     "them, laid out as tests/data/real")


class Peer:
    """A module of a library that tests compare with, imported when it is first used.

    Test modules that hold one can be collected without the library; a test that uses it then fails with ImportError.
    """

    def __init__(self, name):
        self._name = name

    def __getattr__(self, attribute):
        return getattr(importlib.import_module(self._name), attribute)


PEERS_LEFT_OUT, CHANGED = pytest.StashKey[int](), pytest.StashKey[list]()


def pytest_configure(config):
    """Makes the folder of the zoo, which this process and its workers share."""
    if "KERAS_BERT_ZOO" not in os.environ:
        os.environ["KERAS_BERT_ZOO"] = tempfile.mkdtemp(prefix="keras_bert_zoo_")
        config.add_cleanup(remove_zoo)


def remove_zoo():
    remove(os.environ.pop("KERAS_BERT_ZOO"))


def remove(folder):
    """Removes a folder that may be read-only."""
    subprocess.run(["chmod", "-R", "u+w", folder], check=True)
    shutil.rmtree(folder)


def pytest_collection_modifyitems(config, items):
    """Deselects tests marked for another Keras backend, and has the longest start first."""
    config.hook.pytest_deselected(items=[item for item in items if not is_for_backend(item)])
    items[:] = sorted(filter(is_for_backend, items), key=lambda item: item.path.name != "test_notebook.py")
    for item in items:
        if (mark := item.get_closest_marker("slow")) and not mark.args:
            raise pytest.UsageError(f'{item.nodeid}: pytest.mark.slow("what it alone finds")')


def is_for_backend(item):
    import keras  # not above: keras_bert comes before TensorFlow, see keras_bert.startup

    return all(mark.args[0] == keras.backend.backend() for mark in item.iter_markers("backend"))


def pytest_deselected(items):
    for item in items:
        if item.get_closest_marker("peers") and is_for_backend(item):
            item.config.stash[PEERS_LEFT_OUT] = item.config.stash.get(PEERS_LEFT_OUT, 0) + 1


def pytest_sessionfinish(session):
    if hasattr(session.config, "workeroutput"):  # a worker of pytest-xdist
        session.config.workeroutput["peers_left_out"] = session.config.stash.get(PEERS_LEFT_OUT, 0)
    elif any(pathlib.Path(os.environ["KERAS_BERT_ZOO"]).iterdir()):
        import zoo

        if changed := zoo.changed():
            session.config.stash[CHANGED], session.exitstatus = changed, pytest.ExitCode.USAGE_ERROR


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    node.config.stash[PEERS_LEFT_OUT] = getattr(node, "workeroutput", {}).get("peers_left_out", 0)


def pytest_terminal_summary(terminalreporter, config):
    if changed := config.stash.get(CHANGED, []):
        terminalreporter.write_line(f"ERROR: a test changed what others read: {', '.join(changed)}; use zoo.copy")
    if count := config.stash.get(PEERS_LEFT_OUT, 0):
        terminalreporter.write_line(f"{count} tests compare with other libraries and were left out: make test-peers")
    if config.option.collectonly:  # -m slow -qq --collect-only: what each slow test finds
        marks = [(item.path.name, item.get_closest_marker("slow")) for item in terminalreporter._session.items]
        found = collections.Counter((name, mark.args[0]) for name, mark in marks if mark)
        terminalreporter.write("".join(f"{name}, {count}: {fault}\n" for (name, fault), count in found.items()))


@pytest.fixture
def bert():
    """A tiny `BertLayer` whose biases and norms are random too, so that none of them can be lost unnoticed."""
    from keras_bert.layers import BertLayer

    return randomize(BertLayer(TINY))


@pytest.fixture
def tokenizer():
    return BertTokenizer(TINY_VOCABULARY)


@pytest.fixture(scope="session")
def minilm():
    return pathlib.Path(find_pretrained("minilm"))


@pytest.fixture(scope="session")
def minilm_bert():
    from keras_bert.layers import BertLayer

    return BertLayer.from_pretrained("minilm")


@pytest.fixture(scope="session")
def pretrained_once():
    """A Hugging Face folder of the encoder `bert`, for tests that leave it as it is."""
    import zoo

    return zoo.pretrained()


@pytest.fixture
def pretrained(pretrained_once, tmp_path):
    """A Hugging Face folder of the encoder `bert`, of the test's own."""
    import zoo

    return zoo.copy(pretrained_once, tmp_path / "pretrained")


@pytest.fixture
def intents(tmp_path):
    """A training and a validation file of two intents."""
    return write_intents(tmp_path)


def options_of(function, kind, **arguments):
    """The checked options, of their kind, of `finetune` or `pretrain` with these arguments and the default ones."""
    defaults = {name: parameter.default for name, parameter in inspect.signature(function).parameters.items()}
    return kind.checked(function, defaults | arguments)


def fit(output, **arguments):
    """Trains as `finetune` does, without its reports and the model's folder; returns the model and the `Progress`."""
    from keras_bert.training import finetune
    from keras_bert.training.checkpoints import Checkpoints
    from keras_bert.training.loop import train
    from keras_bert.training.options import Options
    from keras_bert.training.prepare import prepare

    prepared = prepare(options_of(finetune, Options, output=output, **arguments))
    return prepared.model, train(prepared, Checkpoints(f"{output}.checkpoints", prepared.run))


@contextlib.contextmanager
def blank_pictures():
    """Within the block, pictures are empty files: drawing takes longer than a few steps."""
    from keras_bert.training import pictures

    def touch(metrics, folder, table):
        paths = [os.path.join(folder, f"{name}.png") for name, key, _ in table if metrics.get(key)]
        for path in paths:
            pathlib.Path(path).touch()
        return paths

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pictures, "draw", touch)
        yield


@contextlib.contextmanager
def eagerly():
    """Within the block, TensorFlow's functions run as Python, except while a SavedModel is written, and pictures are
    empty files: tracing, too, takes longer than a few steps."""
    import tensorflow as tf

    def save(*arguments, save=tf.saved_model.save, **options):
        tf.config.run_functions_eagerly(False)
        try:
            save(*arguments, **options)
        finally:
            tf.config.run_functions_eagerly(True)

    with pytest.MonkeyPatch.context() as patch, blank_pictures():
        patch.setattr(tf.saved_model, "save", save)
        before = tf.config.functions_run_eagerly()
        tf.config.run_functions_eagerly(True)
        try:
            yield
        finally:
            tf.config.run_functions_eagerly(before)


@contextlib.contextmanager
def interrupted_after(saves):
    """Ends the training in the block by a KeyboardInterrupt, when it has written this many files of checkpoints."""
    from keras_bert.training import checkpoints

    calls, save_file = itertools.count(1), checkpoints.save_file

    def interrupted(*arguments):
        save_file(*arguments)
        if next(calls) == saves:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(checkpoints, "save_file", interrupted)
        yield


@contextlib.contextmanager
def few_objects():
    """Leaves what exists out of garbage collection: Keras collects once for each weight that it replaces."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@pytest.fixture
def eager():
    with eagerly():
        yield


@pytest.fixture
def without_pictures():
    with blank_pictures():
        yield


@pytest.fixture
def run_cli():
    """`cli.run` in this process."""
    from keras_bert import cli

    return cli.run


@pytest.fixture
def run(capsys, run_cli):
    """Runs a command in this process: (exit status, lines of output, lines of messages)."""

    def call(*arguments):
        status = run_cli([str(argument) for argument in arguments])
        output, messages = capsys.readouterr()
        return status, output.splitlines(), messages.splitlines()

    return call


@pytest.fixture(scope="session")
def trained_once():
    """A folder that `finetune` wrote, for tests that leave it as it is."""
    import zoo

    return zoo.finetuned()


@pytest.fixture
def trained(trained_once, tmp_path):
    """A folder that `finetune` wrote, of the test's own."""
    import zoo

    return zoo.copy(trained_once, tmp_path / "trained")


@pytest.fixture(scope="session")
def source():
    """The encoder of `zoo.encoder`."""
    from keras_bert.layers import BertLayer

    return randomize(BertLayer(TINY))


@pytest.fixture(scope="session")
def exported():
    """Function of the options of `export_encoder` that returns the path of an encoder exported with them, once."""
    import zoo

    return zoo.encoder


@pytest.fixture(scope="session")
def lite_models():
    """Function of a name in `zoo.CASES` that returns this model, and the LiteRT folder that was exported from it."""
    import zoo

    return lambda case: (zoo.make(case), zoo.litert(case))


def unpack_golden(artifact, folder):
    """Unpacks what a released version wrote into a folder; returns the record of its inputs and answers."""
    with tarfile.open(GOLDEN / f"{artifact}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return json.loads((GOLDEN / f"{artifact}.json").read_text(encoding="utf-8"))


def write_intents(folder):
    """Writes a training and a validation file of two intents; returns their paths."""
    rows = [("play some music", "music"), ("play a song please", "music"), ("turn on the light", "light"),
            ("turn the lamp off", "light")]
    for split in ("train", "valid"):
        lines = ["text\tlabel", *("\t".join(row) for row in rows)]
        (folder / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    return folder / "train.tsv", folder / "valid.tsv"


def finetune_command(intents, pretrained, output, *more):
    """A command that fine-tunes the tiny encoder for one epoch."""
    return ("finetune", f"--train={intents[0]}", f"--valid={intents[1]}", f"--model={pretrained}",
            f"--output={output}", "--epochs=1", "--batch_size=2", *more)


def spelled(rows):
    """Rows with other texts, of which the model reads the same tokens."""
    forms = ["{}", "{} ", "  {}", "{}\u200b"]
    return [tuple(forms[(number + place) % 4].format(cell.title() if number % 2 else cell)
                  if isinstance(cell, str) and len(cell) > 1 else cell for place, cell in enumerate(row))
            for number, row in enumerate(rows)]


def change_json(path, **values):
    """Changes values of the object in a JSON file, which may be a new one."""
    path.write_text(json.dumps((json.loads(path.read_text()) if path.exists() else {}) | values))


def convert_proven(source, output, data_format="keras_bert"):
    """Converts what another library saved: the result must answer as the library does."""
    from keras_bert.convert import convert

    convert(source, output, data_format, report=(lines := []).append)
    assert lines[-1].startswith("compared with answers of ") and float(lines[-1].split()[-1]) < 1e-5


def randomize(layer, seed=0):
    """Gives each variable of a layer random values of a size that keeps activations near 1."""
    rng = np.random.default_rng(seed)
    for variable in layer.weights:
        centre = 1.0 if variable.name == "gamma" else 0.0
        variable.assign(rng.normal(centre, 0.1, variable.shape))
    return layer


def random_inputs(batch, length, config=TINY, seed=0):
    """Inputs of real tokens alone."""
    rng = np.random.default_rng(seed)
    return {
        "input_word_ids": rng.integers(0, config.vocab_size, (batch, length)).astype("int32"),
        "input_mask": np.ones((batch, length), "int32"),
        "segment_ids": rng.integers(0, config.type_vocab_size, (batch, length)).astype("int32"),
    }


def write_huggingface(folder, bert, vocabulary=TINY_VOCABULARY):
    """Writes an encoder, or a model on one, as a Hugging Face folder."""
    from keras_bert.weights import huggingface
    from keras_bert.weights.format import Weights

    folder.mkdir()
    huggingface.write(Weights.of(bert, BertTokenizer(vocabulary)), folder)
    return folder
