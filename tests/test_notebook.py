"""The notebooks of examples/: their committed outputs, and a run of every cell."""

import dataclasses
import json
import re

import pytest

from keras_bert.layers import BertLayer

from conftest import write_huggingface

notebooks = pytest.importorskip(
    "write_notebooks", reason='needs nbclient and nbformat: pip install nbclient nbformat')

PICTURES = {"intent_classification": 3, "korean_sentiment": 2}
# What the slow tests run instead: the shortest training that still shows a mistake. MiniLM has its first block alone,
# in the folder SMALL.
SHORT = {
    "intent_classification": {"BATCH_SIZE, LEARNING_RATE = 4, 32,": "BATCH_SIZE, LEARNING_RATE = 1, 64,",
                              "import keras_bert\n": "import keras_bert\nfrom keras_bert.training import pictures\n"
                                                    "pictures.MAX_CLASSES = 9\n",
                              'finetune(train, valid, model="minilm"': "finetune(train[::8], valid[::8], model='SMALL'",
                              'find_pretrained("minilm")': "find_pretrained('SMALL')",
                              "batches(train), batches(valid)": "batches(train[::8]), batches(valid[::8])",
                              "model.evaluate(train[::5])": "model.evaluate(train[::50])"},
    "korean_sentiment": {"STEPS, EPOCHS = 4000, 64, 300, 8": "STEPS, EPOCHS = 4000, 64, 3, 1",
                         'config="L2-H128"': "config=keras_bert.BertConfig(len(vocabulary.tokens), 16, 1, 2, 32)",
                         'e5_small.make(folder / "e5")': "__import__('shutil').copytree('SMALL', folder / 'e5')",
                         '"e5-korean", 6, 1e-4': '"e5-korean", 1, 1e-4'},
}

# Patterns of scores in percent, and the least that the last one may be after the training as committed: a short one
# need not learn. One intent of 176 is 0.6%.
LEAST = {"intent_classification": {r"^accuracy ([\d.]+)%": 69, r"^epoch \d: validation accuracy ([\d.]+)%": 69},
         "korean_sentiment": {r"^pretrained +([\d.]+)%": 55, r"^e5-korean +([\d.]+)%": 68}}


def printed(cell):
    return "".join(output.text for output in cell.outputs if output.output_type == "stream")


def kinds(cell):
    """The kinds of a cell's outputs: names of streams, MIME types."""
    return {kind for output in cell.outputs for kind in output.get("data", [output.get("name")])}


@pytest.mark.parametrize("name", PICTURES)
def test_committed(name):
    notebook = notebooks.read(name)
    assert notebooks.path(name).stat().st_size < 600_000
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert sum("image/png" in kinds(cell) for cell in code) == PICTURES[name]
    assert all(kinds(cell) <= {"stdout", "stderr", "image/png", "text/plain"} for cell in code)
    errors = [output.text for cell in code for output in cell.outputs if output.get("name") == "stderr"]
    assert re.fullmatch("(data: .+\n)+(threshold: none, .+\n)?", "".join(errors))  # no warnings
    assert all(set(cell.metadata) <= {"tags"} for cell in notebook.cells)
    assert not re.search(r"/(tmp|home|root|Users|private|var|usr|work)/|[A-Z]:\\\\",
                         json.dumps([cell.outputs for cell in code]))
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            assert re.search("[가-힣]{2}", cell.source) and re.search(r"\b[a-z]+ [a-z]+ [a-z]+\b", cell.source)


@pytest.fixture(scope="module")
def small_minilm(minilm, minilm_bert, tmp_path_factory):
    small = BertLayer(dataclasses.replace(minilm_bert.config, num_hidden_layers=1))
    weights = {weight.path.split("/", 1)[1]: weight for weight in minilm_bert.weights}
    for weight in small.weights:
        weight.assign(weights[weight.path.split("/", 1)[1]])
    folder = tmp_path_factory.mktemp("notebook") / "small"
    return write_huggingface(folder, small, (minilm / "vocab.txt").read_text(encoding="utf-8").splitlines())


@pytest.mark.parametrize("name", PICTURES)
@pytest.mark.parametrize("is_short", [
    pytest.param(True, marks=pytest.mark.slow("a cell of a notebook that fails, or prints something else"), id="short"),
    pytest.param(False, marks=pytest.mark.long, id="as committed")])
def test_runs(name, is_short, small_minilm, tmp_path, monkeypatch):
    """Executes a notebook and compares its outputs: the same text where it does not depend on weights or the machine,
    otherwise the same kinds. The scores must be at least those in `LEAST`, if the training is not shortened."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    committed, notebook = notebooks.read(name), notebooks.read(name)
    for part, short in SHORT[name].items() if is_short else ():
        (cell,) = (cell for cell in notebook.cells if part in cell.source)
        cell.source = cell.source.replace(part, short.replace("SMALL", str(small_minilm)))
    notebooks.execute(notebook)
    code = [(old, new) for old, new in zip(committed.cells, notebook.cells) if new.cell_type == "code"]
    text = "".join(printed(new) for _, new in code)
    if skipped := re.search("^skipped: .+", text, re.M):
        pytest.skip(skipped[0])
    for old, new in code:
        assert kinds(new) == kinds(old), new.source
        assert "varies" in old.metadata.get("tags", ()) or printed(new) == printed(old)
    for pattern, least in LEAST[name].items():
        scores = [float(score) for score in re.findall(pattern, text, re.M)]
        assert scores and (is_short or scores[-1] >= least), (pattern, scores)
