"""Checkpoints, from which a killed run resumes with the same result as if it had not been interrupted."""

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
from keras_bert.files import atomic_file, atomic_folder, read_json, write_json

# Part of the error messages for a run that diverges.
ADVICE = "checkpoints are kept; a lower learning_rate may help, with --overwrite to start again"

# The numbers that Keras appends to the names of layers of the same class, and of optimizers, in the order in which a
# process makes them. The numbers of encoder blocks are not matched: they come from the model.
_NUMBER = re.compile(r"(?<!block)_\d+(?=[/_]|$)")


@dataclasses.dataclass
class Progress:
    """The progress of a run. The order of the data and the dropout depend only on the seed and the step, so that the
    step also determines the position in the data and the random state.

    Args:
        step: number of optimizer steps done.
        history: dict of score names to lists with one value per finished epoch; in pretraining, one value per point of
            the training curve or per evaluation.
        best_epoch: the epoch with the best validation scores, counted from 1; 0 before the first one.
    """

    step: int = 0
    history: dict = dataclasses.field(default_factory=dict)
    best_epoch: int = 0

    @property
    def epoch(self):
        """The number of epochs trained and scored."""
        return len(self.history.get("val_loss", []))

    def add(self, scores):
        """Adds scores to the history."""
        for name, value in scores.items():
            self.history.setdefault(name, []).append(float(value))


class Checkpoints:
    """The last and the best state of a run. Each is a safetensors file, written under a temporary name and then
    renamed; its tensors are named by the paths of their variables. `run.json` describes the run, its backend and its
    versions: a run can only be resumed on the same backend, with the same minor versions (such as 0.1 or 2.20) of this
    package, Keras, TensorFlow and JAX.

    Args:
        folder: folder of the checkpoints. It is created at once, or reused if it holds the same run.
        run: dict of everything that decides the result: `arguments`, and `sha256` of the files that some arguments
            name.
        overwrite: if True, replaces the checkpoints of another run.
        writes: if False, does not check or create the folder. Of the processes that train together, only one writes.

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
        with atomic_folder(folder, overwrite) as new:
            write_json(os.path.join(new, "run.json"), run | {"made_with": _made_with()})

    def path(self, name):
        """Returns the path of a file or folder of the run."""
        return os.path.join(self.folder, name)

    def save_last(self, model, progress):
        """Saves everything that the run needs to resume.

        Raises:
            InputError: the file cannot be written, or a weight is not a finite number.
        """
        self._save("last", _state(model), progress)

    def save_best(self, model, progress):
        """Saves the trainable weights as the best ones."""
        self._save("best", _variables("model", model.trainable_variables), progress)

    def restore_last(self, model):
        """Restores the last saved state of the model.

        Returns:
            the `Progress`; a new one if nothing is saved yet.
        """
        if not os.path.exists(self.path("last.safetensors")):
            return Progress()
        return self._restore("last", _state(model))

    def restore_best(self, model):
        """Restores the saved best weights of the model."""
        self._restore("best", _variables("model", model.trainable_variables))

    def remove(self):
        """Deletes the folder, `run.json` last: if the process is killed meanwhile, the run can still be recognised."""
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
        with atomic_file(path) as part:
            try:
                save_file(tensors, part, {"progress": json.dumps(dataclasses.asdict(progress))})
            except safetensors.SafetensorError as error:  # its text contains the number of the system error
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
    """Returns the SHA-256 of a vocabulary and weights."""
    digest = hashlib.sha256("\n".join(tokenizer.vocabulary).encode())
    for variable in variables:
        digest.update(np.ascontiguousarray(ops.convert_to_numpy(variable)).view(np.uint8))
    return digest.hexdigest()


def _state(model):
    """Returns a dict of names to all variables that training changes."""
    return (_variables("model", model.trainable_variables) | _variables("optimizer", model.optimizer.variables)
            | _variables("metrics", model.metrics_variables))


def _variables(kind, variables):
    """Returns a dict of names to `keras.Variable`s. The names are the paths without the numbers of Keras, so that they
    are the same in every process."""
    named = {}
    for variable in variables:
        name = f"{kind}/{_NUMBER.sub('', variable.path)}"
        if name in named:
            raise ValueError(f"variables must have paths of their own; {variable.path} and {named[name].path} are both "
                             f"{name} in a checkpoint")
        named[name] = variable
    return named


def _made_with():
    """Returns the backend, and the versions of the packages that can change the bits of a result."""
    made_with = {"backend": kernels.BACKEND, "keras-bert-hub": __version__, "keras": keras.version(),
                 "tensorflow": tf.__version__}
    return made_with | ({"jax": importlib.metadata.version("jax")} if kernels.BACKEND == "jax" else {})


def _version_refusal(there):
    """Returns why a run with the versions `there` cannot be resumed and what to do instead, or None if it can."""
    if there is None:
        return "of keras-bert-hub 0.1, which later versions cannot resume; finish it with that version"
    here = _made_with()
    differences = [f"{name} {there.get(name)} (now {here.get(name)})" for name in sorted(there.keys() | here.keys())
                   if _series(there.get(name)) != _series(here.get(name))]
    return f"of {', '.join(differences)}; finish it with that" if differences else None


def _series(version):
    """Returns the major and the minor version, of 2.20.1 for example ["2", "20"]; None for None."""
    return version and version.split(".")[:2]


def _run_refusal(there, here):
    """Returns how the run `there` differs from this one and what to do about it, or None if it does not."""
    differences = [f"{name}={there['arguments'].get(name)!r} (now {value!r})"
                   for name, value in here["arguments"].items() if there["arguments"].get(name) != value]
    differences += [f"another content of {here['arguments'][name]}"
                    for name, digest in here["sha256"].items() if there["sha256"].get(name) != digest]
    return f"with {', '.join(differences)}; finish it by its own command" if differences else None
