"""LiteRT folders: the answers of `LiteModel` against those of `FineTuned`, without TensorFlow, and from MediaPipe."""

import concurrent.futures
import ctypes
import dataclasses
import json
import mmap
import os
import pathlib
import pickle
import re
import shutil
import subprocess
import sys
import zipfile

import numpy as np
import pytest

from keras_bert import processes
from keras_bert.errors import InputError
from keras_bert.export import litert
from keras_bert.export.checking import FAILED, verify_litert
from keras_bert.export.litert import export_litert
from keras_bert.inference import lite_model
from keras_bert.inference.lite_model import LiteModel
from keras_bert.inference.task_model import compare
from keras_bert.layers import BertLayer
from keras_bert.litert import INPUTS
from keras_bert.models import BertClassifier, BertEmbedder, BertFeatureTagger, BertRegressor
from keras_bert.tasks import TASKS
from keras_bert.text import BertTokenizer
from keras_bert.training import FineTuned

import zoo
from conftest import TINY, TINY_VOCABULARY, change_json, randomize
from zoo import CASES, LABELS, TEXTS, numbers


# Each head and pooling, and each task with outputs or scores of its own.
@pytest.fixture(scope="module", params=["intent", "few shot", "multilabel", "rerank", "tag", "span", "choice", "mean",
                                        "cls", "max"])
def exported(request, lite_models):
    """A model, its folder, its texts and its labelled rows."""
    _, _, texts, rows = CASES[request.param]
    return *lite_models(request.param), texts, rows


@pytest.fixture(scope="module")
def intents_folder(lite_models):
    return lite_models("intent")[1]


@pytest.mark.filterwarnings("ignore:texts cut at max_length")
@pytest.mark.usefixtures("eager")
def test_answers_are_those_of_the_keras_model(exported):
    model, folder, texts, rows = exported
    lite = LiteModel.load(folder)
    (answers, scores), (expected, expected_scores) = numbers(lite.predict(*texts)), numbers(model.predict(*texts))
    assert answers == expected
    np.testing.assert_allclose(scores, expected_scores, atol=1e-4)
    if rows:
        (kinds, scores), (expected, expected_scores) = numbers(lite.evaluate(rows)), numbers(model.evaluate(rows))
        assert kinds == expected
        np.testing.assert_allclose(scores, expected_scores, atol=1e-4)
    no_answers = np.zeros((0, TINY.hidden_size), np.float32) if "embedding" in model.task.lite_outputs else []
    for empty in (each.predict(*([] for _ in texts)) for each in (lite, model)):
        assert type(empty) is type(no_answers) and np.shape(empty) == np.shape(no_answers)
    results = verify_litert(lite, folder)
    assert len(results) == 8 and not [result for result in results if result.status == FAILED]


def test_int8_has_a_quarter_of_the_weights_and_nearly_the_answers(intents_folder):
    lite, small = LiteModel.load(intents_folder), LiteModel.load(zoo.litert("intent", dtype="int8"))
    assert small.runner.is_int8 and not lite.runner.is_int8
    with pytest.warns(UserWarning, match="texts cut at max_length 16"):
        first, second = ([answer.score for answer in model.predict(TEXTS)] for model in (lite, small))
    assert 0 < np.abs(np.subtract(first, second)).max() < 0.01
    results = verify_litert(small, zoo.litert("intent", dtype="int8"))
    assert not [result for result in results if result.status == FAILED]


# What a folder says about itself without TensorFlow and Keras: `python -c SCRIPT command`.
WITHOUT_BACKEND = """
import sys

class NoBackend:
    def find_spec(self, name, *_):
        if name.partition(".")[0] in ("tensorflow", "keras", "jax", "torch", "safetensors"):
            raise ImportError(f"{name} must not be imported here")

sys.meta_path.insert(0, NoBackend())
from keras_bert.cli import run
sys.exit(run(sys.argv[1:]))
"""


def without_backend(*arguments):
    process = subprocess.run([sys.executable, "-c", WITHOUT_BACKEND, *map(str, arguments)], capture_output=True,
                             text=True)
    assert process.returncode == 0, process.stderr
    return process


