"""The notebooks of examples/: their committed outputs, and a run of every cell."""

import json
import re

import pytest

notebooks = pytest.importorskip(
    "write_notebooks", reason='needs nbclient and nbformat: pip install nbclient nbformat')

NAMES = "intent_classification", "korean_sentiment"
PICTURES = {"intent_classification": 3, "korean_sentiment": 2}
# What the slow tests run instead: the shortest training that still shows a mistake.
SHORT = {
    "intent_classification": {"BATCH_SIZE, LEARNING_RATE = 4, 32,": "BATCH_SIZE, LEARNING_RATE = 1, 16,",
                              "finetune(train, valid,": "finetune(train[::8], valid[::8],",
                              "batches(train), batches(valid)": "batches(train[::8]), batches(valid[::8])",
                              "model.evaluate(train[::5])": "model.evaluate(train[::50])"},
    "korean_sentiment": {"STEPS, EPOCHS = 4000, 64, 300, 8": "STEPS, EPOCHS = 4000, 64, 3, 1"},
}

# By name, and True for short training: patterns of scores in percent, and the least that the last one may be. One
# intent of 176 is 0.6%.
LEAST = {
    ("intent_classification", True): {r"^accuracy ([\d.]+)%": 5, r"^epoch \d: validation accuracy ([\d.]+)%": 5},
    ("intent_classification", False): {r"^accuracy ([\d.]+)%": 69, r"^epoch \d: validation accuracy ([\d.]+)%": 69},
    ("korean_sentiment", True): {r"^pretrained +([\d.]+)%": 45},
    ("korean_sentiment", False): {r"^pretrained +([\d.]+)%": 55},
}


def printed(cell):
    return "".join(output.text for output in cell.outputs if output.output_type == "stream")


def kinds(cell):
    """The kinds of a cell's outputs: names of streams, MIME types."""
    return {kind for output in cell.outputs for kind in output.get("data", [output.get("name")])}


@pytest.mark.parametrize("name", NAMES)
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


@pytest.mark.slow("a cell of a notebook that fails, or prints something else")
@pytest.mark.parametrize("name", NAMES)
def test_runs_with_short_training(name, tmp_path, monkeypatch):
    check_run(name, tmp_path, monkeypatch, SHORT[name])


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_runs_as_committed(name, tmp_path, monkeypatch):
    check_run(name, tmp_path, monkeypatch)


def check_run(name, tmp_path, monkeypatch, replaced=()):
    """Executes a notebook and compares its outputs: the same text where it does not depend on weights or the machine,
    otherwise the same kinds. The scores must be at least those in `LEAST`."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    committed, notebook = notebooks.read(name), notebooks.read(name)
    for part in replaced:
        (cell,) = (cell for cell in notebook.cells if part in cell.source)
        cell.source = cell.source.replace(part, replaced[part])
    notebooks.execute(notebook)
    pairs = [(old, new) for old, new in zip(committed.cells, notebook.cells) if new.cell_type == "code"]
    for old, new in pairs:
        assert kinds(new) == kinds(old), new.source
        if "varies" not in old.metadata.get("tags", ()):
            assert printed(new) == printed(old)
    text = "".join(printed(new) for _, new in pairs)
    for pattern, least in LEAST[name, bool(replaced)].items():
        scores = [float(score) for score in re.findall(pattern, text, re.M)]
        assert scores and scores[-1] >= least, (pattern, scores)
