"""Damaged sources: one line each, which names the tensor or the file, and nothing left behind."""

import json
import os
import pickle
import shutil
import warnings
import zipfile

import h5py
import numpy as np
import pytest
import record_transformers4
import tensorflow as tf
from safetensors.numpy import load_file, save_file
from test_formats import make

from keras_bert.convert import FORMATS, convert
from keras_bert.weights.bundle import write_bundle

import zoo
from conftest import TINY_VOCABULARY, change_json

KERNEL = "encoder.layer.1.intermediate.dense.weight"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """One encoder in several formats, and a TensorFlow model of transformers 4."""
    path = tmp_path_factory.mktemp("whole")
    models = {"": make("encoder", "two blocks"), " classifier": make("intent", "two blocks")}
    for name, form in ((name, form) for name in models for form in ("huggingface", "tf1", "keras_bert", "kerashub")):
        (path / f"{form}{name}").mkdir()
        FORMATS[form].write(models[name], path / f"{form}{name}")
    (path / "sentence_transformers").mkdir()
    FORMATS["sentence_transformers"].write(make("max", "two blocks"), path / "sentence_transformers")
    shutil.copytree(path / "huggingface", path / "shards")
    split(path / "shards")
    shutil.copytree(record_transformers4.FOLDER / "TFBertForPreTraining", path / "transformers4")
    return path


def cut(name, share):
    def damage(path):
        size = (path / name).stat().st_size
        os.truncate(path / name, int(size * share))

    return damage


def flip(name):
    """One bit in the middle of a file."""
    def damage(path):
        content = bytearray((path / name).read_bytes())
        content[len(content) // 2] ^= 1
        (path / name).write_bytes(content)

    return damage


def tensors(edit):
    def damage(path):
        changed = load_file(path / "model.safetensors")
        edit(changed)
        save_file({key: np.ascontiguousarray(array) for key, array in changed.items()}, path / "model.safetensors")

    return damage


def another_name(changed):
    changed["encoder.layer.1.intermediate.dense.kernel"] = changed.pop(KERNEL)


def another_layout(changed):
    changed[KERNEL] = changed[KERNEL].T


def another_layer(changed):
    changed |= {key.replace("layer.1.", "layer.2."): array for key, array in changed.items() if "layer.1." in key}


def pickled(content):
    """A file of these bytes instead of the weights."""
    def damage(path):
        (path / "model.safetensors").unlink()
        (path / "pytorch_model.bin").write_bytes(content)

    return damage


def loop(name):
    def damage(path):
        (path / name).unlink()
        (path / name).symlink_to(name)

    return damage


def folder_loop(path):
    shutil.rmtree(path)
    path.symlink_to(path.name)


def saved_by_torch(edit):
    """PyTorch's pickle of changed tensors."""
    def damage(path):
        import torch

        tensors = {name: torch.from_numpy(array) for name, array in load_file(path / "model.safetensors").items()}
        (path / "model.safetensors").unlink()
        with warnings.catch_warnings(action="ignore"):  # quantized and nested tensors are deprecated or prototypes
            edit(tensors, torch)
        torch.save(tensors, path / "pytorch_model.bin")

    return damage


SHARDS = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]


def split(path, save=save_file, suffix="safetensors"):
    """Two shards and their index instead of model.safetensors."""
    tensors = load_file(path / "model.safetensors")
    (path / "model.safetensors").unlink()
    stem = "model" if suffix == "safetensors" else "pytorch_model"
    shards = [f"{stem}-0000{i}-of-00002.{suffix}" for i in (1, 2)]
    files = dict(zip(sorted(tensors), shards * len(tensors)))
    for shard in shards:
        save({key: tensors[key] for key, file in files.items() if file == shard}, path / shard)
    (path / f"{stem}.{suffix}.index.json").write_text(json.dumps({"weight_map": files}))


def index(edit):
    def damage(path):
        path /= "model.safetensors.index.json"
        path.write_text(json.dumps(edit(json.loads(path.read_text())["weight_map"])))

    return damage


def hdf5(edit, name="tf_model.h5"):
    def damage(path):
        with h5py.File(path / name, "a") as file:
            edit(file)

    return damage


def preset(name, file="task.weights.h5", **dataset):
    """Another dataset in KerasHub's file, or none."""
    def edit(file):
        file.pop(name, None)
        if dataset:
            file.create_dataset(name, **dataset)

    return hdf5(edit, file)


def preset_bias(**dataset):
    return preset("layers/dense/vars/1", **dataset)


