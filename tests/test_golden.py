"""What released versions wrote (data/golden) still loads, and answers as it did then."""

import functools
import importlib
import json
import pathlib
import re
import subprocess
import sys

import golden_calls
import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_bert import (
    BertLayer,
    BertPretrainer,
    BertTokenizer,
    FineTuned,
    HubLayer,
    InputError,
    LiteModel,
    fill_mask,
    finetune,
    models,
    pretrain,
)
from keras_bert.convert import load_pretrained, open_source

from conftest import GOLDEN, few_objects, unpack_golden

VERSIONS = sorted(path.name for path in GOLDEN.iterdir())
ARTIFACTS = sorted(str(path.relative_to(GOLDEN)).removesuffix(".tar.xz") for path in GOLDEN.glob("*/*/*.tar.xz"))
# What version 0.1 wrote. Later versions write at least this.
COMPLETE = {f"{kind}/{name}" for kind, names in {
    "encoders": "bfloat16 jit_compile mlm plain",
    "finetuned": "choice classify intent intent_mixed_bfloat16 regress span tag tag_features",
    "keras_files": "functional head hub_layer", "preprocessors": "preprocessor", "pretrained": "bert",
    "runs": "finetune pretrain", "text_models": "choice classify embeddings intent regress span tag",
}.items() for name in names.split()}
# Largest differences allowed, relative ones for values above 1. Others apply to answers with these words in their path.
FLOAT32 = 1e-5
TOLERANCES = {
    "bfloat16": 0.1,  # eight bits, and processors round at different steps: 0.045 was measured
    "after_a_step": 1e-3,  # Adam divides gradients by their size: where they are tiny, rounding errors grow
    "/runs/": 1e-3,  # the same
}
RUNS = {"finetune": finetune, "pretrain": pretrain}
# The arguments of 0.1 that have another name now.
RENAMED = {"init_from": "model", "output_dir": "output", "out_of_scope": "out_of_scope_label", "data": "train"}


BETWEEN = pytest.mark.slow("a file that neither the first nor the last version writes in this way")


def of(*kinds):
    """The artifacts of some kinds, of all versions."""
    return [artifact for artifact in ARTIFACTS if artifact.split("/")[1] in kinds]


def params(*kinds):
    """The artifacts of some kinds; those of the versions between the first and the last are slow."""
    return [artifact if artifact.split("/")[0] in (VERSIONS[0], VERSIONS[-1]) else pytest.param(artifact, marks=BETWEEN)
            for artifact in of(*kinds)]


def record(artifact):
    """The inputs and the answers of an artifact."""
    values = json.loads((GOLDEN / f"{artifact}.json").read_text(encoding="utf-8"))
    return values["inputs"], values["answers"]


def arrays(ids):
    return {name: np.array(rows, np.int32) for name, rows in ids.items()}


def assert_answers(artifact, got, wanted):
    """Compares nested dicts and lists: floats within a tolerance, everything else exactly."""
    def compare(got, wanted, place):
        if isinstance(wanted, dict):
            assert set(got) == set(wanted), place
            for name in wanted:
                compare(got[name], wanted[name], f"{place}/{name}")
        elif isinstance(wanted, list):
            assert len(got) == len(wanted), place
            for number, pair in enumerate(zip(got, wanted)):
                compare(*pair, f"{place}/{number}")
        elif isinstance(wanted, float):
            tolerance = next((value for words, value in TOLERANCES.items() if words in place), FLOAT32)
            assert abs(got - wanted) <= tolerance * max(1, abs(wanted)), f"{place}: {got}, not {wanted}"
        else:
            assert got == wanted, place

    compare(golden_calls.plain(got), wanted, artifact)


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    """A function of an artifact that returns the folder with its files."""
    @functools.cache
    def unpack(artifact):
        unpack_golden(artifact, folder := tmp_path_factory.mktemp(artifact.replace("/", "_")))
        return folder

    return unpack