@pytest.mark.slow("an import of TensorFlow that a command does not need")
def test_commands_run_without_tensorflow(intents_folder, tmp_path):
    data = tmp_path / "data.tsv"
    data.write_text("text\tlabel\nplay some music\ta\nstop\tb\n")
    lite = LiteModel.load(intents_folder)
    process = without_backend("predict", f"--model={intents_folder}", "--output_format=jsonl", "play some music")
    assert process.stderr in ("", "INFO: Created TensorFlow Lite XNNPACK delegate for CPU.\n")
    assert json.loads(process.stdout)["score"] == pytest.approx(lite.predict(["play some music"])[0].score)
    scores = without_backend("evaluate", f"--model={intents_folder}", f"--data={data}", "--output_format=json")
    assert json.loads(scores.stdout) == json.loads(json.dumps(lite.evaluate(data)))
    assert "passed" in without_backend("verify", intents_folder).stdout
    without_backend("predict", f"--model={intents_folder}", f"--input={data}", f"--output={tmp_path / 'answers'}")
    rows = [json.loads(line) for line in (tmp_path / "answers/data.jsonl").read_text().splitlines()]
    assert [row["label"] for row in rows] == [answer.label for answer in lite.predict(["play some music", "stop"])]


def test_features_of_an_embedder(tmp_path, run):
    folder = zoo.copy(zoo.litert("mean"), tmp_path / "lite")
    texts = tmp_path / "texts.txt"
    texts.write_text("play some music\nstop\n")
    status, _, messages = run("features", f"--model={folder}", f"--input={texts}", f"--output={tmp_path / 'v.npz'}")
    assert status == 0, messages
    vectors = np.load(tmp_path / "v.npz")["vectors"]
    np.testing.assert_allclose(vectors, LiteModel.load(folder).predict(["play some music", "stop"]), atol=1e-6)
    for flag in ("--features=last", "--pooling=max"):
        status, _, messages = run("features", f"--model={folder}", f"--input={texts}", flag,
                                  f"--output={tmp_path / 'w.npz'}")
        assert status == 1 and "must be left out for a LiteRT folder" in messages[-1]


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(("limit", "cores"), [("max 100000", 8), ("150000 100000", 2), ("10000 100000", 1), (None, 8)])
def test_cores_are_those_that_a_container_may_use(monkeypatch, tmp_path, limit, cores, version):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8))
    monkeypatch.setattr(processes, "_CGROUPS", str(tmp_path))
    if limit and version == 2:
        (tmp_path / "cpu.max").write_text(f"{limit}\n")
    elif limit:
        (tmp_path / "cpu").mkdir()
        for name, value in zip(("quota", "period"), limit.replace("max", "-1").split()):
            (tmp_path / f"cpu/cpu.cfs_{name}_us").write_text(f"{value}\n")
    assert processes.available_cores() == cores


def test_threads_share_a_model(intents_folder):
    lite = LiteModel.load(intents_folder)
    texts = [" ".join(TINY_VOCABULARY[5 + number:6 + number + number % 4]) for number in range(40)]
    expected = [answer.score for answer in lite.predict(texts)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda text: lite.predict([text])[0].score, texts * 5))
    np.testing.assert_allclose(found, expected * 5, atol=1e-6)


def test_a_folder_may_be_replaced_while_a_model_is_in_use(intents_folder, tmp_path):
    shutil.copytree(intents_folder, tmp_path / "lite")
    lite = LiteModel.load(tmp_path / "lite", threads=2)
    expected = [answer.score for answer in LiteModel.load(intents_folder).predict(["play", "stop the music"])]
    shutil.rmtree(tmp_path / "lite")
    zoo.copy(zoo.litert("intent", dtype="int8"), tmp_path / "lite")
    found = [answer.score for answer in lite.predict(["play", "stop the music"])]
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("change,message", [
    (lambda ids, mask, types: (ids - 10, mask, types), "input_word_ids must be at least 0 and below 60; got -"),
    (lambda ids, mask, types: (ids + 60, mask, types), "input_word_ids must be at least 0 and below 60; got 74"),
    (lambda ids, mask, types: (ids, mask * 2, types), "input_mask must be at least 0 and below 2; got 2"),
    (lambda ids, mask, types: (ids, mask * 0, types), "input_mask must have a 1 in each row; row 0 has none"),
    (lambda ids, mask, types: (ids, mask, types - 1), "input_type_ids must be at least 0 and below 2; got -1"),
    (lambda ids, mask, types: (ids, mask[:1], types), "input_mask must be integers .* got int32 \\[1, 5\\]"),
    (lambda ids, mask, types: (ids * 0.5, mask, types), "input_word_ids must be integers"),
    (lambda *inputs: [np.tile(part, 30) for part in inputs], "inputs must have at most 128 tokens.* got 150")])