def variables(edit):
    """Other arrays in a checkpoint of TensorFlow 1."""
    def damage(path):
        reader = tf.train.load_checkpoint(str(path / "bert_model.ckpt"))
        arrays = {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
        edit(arrays)
        write_bundle(str(path / "bert_model.ckpt"), arrays.items())

    return damage


TF_KERNEL = "nsp___cls/tf_bert_for_pre_training/nsp___cls/seq_relationship/kernel:0"
TF_TIED = "mlm___cls/tf_bert_for_pre_training/bert/embeddings/word_embeddings/weight:0"


def another_file(file):
    """An array of HDF5 that is in another file."""
    del file[TF_KERNEL]
    file.create_dataset(TF_KERNEL, (8, 2), "float32", external=[("vocab.txt", 0, 64)])


def linked_file(file):
    del file[TF_KERNEL]
    with h5py.File(f"{file.filename}.other", "w") as other:
        other["kernel"] = np.zeros((8, 2), "float32")
    file[TF_KERNEL] = h5py.ExternalLink(f"{file.filename}.other", "kernel")


def untied(file):
    file[TF_TIED][3] = 7


def reshaped(file):
    del file[TF_KERNEL]
    file[TF_KERNEL] = np.zeros((8, 3), "float32")


def a_group(file):
    del file[TF_KERNEL]
    file.create_group(TF_KERNEL)


def no_layers(file):
    del file.attrs["layer_names"]


def config(**changes):
    return values("config.json", **changes)


def more_pieces(path):
    (path / "tokenizer.json").unlink()
    with open(path / "vocab.txt", "a") as file:
        file.write("one\nmore\n")


def without(name):
    return lambda path: (path / name).unlink()


def text(name, content):
    """Replaces a file by other content, or makes it."""
    return lambda path: (path / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def values(name, **changes):
    """Changes the object in a JSON file; that of `config` is the object's own config."""
    def damage(path):
        content = json.loads((path / name).read_text()) if (path / name).exists() else {}
        inner = {"config": content["config"] | changes["config"]} if "config" in changes else {}
        (path / name).write_text(json.dumps(content | changes | inner))

    return damage


def keras_config(**changes):
    """Changes the config of the model in a .keras file."""
    def damage(path):
        with zipfile.ZipFile(path / "model.keras") as file:
            files = {name: file.read(name) for name in file.namelist()}
        content = json.loads(files["config.json"])
        content["config"] |= changes
        with zipfile.ZipFile(path / "model.keras", "w") as file:
            for name, data in (files | {"config.json": json.dumps(content)}).items():
                file.writestr(name, data)

    return damage


def tokenizer_json(**changes):
    """A tokenizer as transformers 5 writes it, without vocab.txt."""
    def damage(path):
        (path / "vocab.txt").unlink()
        model = {"type": "WordPiece", "vocab": {token: id for id, token in enumerate(TINY_VOCABULARY)}} | changes
        change_json(path / "tokenizer.json", model=model)

    return damage


def modules(*classes, path=None):
    """Other modules of sentence-transformers."""
    paths = ["", *(f"{index}_{name}" for index, name in enumerate(classes[1:], 1))]
    return text("modules.json", json.dumps([
        {"idx": index, "name": str(index), "path": path or where, "type": f"sentence_transformers.models.{name}"}
        for index, (name, where) in enumerate(zip(classes, paths))]))


POOLING, LIBRARY = "1_Pooling/config.json", "config_sentence_transformers.json"
PRESET_KEY = "layers/transformer_encoder_1/_self_attention_layer/key_dense/vars/1"
# What runs code in other readers.
LAMBDA = {"module": "keras.layers", "class_name": "Lambda", "registered_name": None, "config": {"function": {
    "class_name": "__lambda__", "config": {"code": "4wEAAAA=", "defaults": None, "closure": None}}}}
PROCESS = {"module": "subprocess", "class_name": "Popen", "registered_name": None, "config": {"args": ["touch", "run"]}}


@pytest.mark.parametrize("form,damage,words", [
    ("tf1", cut("bert_model.ckpt.data-00000-of-00001", 0.5), "bert_model.ckpt: bert/"),
    ("tf1", flip("bert_model.ckpt.data-00000-of-00001"), "bert_model.ckpt: bert/"),
    ("tf1", cut("bert_model.ckpt.index", 0.5), "bert_model.ckpt.index"),
    ("tf1", without("bert_model.ckpt.data-00000-of-00001"), "bert_model.ckpt"),
    ("huggingface", tensors(another_name), f"missing {KERNEL}; unexpected {KERNEL.replace('weight', 'kernel')}"),
    ("huggingface", tensors(another_layout), f"{KERNEL} has shape (16, 32), but the config gives (32, 16)"),
    ("huggingface", tensors(another_layer), "unexpected encoder.layer.2.attention.output.LayerNorm.bias"),
    ("huggingface", tensors(lambda changed: changed.update({f"bert.{KERNEL}": changed[KERNEL]})),
     f"each weight must have one name; got bert.{KERNEL} and {KERNEL}"),
    ("huggingface", without("model.safetensors"), "must contain model.safetensors, pytorch_model.bin, tf_model.h5"),
    ("huggingface", loop("config.json"), "config.json"),
    ("huggingface", folder_loop, "source"),
    ("shards", without(SHARDS[1]), SHARDS[1]),
    ("shards", index(lambda files: [files]), "index.json: must hold one JSON object"),
    ("shards", index(lambda files: {"weight_map": []}), "index.json: 'weight_map' must be an object; got []"),
    ("shards", index(lambda files: {"weight_map": files | {"x": SHARDS[0]}}), "x is only in the index"),
    ("shards", index(lambda files: {"weight_map": files | {KERNEL: SHARDS[1]}}), f"{KERNEL} is only in the"),
    ("shards", index(lambda files: {"weight_map": files | {KERNEL: "../vocab.txt"}}), "in a file of the same folder"),
    ("transformers4", cut("tf_model.h5", 0.5), "tf_model.h5: not a complete HDF5 file"),
    ("transformers4", loop("tf_model.h5"), "tf_model.h5: cannot be read: Too many levels of symbolic links"),
    ("transformers4", hdf5(no_layers), "tf_model.h5: not a complete HDF5 file of a TFBert… model"),
    ("transformers4", hdf5(a_group), "tf_model.h5: not a complete HDF5 file of a TFBert… model"),
    ("transformers4", hdf5(reshaped), "cls.seq_relationship.weight has shape (3, 8), but the config gives (2, 8)"),
    ("transformers4", hdf5(untied), "must equal bert/tf_bert_for_pre_training/bert/embeddings/word_embeddings"),
    ("transformers4", hdf5(another_file), "must be stored in this file"),
    ("transformers4", hdf5(linked_file), "must be stored in this file"),
    ("huggingface", config(num_hidden_layers=3), "missing encoder.layer.2."),
    ("huggingface", config(vocab_size=61), "embeddings.word_embeddings.weight has shape (60, 16)"),
    ("huggingface", more_pieces, "its vocabulary must have at most the model's vocab_size (60) tokens; got 62"),
    ("keras_bert", cut("model.keras", 0.9), "model.keras"),
    ("hub", cut("variables/variables.data-00000-of-00001", 0.5), "variables"),
    ("hub", without("assets/bert_config.json"), "bert_config.json: not found"),
    ("huggingface", text("config.json", "[" * 100_000), "config.json: not a JSON file"),
    ("huggingface", config(num_hidden_layers=10**9), "1000000000 blocks must have more than 39 weights"),
    ("huggingface", config(embedding_size=8), "embedding_size must be hidden_size (16), as these hugg"),
    ("huggingface", config(keras_bert=[1]), "config.json: 'keras_bert' must be an object"),
    ("huggingface", text("model.safetensors", b"version https://git-lfs.github.com/spec/v1\noid sha256:5d\nsize 9\n"),
     "model.safetensors: is a pointer of Git LFS, not the weights; run git lfs pull"),
    ("huggingface", without("config.json"), "config.json: not found; copy the model's there"),
    ("huggingface", text("model.safetensors", b"\xff" * 64), "model.safetensors: not a complete safetensors file"),
    ("huggingface", tensors(lambda changed: changed[KERNEL].fill(np.nan)), "must give the same outputs"),
    ("huggingface", text("vocab.txt", b"\xff\xfe"), "vocab.txt: must be UTF-8 text"),
    ("tf1", text("vocab.txt", "a\nb\n"), "missing [PAD], [UNK], [CLS], [SEP]"),
    ("huggingface", text("added_tokens.json", f'{{"more": {10**12}}}'), f"got {10**12} for 'more'"),
    ("huggingface", tokenizer_json(type="BPE"), "tokenizer.json: model: 'type' must be WordPiece; got 'BPE', which"),
    ("huggingface", tokenizer_json(vocab={"[PAD]": -1}), "got -1 for '[PAD]'"),
    ("huggingface", config(hidden_activation=["gelu"]), "hidden_activation contradicts"),
    ("huggingface", config(vocab_size=10**30), "vocab_size must be at least 1 and below 2**31"),
    ("huggingface", config(hidden_size=2**30, intermediate_size=2**31 - 1, num_attention_heads=1),
     "(60, 16), but the config gives (60, 1073741824)"),
    ("huggingface", config(layer_norm_eps=10**400), "layer_norm_eps must be positive and finite"),
    ("huggingface", config(problem_type=["x"]), "'problem_type' must be"),
    ("huggingface", config(architectures=[["x"]]), "config.json: 'architectures' must be a list of texts"),
    ("huggingface", text("tokenizer_config.json", "[]"), "tokenizer_config.json: must hold one JSON object; got []"),
    ("huggingface", text("tokenizer_config.json", '{"added_tokens_decoder": ["a"]}'), "source: is damaged"),
    ("huggingface", lambda path: change_json(path / "tokenizer.json", added_tokens=[1]), "source: is damaged"),
    ("huggingface", lambda path: change_json(path / "tokenizer_config.json", tokenize_chinese_chars=False),
     "tokenizer_config.json must have the rules of tokenizer.json, as convert wrote both"),
    ("huggingface", tokenizer_json(vocab={token: id for id, token in enumerate([*TINY_VOCABULARY[:9], "\ud800"])}),
     "source: is damaged or has another format"),
    ("huggingface classifier", tensors(lambda changed: changed.pop("classifier.bias")), "missing classifier.bias"),
    ("huggingface classifier", tensors(lambda changed: changed.update(
        {name: array[:0] for name, array in changed.items() if "classifier" in name})), "must be at least 1; got 0"),
    ("huggingface classifier", config(classifier_dropout="much"), "head: 'dropout' must be a number; got"),
    ("huggingface classifier", config(id2label=["a", "b"]), "config.json: 'id2label' must be an object"),
    ("huggingface classifier", config(keras_bert={"task": "intent", "max_length": "long"}), "max_length must be"),
    ("tf1 classifier", text("keras_bert_settings.json", "[]"), "keras_bert_settings.json: must hold one JSON object"),
    ("tf1 classifier", text("labels.json", '["a"]'), "labels must be the names of the 2 classes; got ['a']"),
    ("tf1", text("keras_bert_settings.json", '{"hidden_act": ["gelu"]}'), "hidden_act must be str; got ['gelu']"),
    ("tf1 classifier", variables(lambda arrays: arrays.update(output_bias=np.float32(1))), "output_bias has shape ()"),
    ("tf1 classifier", variables(lambda arrays: arrays.update(output_bias=np.array(["a", "b"]))),
     "output_bias: is damaged or has another format: TypeError: its numbers must be real"),
    ("tf1", variables(lambda arrays: arrays.update(_CHECKPOINTABLE_OBJECT_GRAPH=np.array(b"\xff"))),
     "bert_model.ckpt: _CHECKPOINTABLE_OBJECT_GRAPH cannot be read"),
    ("keras_bert", text("model.keras", "not a zip file"), "model.keras: not the whole .keras file"),
    ("keras_bert classifier", keras_config(bert=LAMBDA), "model.keras"),
    ("keras_bert classifier", keras_config(bert=PROCESS), "model.keras"),
    ("keras_bert classifier", keras_config(num_classes="two"), "model.keras"),
    ("kerashub", text("model.weights.h5", "no HDF5"), "model.weights.h5: not a complete HDF5 file"),
    ("kerashub", values("config.json", class_name="RobertaBackbone"), "config.json: 'class_name' must be BertBackbone"),
    ("kerashub classifier", values("task.json", config={"activation": "softmax"}), "'activation' must be linear or"),
    ("kerashub classifier", preset_bias(data=np.zeros(2, [("a", "f4")])), "layers/dense/vars/1: is damaged or has"),
    ("kerashub classifier", preset_bias(shape=2, dtype="f4", external=[("labels.json", 0, 8)]),
     "must be stored in this file"),
    ("kerashub classifier", values("preprocessor.json", config={"sequence_length": "x"}), "sequence_length must be"),
    ("kerashub classifier", values("preprocessor.json", config={"truncate": "waterfall"}),
     "preprocessor.json: truncate must be round_robin; got 'waterfall'"),
    ("kerashub", preset(PRESET_KEY, "model.weights.h5"), f"missing model.weights.h5/{PRESET_KEY}"),
    ("kerashub classifier", preset("layers/dense/vars/0"), "missing task.weights.h5/layers/dense/vars/0"),
    ("kerashub", text("config.json", '{"class_name": "BertBackbone"}'), "'config' must be an object; got None"),
    ("sentence_transformers", modules("Transformer", "Dense", "Pooling"), "Pooling and perhaps Normalize; got"),
    ("sentence_transformers", text("modules.json", '[{"type": "custom_st.Transformer", "path": ""}]'),
     "got custom_st.Transformer; to read the encoder alone, remove modules.json"),
    ("sentence_transformers", modules("Transformer", "Pooling", path="../other"), "a list of different modules"),
    ("sentence_transformers", modules("Transformer", "Pooling", "Pooling"), "a list of different modules"),
    ("sentence_transformers", text("modules.json", "[]"), "got none; to read the encoder alone"),
    ("sentence_transformers", text("modules.json", '{"type": 1}'), "'modules' must be a list; got {'type': 1}"),
    ("sentence_transformers", without(POOLING), f"{POOLING}: cannot be read"),
    ("sentence_transformers", text(POOLING, '{"pooling_mode": [["mean"]]}'), "got [['mean']]"),
    ("sentence_transformers", values(POOLING, pooling_mode_cls_token=True), "got ['cls', 'max']"),
    ("sentence_transformers", values(POOLING, word_embedding_dimension=17), "dimension' must be 16; got 17"),
    ("sentence_transformers", values("2_Normalize/config.json", module_input_name="token_embeddings"),
     "must be sentence_embedding"),
    ("sentence_transformers", values("sentence_bert_config.json", transformer_task="fill-mask"), "feature-extraction"),
    ("sentence_transformers", values("sentence_bert_config.json", max_seq_length="many"), "at least 3; got 'many'"),
    ("sentence_transformers", values(LIBRARY, prompts={"query": "q: "}, default_prompt_name="passage"),
     "default_prompt_name must be one of query, document; got 'passage'"),
    ("sentence_transformers", values(LIBRARY, prompts={"query": 7}), "prompts must be texts by name; got"),
    ("sentence_transformers", values(LIBRARY, prompts=["query"]), "prompts must be an object; got ['query']"),
    ("huggingface", config(num_attention_heads=5), "config.json: hidden_size must be"),
])
def test_damage_is_one_line(run, whole, tmp_path, monkeypatch, form, damage, words):
    source = zoo.copy(zoo.encoder() if form == "hub" else whole / form, tmp_path / "source")
    damage(source)
    monkeypatch.chdir(tmp_path)  # where code in a file would leave a trace
    before = sorted(os.listdir(tmp_path))
    command = ("convert", f"--model={source}", f"--output={tmp_path / 'out'}", "--format=huggingface")
    status, output, messages = run(*command)
    assert status == 1 and len(messages) == 1, messages
    assert messages[0].startswith("keras-bert: ") and words in messages[0]
    assert not any(line.startswith("done") for line in output)
    assert sorted(os.listdir(tmp_path)) == before and not os.path.exists("ran")


@pytest.mark.peers
@pytest.mark.parametrize("damage,words", [
    (pickled(b""), "EOFError"),
    (pickled(b"cos\nsystem\n(S'touch ran'\ntR."), ": unsupported GLOBAL os.system"),
    (pickled(b"cbuiltins\neval\n(S'1'\ntR."), ": Unsupported global: GLOBAL eval"),
    (pickled(b"PK\x03\x04"), "pytorch_model.bin: not a complete pickle of tensors alone"),
    (pickled(pickle.dumps([1, 2], 2)), "pytorch_model.bin: "),
    (pickled(pickle.dumps({"pooler.dense.bias": 1}, 2)), "pytorch_model.bin: "),
    (saved_by_torch(lambda tensors, torch: tensors.update({1: torch.zeros(1)})), "must be a dict of names to dense"),
    (saved_by_torch(lambda tensors, torch: tensors.update({KERNEL: tensors[KERNEL] * 1j})), "tensors of real numbers"),
    (saved_by_torch(lambda tensors, torch: tensors.update({KERNEL: torch._neg_view(tensors[KERNEL])})), "real numbers"),
    (saved_by_torch(lambda tensors, torch: tensors.update(
        {KERNEL: torch.quantize_per_tensor(tensors[KERNEL], 0.1, 0, torch.qint8)})), "tensors of real numbers"),
    (saved_by_torch(lambda tensors, torch: tensors.update(
        {KERNEL: torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)])})), "tensors of real numbers"),
])
def test_damaged_pickles_are_one_line(run, whole, tmp_path, monkeypatch, damage, words):
    test_damage_is_one_line(run, whole, tmp_path, monkeypatch, "huggingface", damage, words)


