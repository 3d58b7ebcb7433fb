"""Checkpoints, from which an interrupted run resumes with the same result as an uninterrupted one."""

import dataclasses
import hashlib
import importlib.metadata
import json
import os
import re
import shutil
from collections.abc import Iterable
from typing import Any, Protocol

import keras
import numpy as np
import safetensors
import tensorflow as tf
from keras import ops
from safetensors.numpy import save_file

from keras_bert import __version__, kernels
from keras_bert.config import BertConfig
from keras_bert.errors import InputError, Option
from keras_bert.files import atomic, json_files
from keras_bert.text import Tokenizer

# The end of the error messages for a run that diverges.
ADVICE = ("try a lower ", Option("learning_rate=…"), " with ", Option("overwrite=True"),
          "; until then the checkpoints are kept")

# Matches the numbers that Keras appends to the names of layers and optimizers, which depend on what the process made
# before. Does not match the numbers of encoder blocks, which the model sets.
_NUMBER = re.compile(r"(?<!block)_\d+(?=[/_]|$)")


class Trained(Protocol):
    """A model or trainer whose state is saved."""

    trainable_variables: list[keras.Variable]
    optimizer: keras.optimizers.Optimizer
    metrics_variables: list[keras.Variable]


@dataclasses.dataclass
class Progress:
    """The progress of a run. The order of the data and the dropout depend only on the seed and the step, so that the
    step also determines the position in the data and the random state.

    Args:
        step: number of optimizer steps done.
        history: one value of each score per finished epoch; in pretraining, per point of the training curve or per
            evaluation.
        best_epoch: the epoch with the best validation scores, counted from 1; 0 before the first one.
    """

    step: int = 0
    history: dict[str, list[float]] = dataclasses.field(default_factory=dict)
    best_epoch: int = 0

    @property
    def epoch(self) -> int:
        """The number of epochs trained and scored."""
        return len(self.history.get("val_loss", []))

    @property
    def newest(self) -> dict[str, float]:
        """The newest value of each score."""
        return {name: values[-1] for name, values in self.history.items()}

    def add(self, scores: dict[str, Any]) -> None:
        for name, value in scores.items():
            self.history.setdefault(name, []).append(float(value))


class Checkpoints:
    """The last and the best state of a run. Each is a safetensors file, written under a temporary name and then
    renamed; its tensors are named by the paths of their variables. `run.json` describes the run, its backend and its
    versions: a run can only be resumed on the same backend, with the same minor versions (such as 0.1 or 2.20) of this
    package, Keras, TensorFlow and JAX.

    Args:
        folder: folder of the checkpoints. It is created, or reused if it belongs to the same run.
        run: everything that decides the result: `arguments`; `sha256` of the files that some arguments name; and
            `settings`, by groups, of what was read from these files.
        overwrite: if True, replaces the checkpoints of another run.
        writes: if False, only reads, and does not check the folder. Of the processes that train together, one writes.

    Raises:
        InputError: the folder has other files, or the checkpoints of another `run`, of other versions or of another
            backend; the message names the differences.
    """

    def __init__(self, folder: str, run: dict[str, dict], overwrite: bool = False, writes: bool = True) -> None:
        self.folder = folder
        self.writes = writes
        if not writes:
            return
        if os.path.exists(self.path("run.json")):
            saved = json_files.read_json(self.path("run.json"))
            if not isinstance(saved, dict):
                raise InputError(f"{self.path('run.json')}: must contain a JSON object; move {folder} away")
            difference = _difference(saved, run)
            if difference is None:
                return
            if not overwrite:
                raise InputError(f"{folder}: holds the checkpoints of an unfinished run ", *difference, ", or pass ",
                                 Option("overwrite=True"), " to start again")
        with atomic.atomic_folder(folder, overwrite) as new:
            json_files.write_json(os.path.join(new, "run.json"), run | {"made_with": made_with()})

    def path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def save_last(self, model: Trained, progress: Progress) -> None:
        """Saves what the run needs to resume. Raises an InputError if it cannot, or a weight is not finite."""
        self._save("last", _state(model), progress)

    def save_best(self, model: keras.Model, progress: Progress) -> None:
        """Saves the trainable weights as the best ones."""
        self._save("best", _by_path(model=model.trainable_variables), progress)

    def restore_last(self, model: Trained) -> Progress:
        """Restores the last saved state, if there is one; the `Progress` is new if there is none."""
        return self._restore("last", _state(model)) if os.path.exists(self.path("last.safetensors")) else Progress()

    def restore_best(self, model: keras.Model) -> None:
        """Restores the saved best weights of the model."""
        self._restore("best", _by_path(model=model.trainable_variables))

    def remove(self) -> None:
        """Deletes the folder, `run.json` last: if the process is killed meanwhile, the run can still be recognised."""
        for entry in list(os.scandir(self.folder)):
            if entry.is_dir():
                shutil.rmtree(entry)
            elif entry.name != "run.json":
                os.remove(entry)
        shutil.rmtree(self.folder)

    def _save(self, name: str, variables: dict[str, keras.Variable], progress: Progress) -> None:
        if not self.writes:
            return
        path = self.path(f"{name}.safetensors")
        tensors = {key: np.asarray(ops.convert_to_numpy(variable)) for key, variable in variables.items()}
        for key, tensor in tensors.items():
            if not np.isfinite(tensor).all():
                raise InputError(f"{path}: weights must be finite; at step {progress.step} {variables[key].path} is "
                                 "not; ", *ADVICE)
        with atomic.atomic_file(path) as part:
            try:
                save_file(tensors, part, {"progress": json.dumps(dataclasses.asdict(progress))})
            except safetensors.SafetensorError as error:  # its text contains the number of the system error
                number = re.search(r"os error (\d+)", str(error))
                raise OSError(int(number[1]) if number else None, str(error)) from None

    def _restore(self, name: str, variables: dict[str, keras.Variable]) -> Progress:
        path = self.path(f"{name}.safetensors")
        try:
            with safetensors.safe_open(path, framework="numpy") as file:
                for key, variable in variables.items():
                    variable.assign(file.get_tensor(key))
                return Progress(**json.loads(file.metadata()["progress"]))
        except safetensors.SafetensorError as error:
            raise InputError(f"{path}: the checkpoint is damaged or incomplete: {error}; remove {self.folder} to start "
                             "again") from None


