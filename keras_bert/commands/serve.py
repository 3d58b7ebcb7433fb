"""`keras-bert serve`: exported models over HTTP and gRPC, as TensorFlow Serving does it."""

import os
import re
import sys

from absl import flags

from keras_bert.errors import InputError
from keras_bert.files import reading

REQUIRED = ("model",)


def define(values):
    flags.DEFINE_multi_string("model", None, "A SavedModel, or a folder of versions (folders whose names are numbers; "
                              "the largest is served). PATH or NAME=PATH, several times.", flag_values=values)
    flags.DEFINE_string("host", "127.0.0.1", "Address to serve at.", flag_values=values)
    flags.DEFINE_integer("port", 8501, "Port of HTTP; 0 for any that is free.", 0, 65535, flag_values=values)
    flags.DEFINE_integer("grpc_port", 8500, "Port of gRPC; 0 for any that is free.", 0, 65535, flag_values=values)
    flags.DEFINE_integer("workers", 1, "Processes, each with the models.", 1, flag_values=values)
    flags.DEFINE_integer("max_batch_tokens", 2048, "Most tokens that requests are joined up to.", 1,
                         flag_values=values)
    flags.DEFINE_float("batch_timeout_ms", 2, "Longest pause for more requests, after a batch of several.", 0,
                       flag_values=values)
    flags.DEFINE_integer("max_queue", 512, "Most requests that wait for a model, in a worker.", 1, flag_values=values)
    flags.DEFINE_float("max_body_mb", 16, "Largest request.", 0, flag_values=values)
    flags.DEFINE_integer("max_instances", 1024, "Most rows of a request.", 1, flag_values=values)
    flags.DEFINE_integer("max_characters", 100_000, "Longest text.", 1, flag_values=values)
    flags.DEFINE_float("body_timeout_s", 20, "Longest time for a request to come.", 0, flag_values=values)
    flags.DEFINE_float("timeout_s", 30, "Longest time for its answer.", 0, flag_values=values)
    flags.DEFINE_float("grace_s", 20, "Longest time for requests that run when the server is told to stop.", 0,
                       flag_values=values)
    flags.DEFINE_string("token_file", None, "File of the bearer token that requests need.", flag_values=values)


def run(values, _):
    if sys.platform != "linux":
        raise InputError(f"serve runs on Linux alone; this is {sys.platform}: use a container, or TensorFlow Serving")
    try:
        from keras_bert.serving.settings import Settings
        from keras_bert.serving.supervisor import supervise
    except ImportError:
        raise InputError('serving needs FastAPI, uvicorn and more: pip install "keras-bert-hub[serve]"') from None

    options = values.flag_values_dict()
    models, token_file = _by_name(options.pop("model")), options.pop("token_file")
    supervise(Settings(models, token=_token(token_file) if token_file else "", **options))


def _by_name(arguments):
    models = {}
    for argument in arguments:
        name, path = re.fullmatch(r"(?:([^/=]+)=)?(.+)", argument, re.DOTALL).groups()
        name = name or os.path.basename(os.path.abspath(path))
        if not re.fullmatch(r"[\w.-]+", name):
            raise InputError(f"--model={argument}: a name must be of letters, digits and . _ -; got {name!r}")
        if name in models:
            raise InputError(f"--model={argument}: another model is named {name!r}; name this one NAME=PATH")
        models[name] = path
    return models


def _token(path):
    with reading(path), open(path, encoding="utf-8") as file:
        token = file.read().strip()
    if not token:
        raise InputError(f"{path}: must hold a token")
    return token