def test_a_path_that_is_taken_is_kept(run, whole, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/mine").write_text("keep")
    command = ("convert", f"--model={whole / 'tf1'}", f"--output={tmp_path / 'out'}", "--format=huggingface")
    status, output, messages = run(*command)
    assert status == 1 and "exists already" in messages[0]
    assert (tmp_path / "out/mine").read_text() == "keep"
    assert run(*command, "--overwrite")[0] == 0
    assert not (tmp_path / "out/mine").exists()


@pytest.mark.parametrize("option", ["model", "config", "vocab", "keep_tokens_of"])
def test_an_output_that_contains_an_input_is_refused(run, whole, tmp_path, option):
    shutil.copytree(whole / "tf1", tmp_path / "out/source")
    (tmp_path / "link").symlink_to("out")
    given = {"model": whole / "tf1", option: tmp_path / "out/source" / {
        "model": "", "config": "bert_config.json", "vocab": "vocab.txt", "keep_tokens_of": "vocab.txt"}[option]}
    status, _, messages = run("convert", *(f"--{name}={path}" for name, path in given.items()), "--overwrite",
                              f"--output={tmp_path / 'link'}", "--format=huggingface")
    assert status == 1 and f"must not be or contain {given[option]}, which --overwrite would remove" in messages[0]
    assert (tmp_path / "out/source/vocab.txt").exists() and (tmp_path / "link").is_symlink()
    overwriting = f"--output={tmp_path}/out", "--overwrite"
    status, _, messages = run("export", "preprocessor", f"--vocab={given[option]}", *overwriting)
    assert status == 1 and "must not be or contain" in messages[0] and (tmp_path / "out/source/vocab.txt").exists()


def test_the_working_directory_is_no_output(run, whole, tmp_path, monkeypatch):
    (tmp_path / "a/b").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "a/b")
    for output in (".", "..", tmp_path / "a"):
        status, _, messages = run("convert", f"--model={whole / 'tf1'}", f"--output={output}", "--format=huggingface",
                                  "--overwrite")
        assert status == 1 and f"{output}: is or contains the working directory, which cannot be rep" in messages[0]
    assert os.path.samefile(".", tmp_path / "a/b")