@pytest.fixture(scope="module", autouse=True)
def tensorflow_alone(request, unpacked):
    """A function of a SavedModel's artifact that returns what it answers in a process that never imports keras_bert.

    One process calls those of all tests. It starts before the first test, to run at the same time as other kinds'.
    """
    requests = {}
    for artifact in {item.callspec.params["artifact"] for item in request.session.items
                     if item.originalname == test_saved_models_answer_without_keras_bert.__name__}:
        inputs, _ = record(artifact)
        requests[str(unpacked(artifact) / inputs.pop("path"))] = artifact.split("/")[1], inputs, left_out(artifact)
    if not requests:
        yield None
        return
    with subprocess.Popen([sys.executable, golden_calls.__file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          text=True) as process:
        process.stdin.write(json.dumps(requests))
        process.stdin.close()

        @functools.cache
        def answers():
            output = process.stdout.read()
            assert process.wait() == 0, "see the captured stderr"
            return json.loads(output)

        yield lambda artifact: answers()[str(unpacked(artifact) / record(artifact)[0]["path"])]
        process.kill()


@pytest.fixture(scope="module", autouse=True)
def unoptimized():
    """Graphs run as they were loaded: to optimize one takes longer than to run it."""
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    with few_objects():
        yield
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})


@pytest.mark.parametrize("version", VERSIONS)
def test_every_kind_is_there(version):
    folder = GOLDEN / version
    names = {str(path.relative_to(folder)).removesuffix(".tar.xz") for path in folder.glob("*/*.tar.xz")}
    assert names >= COMPLETE and names == {
        str(path.relative_to(folder)).removesuffix(".json") for path in folder.glob("*/*.json")}
    kinds = {"litert", "converted", *(name.split("/")[0] for name in COMPLETE)}
    assert {name.split("/")[0] for name in names} <= kinds
    assert json.loads((folder / "versions.json").read_text())["keras_bert"].startswith(f"{version}.")


@pytest.mark.filterwarnings("ignore:texts cut at max_length")
@pytest.mark.parametrize("artifact", params("finetuned", "litert"))
def test_folders_answer(unpacked, artifact, eager):
    inputs, answers = record(artifact)
    load = LiteModel.load if "/litert/" in artifact else FineTuned.load
    model = load(unpacked(artifact) / inputs["path"])
    assert_answers(artifact, model.predict(*inputs["columns"], **inputs["options"]), answers)


@pytest.mark.filterwarnings("ignore:texts cut at max_length")
@pytest.mark.parametrize("artifact", params("converted"))
def test_converted_folders_are_read(unpacked, artifact, eager):
    inputs, answers = record(artifact)
    source = open_source(unpacked(artifact) / inputs["path"])
    model = load_pretrained(source, getattr(models, inputs["model"], BertLayer))
    found = {"tokens": source.tokenizer(inputs["texts"], max_length=16)["input_word_ids"], "labels": source.labels,
             "outputs": model(arrays(inputs["ids"]))}
    if "columns" in inputs:
        found["predictions"] = FineTuned.load(source.path).predict(*inputs["columns"])
    assert_answers(artifact, found, answers)


@pytest.mark.parametrize("artifact", params("pretrained"))
def test_pretrained_folders_guess_words(unpacked, artifact, eager):
    inputs, answers = record(artifact)
    folder = unpacked(artifact) / inputs["path"]
    model = BertPretrainer.from_pretrained(folder)
    guesses = fill_mask(model, BertTokenizer.from_folder(folder), inputs["texts"], 3)
    logits = model.predict_on_batch(arrays(inputs["ids"]))
    assert_answers(artifact, {"guesses": guesses, "logits": logits}, answers)


@pytest.mark.parametrize("artifact", params("keras_files"))
def test_keras_files_answer(unpacked, artifact, monkeypatch, eager):
    inputs, answers = record(artifact)
    monkeypatch.chdir(unpacked(artifact))  # a HubLayer's path is relative
    # safe_mode=False allows a HubLayer, which runs a SavedModel from outside the file.
    model = keras.saving.load_model(inputs["path"], safe_mode=False)
    ids = arrays(inputs["ids"])
    if "labels" not in inputs:
        assert_answers(artifact, {"outputs": model.predict_on_batch(list(ids.values()))}, answers)
        return
    before = model.predict_on_batch(ids)
    loss = model.train_on_batch(ids, np.array(inputs["labels"], np.int32))  # the optimizer continues its moments
    after = model.predict_on_batch(ids)
    assert_answers(artifact, {"outputs": before, "loss": loss, "outputs_after_a_step": after}, answers)