def test_inputs_that_the_bare_file_would_answer(intents_folder, change, message):
    ids = np.arange(5, 15, dtype=np.int32).reshape(2, 5)
    inputs = change(ids, np.ones_like(ids), np.zeros_like(ids))
    with pytest.raises(InputError, match=message):
        LiteModel.load(intents_folder).runner(dict(zip(INPUTS, inputs)))


@pytest.mark.parametrize("shape", [(0, 5), (0, 0)])
def test_no_rows(intents_folder, shape):
    inputs = dict.fromkeys(INPUTS, np.zeros(shape, np.int32))
    outputs = LiteModel.load(intents_folder).runner(inputs)
    assert {name: array.shape for name, array in outputs.items()} == {"probabilities": (0, 3)}


@pytest.mark.parametrize("damage,message", [
    (lambda folder: (folder / "model.tflite").unlink(), "must be a folder that finetune wrote; it has neither "
     "model.keras nor model.tflite"),
    (lambda folder: (folder / "settings.json").unlink(), "settings.json is missing"),
    (lambda folder: (folder / "settings.json").write_text("[]"), "settings.json: must hold one JSON object; got []"),
    (lambda folder: (folder / "labels.json").write_text('["a", "b"]'),
     "a name for each of the probabilities of model.tflite (3); got 2"),
    (lambda folder: shutil.copy(zoo.litert("mean") / "model.tflite", folder),
     "model.tflite must have the outputs of the task intent, probabilities; got embedding"),
    (lambda folder: ((folder / "vocab.txt").write_text("\n".join([*TINY_VOCABULARY, "more"])),
                     (folder / "sha256.json").unlink()),
     "its vocabulary must have at most the model's vocab_size (60) tokens; got 61"),
    (lambda folder: (folder / "vocab.txt").unlink(), "must be a folder with a vocabulary"),
    (lambda folder: reverse(folder / "labels.json"), "labels.json must be as it was written"),
    (lambda folder: change_json(folder / "tokenizer_config.json", do_lower_case=False),
     "tokenizer_config.json must be as it was written; copy or write the folder again"),
    (lambda folder: change_json(folder / "settings.json", max_length=17), "settings.json must be as it was written"),
    (lambda folder: change_json(folder / "bert_config.json", pad_token_id=1), "bert_config.json must be as it was wri"),
    (lambda folder: shorten(folder / "model.tflite", 0.5), "model.tflite: cannot be read: The model is not a valid"
     " Flatbuffer buffer; copy the folder again, or export the model again"),
    (lambda folder: (folder / "model.tflite").write_bytes(b""), "model.tflite: cannot be read: "),
    (lambda folder: (folder / "bert_config.json").write_text("[]"), "bert_config.json: must hold one JSON object")])
def test_a_damaged_folder(intents_folder, damage, message, tmp_path, run):
    folder = tmp_path / "lite"
    shutil.copytree(intents_folder, folder)
    damage(folder)
    status, _, messages = run("predict", f"--model={folder}", "a text")
    assert status == 1 and len(messages) == 1 and message in messages[0]


def reverse(path):
    path.write_text(json.dumps(json.loads(path.read_text())[::-1]))


def test_verify_notices_a_changed_bit_before_it_runs_the_model(intents_folder, tmp_path, run):
    folder = shutil.copytree(intents_folder, tmp_path / "lite")
    lite = LiteModel.load(folder)
    lite.with_task(dataclasses.replace(lite.task, threshold=0.9)).save_settings(folder)  # may change
    assert LiteModel.load(folder).task.threshold == 0.9 and run("verify", folder)[0] == 0
    digests = json.loads((folder / "sha256.json").read_text())
    del digests["settings.json"]  # as in version 0.3
    (folder / "sha256.json").write_text(json.dumps(digests))
    content = bytearray((folder / "model.tflite").read_bytes())
    place = content.index(randomize(CASES["intent"][0](randomize(BertLayer(TINY)))).get_weights()[0].tobytes())
    content[place] ^= 1
    (folder / "model.tflite").write_bytes(content)
    for name in (".DS_Store", "more.txt"):
        (folder / name).touch()
    (folder / "tokenizer_config.json").unlink()
    assert run("verify", folder) == (1, [], [
        f"keras-bert: {folder}: model.tflite must be as it was written; more.txt must be removed: it was added after "
        "the export; tokenizer_config.json must be as it was written; it is missing; copy or write the "
        "folder again, or remove sha256.json if the change is right"])


