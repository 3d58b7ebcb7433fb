"""Runs the code blocks of README*.md and docs/, and compares the output that the pages show.

The blocks of a page run in order in one folder with small files under the names that the pages use (`page_folder`).

    ```python     runs; the Python blocks of a page share their names
    ```sh         runs, one command per line
    ```text       directly after a block that ran: its standard output

Any other block is an error, unless an HTML comment on the line above the fence says why:

    <!-- not run: REASON -->         above any block: shown only
    <!-- not compared: REASON -->    above a text block: real output that depends on the machine
    <!-- answers of minilm -->       above a text block whose words depend on trained weights

In outputs, decimals, percentages, seconds and the numbers of epochs match any number, `…` matches any text within a
line, and a line of `…` any lines; spaces count as one. By default `minilm`, like all other names of presets, is a tiny
encoder, there are few steps (`SMALLER`), and answers of minilm are not compared. The long test runs MiniLM and
compares them too.

    python tests/test_snippets.py            counts the blocks of each page
    python tests/test_snippets.py PAGE ...   prints each block with its output, with MiniLM: paste it into the page
"""

import collections
import contextlib
import dataclasses
import io
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

import pytest

from keras_bert.presets import PRESETS

from conftest import write_huggingface
from snippet_files import REAL, ROOT, write_files

PAGES = sorted([*ROOT.glob("README*.md"), *ROOT.glob("docs/**/*.md")])
TRANSLATED = {ROOT / "README.ko.md"}  # test_docs.py compares its blocks with the original's
# What tests run instead of what pages show.
SMALLER = {
    r"--steps=[\d,]+( --batch_size=\d+)?": "--steps=2 --batch_size=4",
    r"(?<!--steps=2 --)batch_size=\d+": "batch_size=1024",
    r"epochs=\d+(,?) (--)?learning_rate": r"epochs=1\1 \2batch_size=1024\1 \2learning_rate",
    r"epochs=\d+": "epochs=1",
    r"--vocab_size=\d+": "--vocab_size=500",
    r"--config=base": "--config=L2-H128",
    r"--output=classifier": "--output=classifier --epochs=1 --batch_size=1024",
    r"concat-last-4 --train=train": "last --train=valid",
    r"(concat-last-4|second-to-last)": "last",
}
DECIMAL = r"-?\d[\d,]*\.\d+(?:e[+-]\d+)?|\d+(?=%)|\d+:\d\d:\d\d|\d+(?= s\b)|(?<=epoch )\d+"
NUMBER = r"-?[\d,.:]+(?:e[+-]\d+)?"
BLOCK = re.compile(r"^(?:<!-- *(?P<mark>[^\n]*?) *-->\n\n?)?^(?P<indent> *)```(?P<language>\w*)[^\n]*\n"
                   r"(?P<code>.*?)^ *```$", re.DOTALL | re.MULTILINE)


@dataclasses.dataclass
class Block:
    """A fenced block: its language, its text, its first line, and the comment above it."""
    language: str
    code: str
    line: int
    mark: str

    @property
    def kind(self):
        if self.mark.startswith("not run: "):
            return "not run"
        if self.language == "text":
            return {"answers of minilm": "answers"}.get(
                self.mark, "not compared" if self.mark.startswith("not compared: ") else "compared")
        return "run" if self.language in ("python", "sh") and not self.mark else "unknown"


def blocks(page):
    text = page.read_text(encoding="utf-8")
    return [Block(match["language"], re.sub(f"^{match['indent']}", "", match["code"], flags=re.MULTILINE),
                  text.count("\n", 0, match.start("code")) + 1, match["mark"] or "")
            for match in BLOCK.finditer(text)]


def complaints(page):
    """What is wrong with the blocks of a page, by line."""
    text, found = page.read_text(encoding="utf-8"), blocks(page)
    if 2 * len(found) != len(re.findall(r"^ *```", text, re.MULTILINE)):
        yield f"{page.name}: a fence is not closed, or has another number of backticks"
    previous = None
    for block in found:
        if block.kind == "unknown":
            yield (f"{page.name}:{block.line}: a block must be python, sh or text, or marked <!-- not run: REASON -->; "
                   f"got {block.language!r}, {block.mark!r}")
        elif block.language == "text" and block.kind != "not run" and (previous is None or previous.kind != "run"):
            yield f"{page.name}:{block.line}: output must follow a block that runs"
        previous = block


def as_pattern(expected):
    """A regular expression of the outputs that an expected output stands for."""
    lines = []
    for line in expected.strip("\n").splitlines():
        if line.strip() == "…":
            lines.append(r"(?:.*\n)*?")
            continue
        parts = re.split(f"({DECIMAL}|…)", " ".join(line.split()))
        parts[::2] = map(re.escape, parts[::2])
        parts[1::2] = (".*" if part == "…" else NUMBER for part in parts[1::2])
        lines.append("".join(parts) + r"\n")
    return re.compile("".join(lines) + r"\Z")


def normal(output):
    return "".join(" ".join(line.split()) + "\n" for line in output.strip("\n").splitlines())


