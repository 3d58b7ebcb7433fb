"""The settings of a server, and the folders and addresses that they name."""

import dataclasses
import ipaddress
import os
import re
from collections.abc import Sequence

from keras_bert.errors import InputError
from keras_bert.files.failures import reading
from keras_bert.files.paths import version_number


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """The batches and limits of a model, see `keras-bert serve`; here `max_body` and `max_output` are in bytes."""

    max_batch_tokens: int = 2048
    batch_timeout_ms: float = 2.0
    max_queue: int = 512
    max_body: int = 16 * 2**20
    max_output: int = 32 * 2**20
    max_instances: int = 1024
    max_characters: int = 100_000
    timeout_s: float = 30.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(ModelSettings):
    """The settings that the processes of a server share: the flags of `keras-bert serve`, where not described here."""

    models: dict[str, str]  # names to paths
    row_wise: dict[str, list[str]]  # names of models to the signatures that the user has declared as row-wise
    host: str
    port: int
    grpc_port: int
    workers: int
    body_timeout_s: float
    grace_s: float
    allowed_host: Sequence[str] = ()
    token: str = ""  # the bearer token; "" for none
    no_normalize: bool = False
    threads: int = 1  # of TensorFlow, per worker

    def allows_host(self, header: str) -> bool:
        """Returns True if a request may have this header `Host`. A name must be allowed, or the web page of another
        site, whose name leads to this server for a moment (DNS rebinding), could read the answers. It cannot know the
        token, so with a token all names are allowed, and it cannot be at an IP address, so these are allowed, too."""
        name = host_name(header)
        allowed = {"", "localhost", self.host.lower(), *map(host_name, self.allowed_host)}
        return bool(self.token) or name in allowed or "*" in allowed or is_address(name)


def host_name(host: str) -> str:
    """Returns the name or address in a header `Host`, without the port, in lower case."""
    return re.sub(r":\d*$", "", host).strip("[]").removesuffix(".").lower()


def is_address(host: str) -> bool:
    try:
        return bool(ipaddress.ip_address(host.partition("%")[0]))
    except ValueError:
        return False


def find_versions(path: str) -> dict[int, str]:
    """Returns the folders of the versions under `path`, in TensorFlow Serving's folder structure, whose numbers are
    int64. If `path` is a SavedModel itself, it is version 1. Raises an `InputError` if `path` cannot be read."""
    if os.path.isfile(os.path.join(path, "saved_model.pb")):
        return {1: path}
    with reading(path):
        return {number: entry.path for entry in os.scandir(path)
                if (number := version_number(entry.name)) is not None and entry.is_dir()}


def find_first_version(path: str) -> int:
    """Returns the number of the version that is served first. Raises an `InputError` if there is no version, or this
    one is not a SavedModel."""
    versions = find_versions(path)
    if not versions:
        if os.path.isfile(os.path.join(path, "model.tflite")):
            raise InputError(f"{path}: must be a SavedModel; this is a LiteRT folder, which keras_bert.LiteModel and "
                             "keras-bert predict read; to serve the model: keras-bert export text-model")
        raise InputError(f"{path}: must be a SavedModel, or a folder of SavedModels whose names are numbers below "
                         "2^63; to make one: keras-bert export text-model --model=FOLDER --output=EXPORTED")
    number = max(versions)
    if not os.path.isfile(os.path.join(versions[number], "saved_model.pb")):
        raise InputError(f"{versions[number]}: must be a SavedModel; there is no saved_model.pb")
    return number


def format_address(host: str, port: int) -> str:
    """Returns HOST:PORT, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