def test_a_folder_without_digests(intents_folder, tmp_path):
    folder = shutil.copytree(intents_folder, tmp_path / "lite")
    reverse(folder / "labels.json")
    (folder / "sha256.json").unlink()
    result = verify_litert(LiteModel.load(folder), folder)[-1]
    assert (result.status, result.seen) == ("not applicable", "there is no sha256.json")


def shorten(path, share):
    content = path.read_bytes()
    path.write_bytes(content[:int(share * len(content))])


def test_it_names_the_package_that_is_missing(intents_folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "ai_edge_litert.interpreter", None)
    with pytest.raises(InputError, match="LiteRT needs the package ai-edge-litert: pip install ai-edge-litert"):
        LiteModel.load(intents_folder)


@pytest.fixture
def converted(monkeypatch):
    """In place of the converter, the file that it made of the same model."""
    with zipfile.ZipFile(zoo.litert("intent") / "model.tflite") as archive:
        content = (zoo.litert("intent") / "model.tflite").read_bytes()[:archive.infolist()[0].header_offset]
    monkeypatch.setattr(litert, "_convert", lambda *arguments: content)


@pytest.mark.usefixtures("converted")
def test_a_file_with_other_outputs_is_not_kept(tmp_path):
    model = randomize(BertClassifier(randomize(BertLayer(TINY)), 3), seed=1)
    with pytest.raises(InputError, match="must give the model's probabilities within 0.0001; the largest difference"):
        export_litert(model, BertTokenizer(TINY_VOCABULARY), tmp_path / "lite", CASES["intent"][1])
    assert not (tmp_path / "lite").exists()


def test_what_cannot_be_exported(bert, tokenizer, tmp_path):
    with pytest.raises(InputError, match="needs a model of finetune without LSTMs, or a BertEmbedder; got BertLayer"):
        export_litert(bert, tokenizer, tmp_path / "lite")
    with pytest.raises(InputError, match="got BertFeatureTagger"):
        export_litert(BertFeatureTagger(bert, 3, "last"), tokenizer, tmp_path / "lite", CASES["tag"][1])
    with pytest.raises(InputError, match="task must be given for a BertRegressor"):
        export_litert(BertRegressor(bert), tokenizer, tmp_path / "lite")
    with pytest.raises(InputError, match="dtype must be one of float32, int8; got 'bfloat16'"):
        export_litert(BertEmbedder(bert, "mean"), tokenizer, tmp_path / "lite", dtype="bfloat16")
    with pytest.raises(InputError, match="task must be the task of the model; got embed for a BertClassifier"):
        export_litert(BertClassifier(bert, 3), tokenizer, tmp_path / "lite", TASKS["embed"](16))
    with pytest.raises(InputError, match="the names of the 4 classes of this BertClassifier; got 3 names"):
        export_litert(BertClassifier(bert, 4), tokenizer, tmp_path / "lite", CASES["intent"][1])
    assert not (tmp_path / "lite").exists()


def test_a_small_encoder(tmp_path):
    config = dataclasses.replace(TINY, type_vocab_size=1, max_position_embeddings=3, num_hidden_layers=1)
    model = FineTuned(randomize(BertEmbedder(BertLayer(config), "mean")), BertTokenizer(TINY_VOCABULARY),
                      TASKS["embed"](3))
    model.export_litert(tmp_path / "lite")
    lite = LiteModel.load(tmp_path / "lite")
    np.testing.assert_allclose(lite.predict(["play"]), model.predict(["play"]), atol=1e-5)
    assert not [result for result in verify_litert(lite, tmp_path / "lite") if result.status == FAILED]


def test_a_model_can_be_sent_to_another_process(intents_folder):
    lite = LiteModel.load(intents_folder)
    assert pickle.loads(pickle.dumps(lite)).predict(["play some music"]) == lite.predict(["play some music"])


