"""Weights by name: packages, the Hugging Face cache, and a hub that this file serves on the loopback."""

import hashlib
import http.server
import json
import os
import re
import subprocess
import sys
import threading

import pytest

from keras_bert import cli
from keras_bert.config import BertConfig
from keras_bert.errors import InputError
from keras_bert.presets import PRESETS, find_pretrained

WEIGHTS = b"weights" * 40_000
COMMIT = "0123456789abcdef0123456789abcdef01234567"
TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
NEEDED = {"config.json": b"{}", "vocab.txt": "\n".join(TOKENS).encode(), "model.safetensors": WEIGHTS}
TOKENIZER = {"tokenizer.json": json.dumps({"model": {"vocab": dict(zip(TOKENS, range(4)))}}).encode()}
WANTED = NEEDED | TOKENIZER | {name: b"{}" + b" " * i for i, name in enumerate((  # of one content, fetched once
    "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "sentence_bert_config.json"), 1)}
FILES = WANTED | {"pytorch_model.bin": b"a pickle", "tf_model.h5": b"another framework's"}
CURE = "--local-dir=FOLDER` writes on a machine with a network"
# huggingface_hub reads its settings when it is imported, so lookups are in processes. It does not wait between retries.
LOOK_UP = """
import sys, time
time.sleep = lambda seconds: None
from keras_bert.errors import InputError
from keras_bert.presets import find_pretrained
assert "huggingface_hub" not in sys.modules
for name in sys.argv[1:]:
    try:
        print(find_pretrained(name))
    except InputError as error:
        print("refused:", error)
assert not {"tensorflow", "keras", "torch"} & sys.modules.keys()
"""


class Hub(http.server.BaseHTTPRequestHandler):
    """What huggingface_hub asks of a hub: HEAD and GET of /REPOSITORY/resolve/REVISION/FILE. The file named by `cut`
    breaks off in its middle, each time."""

    protocol_version = "HTTP/1.1"

    def do_HEAD(self):
        self.answer()

    def do_GET(self):
        self.answer()

    def answer(self):
        repository, resolve, place = self.path[1:].partition("/resolve/")
        name = place.split("/")[-1]
        if resolve:
            self.server.log.append((self.command, name))
        cut = self.command == "GET" and name == self.server.cut
        files = self.server.repositories.get(repository)
        content = (files or {}).get(name)
        self.send_response(404 if content is None else 200)
        if content is None:
            self.send_header("X-Error-Code", "RepoNotFound" if files is None else "EntryNotFound")
            content = b""
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content[:len(content) // 2] if cut else content)
            self.close_connection = cut

    def log_message(self, *_):
        pass


@pytest.fixture
def hub():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.daemon_threads = True
    server.repositories, server.log, server.cut = {"org/name": FILES}, [], None
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def process(hub, tmp_path):
    """Runs Python code in a process that knows this hub alone; returns the lines of its output."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
    environment |= {"HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}", "HF_HOME": str(tmp_path / "home"),
                    "NO_PROXY": "*", "no_proxy": "*"}

    def run(code, *arguments, **more):
        return subprocess.run([sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, text=True, check=True,
                              env=environment | more).stdout.splitlines()

    return run


def files_in(folder):
    return {name: open(os.path.join(folder, name), "rb").read() for name in os.listdir(folder)}


def test_a_repository_is_downloaded_once_and_without_pickles(hub, process):
    folder, = process(LOOK_UP, "org/name")
    assert files_in(folder) == WANTED
    fetched = [name for command, name in hub.log if command == "GET"]
    assert sorted(fetched) == sorted(WANTED) and fetched[-1] == "model.safetensors"
    assert {name for _, name in hub.log if not name.endswith(".model")} == WANTED.keys()

    asked = len(hub.log)
    assert process(LOOK_UP, "org/name") == [folder]
    assert len(hub.log) == asked


def test_a_repository_may_have_one_vocabulary_alone(hub, process):
    transformers5 = {name: WANTED[name] for name in ("config.json", "tokenizer.json", "model.safetensors")}
    hub.repositories |= {"org/old": NEEDED, "org/new": transformers5}
    folders = process(LOOK_UP, "org/old", "org/new")
    assert [files_in(folder) for folder in folders] == [NEEDED, transformers5]
    assert process(LOOK_UP, "org/old", "org/new", HF_HUB_OFFLINE="1") == folders


def test_a_failed_download_is_one_line(hub, process):
    endpoint = f"http://127.0.0.1:{hub.server_port}"
    hub.repositories["org/weightless"] = {name: FILES[name] for name in ("config.json", "vocab.txt")}
    for more, reasons in (
            ({}, {"org/unknown": "there is no such repository",
                  "org/weightless": "the repository has no model.safetensors",
                  "org/two--dashes": "Cannot have -- or .. in repo_id"}),
            ({"HF_HUB_OFFLINE": "1"}, {"org/name": "HF_HUB_OFFLINE",
                                       "bert-base-uncased": "google-bert/bert-base-uncased"})):
        messages = process(LOOK_UP, *reasons, **more)
        for message, (repository, reason) in zip(messages, reasons.items(), strict=True):
            assert message.startswith("refused: ") and repository in message and reason in message
            assert f"cannot be downloaded from {endpoint}: " in message and message.endswith(CURE)


def test_what_is_refused_is_not_downloaded(hub, process):
    """The tokenizer comes before the weights, and before advice to install PyTorch."""
    bpe, kobert = b'{"model": {"type": "BPE"}}', b'{"tokenizer_class": "KoBertTokenizer"}'
    pickled = {name: FILES[name] for name in FILES if name != "model.safetensors"}
    refused = {"bpe": (FILES | {"tokenizer.json": bpe}, "'type' must be WordPiece; got 'BPE'"),
               "pieces": ({"config.json": b"{}"}, "the repository has none of vocab.txt, tokenizer.json, "),
               "kobert": (pickled | {"tokenizer_config.json": kobert}, "'tokenizer_class' must be BertTokenizer"),
               "pickled": (pickled, "the repository has no model.safetensors, but pytorch_model.bin: pip install "
                           "torch, run hf download org/pickled --local-dir=FOLDER, and pass FOLDER")}
    hub.repositories |= {f"org/{name}": files for name, (files, _) in refused.items()}
    messages = process(LOOK_UP, *(f"org/{name}" for name in refused))
    for message, (name, (_, words)) in zip(messages, refused.items(), strict=True):
        assert message.startswith("refused: ") and name in message and words in message
    assert ("GET", "model.safetensors") not in hub.log


def test_an_unreachable_hub_is_one_line(hub, process):
    endpoint = "http://127.0.0.1:9"  # "discard": nobody listens
    message, = process(LOOK_UP, "org/name", HF_ENDPOINT=endpoint)
    assert message.startswith(f"refused: org/name: not on this machine, and cannot be downloaded from {endpoint}: ")
    assert "Connection refused; pass a name that `keras-bert presets` shows on this" in message
    assert message.endswith(CURE)


def test_a_cut_connection_leaves_nothing_that_looks_whole(hub, process):
    hub.cut = "model.safetensors"
    message, = process(LOOK_UP, "org/name")
    assert message.startswith("refused: org/name: not on this machine, and cannot be downloaded")
    assert f"(received {len(WEIGHTS) // 2} bytes, expected {len(WEIGHTS)}); pass" in message

    hub.cut = None
    assert process(LOOK_UP, "org/name", HF_HUB_OFFLINE="1")[0].startswith("refused: ")
    folder, = process(LOOK_UP, "org/name")
    assert files_in(folder) == WANTED


def test_downloaded_weights_must_have_the_published_checksum(hub, process):
    preset = PRESETS["bert-base-uncased"]
    hub.repositories[preset.repository] = FILES
    messages = process(LOOK_UP, preset.name, preset.repository)  # the second finds them in the cache
    for message in messages:
        assert message.startswith("refused: ") and message.endswith(
            f"model.safetensors: its SHA-256 must be {preset.sha256}; got {hashlib.sha256(WEIGHTS).hexdigest()}")

    output = process("from keras_bert import cli; cli.main(['presets', '--output_format=json'])")
    places = {preset["name"]: preset["where"] for preset in json.loads("".join(output))}
    assert len(messages) == 2 and places == dict.fromkeys(PRESETS, "") | {"minilm": "package", preset.name: "cache"}


def test_a_package_holds_minilm():
    folder = find_pretrained("minilm")
    assert folder == find_pretrained("sentence-transformers/all-MiniLM-L6-v2")
    config = BertConfig.from_json(os.path.join(folder, "config.json"))
    assert PRESETS["minilm"].size == f"L{config.num_hidden_layers}-H{config.hidden_size}"


def test_a_package_must_hold_the_published_weights(tmp_path, monkeypatch):
    folder = tmp_path / PRESETS["minilm"].package / "model"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").touch()
    (folder / "model.safetensors").write_bytes(WEIGHTS)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputError, match=re.escape(
            f"{folder}/model.safetensors: its SHA-256 must be {PRESETS['minilm'].sha256}; got ")):
        find_pretrained("minilm")


def test_a_folder_comes_first(tmp_path, monkeypatch):
    (tmp_path / "minilm").mkdir()
    monkeypatch.chdir(tmp_path)
    assert find_pretrained("minilm") == "minilm"
    assert find_pretrained(tmp_path / "minilm") == str(tmp_path / "minilm")


@pytest.mark.parametrize("name,meant", [
    ("bert-base-uncase", "; did you mean bert-base-uncased?"), ("minlm", "; did you mean minilm?"),
    ("/no/such/folder", ""), ("a/b/c", ""), ("", ""), ("org/file", "")])
def test_an_unknown_name(tmp_path, monkeypatch, name, meant):
    (tmp_path / "org").mkdir()
    (tmp_path / "org/file").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as error:
        find_pretrained(name)
    found = "a file" if name == "org/file" else "none of them"
    assert str(error.value) == (f"{name}: must be a folder, a name that `keras-bert presets` lists or a Hugging Face "
                                f"id org/name; it is {found}{meant}")


def test_without_huggingface_hub(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert find_pretrained("minilm")
    with pytest.raises(InputError) as error:
        find_pretrained("bert-base-uncased")
    assert str(error.value) == ('google-bert/bert-base-uncased: the download needs huggingface_hub: pip install '
                                'huggingface_hub')
    assert cli.run(["presets"]) == 0
    header, *lines = capsys.readouterr().out.splitlines()
    assert header.startswith("name ") and len(lines) == len(PRESETS)
    assert " ".join(lines[0].split()) == ("minilm L6-H384 22.7M 91 English, uncased Apache-2.0 2e-4 us - "
                                          "sentence-transformers/all-MiniLM-L6-v2 package")
    column = header.index("layers and width")
    assert all(line[:column].strip() in PRESETS and line[column - 1:column + 1] == " L" for line in lines)
    assert all(line.endswith("  to download") for line in lines[1:])


# As `keras_bert.config` has them; the last two kinds follow from the published sizes of their weights.
VOCABULARIES = {"minilm": 30522, "bert-tiny": 30522, "bert-base-uncased": 30522, "bert-base-cased": 28996,
                "bert-large-uncased": 30522, "bert-large-cased": 28996, "bert-base-multilingual-cased": 119547,
                "bert-base-chinese": 21128, "bert-base-multilingual-uncased": 105879, "klue-bert-base": 32000,
                "klue-roberta-small": 32000, "klue-roberta-base": 32000, "klue-roberta-large": 32000,
                "koelectra-small-v3": 35000, "koelectra-base-v3": 35000, "kcelectra-base": 30000,
                "distilbert-base-multilingual-cased": 119547, "multilingual-e5-small": 250037, "kobert": 8002,
                "multilingual-e5-base": 250002, "multilingual-e5-large": 250002, "xlm-roberta-base": 250002,
                "kure-v1": 250002}
XLM_R = {"multilingual-e5-base": 514, "multilingual-e5-large": 514, "xlm-roberta-base": 514, "kure-v1": 8194}  # rows
NARROW = {"koelectra-small-v3": 128}  # the width of its embeddings


@pytest.mark.parametrize("preset", PRESETS.values(), ids=PRESETS)
def test_the_table(preset):
    layers, hidden = (int(part[1:]) for part in preset.size.split("-"))
    block = 12 * hidden**2 + 13 * hidden
    width = NARROW.get(preset.name, hidden)
    segments = 1 if "roberta" in preset.name or "distilbert" in preset.name or preset.name in XLM_R else 2
    rows = VOCABULARIES[preset.name] + XLM_R.get(preset.name, 512) + segments
    parameters = (rows + 2) * width + layers * block + hidden**2 + hidden
    parameters += (width + 1) * hidden if width < hidden else 0
    assert preset.parameters == round(parameters / 1e6, 1)
    assert preset.repository.count("/") == 1
    assert preset.language and preset.licence in ("Apache-2.0", "CC-BY-SA-4.0", "MIT")
    assert preset.sha256 is None or len(bytes.fromhex(preset.sha256)) == 32
