"""Checkpoints: what a killed run needs to end as if nothing had happened."""

import dataclasses
import hashlib
import importlib.metadata
import json
import os
import re
import shutil

import keras
import numpy as np
import safetensors
import tensorflow as tf
from keras import ops
from safetensors.numpy import save_file

from keras_bert import __version__, kernels
from keras_bert.errors import InputError
from keras_bert.files import read_json, replacing, write_json, written_beside

# For a run that diverges.
ADVICE = "checkpoints are kept; a lower learning_rate may help, with --overwrite to start again"

# Keras numbers the layers of a class, and optimizers, in the order in which a process makes them. Blocks have numbers
# of their own.
_NUMBER = re.compile(r"(?<!block)_\d+(?=[/_]|$)")


@dataclasses.dataclass
class Progress:
    """How far a run has come. The order of the data and the dropout follow from the seed and the step alone, so that
    the step stands for the data position and the random state too.

    Args:
        step: optimizer steps done.
        history: for each finished epoch its scores, a list a name; in pretraining those of some steps each.
        best_epoch: the epoch with the best validation scores, counted from 1; 0 before there is one.
    """

    step: int = 0
    history: dict = dataclasses.field(default_factory=dict)
    best_epoch: int = 0

    @property
    def epoch(self):
        """Epochs trained and scored."""
        return len(self.history.get("val_loss", []))

    def add(self, scores):
        """Adds scores to the history."""
        for name, value in scores.items():
            self.history.setdefault(name, []).append(float(value))


class Checkpoints:
    """The last and the best state of one run, each a safetensors file that is written beside and renamed. Its tensors
    have the paths of their variables. `run.json` says what run it is, and what it was made with: a run is resumed on
    the same backend, with the same minor versions (as 0.1 or 2.20) of this package, Keras, TensorFlow and JAX.

    Args:
        folder: where they are kept; made at once, taken up again where it holds the same run.
        run: what decides the result: a dict of `arguments`, and `sha256` of the files that some of them name.
        overwrite: whether to clear away the checkpoints of another run.
        writes: whether this process is the one that writes, of several that work together.

    Raises:
        InputError: the folder holds something else, or checkpoints of another `run`, of other versions or of another
            backend; the message names the differences.
    """

    def __init__(self, folder, run, overwrite=False, writes=True):
        self.folder = folder
        if not writes:
            return
        if os.path.exists(self.path("run.json")):
            there = read_json(self.path("run.json"))
            if not isinstance(there, dict):
                raise InputError(f"{self.path('run.json')}: not the record of a run; move {folder} away")
            refusal = _version_refusal(there.get("made_with")) or _run_refusal(there, run)
            if not refusal:
                return
            if not overwrite:
                raise InputError(f"{folder}: holds the checkpoints of an unfinished run {refusal}, or pass --overwrite "
                                 "to start again")
        with written_beside(folder, overwrite) as new:
            write_json(os.path.join(new, "run.json"), run | {"made_with": _made_with()})

    def path(self, name):
        """The path of a file or folder of the run."""
        return os.path.join(self.folder, name)

    def save_last(self, model, progress):
        """Saves all that the run needs to go on.

        Raises:
            InputError: the file cannot be written, or a weight is not a finite number.
        """
        self._save("last", _state(model), progress)

    def save_best(self, model, progress):
        """Saves the trained weights."""
        self._save("best", _variables("model", model.trainable_variables), progress)

    def restore_last(self, model):
        """Sets the model to the last state saved.

        Returns:
            the `Progress`; that of a new run where nothing is saved yet.
        """
        if not os.path.exists(self.path("last.safetensors")):
            return Progress()
        return self._restore("last", _state(model))

    def restore_best(self, model):
        """Sets the model to the best weights saved."""
        self._restore("best", _variables("model", model.trainable_variables))

    def remove(self):
        """Clears the run away; its description last, so that a kill meanwhile leaves a run that can be recognised."""
        for name in sorted(os.listdir(self.folder), key=lambda name: name == "run.json"):
            if os.path.isdir(self.path(name)):
                shutil.rmtree(self.path(name))
            else:
                os.remove(self.path(name))
        os.rmdir(self.folder)

    def _save(self, name, variables, progress):
        path = self.path(f"{name}.safetensors")
        tensors = {key: np.asarray(ops.convert_to_numpy(variable)) for key, variable in variables.items()}
        for key, tensor in tensors.items():
            if not np.isfinite(tensor).all():
                raise InputError(
                    f"{path}: weights must be finite; at step {progress.step} {variables[key].path} is not; {ADVICE}")
        with replacing(path) as part:
            try:
                save_file(tensors, part, {"progress": json.dumps(dataclasses.asdict(progress))})
            except safetensors.SafetensorError as error:  # it has the number of the system's error in its text
                number = re.search(r"os error (\d+)", str(error))
                raise OSError(int(number[1]) if number else None, str(error)) from None

    def _restore(self, name, variables):
        path = self.path(f"{name}.safetensors")
        try:
            with safetensors.safe_open(path, framework="numpy") as file:
                for key, variable in variables.items():
                    variable.assign(file.get_tensor(key))
                return Progress(**json.loads(file.metadata()["progress"]))
        except safetensors.SafetensorError as error:
            raise InputError(f"{path}: not a whole checkpoint: {error}; remove {self.folder} to start again") from None


def weights_digest(tokenizer, variables):
    """The SHA-256 of a vocabulary and of weights."""
    digest = hashlib.sha256("\n".join(tokenizer.vocabulary).encode())
    for variable in variables:
        digest.update(np.ascontiguousarray(ops.convert_to_numpy(variable)).view(np.uint8))
    return digest.hexdigest()


def _state(model):
    """Every variable that training changes, by name."""
    return (_variables("model", model.trainable_variables) | _variables("optimizer", model.optimizer.variables)
            | _variables("metrics", model.metrics_variables))


def _variables(kind, variables):
    """`keras.Variable`s by path, the same in any process."""
    named = {}
    for variable in variables:
        name = f"{kind}/{_NUMBER.sub('', variable.path)}"
        if name in named:
            raise ValueError(f"variables must have paths of their own; {variable.path} and {named[name].path} are both "
                             f"{name} in a checkpoint")
        named[name] = variable
    return named


def _made_with():
    """The backend, and the versions of what changes the bits of a run."""
    made_with = {"backend": kernels.BACKEND, "keras-bert-hub": __version__, "keras": keras.version(),
                 "tensorflow": tf.__version__}
    return made_with | ({"jax": importlib.metadata.version("jax")} if kernels.BACKEND == "jax" else {})


def _version_refusal(there):
    """Why a run of these versions cannot be resumed and what to do instead, or None."""
    if there is None:
        return "of keras-bert-hub 0.1, which later versions cannot resume; finish it with that version"
    here = _made_with()
    differences = [f"{name} {there.get(name)} (now {here.get(name)})" for name in sorted(there.keys() | here.keys())
                   if _series(there.get(name)) != _series(here.get(name))]
    return f"of {', '.join(differences)}; finish it with that" if differences else None


def _series(version):
    """2.20 of 2.20.1."""
    return version and version.split(".")[:2]


def _run_refusal(there, here):
    """How a run differs from this one and what to do about it, or None."""
    differences = [f"{name}={there['arguments'].get(name)!r} (now {value!r})"
                   for name, value in here["arguments"].items() if there["arguments"].get(name) != value]
    differences += [f"another content of {here['arguments'][name]}"
                    for name, digest in here["sha256"].items() if there["sha256"].get(name) != digest]
    return f"with {', '.join(differences)}; finish it by its own command" if differences else None