def weights_digest(tokenizer: Tokenizer, variables: Iterable[keras.Variable]) -> str:
    """Returns the SHA-256 of a vocabulary and weights."""
    digest = hashlib.sha256("\n".join(tokenizer.vocabulary).encode())
    for variable in variables:
        digest.update(np.ascontiguousarray(ops.convert_to_numpy(variable)).view(np.uint8).data)
    return digest.hexdigest()


def model_settings(config: BertConfig, tokenizer: Tokenizer, **others: dict[str, Any]) -> dict[str, dict]:
    """Returns the settings of a model, by groups, as JSON holds them: those of its encoder and tokenizer, and
    `others`."""
    groups = {"config": dataclasses.asdict(config), "tokenizer": tokenizer.settings(), **others}
    return json.loads(json.dumps(groups))


def minor_version(version: object) -> str:
    return ".".join(str(version).split(".")[:2])


def _state(model: Trained) -> dict[str, keras.Variable]:
    """Returns all variables that training changes."""
    return _by_path(model=model.trainable_variables, optimizer=model.optimizer.variables,
                    metrics=model.metrics_variables)


def _by_path(**groups: list[keras.Variable]) -> dict[str, keras.Variable]:
    """Names variables by group and path, without Keras's numbers, so that each process has the same names."""
    named: dict[str, keras.Variable] = {}
    for group, variables in groups.items():
        for variable in variables:
            name = f"{group}/{_NUMBER.sub('', variable.path)}"
            if name in named:
                raise ValueError(f"the paths of variables must be unique without their numbers; {variable.path} and "
                                 f"{named[name].path} are both {name}")
            named[name] = variable
    return named


def made_with() -> dict[str, str]:
    """Returns the backend, and the versions of the packages that can change the bits of a result."""
    jax = {"jax": importlib.metadata.version("jax")} if kernels.BACKEND == "jax" else {}
    return {"backend": kernels.BACKEND, "keras-bert-hub": __version__, "keras": keras.version(),
            "tensorflow": tf.__version__} | jax


def _difference(saved: dict[str, dict], run: dict[str, dict]) -> list[str] | None:
    """Returns how a saved run differs and how to finish it, parts of an InputError; None if it is the same."""
    versions, current = saved.get("made_with"), made_with()
    if versions is None:
        return ["of keras-bert-hub 0.1, which later versions cannot resume; finish it with that version"]
    differences = [f"{name} {versions.get(name)} (now {current.get(name)})" for name in sorted(versions | current)
                   if minor_version(versions.get(name)) != minor_version(current.get(name))]
    if differences:
        return [f"of {', '.join(differences)}; finish it with these versions"]
    parts = changes(saved, run)
    return ["with ", *parts, "; finish it with its own command"] if parts else None


def changes(saved: dict[str, dict], run: dict[str, dict]) -> list[str]:
    """Returns how a saved run differs from another one, parts of an InputError; none if they are the same."""
    parts = [part for name, value in run["arguments"].items() if saved["arguments"].get(name) != value
             for part in (", ", Option(f"{name}={saved['arguments'].get(name)!r}"), f" (now {value!r})")]
    parts += [part for name, digest in run["sha256"].items() if saved["sha256"].get(name) != digest
              for part in (", ", f"other contents of {run['arguments'][name] or 'the weights'} ({name})")]
    for group, values in run.get("settings", {}).items():
        before = saved.get("settings", {}).get(group, values)
        parts += [part for name in before | values if before.get(name) != values.get(name)
                  for part in (", ", f"another {name} of the {group}: {before.get(name)!r:.80} (now "
                                     f"{values.get(name)!r:.80})")]
    return parts[1:]
