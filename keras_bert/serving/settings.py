"""The settings of a server, and the folders and addresses that they name."""

import dataclasses
import importlib.util
import ipaddress
import os
import re
from collections.abc import Mapping, Sequence

from keras_bert.errors import InputError
from keras_bert.files.paths import SAVED_MODEL, is_saved_model, reading, version_number
from keras_bert.litert import FILE, is_litert

GRPC_PORT = 8500


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings that the processes of a server share: the flags of `keras-bert serve`, where not described here;
    `max_body`, `max_output` and `max_inflight` are in bytes."""

    models: dict[str, str]  # names to paths
    row_wise: dict[str, list[str]]  # names of models to the signatures that the user has declared as row-wise
    host: str
    port: int
    grpc_port: int | None  # None: `GRPC_PORT`, or no gRPC if it is not possible; of a worker, no gRPC
    workers: int | None  # None: chosen by the supervisor, so that no worker sees it
    body_timeout_s: float
    grace_s: float
    drain_s: float
    allowed_host: Sequence[str] = ()
    token: str = ""  # the bearer token; "" for none
    no_normalize: bool = False
    threads: int = 1  # that compute, per worker
    tensorflow: bool = True  # if False, no SavedModel can be loaded
    max_batch_tokens: int = 2048
    batch_timeout_ms: float = 2.0
    max_queue: int = 512
    max_body: int = 16 * 2**20
    max_output: int = 32 * 2**20
    max_inflight: int | None = None
    max_instances: int = 1024
    max_characters: int = 100_000
    timeout_s: float = 30.0

    @property
    def memory(self) -> int:
        """The bytes that all requests together may have: `max_inflight` or, if it is None, what one request of the
        largest size needs, and at least 512 MiB. A body takes up to seven times its size (received, decompressed,
        parsed), and outputs six times theirs."""
        return self.max_inflight or max(512 * 2**20, 7 * self.max_body + 6 * self.max_output)

    def allows_host(self, header: str) -> bool:
        """Returns True if a request may have this header `Host`. A name must be allowed, or the web page of another
        site, whose name leads to this server for a moment (DNS rebinding), could read the answers. It cannot know the
        token, so with a token all names are allowed, and it cannot be at an IP address, so these are allowed, too."""
        name = host_name(header)
        allowed = {"", "localhost", self.host.lower(), *map(host_name, self.allowed_host)}
        return bool(self.token) or name in allowed or "*" in allowed or is_address(name)

    def check_litert(self, versions: dict[str, tuple[int, str] | None]) -> None:
        """Raises an `InputError` if a LiteRT folder cannot be served with these settings, or by what is installed."""
        for name, version in versions.items():
            if version is None or is_saved_model(version[1]):
                continue
            if not importlib.util.find_spec("ai_edge_litert"):
                raise InputError(f"{version[1]}: is a LiteRT folder, which needs more packages: pip install "
                                 "ai-edge-litert")
            for signature in self.row_wise.get(name, ()):
                raise InputError(f"--row_wise={name}:{signature}: must be left out for a LiteRT folder, whose texts "
                                 "never run in batches")


def host_name(host: str) -> str:
    """Returns the name or address in a header `Host`, without the port, in lower case."""
    return re.sub(r":\d*$", "", host).strip("[]").removesuffix(".").lower()


def is_address(host: str) -> bool:
    try:
        return "%" not in host and bool(ipaddress.ip_address(host))  # after % a zone may have any name
    except ValueError:
        return False


def find_versions(path: str) -> dict[int, str]:
    """Returns the folders of the versions under `path` by their numbers, int64, as TensorFlow Serving names them. If
    `path` is a SavedModel or a LiteRT folder itself, it is version 1. Raises an `InputError` if it cannot be read."""
    if is_saved_model(path) or is_litert(path):
        return {1: path}
    with reading(path):
        return {number: entry.path for entry in os.scandir(path)
                if (number := version_number(entry.name)) is not None and not entry.is_file(follow_symlinks=False)}


def find_first_version(path: str) -> tuple[int, str]:
    """Returns the number and the folder of the version that is served first, if it can be loaded. Raises an
    `InputError` if there is no version, or none is a SavedModel or a LiteRT folder."""
    versions = find_versions(path)
    if not versions:
        raise InputError(f"{path}: must be a SavedModel or a LiteRT folder, or a folder of these whose names are "
                         "numbers below 2^63; to make one: keras-bert export text-model --model=FOLDER "
                         "--output=EXPORTED, or keras-bert export litert")
    with reading(newest := versions[max(versions)]):
        os.listdir(newest)
    whole = [number for number, folder in versions.items() if is_saved_model(folder) or is_litert(folder)]
    if not whole:
        raise InputError(f"{newest}: must be a SavedModel or a LiteRT folder; there is neither "
                         f"{SAVED_MODEL} nor {FILE}")
    return max(whole), versions[max(whole)]


def needs_tensorflow(models: Mapping[str, str]) -> bool:
    """Returns True if there is a SavedModel among the versions, or a folder without a version, where one may appear;
    and TensorFlow is installed. Raises an `InputError` if a model has SavedModels alone, and it is not."""
    is_installed = importlib.util.find_spec("tensorflow") is not None
    needs = False
    for path in models.values():
        versions = find_versions(path)
        found = next(filter(is_saved_model, versions.values()), None)
        if found and not is_installed and not any(map(is_litert, versions.values())):
            raise InputError(f"{found}: is a SavedModel, which needs TensorFlow: pip install tensorflow; or serve the "
                             "folder of keras-bert export litert")
        needs = needs or bool(found) or not versions
    return needs and is_installed


def format_address(host: str, port: int) -> str:
    """Returns HOST:PORT, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
