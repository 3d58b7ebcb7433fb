"""What all checks share, and the checks of a LiteRT folder (docs/hub_contract.md). Nothing here needs TensorFlow."""

import dataclasses
import pathlib
import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np

from keras_bert.arguments import Path
from keras_bert.errors import first_line
from keras_bert.files.digests import check_files
from keras_bert.litert import FILE, INPUTS, Arrays
from keras_bert.text import pad

Loaded = Any  # the root object of a SavedModel of any exporter; or a `LiteModel`
Check = Callable[[Loaded, Path], str | None]  # returns what to report, or raises; its docstring is the rule
PASSED, FAILED, NOT_APPLICABLE = "passed", "failed", "not applicable"
TEXTS = ["play some music", "", "turn off the light please, it is late", "Zürich, 서울"]
_TOLERANCE, _INT8_TOLERANCE = 1e-4, 0.05  # relative to the largest output
_CUSTOM = 32  # the code of an operation that LiteRT itself lacks


@dataclasses.dataclass(frozen=True)
class Result:
    """The result for one line of the contract: its number, its rule, its status and what was observed."""

    line: int
    rule: str
    status: str
    seen: str


class NotApplicable(Exception):
    """The exception of a check that does not apply to this SavedModel."""


def expect(condition: object, seen: str) -> None:
    """Fails a check unless the condition holds; `seen` says what was observed."""
    if not condition:
        raise ValueError(seen)


def run_check(line: int, check: Check, loaded: Loaded, path: Path) -> Result:
    rule = check.__doc__ or check.__name__  # `python -OO` has no docstrings
    try:
        return Result(line, rule, PASSED, check(loaded, path) or "")
    except NotApplicable as reason:
        return Result(line, rule, NOT_APPLICABLE, str(reason))
    except Exception as error:  # another exporter's SavedModel may raise anything
        return Result(line, rule, FAILED, first_line(error))


def _inputs(model: Loaded, _: Path) -> str:
    """serving_default takes input_word_ids, input_mask and input_type_ids, int32 [batch, seq] of any size"""
    for name, detail in model.runner.inputs.items():
        shape, dtype = list(detail["shape_signature"]), np.dtype(detail["dtype"])
        expect(dtype == np.int32 and shape == [-1, -1], f"{name} is {dtype} {shape}")
    return ", ".join(model.runner.inputs)


def _outputs(model: Loaded, _: Path) -> str:
    """serving_default returns the task's float32 outputs for any number of rows up to max_position_embeddings long"""
    config = model.runner.config
    rule = model.task.lite_outputs
    most = config.max_position_embeddings
    own = {axis: size for name, axes in rule.items()
           for axis, size in zip(axes, model.runner.outputs[name]["shape_signature"])}
    for batch, length in ((1, min(3, most)), (3, min(7, most)), (2, most)):
        sizes = own | {
            "B": batch, "S": length, "L": len(getattr(model.task, "labels", ())), "H": config.hidden_size, "1": 1}
        shapes = {name: [sizes[size] for size in shape] for name, shape in rule.items()}
        found = model.runner(_ids(model, batch, length))
        found_shapes = {name: list(array.shape) for name, array in found.items()}
        expect(found_shapes == shapes, f"{batch} x {length} gave {found_shapes}")
        expect(all(array.dtype == np.float32 and np.isfinite(array).all() for array in found.values()),
               "an output is not float32, or not finite")
    return ", ".join(rule)


def _rows(model: Loaded, _: Path) -> None:
    """the outputs of a row do not depend on other rows or on padding"""
    rows = model.tokenizer.pack(TEXTS, max_length=model.task.max_length)
    together = model.runner(_named(pad(rows, model.tokenizer.pad_id)))
    for index, row in enumerate(rows):
        for name, alone in model.runner(_named(pad([row], model.tokenizer.pad_id))).items():
            other = together[name][index:index + 1]
            other = other[:, :len(row[0])] if "S" in model.task.lite_outputs[name] else other
            difference = np.abs(alone - other).max() / max(1, np.abs(alone).max())
            expect(difference <= (_INT8_TOLERANCE if model.runner.is_int8 else _TOLERANCE),
                   f"{name} of {TEXTS[index]!r} differs by {difference:.1e}")


def _probabilities(model: Loaded, _: Path) -> None:
    """probabilities are from 0 to 1, and their sum is 1 unless a text may have several labels"""
    if not model.task.activation:
        raise NotApplicable(f"the task {model.task.name} has none")
    values = model.runner(_ids(model, 2, min(5, model.runner.config.max_position_embeddings)))["probabilities"]
    expect((values >= 0).all() and (values <= 1).all(), f"they are from {values.min()} to {values.max()}")
    if model.task.activation == "softmax":
        expect(np.allclose(values.sum(-1), 1, atol=1e-5), f"a sum is {values.sum(-1).max()}")


def _files(model: Loaded, _: Path) -> str:
    """every token of the vocabulary has an embedding, and the model answers texts"""
    size = len(model.tokenizer.vocabulary)
    expect(size <= model.runner.config.vocab_size, f"{size} tokens for the {model.runner.config.vocab_size} embeddings")
    model.answer(model.task.arguments(*(
        [TEXTS[:2]] if column == "choices" else TEXTS[:1] for column in model.task.inputs)))
    return f"{size} tokens"


def _operations(model: Loaded, path: Path) -> str:
    """model.tflite has only LiteRT's own operations"""
    from ai_edge_litert import schema_py_generated as schema

    graph = schema.Model.GetRootAs(pathlib.Path(path, FILE).read_bytes())
    codes = [graph.OperatorCodes(index) for index in range(graph.OperatorCodesLength())]
    custom = [code.CustomCode().decode() for code in codes if code.BuiltinCode() == _CUSTOM]
    expect(not custom, f"it has {', '.join(custom)}")
    return f"{len(codes)} operations"


def _metadata(model: Loaded, path: Path) -> str:
    """the metadata of model.tflite has the same vocabulary and labels as the folder"""
    if not zipfile.is_zipfile(file := pathlib.Path(path, FILE)):
        raise NotApplicable("there is no metadata, so MediaPipe takes no strings")
    with zipfile.ZipFile(file) as archive:
        files = {name: archive.read(name).decode().split("\n")[:-1] for name in archive.namelist()}
    expected = {"vocab.txt": model.tokenizer.vocabulary} | (
        {"labels.txt": model.task.labels} if hasattr(model.task, "labels") else {})
    expect(files == expected, f"it has {', '.join(files)}, of another content")
    return ", ".join(files)


def _digests(_: Loaded, path: Path) -> str:
    """no file was added, removed or changed since the export was written"""
    if not (name := check_files(path, added=True)):
        raise NotApplicable("there is no sha256.json")
    return name


def _ids(model: Loaded, batch: int, length: int) -> Arrays:
    """Returns random word ids without padding."""
    ids = np.random.default_rng(0).integers(0, len(model.tokenizer.vocabulary), (batch, length), np.int32)
    return dict(zip(INPUTS, (ids, np.ones_like(ids), np.zeros_like(ids))))


def _named(inputs: Arrays) -> Arrays:
    return dict(zip(INPUTS, inputs.values()))


# docs/hub_contract.md has the same rules.
ANY_SAVED_MODEL = 0, _digests
LITERT = tuple(enumerate((_inputs, _outputs, _rows, _probabilities, _files, _operations, _metadata, _digests), 1))


def verify_litert(model: Loaded, path: Path) -> list[Result]:
    """Runs every check of the contract on the `LiteModel` of a folder."""
    return [run_check(line, check, model, path) for line, check in LITERT]
