"""Mistakes on the command line: one line each, and nothing left behind."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

import keras_bert
from keras_bert.data.tagged import read_tagged
from keras_bert.errors import InputError
from keras_bert.training import FineTuned

from conftest import TINY, TINY_VOCABULARY, finetune_command


@pytest.mark.parametrize("arguments,status,words", [
    ([], 2, []),
    (["teach"], 2, ["'teach'", "finetune, evaluate, calibrate, predict, export, export preprocessor,"]),
    (["finetune", "--train=a.tsv"], 2, ["--output"]),
    (["finetune", "train.tsv"], 2, ["takes only flags, as --name=value", "train.tsv"]),
    (["predict", "--model=x", "--top_k=0", "hello"], 1, ["top_k must be at least 1", "0"]),
    (["predict", "--model=x"], 1, ["texts as arguments or --input", "neither"]),
    (["predict", "--model=/nowhere", "hello"], 1, ["/nowhere", "there is no such folder"]),
    (["export", "--model=x", "--output=y", "--dtype=int8"], 2, ["--dtype", "int8"]),
    # The names of other libraries and of older versions.
    (["fintune"], 2, ["'fintune' is not a command; did you mean finetune?"]),
    (["finetune", "--epoch=1"], 2, ["there is no flag --epoch; did you mean --epochs?"]),
    (["train"], 2, ["did you mean finetune?"]),
    (["text-model"], 2, ["did you mean export text-model?"]),
    (["export", "textmodel"], 2, ["got 'textmodel'; did you mean export text-model?"]),
    (["--model=x", "predict"], 2, ["'--model=x' is not a command; give the command first"]),
    (["finetune", "--task=ner"], 2, ["--task must be one of intent, classify, multilabel, regress, tag, joint, span, "
                                     "choice, embed, rerank; got 'ner'; did you mean tag?; for a task of your own, "]),
    (["finetune", "--init_from=x"], 2, ["there is no flag --init_from; did you mean --model?"]),
    (["pretrain", "--recompute"], 2, ["did you mean --gradient_checkpointing?"]),
    (["finetune", "--recompute"], 2, ["there is no flag --recompute; see"]),
    (["finetune", "--epochs=2.5"], 2, ["--epochs must be a whole number; got '2.5'"]),
    (["finetune", "--learning_rate=5e-5x"], 2, ["--learning_rate must be a number; got '5e-5x'"]),
    (["finetune", "--overwrite=maybe"], 2, ["--overwrite must be True or False; got 'maybe'"]),
    (["pretrain", "--train=x", "--output=y", "--steps=9", "--config=L3-H100"], 1,
     ["--config must be an existing bert_config.json or a size: tiny,", "got 'L3-H100'"]),
    (["make-pretraining-data", "--input=", "--vocab=minilm", "--output=o"], 1,
     ["input must name at least one text file"]),
    (["serve", "--model="], 1, ["--model=: must be PATH or NAME=PATH"]),
    (["serve", "--model=a/b=answers"], 1, ["--model=a/b=answers: the model at a/b=answers needs a name of letters, "
                                           "digits and . _ -, not 'b=answers': --model=NAME=a/b=answers"]),
    (["serve", "--model=m", "--port=18611", "--grpc_port=18611"], 1,
     ["--grpc_port must be another port than --port; got 18611"]),
    (["serve", "--model=m", "--allowed_host=x.example", "--allowed_host=http://x.example/"], 1,
     ["--allowed_host must be a name, without a scheme or a path; got 'http://x.example/'"]),
    (["evaluate", "--model=m", "--data=d", "--nochoose_threshold=true"], 2, ["choose_threshold"]),
])
def test_bad_usage_is_one_line(run, arguments, status, words):
    got, output, messages = run(*arguments)
    assert got == status
    if words:
        assert output == [] and len(messages) == 1
        for word in words:
            assert word in messages[0]


def remove(path):
    path.unlink()


def cut(path):
    path.write_bytes(path.read_bytes()[:-50])


def folder_instead(path):
    path.unlink()
    path.mkdir()


def config(**changes):
    return lambda path: path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize("name,damage", [
    ("train.tsv", remove), ("train.tsv", b"\x80\x04\x95 pickled"), ("valid.tsv", folder_instead),
    ("valid.tsv", b"text\ttext_pair\tlabel\nplay\tsing\tmusic\n"), ("valid", b"text\tlabel\nplay\tmusic\n"),
    ("out", b"a file of mine"), ("out.checkpoints", b"a file of mine"),
    ("pretrained/vocab.txt", remove), ("pretrained/vocab.txt", b"a\n"), ("pretrained/vocab.txt", folder_instead),
    ("pretrained/vocab.txt", "\n".join(TINY_VOCABULARY[:9]).encode()), ("pretrained/tokenizer_config.json", b"{"),
    ("pretrained/model.safetensors", cut), ("pretrained/model.safetensors", b""),
    ("pretrained/config.json", b"{}"), ("pretrained/config.json", remove),
    ("pretrained/config.json", config(num_hidden_layers=3)), ("pretrained/config.json", config(hidden_size=20)),
    ("pretrained/config.json", config(vocab_size=61)),
])
def test_bad_input_is_one_line_and_leaves_nothing(run, intents, pretrained, tmp_path, name, damage):
    path = tmp_path / name
    if path.name == "vocab.txt":  # which otherwise is not read
        (pretrained / "tokenizer.json").unlink()
    path.write_bytes(damage) if isinstance(damage, bytes) else damage(path)
    before = sorted(tmp_path.rglob("*"))
    more = [f"--valid={path}"] if name == "valid" else []
    status, output, messages = run(*finetune_command(intents, pretrained, tmp_path / "out", *more))
    assert status == 1 and output == []
    assert len(messages) == 1 and messages[0].startswith("keras-bert: ") and name.split("/")[0] in messages[0]
    assert sorted(tmp_path.rglob("*")) == before


GOOD = "text\tlabel\nplay\tmusic\nturn on\tlight\n"


@pytest.mark.parametrize("name,content,flags,message", [
    ("train.tsv", GOOD, ["--text_column=sentence"], "there is no column 'sentence'; the columns are text, label"),
    ("train.tsv", "text\tlabel\nplay\tmusic\nturn on\tmusic\n", [],
     "a classifier needs at least two labels; every text has the label 'music'"),
    ("valid.tsv", GOOD + "fly\tnone\n", [], "row 4: label 'none' is not among the learned labels; correct it, or "
     "if it marks texts that are out of scope, pass --out_of_scope_label='none'"),
    ("valid.conll", "play O\nkim B-person\n", ["--task=tag", "--train=places.conll"],
     "row 1: tag 'B-person' is not among the learned tags; correct it, or train on sentences with it"),
    ("train.conll", "play O\n", [], "; for tagged words, pass --task='tag'"),
    ("train.json", '{"version": "1", "data": []}', [], "; for questions as in SQuAD, pass --task='span'"),
    ("valid.tsv", GOOD, ["--out_of_scope_label=none"], "no text has the --out_of_scope_label 'none'"),
])
def test_a_message_about_a_file_says_what_to_do(run, intents, pretrained_once, tmp_path, monkeypatch, name, content,
                                                flags, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "places.conll").write_text("play O\nseoul B-place\n")
    path = tmp_path / name
    path.write_text(content)
    status, output, messages = run(*finetune_command(
        intents, pretrained_once, tmp_path / "out", f"--{path.stem}={path}", *flags))
    assert (status, output, len(messages)) == (1, [], 1)
    assert messages[0].startswith(f"keras-bert: {path}: ") and messages[0].endswith(message)


def test_a_folder_instead_of_a_file(run, trained_once, pretrained_once, tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    model, out, pattern = f"--model={trained_once}", f"--output={tmp_path / 'out'}", f"'{folder / '*.jsonl'}'"
    is_folder = f"must name files, as in '{folder / '*.txt'}' or '{folder / '*.tsv'}'; it is a folder"
    found = "must end in .tsv, .csv, .jsonl, .parquet, .json; got a folder; pass one of its files"
    for arguments, message in (
            (["predict", model, f"--input={folder}"],
             f"a data file {found}; to answer all of them, pass --output and --input={pattern}"),
            (["predict", model, f"--input={folder}", out], is_folder),
            (["predict", model, f"--input={folder}/", out], is_folder),
            (["finetune", f"--train={folder}", f"--model={pretrained_once}", out], f"a data file {found}")):
        status, _, [*_, line] = run(*arguments)
        assert status == 1 and line.startswith(f"keras-bert: {folder}") and line.endswith(f": {message}")
    assert not (tmp_path / "out").exists()
    (folder / "seq.in").touch()
    _, _, [*_, line] = run("finetune", f"--train={folder}", f"--model={pretrained_once}", out)
    assert line.endswith("; got a folder of SNIPS or ATIS; pass --data_format=snips")
    with pytest.raises(InputError, match="a file of tagged words must end in .*; got a folder; pass one of its files"):
        list(read_tagged(tmp_path))


def test_wrong_folders(run, trained, pretrained, intents, tmp_path):
    encoder, no_vocabulary = tmp_path / "encoder", shutil.copytree(pretrained, tmp_path / "no_vocabulary")
    encoder.mkdir()
    (encoder / "saved_model.pb").touch()
    for name in ("vocab.txt", "tokenizer.json"):
        (no_vocabulary / name).unlink()
    empty, versions = tmp_path / "empty", tmp_path / "versions"
    for folder in (empty, versions / "3", versions / "12"):
        folder.mkdir(parents=True)
    for arguments, message in (
            (["serve", f"--model={trained}"], f"{trained}: must be a SavedModel or a LiteRT folder, or a folder of "
             "these whose names are numbers below 2^63; to make one: keras-bert export text-model --model=FOLDER "
             "--output=EXPORTED, or keras-bert export litert"),
            (["evaluate", f"--model={encoder}", f"--data={intents[1]}"], f"{encoder}: must be a folder that finetune "
             "wrote; this is a SavedModel: pass the folder that it was exported from"),
            (["evaluate", f"--model={intents[0]}", f"--data={intents[1]}"],
             f"{intents[0]}: must be a folder that finetune wrote; it is a file"),
            (["predict", f"--model={pretrained}", "play"],
             f"{pretrained}: must be a folder that finetune wrote; if these are weights of another format, convert "
             f"them: keras-bert convert --model={pretrained} --output=… --format=keras_bert; or fine-tune them: "
             f"keras-bert finetune --train=FILE --model={pretrained} --output=FOLDER"),
            (["verify", trained], f"{trained}: must be a SavedModel, a folder with the file saved_model.pb; it is "
             "missing; to write one: keras-bert export, or for a text embedding keras-bert export text-model "
             "--pooling=mean"),
            (["evaluate", "--model=minilm", f"--data={intents[1]}"],
             "minilm: must be a folder that finetune wrote; there is no such folder; to write one, keras-bert finetune "
             "--train=FILE --model=minilm --output=FOLDER"),
            (["predict", f"--model={empty}", "play"],
             f"{empty}: must be a folder that finetune wrote; it has neither model.keras nor model.tflite"),
            (["predict", f"--model={versions}", "play"], f"{versions}: must be a folder that finetune wrote; this is a "
             f"folder of versions: pass one of them, {versions}/12"),
            *((["fill-mask", f"--model={folder}", "[MASK]"],
               f"{folder}: fill-mask needs weights with a masked LM head, as pretrain writes; these have {head}")
              for folder, head in ((pretrained, "no head"), (trained, "a head for classification"))),
            (["export", f"--model={no_vocabulary}", f"--output={tmp_path}/out"],
             f"{no_vocabulary}: vocab.txt or tokenizer.json is missing next to the weights; copy the model's there"),
            (["export", f"--model={intents[0]}", f"--output={tmp_path}/out"], f"{intents[0]}: must be a folder, a name "
             "that `keras-bert presets` lists or a Hugging Face id org/name; it is a file"),
            (["export", f"--model={pretrained}", f"--output={trained}"],
             f"{trained}: exists already; pass another path or --overwrite")):
        assert run(*arguments)[::2] == (1, [f"keras-bert: {message}"])
    cut(trained / "model.keras")
    status, output, [message] = run("predict", f"--model={trained}", "hello")
    assert (status, output) == (1, []) and "model.keras" in message


def test_neither_help_nor_refusals_of_values_import_tensorflow():
    commands = [["finetune", "--help"], ["predict", "--model=/nowhere", "--top_k=0", "hello"],
                ["finetune", "--train=a", "--valid=b", "--model=c", "--output=d", "--epochs=0"],
                ["finetune", "--train=/nowhere", "--valid=b", "--model=c", "--output=d"],
                ["pretrain", "--train=a", "--output=b", "--steps=0"], ["evaluate", "--model=/nowhere", "--data=x"]]
    code = (f"import sys, keras_bert.cli as c; assert [c.run(one) for one in {commands}] == [0, 1, 1, 1, 1, 1]; "
            "assert 'tensorflow' not in sys.modules")
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "--learning_rate" in run.stdout


@pytest.mark.parametrize("module, package, flags", [
    ("seqeval.metrics", "seqeval", ["--task=tag", "--train=tagged.conll", "--valid=tagged.conll"]),
    ("scipy.stats", "scipy", ["--task=regress", "--train=rows.tsv", "--valid=rows.tsv"]),
    ("pyarrow", "pyarrow", ["--train=rows.parquet"]), ("tensorboard", "tensorboard", ["--log_dir=logs"]),
    ("httptools", "httptools", None)])
def test_a_missing_library_is_named_with_its_command(run, intents, pretrained_once, tmp_path, monkeypatch, module,
                                                     package, flags):
    monkeypatch.chdir(tmp_path)
    for name, content in (("tagged.conll", "play B-a\n"), ("rows.tsv", "text\tlabel\nplay\t1\n"), ("rows.parquet", "")):
        (tmp_path / name).write_text(content)
    find = keras_bert.training.run.importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *more: name != module and find(name, *more) or None)
    monkeypatch.setitem(sys.modules, module, None)
    status, _, messages = run(*(
        ["serve", "--model=x"] if flags is None else finetune_command(intents, pretrained_once, "out", *flags)))
    assert status == 1 and len(messages) == 1 and messages[0].endswith(f"pip install {package}")


def test_no_message_names_an_index_that_lacks_the_package():
    root = pathlib.Path(keras_bert.__file__).parent
    for path in [*root.rglob("*.py"), *(root.parent / "export").rglob("*.py")]:
        assert "keras-bert-hub[" not in path.read_text(), path


@pytest.mark.slow("an allocation that TensorFlow refuses")
@pytest.mark.usefixtures("eager")
def test_a_full_memory_is_one_line(run, intents, pretrained, tmp_path, monkeypatch):
    monkeypatch.setattr("keras_bert.training.run.Run.check_loss", lambda *_: tf.fill([2**45], 0.0))
    status, _, messages = run(*finetune_command(intents, pretrained, tmp_path / "out"))
    assert (status, messages[-1]) == (
        1, "keras-bert: the memory of the device is full; try a smaller --batch_size or --max_length")


@pytest.mark.parametrize("inputs,message", [
    ([np.zeros(4, "int32")] * 3, "must have one shape, [batch, seq]; got (4,), (4,), (4,)"),
    ([np.zeros((2, 4), "int32")] * 2, "inputs need three tensors, input_word_ids, input_mask, segment_ids; got 2"),
    (np.zeros((3, 4), "int32"), "inputs need three tensors"),
    ([np.zeros((2, length), "int32") for length in (4, 3, 4)], "got (2, 4), (2, 3), (2, 4)"),
    ({"input_word_ids": np.zeros((2, 4), "int32")}, "missing input_mask, segment_ids, got input_word_ids"),
    ([np.full((2, 4), value, "int32") for value in (60, 1, 0)], "input_word_ids must be from 0 to 59; got 60 to 60"),
    ([np.full((2, 4), value, "int32") for value in (0, 1, 2)], "segment_ids must be from 0 to 1; got 2 to 2")])
def test_wrong_inputs_of_the_encoder(inputs, message):
    for layout in ("padded", "unpadded"):
        with pytest.raises(ValueError, match=re.escape(message)):
            keras_bert.BertLayer(TINY, layout=layout)(inputs)


def test_messages_for_python_have_no_flags(trained, intents, pretrained):
    model = FineTuned.load(trained)
    for call, message in (
            (lambda: model.predict(["a"], top_k=0), "top_k must be at least 1; got 0"),
            (lambda: keras_bert.finetune(*intents, model=pretrained, output=trained),
             f"{trained}: exists already; pass another path or overwrite=True"),
            (lambda: keras_bert.finetune(*intents, model=pretrained, output="x", task="ner"),
             "task must be one of classify, intent, multilabel, regress, tag, joint, span, choice, embed, rerank; "
             "got 'ner'; did you mean tag?; for a task of your own, import its module first, a command by --import="
             "MODULE")):
        with pytest.raises(InputError) as error:
            call()
        assert str(error.value) == message
    for call, message in ((lambda: model.predict(["a"], topk=3), "predict() got an unexpected keyword argument 'topk'"),
                          (lambda: model.evaluate("x", text="y"), "got an unexpected keyword argument 'text'")):
        with pytest.raises(TypeError) as unknown:
            call()
        assert message in str(unknown.value)


@pytest.mark.slow("a text of megabytes that takes time without end")
@pytest.mark.usefixtures("eager")
def test_a_text_of_megabytes_is_cut(run, intents, pretrained, tmp_path):
    with open(intents[0], "a") as file:
        file.write("play music " * 200_000 + "\tmusic\n" + "x" * 2_000_000 + "\tlight\n")
    assert run(*finetune_command(intents, pretrained, tmp_path / "out"))[0] == 0


def test_a_reader_that_leaves_is_no_error():
    read_end, write_end = os.pipe()
    os.close(read_end)
    run = subprocess.run([sys.executable, "-m", "keras_bert.cli", "finetune", "--help"], stdout=write_end,
                         stderr=subprocess.PIPE)
    os.close(write_end)
    assert (run.returncode, run.stderr) == (0, b"")


def test_an_output_never_replaces_its_inputs(run, trained, intents, tmp_path):
    folder = shutil.copytree(trained, tmp_path / "folder")
    data = folder / "data"
    data.mkdir()
    train = shutil.copy(intents[0], data / "train.tsv")
    before = sorted(folder.rglob("*"))
    for command in (["export", f"--model={folder}"], ["export", "text-model", f"--model={folder}"],
                    ["finetune", f"--train={train}", f"--model={trained}"]):
        status, _, messages = run(*command, f"--output={folder}", "--overwrite")
        given = train if command[0] == "finetune" else folder
        assert (status, messages) == (1, [
            f"keras-bert: {folder}: must not be or contain {given}, which --overwrite would remove"])
    assert sorted(folder.rglob("*")) == before
