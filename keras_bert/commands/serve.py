"""`keras-bert serve`."""

import os
import re
import sys
import types

from keras_bert.arguments import Count, Port, Positive, PositiveOrZero, Repeated
from keras_bert.errors import InputError
from keras_bert.files import reading

EXAMPLE = "keras-bert serve --model=intents=exported --port=8501"


def run(model: Repeated, host: str = "127.0.0.1", port: Port = 8501, grpc_port: Port = 8500, workers: Count = 1,
        max_batch_tokens: Count = 2048, batch_timeout_ms: PositiveOrZero = 2.0, max_queue: Count = 512,
        max_body_mb: Positive = 16.0, max_instances: Count = 1024, max_characters: Count = 100_000,
        body_timeout_s: Positive = 20.0, timeout_s: Positive = 30.0, grace_s: PositiveOrZero = 20.0,
        token_file: str | None = None):
    """Serve exported models over HTTP and gRPC.

    Args:
        model: PATH or NAME=PATH of a SavedModel, or of a folder of versions (folders whose names are numbers; the
            largest is served). Repeat the flag for several models.
        host: Address to listen on.
        port: HTTP port; 0 for any free one.
        grpc_port: gRPC port; 0 for any free one.
        workers: Number of processes, each with all models.
        max_batch_tokens: Maximum tokens per batch.
        batch_timeout_ms: Maximum wait for more requests, in milliseconds, after a batch of several.
        max_queue: Maximum number of requests that wait for a model, per worker.
        max_body_mb: Maximum size of a request, in megabytes.
        max_instances: Maximum number of rows per request.
        max_characters: Maximum length of a text, in characters.
        body_timeout_s: Timeout for receiving the request body, in seconds.
        timeout_s: Timeout for answering a request, in seconds.
        grace_s: Time for running requests to finish when the server is stopped, in seconds.
        token_file: File with the bearer token that requests must send.
    """
    flags = dict(locals())
    if sys.platform != "linux":
        raise InputError(f"serve runs only on Linux; this is {sys.platform}: use a container, or TensorFlow Serving")
    try:
        from keras_bert.serving.supervisor import supervise
    except ImportError:
        raise InputError('serving needs more packages: pip install fastapi "uvicorn[standard]" '
                         'prometheus-client tensorflow-serving-api') from None

    supervise(types.SimpleNamespace(**flags, models=_by_name(model), max_body=int(max_body_mb * 2**20),
                                    token=_token(token_file) if token_file else ""))


def _by_name(arguments):
    models = {}
    for argument in arguments:
        name, path = re.fullmatch(r"(?:([^/=]+)=)?(.*)", argument, re.DOTALL).groups()
        if not path:
            raise InputError(f"--model={argument}: must be PATH or NAME=PATH")
        name = name or os.path.basename(os.path.abspath(path))
        if not re.fullmatch(r"[\w.-]+", name):
            raise InputError(f"--model={argument}: a name must be of letters, digits and . _ -; got {name!r}")
        if name in models:
            raise InputError(f"--model={argument}: another model has the name {name!r}; "
                             f"give this one another: --model=NAME={path}")
        models[name] = path
    return models


def _token(path):
    with reading(path), open(path, encoding="utf-8") as file:
        token = file.read().strip()
    if not token:
        raise InputError(f"{path}: must contain a token")
    return token