@pytest.mark.parametrize("form", [
    "huggingface", "tf1", "garden", "kerashub", "keras_bert",
    pytest.param("hub", marks=pytest.mark.slow("a full disk while TensorFlow writes a graph"))])
def test_a_full_disk_is_one_line(run, whole, tmp_path, form):
    """A limit on the size of files stands for the end of the disk."""
    resource = pytest.importorskip("resource", reason="Windows has no limits")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        status, _, messages = run("convert", f"--model={whole / 'huggingface'}", f"--output={tmp_path / 'out'}",
                                  f"--format={form}", "--allow_inexact")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert status == 1 and len(messages) == 1, messages
    assert "cannot be written: " in messages[0] and "File too large" in messages[0]
    assert not list(tmp_path.iterdir())


def test_the_umask_decides_who_may_read(whole, tmp_path):
    convert(whole / "tf1", tmp_path / "out", "huggingface")
    modes = {path.name: path.stat().st_mode for path in (tmp_path / "out").iterdir()}
    assert len(modes) == 5 and set(modes.values()) == {modes["config.json"]}


def test_named_weights_may_be_missing(run, whole, tmp_path):
    source = shutil.copytree(whole / "huggingface", tmp_path / "source")
    tensors(lambda changed: [changed.pop(f"pooler.dense.{part}") for part in ("weight", "bias")])(source)
    command = ("convert", f"--model={source}", f"--output={tmp_path / 'out'}", "--format=huggingface")
    assert "missing pooler.dense.weight; missing pooler.dense.bias" in run(*command)[2][0]
    status, output, _ = run(*command, "--allow_missing=pooler.*")
    assert status == 0 and "initialised pooler.dense.weight, pooler.dense.bias: not in the source" in output
    pooler = load_file(tmp_path / "out/model.safetensors")["pooler.dense.weight"]
    assert 0.015 < pooler.std() < 0.02 and np.abs(pooler).max() <= 0.04  # normal, cut at two deviations of 0.02
