"""Reads the weight files of Hugging Face folders, under the names of PyTorch's models and in their form: safetensors,
PyTorch's pickles, each as one file or as shards, and transformers 4's `tf_model.h5`."""

import contextlib
import importlib.util
import os
import re
import warnings
import zipfile
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import h5py
import numpy as np
import safetensors

from keras_bert.errors import InputError, InputWarning, first_line
from keras_bert.files.json_files import Record, read_object
from keras_bert.files.paths import reading

# PyTorch 2.5 and earlier can run code of a file even with weights_only=True (CVE-2025-32434).
_SAFE_PYTORCH = (2, 6)
# What begins a weight's name in `tf_model.h5`, after the names of the layer and of the model's scopes.
_TF_NAME = re.compile(r"(?:^|/)((?:embeddings|encoder|pooler|mlm___cls|nsp___cls|classifier|qa_outputs)/.+):0$")
_POINTER = b"version https://git-lfs"  # how Git LFS begins the file that it leaves in place of a large one
_TF_PARTS = {"kernel": "weight", "gamma": "weight", "beta": "bias", "embeddings": "weight"}


class Tensors(NamedTuple):
    """The open weights of a folder: the tensors' shapes and a function that reads one, by their names."""

    shapes: dict[str, tuple[int, ...]]
    get: Callable[[str], np.ndarray]


def open_tensors(folder: str, model_type: str) -> Tensors:
    """Opens the weights. Raises an InputError if they are missing, incomplete, invalid or cannot be read here."""
    for name, reader in FILES.items():
        path, index = os.path.join(folder, name), os.path.join(folder, f"{name}.index.json")
        if not os.path.lexists(path) and not os.path.lexists(index):
            continue
        if reader is _open_tf and model_type != "bert":
            raise InputError(f"{path}: only BERT's weights are read from this file, not those of {model_type}; get the "
                             f"model's {' or '.join(other for other in FILES if other != name)}")
        return _open_file(path, reader) if os.path.lexists(path) else _open_shards(index, reader)
    raise InputError(f"{folder}: a Hugging Face folder must contain {', '.join(FILES)} or an index of shards")


def _open_file(path: str, reader: Callable[[str], Tensors]) -> Tensors:
    """Opens a file of weights; its library may not say why it cannot be read."""
    with reading(path), open(path, "rb") as file:
        if file.read(len(_POINTER)) == _POINTER:
            raise InputError(f"{path}: is a pointer of Git LFS, not the weights; run git lfs pull in its repository")
    return reader(path)


def _open_shards(index: str, reader: Callable[[str], Tensors]) -> Tensors:
    files = Record(index, "", read_object(index, required=True)).get("weight_map", dict)
    for name, file in files.items():
        if not isinstance(file, str) or file != os.path.basename(file):
            raise InputError(f"{index}: {name} must be in a file of the same folder; got {file!r}")
    folder = os.path.dirname(index)
    shards = {file: _open_file(os.path.join(folder, file), reader) for file in sorted(set(files.values()))}
    listed = {(file, name) for name, file in files.items()}
    stored = {(file, name) for file, shard in shards.items() for name in shard.shapes}
    for file, name in sorted(listed ^ stored):
        raise InputError(f"{index}: {file} must contain the tensors that the index lists for it, and no others; "
                         f"{name} is only in the {'index' if (file, name) in listed else 'file'}")
    return Tensors({name: shards[file].shapes[name] for name, file in files.items()},
                   lambda name: shards[files[name]].get(name))


def _open_safetensors(path: str) -> Tensors:
    with _open_numpy(path) as file:
        shapes = {key: tuple(file.get_slice(key).get_shape()) for key in file.keys()}

    def get(name: str) -> np.ndarray:
        with _open_numpy(path) as file:
            return file.get_tensor(name)

    return Tensors(shapes, get)


def _open_numpy(path: str) -> safetensors.safe_open:
    try:
        return safetensors.safe_open(path, framework="numpy")
    except safetensors.SafetensorError as error:
        raise InputError(f"{path}: not a complete safetensors file: {error}") from None