class Page:
    """Runs blocks in the current folder."""

    def __init__(self, path, smaller):
        self.path, self.smaller, self.names = path, smaller, {"__name__": "__main__"}

    def run(self, block):
        """Returns the standard output of a block."""
        code = block.code
        for pattern, small in SMALLER.items() if self.smaller else ():
            code = re.sub(pattern, small, code)
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            if block.language == "python":
                source = "\n" * (block.line - 1) + code
                exec(compile(source, self.path, "exec"), self.names)
            else:
                for command in code.replace("\\\n", " ").splitlines():
                    self.shell(command)
        return output.getvalue()

    def shell(self, command):
        here, file = re.fullmatch(r"(.*?)(?: > (\S+))?", command).groups()
        words = shlex.split(here, comments=True)
        if words[:1] == ["keras-bert"] and not re.search(r"[|<>;&$]", re.sub(r"'[^']*'|\"[^\"]*\"", "", here)):
            from keras_bert import cli

            output = io.StringIO()
            with contextlib.redirect_stdout(output):
                status = cli.run(words[1:])
            assert status == 0, f"{command}: exit status {status}"
            if file:
                pathlib.Path(file).write_text(output.getvalue(), encoding="utf-8")
            else:
                print(output.getvalue(), end="")
        elif words:
            path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
            environment = os.environ | {"PATH": path, "PYTHONPATH": str(ROOT)}
            print(subprocess.run(["bash", "-euo", "pipefail", "-c", command], stdout=subprocess.PIPE, text=True,
                                 check=True, env=environment).stdout, end="")


def write_encoders(folder, minilm):
    """Writes tiny encoders in Hugging Face's format under the names of presets; `minilm`, if it is not the real one, in
    that of sentence-transformers, as the real one."""
    from keras_bert import BertConfig, BertEmbedder, BertPretrainer, BertTokenizer
    from keras_bert.layers import BertLayer
    from keras_bert.text.vocabulary import load_vocabulary
    from keras_bert.weights import sentence_transformers
    from keras_bert.weights.format import Weights

    vocabulary = load_vocabulary(REAL / "vocab/bert-base-uncased/vocab.txt")
    config = BertConfig(vocab_size=len(vocabulary), hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
                        intermediate_size=32)
    model = BertPretrainer(BertLayer(config))
    for name in PRESETS:
        if name != "minilm":
            write_huggingface(folder / name, model, vocabulary)
    if minilm:
        (folder / "minilm").mkdir()
        weights = Weights.of(BertEmbedder(model.bert, "mean", normalize=True), BertTokenizer(vocabulary),
                             settings={"task": "embed", "max_length": 256})
        sentence_transformers.write(weights, folder / "minilm")


@contextlib.contextmanager
def page_folder(page, encoders):
    """Changes into a new folder with the files that a page names, and with encoders under the names of presets."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        write_files(pathlib.Path(folder), str(page.relative_to(ROOT)))
        for name in os.listdir(encoders):
            os.symlink(encoders / name, name)
        yield


@pytest.fixture(scope="module")
def encoders(tmp_path_factory):
    """A folder of tiny encoders."""
    folder = tmp_path_factory.mktemp("encoders")
    write_encoders(folder, minilm=True)
    return folder


@pytest.fixture
def one_export(tmp_path, monkeypatch, eager):
    """Within a test, a raw-text model is traced once: exports of models of the same shapes are copies."""
    import tensorflow as tf

    from keras_bert.export.text_model import TextModel

    saved = {}

    def save(module, folder, *arguments, save=tf.saved_model.save, **options):
        shapes = str([weight.shape for weight in module.weights]) if isinstance(module, TextModel) else None
        if shapes in saved:
            shutil.copytree(saved[shapes], folder, dirs_exist_ok=True)
        else:
            save(module, folder, *arguments, **options)
            if shapes:
                saved[shapes] = shutil.copytree(folder, tmp_path / str(len(saved)))

    monkeypatch.setattr(tf.saved_model, "save", save)


each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
each_page_that_runs = pytest.mark.parametrize(
    "page", [page for page in PAGES if page not in TRANSLATED and any(block.kind == "run" for block in blocks(page))],
    ids=lambda page: str(page.relative_to(ROOT)))


def check(page, smaller):
    runner, output = Page(page, smaller), None
    for block in blocks(page):
        if block.kind == "run":
            output = runner.run(block)
        elif block.kind == "compared" or block.kind == "answers" and not smaller:
            assert as_pattern(block.code).match(normal(output)), (
                f"{page.name}:{block.line}: the output is\n{output}\nnot\n{block.code}")


@each_page
def test_every_block_runs_or_says_why_not(page):
    assert list(complaints(page)) == []


@pytest.mark.slow("a command of the documentation that fails, or prints something else")
@pytest.mark.filterwarnings("default")  # as for a reader
@each_page_that_runs
def test_blocks_run_and_print_what_pages_show(page, encoders, one_export):
    with page_folder(page, encoders):
        check(page, smaller=True)


@pytest.mark.long
@pytest.mark.filterwarnings("default")
@each_page_that_runs
def test_minilm_answers_what_pages_show(page, tmp_path):
    write_encoders(tmp_path, minilm=False)
    with page_folder(page, tmp_path):
        check(page, smaller=False)


def show(page):
    """Prints each block of a page with its output."""
    with tempfile.TemporaryDirectory() as folder:
        write_encoders(pathlib.Path(folder), minilm=False)
        with page_folder(page, pathlib.Path(folder)):
            runner = Page(page, smaller=False)
            for block in blocks(page):
                if block.kind == "run":
                    print(f"```{block.language}\n{block.code}```\n\n```text\n{runner.run(block)}```\n", flush=True)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        show(pathlib.Path(name).resolve())
    if not sys.argv[1:]:
        for name, pages in [*((page.relative_to(ROOT), [page]) for page in PAGES), ("all", PAGES)]:
            kinds = collections.Counter(block.kind for page in pages for block in blocks(page))
            print(f"{name}: {', '.join(f'{count} {kind}' for kind, count in kinds.items())}")
