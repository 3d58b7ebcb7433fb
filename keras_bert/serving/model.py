"""The models of a server: their versions are loaded, replaced and unloaded while requests run."""

import asyncio
import contextlib
import gc
import hmac
import math
import os
import time
from collections.abc import Coroutine
from typing import Any, NoReturn

from keras_bert.errors import InputError
from keras_bert.files.paths import is_saved_model
from keras_bert.inference.answering import load_served_model
from keras_bert.inference.served_model import DEFAULT, RequestError, ServedModel
from keras_bert.serving import metrics
from keras_bert.serving.logs import Entry, logger
from keras_bert.serving.memory import MemoryBudget
from keras_bert.serving.settings import Settings, find_versions
from keras_bert.serving.version import LoadedVersion

_OBSERVE_S = 0.1  # seconds between two updates of the metrics of what waits


class ModelServer:
    """The models of a server, and the rules that REST and gRPC share. While it is `draining`, nobody should send it new
    requests. Once it is `stopping`, it ends. `memory` is for all requests together."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.draining, self.stopping = settings, False, False
        self.memory = MemoryBudget(settings.memory)
        self.models = {name: Model(name, path, settings) for name, path in settings.models.items()}

    async def load(self) -> None:
        """Begins to write the metrics and to watch the models' folders. Returns when each has been checked."""
        self._observing = asyncio.create_task(self._observe())
        await asyncio.gather(*(model.load() for model in self.models.values()))

    async def _observe(self) -> NoReturn:
        """Writes the metrics of what waits now and then, because each request changes them several times."""
        while True:
            metrics.INFLIGHT.set(self.memory.used)
            for model in self.models.values():
                model.observe()
            await asyncio.sleep(_OBSERVE_S)

    def is_ready(self, name: str = "") -> bool:
        """Returns True if the model of that name, by default each model, is served, and the server is not draining."""
        return not self.draining and all(self.models[each].current for each in ([name] if name else self.models))

    def lateness(self) -> float:
        """Returns the most seconds that a batch of a model runs longer than `timeout_s`; if none does, less than 0."""
        return max(model.current.batcher.lateness if model.current else -math.inf for model in self.models.values())

    def check_access(self, authorization: bytes, field: str) -> None:
        """Raises a `RequestError` if the header or metadata `field` has the wrong token."""
        if self.settings.token:
            scheme, _, token = authorization.partition(b" ")
            is_bearer = scheme.lower() == b"bearer"
            # The comparison takes equally long for all wrong tokens.
            if not (is_bearer and hmac.compare_digest(token, self.settings.token.encode())):
                problem = f"the token in the {field} is wrong" if is_bearer else f"the {field} must be 'Bearer TOKEN'"
                raise RequestError(401, problem, {"WWW-Authenticate": "Bearer"})

    def find(self, name: str, entry: Entry) -> "Model":
        """Returns the model of that name, and records the name in the log entry; or raises a `RequestError`."""
        if name not in self.models:
            raise RequestError(404, f"there is no model of this name; there are {', '.join(self.models)}")
        entry.model = name
        return self.models[name]