def test_a_folder_that_is_replaced_while_it_is_read(intents_folder, tmp_path, monkeypatch):
    shutil.copytree(intents_folder, tmp_path / "lite")
    other = zoo.copy(zoo.litert("intent", dtype="int8"), tmp_path / "other")
    read = lite_model.read_settings

    def replace_once(folder):
        if other.exists():
            shutil.rmtree(tmp_path / "lite")
            other.rename(tmp_path / "lite")
        return read(folder)

    monkeypatch.setattr(lite_model, "read_settings", replace_once)
    lite = LiteModel.load(tmp_path / "lite", threads=4)
    assert lite.runner.is_int8


def test_losses_of_scores(intents_folder, monkeypatch):
    model = LiteModel.load(intents_folder)
    texts = TEXTS[:2]
    rows = [(text, answer.label) for text, answer in zip(texts, model.predict(texts))]
    rows.append(("now", next(label for label in LABELS if label != model.predict(["now"])[0].label)))
    other = LiteModel.load(intents_folder)
    monkeypatch.setattr(type(other), "outputs", lambda self, encoded, outputs=LiteModel.outputs: [
        row if self is model else -row for row in outputs(self, encoded)])
    found = compare(model, other, model.encode(rows))
    assert found.original == pytest.approx(2 / 3) and found.equal < 1 and found.examples == 3
    assert found.loss == pytest.approx(100 * (found.original - found.exported))
    assert dataclasses.replace(found, original=0.74, exported=0.735).loss == 0.5  # not 0.5000000000000004


@pytest.mark.slow("a flag that the command loses")
def test_the_command(trained, intents, run, tmp_path):
    command = "export", "litert", f"--model={trained}", "--dtype=int8"
    status, lines, _ = run(*command, f"--output={tmp_path / 'out'}", f"--data={intents[1]}", "--max_loss=100")
    assert status == 0 and lines[0].startswith("accuracy ") and "on 4 examples; " in lines[0]
    assert lines[1].startswith("largest difference of probabilities: ") and lines[-1] == str(tmp_path / "out")
    tuned, lite = FineTuned.load(trained), LiteModel.load(tmp_path / "out")
    assert lite.task == tuned.task and lite.columns == tuned.columns
    status, _, messages = run(*command, f"--output={tmp_path / 'out'}")
    assert status == 1 and "exists already" in messages[-1]
    data = tmp_path / "other.tsv"
    data.write_text("text\tlabel\nplay some music\tstrange\n")
    for flags, message in (
            ([f"--data={data}"], "label 'strange' is not among the learned labels"),
            (["--out_of_scope_label=x"], "--out_of_scope_label must be left out without --data"),
            (["--max_loss=2"], "--max_loss must be left out without --data"),
            ([f"--data={tmp_path / 'none.tsv'}"], "none.tsv")):
        status, _, messages = run(*command, f"--output={tmp_path / 'new'}", *flags)
        assert status == 1 and message in messages[-1] and not (tmp_path / "new").exists()


@pytest.mark.slow("a flag that the command loses")
@pytest.mark.parametrize("case", ["intent", "prompts", "joint", "few shot"])
def test_the_command_keeps_the_tokens_of_texts(case, run, tmp_path):
    """The answers to these texts stay the same. A prompt's tokens are kept, too."""
    (tmp_path / "texts.txt").write_text("play some music\n")
    status, lines, _ = run("export", "litert", f"--model={zoo.model(case)}", f"--output={tmp_path / 'lite'}",
                           f"--keep_tokens_of={tmp_path / 'texts.txt'}")
    assert status == 0 and lines[0].startswith("kept ") and lines[-1] == str(tmp_path / "lite")
    whole, lite = LiteModel.load(zoo.litert(case)), LiteModel.load(tmp_path / "lite")
    assert lite.task == whole.task and {"play", "some", "music"} <= {*lite.tokenizer.vocabulary}
    assert len(lite.tokenizer.vocabulary) == lite.runner.config.vocab_size < whole.runner.config.vocab_size
    found, expected = (model.predict(["some music play"]) for model in (lite, whole))
    np.testing.assert_allclose(*(each if case == "prompts" else each[0].score for each in (found, expected)), rtol=1e-5)


