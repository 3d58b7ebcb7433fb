"""`keras-bert serve`."""

import importlib.util
import os
import re
import sys

from keras_bert.arguments import Count, Port, Positive, PositiveOrZero, Repeated, check_rules
from keras_bert.errors import InputError
from keras_bert.files.paths import reading
from keras_bert.files.utf8 import decode
from keras_bert.serving.settings import GRPC_PORT, Settings

# Needed packages. The names of their modules have _ for -.
_PACKAGES = "starlette", "pydantic-core", "uvicorn", "uvloop", "httptools", "orjson", "prometheus-client"

EXAMPLE = "keras-bert serve --model=intents=exported --port=8501"


def run(model: Repeated, host: str = "127.0.0.1", port: Port = 8501, grpc_port: Port | None = None,
        workers: Count | None = None, max_batch_tokens: Count = Settings.max_batch_tokens,
        batch_timeout_ms: PositiveOrZero = Settings.batch_timeout_ms, max_queue: Count = Settings.max_queue,
        max_body_mb: Positive = Settings.max_body / 2**20,
        max_output_mb: Positive = Settings.max_output / 2**20, max_inflight_mb: Positive | None = None,
        max_instances: Count = Settings.max_instances, max_characters: Count = Settings.max_characters,
        body_timeout_s: Positive = 20.0, timeout_s: Positive = Settings.timeout_s, grace_s: PositiveOrZero = 20.0,
        drain_s: PositiveOrZero = 0.0, token_file: str | None = None, allowed_host: Repeated | None = None,
        row_wise: Repeated | None = None, no_normalize: bool = False) -> None:
    """Serve exported models over HTTP and gRPC.

    Args:
        model: PATH or NAME=PATH of a SavedModel, of a folder of export litert, or of a folder of versions of both kinds
            (folders whose names are numbers; the largest is served). Repeat the flag for several models.
        host: Address to listen on.
        port: HTTP port; 0 for any free one.
        grpc_port: gRPC port; 0 for any free one. If None, 8500, and gRPC is off if its packages are missing, or all
            models are folders of export litert.
        workers: Number of processes, each with all models; they share the cores. If None, one; or, if all models are
            folders of export litert, one for each core.
        max_batch_tokens: Maximum tokens per batch.
        batch_timeout_ms: Maximum wait for more requests, in milliseconds, after a batch of several.
        max_queue: Maximum number of requests that wait for a model, per worker. Requests that cannot be answered within
            --timeout_s, by the throughput of the last seconds, are rejected before.
        max_body_mb: Maximum size of a request, in megabytes.
        max_output_mb: Maximum size of the outputs of a request, in megabytes. As JSON, numbers take about three times
            as much.
        max_inflight_mb: Maximum memory of the requests that a worker receives, reads and answers at the same time, in
            megabytes, as estimated from their sizes. JSON and its objects take several times the size of a body. If
            None, 512, or more if one request of --max_body_mb with outputs of --max_output_mb needs more.
        max_instances: Maximum number of rows per request.
        max_characters: Maximum length of a text, in characters.
        body_timeout_s: Timeout for receiving the request body, in seconds.
        timeout_s: Timeout for answering a request, in seconds.
        grace_s: Time for running requests to finish when the server is stopped, in seconds.
        drain_s: Time to accept requests after SIGTERM, in seconds. Meanwhile, /readyz answers 503, so that load
            balancers send no more.
        token_file: File with the bearer token that requests must send, and nothing else.
        allowed_host: Name that the Host header may have if there is no token, besides localhost, the value of --host
            and IP addresses; * for any name. Repeat the flag for several names.
        row_wise: NAME:SIGNATURE of a model that another exporter, or version 0.1 or 0.2, has written, if each output of
            the signature has one row for each row of the inputs, which does not depend on the other rows. Requests to
            it run in batches, all others one by one. Repeat the flag for several signatures.
        no_normalize: Answer /v1/embeddings with the vectors of the model, not divided by their length.
    """
    given = dict(locals())
    rpc_port = GRPC_PORT if grpc_port is None else grpc_port
    check_rules(("grpc_port", rpc_port, "another port than --port", rpc_port != port or not port),
                *(("allowed_host", name, "a name, without a scheme or a path", "/" not in name)
                  for name in allowed_host or []))
    if sys.platform != "linux":
        raise InputError(f"serve runs only on Linux; this is {sys.platform}: use a container, or TensorFlow Serving")
    if missing := [package for package in _PACKAGES if not importlib.util.find_spec(package.replace("-", "_"))]:
        raise InputError(f"serving needs more packages: pip install {' '.join(missing)}")
    from keras_bert.serving.supervisor import supervise

    models = _by_name(model)
    given |= {"models": models, "row_wise": _signatures(row_wise or [], models), "host": host.strip("[]"),
              "max_body": int(max_body_mb * 2**20), "max_output": int(max_output_mb * 2**20),
              "max_inflight": max_inflight_mb and int(max_inflight_mb * 2**20), "allowed_host": allowed_host or [],
              "token": _read_token(token_file) if token_file else ""}
    supervise(Settings(**{name: given[name] for name in Settings.__dataclass_fields__ if name in given}))


def _by_name(arguments: list[str]) -> dict[str, str]:
    models: dict[str, str] = {}
    for argument in arguments:
        name, path = re.findall(r"^(?:([^/=]+)=)?(.*)", argument, re.DOTALL)[0]
        if not path:
            raise InputError(f"--model={argument}: must be PATH or NAME=PATH")
        name = name or os.path.basename(os.path.abspath(path))
        if not re.fullmatch(r"[\w.-]+", name):
            raise InputError(f"--model={argument}: the model at {path} needs a name of letters, digits and . _ -, not "
                             f"{name!r}: --model=NAME={path}")
        if name in models:
            raise InputError(f"--model={argument}: another model has the name {name!r}; "
                             f"give this one another: --model=NAME={path}")
        models[name] = path
    return models


def _signatures(arguments: list[str], models: dict[str, str]) -> dict[str, list[str]]:
    signatures: dict[str, list[str]] = {}
    for argument in arguments:
        name, _, signature = argument.partition(":")
        if name not in models or not signature:
            raise InputError(f"--row_wise={argument}: must be NAME:SIGNATURE, where NAME is one of {', '.join(models)}")
        signatures.setdefault(name, []).append(signature)
    return signatures


def _read_token(path: str) -> str:
    with reading(path), open(path, "rb") as file:
        lines = decode(file.read(), path, is_first=True).strip().splitlines()
    if len(lines) != 1:
        raise InputError(f"{path}: must contain one token, on one line; got {len(lines)} lines; write the token alone "
                         "into the file")
    if wrong := re.search("[^ -~]", lines[0]):
        raise InputError(f"{path}: the token must have only printable ASCII characters, because others cannot be sent "
                         f"over gRPC; character {wrong.start() + 1} is {wrong[0]!r}: choose another token")
    return lines[0]