def _open_pickle(path: str) -> Tensors:
    """Opens PyTorch's pickle of tensors by a reader that runs none of its code."""
    if importlib.util.find_spec("torch") is None:
        raise InputError(f"{path}: PyTorch, which reads this pickle without running its code, is not installed: "
                         "pip install torch; or use the model's model.safetensors")
    import torch

    def is_dense(value: Any) -> bool:
        return (torch.is_tensor(value) and value.layout == torch.strided and value.device.type == "cpu"
                and not (value.is_nested or value.is_quantized or value.is_complex() or value.is_neg()))

    version = tuple(map(int, torch.__version__.split(".")[:2]))
    if version < _SAFE_PYTORCH:
        raise InputError(f"{path}: reading a pickle without running its code needs PyTorch "
                         f"{'.'.join(map(str, _SAFE_PYTORCH))} or later; got {torch.__version__}")
    try:
        with warnings.catch_warnings(action="ignore"):  # about the versions of damaged files
            # Files of PyTorch 1.5 and earlier cannot be mapped; they are read as a whole.
            tensors = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except Exception as error:  # a damaged pickle can raise any exception
        raise InputError(f"{path}: not a complete pickle of tensors alone: {_reason(error)}") from None
    if not isinstance(tensors, dict) or not all(isinstance(name, str) and is_dense(tensors[name]) for name in tensors):
        raise InputError(f"{path}: must be a dict of names to dense tensors of real numbers, as transformers writes it")
    return Tensors({name: tuple(tensor.shape) for name, tensor in tensors.items()},
                   lambda name: tensors[name].detach().float().numpy())


def _reason(error: Exception) -> str:
    """Returns what is wrong with a pickle in one line, without PyTorch's advice to run its code."""
    match = re.search(r"[Uu]nsupported (global: )?\w+ \S+", str(error))
    return match[0] if match else first_line(error)


def _open_tf(path: str) -> Tensors:
    """Opens the weights of a TensorFlow model of transformers 4, `TFBert…`, which have Keras's names and forms."""
    names: dict[str, str] = {}
    with open_hdf5(path, "TFBert… model") as file:
        stored = [f"{layer}/{name}" for layer in file.attrs["layer_names"].astype(str)
                  for name in file[layer].attrs["weight_names"].astype(str)]
        for name in stored:
            match = _TF_NAME.search(name.partition("/")[2])
            plain = _pytorch_name(match[1]) if match else name
            # The embeddings are stored again in the layer of the masked LM head.
            if plain in names and not np.array_equal(stored_array(file, name), stored_array(file, names[plain])):
                raise InputError(f"{path}: {name} must equal {names[plain]}; BERT's output layer is tied to its "
                                 "embeddings")
            names.setdefault(plain, name)
        shapes = {plain: _in_form(name, np.broadcast_to(np.float32(0), file[name].shape)).shape
                  for plain, name in names.items()}

    def get(name: str) -> np.ndarray:
        with open_hdf5(path, "TFBert… model") as file:
            return _in_form(names[name], stored_array(file, names[name]))

    warnings.warn(f"{path}: version 1.0 will not read it; to keep the model, write it again: keras-bert convert "
                  "--format=huggingface --model=… --output=…", InputWarning, stacklevel=2)
    return Tensors(shapes, get)


@contextlib.contextmanager
def open_hdf5(path: str, owner: str) -> Iterator[h5py.File]:
    """Context manager that opens an HDF5 file of an `owner` and turns errors about its contents into an InputError."""
    try:
        with h5py.File(path) as file:
            yield file
    except (OSError, RuntimeError, LookupError, AttributeError, TypeError) as error:
        raise InputError(f"{path}: not a complete HDF5 file of a {owner}: {error}") from None


def _pytorch_name(name: str) -> str:
    """Converts `encoder/layer_._0/attention/self/query/kernel` to `encoder.layer.0.attention.self.query.weight`."""
    *layer, part = re.sub("^(mlm|nsp)___", "", name).replace("_._", "/").split("/")
    return ".".join([*layer, _TF_PARTS.get(part, part)])


def stored_array(file: h5py.File, name: str) -> np.ndarray:
    """Returns an array that is stored in the file itself: HDF5 can also refer to other files."""
    dataset = file[name]
    if dataset.file != file or dataset.external or dataset.is_virtual:
        raise InputError(f"{file.filename}: {name} must be stored in this file; it refers to another one")
    try:
        return dataset[()]
    except (OSError, RuntimeError) as error:
        raise InputError(f"{file.filename}: {name} cannot be read: {error}") from None


def _in_form(name: str, array: np.ndarray) -> np.ndarray:
    """Transposes a dense kernel to PyTorch's form."""
    return array.T if name.endswith("/kernel:0") else array


FILES = {"model.safetensors": _open_safetensors, "pytorch_model.bin": _open_pickle, "tf_model.h5": _open_tf}