class Model:
    """The versions of one model. The largest version under the path that can be loaded is served: `current`."""

    def __init__(self, name: str, path: str, settings: Settings) -> None:
        self.name, self.path, self.created = name, path, int(time.time())  # in Unix seconds
        self.is_empty = False  # True if there is no version in the folder
        self.current: LoadedVersion | None = None
        # The state of each version, a name of `ModelVersionStatus`, and a message that describes an error, or "".
        self.states: dict[int, tuple[str, str]] = {}
        self._settings = settings
        self._failed: dict[int, list] = {}  # fingerprints of the versions that could not be loaded
        self._is_checked = asyncio.Event()  # set when all versions in the folder have been tried, or one is served
        self._tasks: set[asyncio.Task] = set()
        for counter in (metrics.REJECTED, metrics.FAILED):
            counter(name).inc(0)  # Prometheus's `increase` misses the first event of a counter that begins with it

    async def load(self) -> None:
        """Begins to watch the folder. Returns when it has been checked for the first time."""
        self._start(self._watch())
        await self._is_checked.wait()

    def lease(self, number: int | None, entry: Entry) -> LoadedVersion:
        """Returns the version, by default the served one, as a context manager: it stays loaded until the block ends.
        Records its number in the log entry. Raises a `RequestError` if it is not served."""
        version = self.current
        if number is not None and number not in self.states:
            raise RequestError(404, f"{self.name} has no version {number}")
        if version is None:
            is_loading = not self.states or any(state == "LOADING" for state, _ in self.states.values())
            problem = ("has no version" if self.is_empty else "is still loading" if is_loading else
                       "cannot be loaded; its status says why")
            raise RequestError(503, f"{self.name} {problem}", {"Retry-After": "1"})
        if number not in (None, version.number):
            raise RequestError(404, f"{self.name}: version {number} is not served, version {version.number} is")
        entry.version = version.number
        return version

    def get_status(self, number: int | None, entry: Entry) -> dict[str, Any]:
        """Returns the status of one version or, if `number` is None, of all versions, as TensorFlow Serving's JSON."""
        if number not in (None, *self.states):
            raise RequestError(404, f"{self.name} has no version {number}")
        entry.version = number
        versions = sorted(self.states, reverse=True) if number is None else [number]
        return {"model_version_status": [
            {"version": str(version), "state": state,
             "status": {"error_code": "INTERNAL" if message else "OK", "error_message": message}}
            for version in versions for state, message in [self.states[version]]]}

    def observe(self) -> None:
        """Writes the metrics of what waits, and of versions that cannot be loaded."""
        waiting = (len(queue := self.current.batcher), queue.tokens, queue.abandoned) if self.current else (0, 0, 0)
        gauges = metrics.UNLOADABLE, metrics.QUEUE, metrics.QUEUE_TOKENS, metrics.ABANDONED
        for gauge, value in zip(gauges, (len(self._failed), *waiting)):
            gauge(self.name).set(value)

    async def _watch(self) -> NoReturn:
        """Checks the folder each second. Logs each problem once. If it cannot be read, the served version stays."""
        problem = ""
        while True:
            last, problem = problem, ""
            try:
                await self._check_folder()
            except Exception as error:
                problem = _describe(error)
                if problem != last:
                    logger.error({"event": "warning", "model": self.name, "message": problem},
                                 exc_info=not isinstance(error, InputError))
            self._is_checked.set()
            await asyncio.sleep(1)

    async def _check_folder(self) -> None:
        """Serves the largest version that can be loaded. The served one stays until another is loaded or the folder is
        empty."""
        found = await asyncio.to_thread(find_versions, self.path)
        self.is_empty = not found
        for number in self._failed.keys() - found:
            del self._failed[number], self.states[number]
        for number in sorted(found, reverse=True):
            if self.current and number == self.current.number or await self._load(number, found[number]):
                return
        if self.is_empty and self.current:
            self._serve(None)

    async def _load(self, number: int, folder: str) -> bool:
        """Loads and serves a version; returns True if it could. Otherwise, skips it until its folder changes."""
        fingerprint = await asyncio.to_thread(_fingerprint, folder)
        if self._failed.get(number) == fingerprint:
            return False
        self.states[number] = "LOADING", ""
        logger.info({"event": "loading", "model": self.name, "version": number})
        try:
            if is_saved_model(folder) and not self._settings.tensorflow:
                raise InputError(f"{folder}: is a SavedModel, and the server runs without TensorFlow: export it by "
                                 "keras-bert export litert, or restart the server where TensorFlow is installed")
            model = await asyncio.to_thread(
                load_served_model, folder, self._settings.threads, self._settings.row_wise.get(self.name, ()),
                self._settings.timeout_s, warm_up=True)
        except Exception as error:
            message = _describe(error)
            self._failed[number], self.states[number] = fingerprint, ("END", message)
            metrics.FAILED(self.name).inc()
            logger.error({"event": "failed", "model": self.name, "version": number, "error": message})
            return False
        gc.freeze()  # else, every few seconds, Python would look for cycles in TensorFlow and the graph, for 0.6 s
        version = LoadedVersion(self.name, number, model, self._settings)
        self._serve(version)
        self._failed.pop(number, None)
        self.states[number] = "AVAILABLE", ""
        metrics.VERSION(self.name, number).set(1)
        logger.info({"event": "available", "model": self.name, "version": number, "row_wise": sorted(model.row_wise)})
        for message in self._warnings(model):
            logger.warning({"event": "warning", "model": self.name, "version": number, "message": message})
        return True

    def _warnings(self, model: ServedModel) -> list[str]:
        """Returns messages about signatures that are left out, or should run in batches, but do not."""
        signatures = sorted(model.signatures)
        messages = [f"the signature {name} is left out: its inputs and outputs must be dense tensors"
                    for name in sorted(model.signature_defs.keys() - model.signatures)]
        messages += [f"--row_wise={self.name}:{name}: there is no such signature; there are {', '.join(signatures)}"
                     for name in self._settings.row_wise.get(self.name, ()) if name not in signatures]
        if model.is_unmarked and DEFAULT not in model.row_wise:
            messages.append("its requests run one by one, because version 0.1 or 0.2 exported it: export it again, or "
                            f"start the server with --row_wise={self.name}:{DEFAULT}")
        return messages

    def _serve(self, version: LoadedVersion | None) -> None:
        old, self.current = self.current, version
        if old:
            self._start(self._unload(old))

    def _start(self, work: Coroutine) -> asyncio.Task:
        task = asyncio.create_task(work)
        self._tasks.add(task)  # asyncio itself keeps no reference to a task
        task.add_done_callback(self._tasks.discard)
        return task

    async def _unload(self, version: LoadedVersion) -> None:
        """Waits until the requests on a version have ended, then closes it."""
        number = version.number
        self.states[number] = "UNLOADING", ""
        while version.leases:
            await asyncio.sleep(0.05)
        await version.close()
        gc.freeze()
        if not self.current or number != self.current.number:
            self.states[number] = "END", ""
        metrics.VERSION(self.name, number).set(0)
        logger.info({"event": "unloaded", "model": self.name, "version": number})


def _describe(error: Exception) -> str:
    return " ".join(str(error).split())[:500] or type(error).__name__


def _fingerprint(folder: str) -> list[tuple[str, int, int]]:
    """Returns a value that changes when the folder does: its contents, their permissions, or what links lead to."""
    paths = [os.path.join(where, name) for where, folders, files in os.walk(folder) for name in (*folders, *files)]
    return sorted((path, *_status(path)) for path in [folder, *paths])


def _status(path: str) -> tuple[int, int]:
    """Returns a file's time of change in nanoseconds, and its size; zeros if there is none, or no permission."""
    with contextlib.suppress(OSError):
        status = os.stat(path)
        return status.st_ctime_ns, status.st_size
    return 0, 0