@pytest.mark.slow("a flag that makes no embedder of an encoder")
def test_an_encoder_becomes_an_embedder(pretrained_once, run, tmp_path):
    status, lines, _ = run("export", "litert", f"--model={pretrained_once}", "--pooling=mean", "--normalize",
                           f"--output={tmp_path / 'lite'}")
    assert status == 0 and lines[-1] == str(tmp_path / "lite")
    embedder = BertEmbedder.from_pretrained(pretrained_once, pooling="mean", normalize=True)
    texts = ["play some music", ""]
    expected = embedder(BertTokenizer(TINY_VOCABULARY)(texts))
    np.testing.assert_allclose(LiteModel.load(tmp_path / "lite").predict(texts), expected, atol=1e-5)


@pytest.mark.usefixtures("converted")
def test_metadata_is_for_vocabularies_that_mediapipe_reads(intents_folder, tmp_path):
    with zipfile.ZipFile(intents_folder / "model.tflite") as archive:
        assert archive.read("vocab.txt").decode().splitlines() == TINY_VOCABULARY
        assert archive.read("labels.txt").decode().splitlines() == LABELS
    model, task = zoo.make("intent").model, CASES["intent"][1]
    for number, (tokenizer, other) in enumerate([
            (BertTokenizer(TINY_VOCABULARY, lower_case=False), task),
            (BertTokenizer(TINY_VOCABULARY), CASES["pairs"][1]),
            (BertTokenizer(TINY_VOCABULARY), dataclasses.replace(task, labels=["a\nb", "c", "d"]))]):
        export_litert(model, tokenizer, tmp_path / str(number), other)
        assert not zipfile.is_zipfile(tmp_path / str(number) / "model.tflite")


# Its drawing functions need the two modules, which are large; texts do not.
MEDIAPIPE = """
import json, sys
from unittest import mock

sys.modules.update(cv2=mock.MagicMock(), sounddevice=mock.MagicMock())
from mediapipe.tasks.python.text import TextClassifier, TextEmbedder

classifier, embedder = (kind.create_from_model_path(f"{folder}/model.tflite")
                        for kind, folder in zip((TextClassifier, TextEmbedder), sys.argv[1:]))
texts = json.loads(sys.stdin.read())
classes = [classifier.classify(text).classifications[0].categories for text in texts]
vectors = [embedder.embed(text).embeddings[0].embedding for text in texts]
print(json.dumps([[[(part.category_name, part.score) for part in parts] for parts in classes],
                  [list(map(float, vector)) for vector in vectors]]))
classifier.close(), embedder.close()
"""


@pytest.mark.slow("metadata that MediaPipe does not read")
def test_mediapipe_takes_strings(intents_folder, tmp_path):
    library = tmp_path / "library"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(library), "mediapipe"]
    if subprocess.run(pip, env={}).returncode:
        pytest.skip("mediapipe cannot be installed")
    texts = ["play some music", "Turn OFF the light!", "stop"]
    embedder = zoo.copy(zoo.litert("mean"), tmp_path / "embedder")
    process = subprocess.run([sys.executable, "-c", MEDIAPIPE, str(intents_folder), str(embedder)],
                             input=json.dumps(texts), env={"PYTHONPATH": str(library)}, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    categories, vectors = json.loads(process.stdout.splitlines()[-1])
    for found, answer in zip(categories, LiteModel.load(intents_folder).predict(texts, top_k=3)):
        assert [label for label, _ in found] == answer.labels
        np.testing.assert_allclose([score for _, score in found], answer.scores, atol=1e-5)
    np.testing.assert_allclose(vectors, LiteModel.load(embedder).predict(texts), atol=1e-5)


def test_what_a_block_writes_into_new_memory_gets_huge_pages():
    def new():
        memory = mmap.mmap(-1, 16 * 2**20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.write(content)
        return memory

    def size(memory):
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        maps = re.findall(r"^(\w+)-(\w+) .*\n(?:\w+: .*\n)*?AnonHugePages: +(\d+)",
                          pathlib.Path("/proc/self/smaps").read_text(), re.MULTILINE)
        return next(int(huge) for start, end, huge in maps if int(start, 16) <= address < int(end, 16))

    content = os.urandom(16 * 2**20)
    try:
        new().madvise(25)
    except OSError:
        pytest.skip("needs Linux 6.1")
    with processes.huge_pages(waits=True):
        memory = new()
    assert size(memory) >= 12 * 1024 and memory[:] == content  # kB


def test_an_interpreter_works_after_a_first_call_that_failed():
    runner = LiteModel.load(zoo.litert("intent")).runner
    with pytest.raises(ValueError, match="inputs"):
        runner._narrow[0]({})
    runner.warm_up()