@pytest.mark.slow("a checkpoint that was written before")
@pytest.mark.filterwarnings("ignore:texts cut at max_length")
@pytest.mark.parametrize("artifact", params("runs"))
def test_unfinished_runs_continue(unpacked, artifact, monkeypatch, capsys, eager):
    """The weights are those of a run that was not interrupted; or, with other minor versions, the run is refused."""
    inputs, answers = record(artifact)
    version, _, name = artifact.split("/")
    monkeypatch.chdir(unpacked(artifact))  # the paths of a run are relative
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # no pictures, which take time
    arguments = {RENAMED.get(name, name): value for name, value in inputs["arguments"].items()}
    made_with = json.loads((GOLDEN / version / "versions.json").read_text())
    minor = {package: made_with[package].split(".")[:2] for package in ("keras", "keras_bert", "tensorflow")}
    others = [re.escape(f"unfinished run of {package.replace('keras_bert', 'keras-bert-hub')} {'.'.join(written)}")
              for package, written in minor.items()
              if importlib.import_module(package).__version__.split(".")[:2] != written]
    if others:
        with pytest.raises(InputError, match="|".join(others)):
            RUNS[name](**arguments)
        return
    model = RUNS[name](**arguments)
    assert re.search(r"from step [1-9]", capsys.readouterr().err)
    metrics = json.loads(pathlib.Path(arguments["output"], "metrics.json").read_text())
    outputs = ({"predictions": model.predict(*inputs["columns"], **inputs["options"])} if name == "finetune" else
               {"logits": model.predict_on_batch(arrays(inputs["ids"]))})
    assert_answers(artifact, outputs | {"history": metrics["history"]}, answers)


SLOW = pytest.mark.slow("a graph of an older version that TensorFlow alone cannot run")


# Compiled by XLA, an encoder is the plain one for a HubLayer, and each call takes a second.
@pytest.mark.parametrize("artifact", [
    artifact if artifact == f"{VERSIONS[-1]}/encoders/plain" else pytest.param(artifact, marks=SLOW)
    for artifact in of("encoders") if not artifact.endswith("/jit_compile")])
def test_hub_layers_answer_and_train(unpacked, artifact):
    inputs, answers = record(artifact)
    layer = HubLayer(unpacked(artifact) / inputs["path"], trainable=True)
    ids = [np.array(inputs[name], np.int32) for name in ("input_word_ids", "input_mask", "input_type_ids")]
    outputs = layer(ids)
    assert_answers(artifact, outputs, answers["list"])
    assert len(layer.trainable_variables) == len(answers.get("gradient_norms", ()))
    if artifact.endswith("/plain"):  # the others would take longer
        variables = [variable.value for variable in layer.trainable_variables]
        assert_answers(artifact, golden_calls.gradient_norms(layer, variables, ids), answers["gradient_norms"])
        many = [np.repeat(part, 64, axis=0) for part in ids]
        assert np.ptp(layer(many, training=True)[0][:64], axis=0).max() > 0.01  # dropout


# Calls of what the plain encoder, the model of intents or that of pairs of the same version calls, too.
LEFT_OUT = {"jit_compile": ("list", "serving_default"), "mlm": ("gradient_norms",)}
EXPLAINED = "intent", "classify"


def left_out(artifact):
    _, kind, name = artifact.split("/")
    return LEFT_OUT.get(name, ("explain",) if kind == "text_models" and name not in EXPLAINED else ())


@SLOW
@pytest.mark.parametrize("artifact", of(*golden_calls.CALLS))
def test_saved_models_answer_without_keras_bert(tensorflow_alone, artifact):
    answers = record(artifact)[1]
    for name in left_out(artifact):
        answers.pop(name, None)
    assert_answers(artifact, tensorflow_alone(artifact), answers)
