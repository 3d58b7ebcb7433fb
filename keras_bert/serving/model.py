"""The models of a server: their versions are loaded, replaced and unloaded while requests run."""

import asyncio
import concurrent.futures
import contextlib
import gc
import hmac
import os
import time

from tensorflow_serving.apis import get_model_status_pb2

from keras_bert.errors import InputError
from keras_bert.serving import metrics
from keras_bert.serving.batcher import Batcher
from keras_bert.serving.logs import logger
from keras_bert.serving.saved_model import RowMismatch, SavedModel, check_rows, count_bytes, count_rows
from keras_bert.serving.settings import find_versions
from keras_bert.serving.tensors import DEFAULT, STRING, Limits, RequestError

_SMALL = 10_000  # bytes; converting as much takes less time than starting a thread
_CONVERTERS = concurrent.futures.ThreadPoolExecutor(2, "converter")


async def convert(size, function, *arguments):
    """Returns the result of a function; calls it in a thread if what it converts has many bytes, so that the event loop
    answers others meanwhile."""
    if size <= _SMALL:
        return function(*arguments)
    return await asyncio.get_running_loop().run_in_executor(_CONVERTERS, function, *arguments)


class ModelServer:
    """The models of a server and the rules that REST and gRPC share.

    Args:
        settings: the `Settings`.

    Attributes:
        models: dict of names to `Model`s.
        stopping: True once the server accepts no more requests.
    """

    def __init__(self, settings):
        self.settings, self.stopping = settings, False
        self.models = {name: Model(name, path, settings) for name, path in settings.models.items()}

    def is_ready(self):
        """Returns True if each model has a version that can answer and the server is not stopping."""
        return not self.stopping and all(model.current for model in self.models.values())

    def check_access(self, authorization, field):
        """Raises `RequestError` if a request has the wrong token or the server is stopping.

        Args:
            authorization: value of the request's header or metadata, bytes.
            field: name of the header or metadata, for the message.
        """
        if self.settings.token:
            scheme, _, token = authorization.partition(b" ")
            is_bearer = scheme.lower() == b"bearer"
            # The comparison takes equally long for all wrong tokens.
            if not (is_bearer and hmac.compare_digest(token, self.settings.token.encode())):
                problem = f"the token in the {field} is wrong" if is_bearer else f"the {field} must be 'Bearer TOKEN'"
                raise RequestError(401, problem, {"WWW-Authenticate": "Bearer"})
        if self.stopping:
            raise RequestError(503, "the server is stopping", {"Retry-After": "1", "Connection": "close"})

    def find(self, name, entry):
        """Returns the model of that name, and records the name in the log entry.

        Raises:
            RequestError: there is no such model.
        """
        if name not in self.models:
            raise RequestError(404, f"there is no model of this name; there are {', '.join(self.models)}")
        entry.model = name
        return self.models[name]


class Model:
    """The versions of one model. The largest version that can be loaded is served.

    Args:
        name: name of the model.
        path: see `find_versions`.
        settings: the `Settings`.

    Attributes:
        current: the `LoadedVersion` that is served, or None.
        created: when this object was made, in Unix seconds.
        is_empty: True if there is no version in the folder.
        states: dict of numbers to (state, message). The state is a name of `ModelVersionStatus`; the message is that of
            an error, or "".
    """

    def __init__(self, name, path, settings):
        self.name, self.path, self.current, self.is_empty, self.states = name, path, None, False, {}
        self.created = int(time.time())
        self._settings, self._failed, self._tasks = settings, {}, set()

    @contextlib.contextmanager
    def lease(self, number, entry):
        """Context manager that yields the `LoadedVersion`, which stays loaded until the block ends.

        Args:
            number: the version number; None for the served version.
            entry: log entry of the request, which gets the number.

        Raises:
            RequestError: the version is not served.
        """
        version = self.current
        if number is not None and number not in self.states:
            raise RequestError(404, f"{self.name} has no version {number}")
        if version is None:
            problem = "has no version" if self.is_empty else "is still loading, or cannot be loaded"
            raise RequestError(503, f"{self.name} {problem}", {"Retry-After": "1"})
        if number not in (None, version.number):
            raise RequestError(404, f"{self.name}: version {number} is not served, version {version.number} is")
        entry.version = version.number
        version.leases += 1
        try:
            yield version
        finally:
            version.leases -= 1

    def get_status(self, number, entry):
        """Returns a `GetModelStatusResponse` with one version or, if `number` is None, with all versions."""
        if number not in (None, *self.states):
            raise RequestError(404, f"{self.name} has no version {number}")
        entry.version = number
        response = get_model_status_pb2.GetModelStatusResponse()
        for version in sorted(self.states, reverse=True) if number is None else [number]:
            state, message = self.states[version]
            response.model_version_status.add(version=version, state=state, status={
                "error_code": "INTERNAL" if message else "OK", "error_message": message})
        return response

    async def watch(self, seconds=1):
        """Checks the folder forever. If it is not available for a moment, for example on a network, the served version
        stays."""
        while True:
            with contextlib.suppress(InputError, OSError):
                await self._check_folder()
            await asyncio.sleep(seconds)

    async def _check_folder(self):
        """Serves the largest version in the folder that can be loaded. The served version stays until another one is
        loaded or the folder is empty."""
        found = await asyncio.to_thread(find_versions, self.path)
        self.is_empty = not found
        for number in sorted(found, reverse=True):
            if self.current and number == self.current.number or await self._load(number, found[number]):
                return
        if self.is_empty and self.current:
            self._serve(None)

    async def _load(self, number, folder):
        """Loads a version and serves it; returns True if it could be loaded. One that cannot be loaded is skipped until
        its folder changes."""
        fingerprint = await asyncio.to_thread(_fingerprint, folder)
        if self._failed.get(number) == fingerprint:
            return False
        self.states[number] = "LOADING", ""
        logger.info({"event": "loading", "model": self.name, "version": number})
        try:
            saved_model = await asyncio.to_thread(
                SavedModel, folder, self._settings.threads, self._settings.row_wise.get(self.name, ()),
                self._settings.timeout_s, warm_up=True)
        except Exception as error:
            message = " ".join(str(error).split())[:500] or type(error).__name__
            self._failed[number], self.states[number] = fingerprint, ("END", message)
            metrics.FAILED.labels(self.name, number).inc()
            logger.error({"event": "failed", "model": self.name, "version": number, "error": message})
            return False
        gc.freeze()  # else, every few seconds, Python would look for cycles in TensorFlow and the graph, for 0.6 s
        self._serve(LoadedVersion(self.name, number, saved_model, self._settings))
        self._start(self._warm_up_explain(self.current))
        self.states[number] = "AVAILABLE", ""
        metrics.VERSION.labels(self.name, number).set(1)
        logger.info({"event": "available", "model": self.name, "version": number,
                     "row_wise": sorted(saved_model.row_wise)})
        for message in self._warnings(saved_model):
            logger.warning({"event": "warning", "model": self.name, "version": number, "message": message})
        return True

    def _warnings(self, saved_model):
        """Returns messages about signatures that are left out, or should run in batches, but do not."""
        signatures = sorted(saved_model.signatures)
        messages = [f"the signature {name} is left out: its inputs and outputs must be dense tensors"
                    for name in sorted(saved_model.signature_defs.keys() - saved_model.signatures)]
        messages += [f"--row_wise={self.name}:{name}: there is no such signature; there are {', '.join(signatures)}"
                     for name in self._settings.row_wise.get(self.name, ()) if name not in signatures]
        if saved_model.is_unmarked and DEFAULT not in saved_model.row_wise:
            messages.append("its requests run one by one, because version 0.1 or 0.2 exported it: export it again, or "
                            f"start the server with --row_wise={self.name}:{DEFAULT}")
        return messages

    def _serve(self, version):
        old, self.current = self.current, version
        if old:
            self._start(self._unload(old))

    def _start(self, work):
        task = asyncio.create_task(work)
        self._tasks.add(task)  # asyncio itself keeps no reference to a task
        task.add_done_callback(self._tasks.discard)

    async def _warm_up_explain(self, version):
        """Warms up what only the page asks for, while the version answers."""
        version.leases += 1
        try:
            await asyncio.to_thread(version.saved_model.warm_up_explain)
        except Exception as error:  # the version answers nevertheless
            message = " ".join(str(error).split())[:500] or type(error).__name__
            logger.warning({"event": "warning", "model": self.name, "version": version.number,
                            "message": f"explain: {message}"})
        finally:
            version.leases -= 1

    async def _unload(self, version):
        """Waits until the requests on a version have ended, then closes it."""
        number = version.number
        self.states[number] = "UNLOADING", ""
        while version.leases:
            await asyncio.sleep(0.05)
        await version.close()
        gc.freeze()
        if not self.current or number != self.current.number:
            self.states[number] = "END", ""
        metrics.VERSION.labels(self.name, number).set(0)
        logger.info({"event": "unloaded", "model": self.name, "version": number})


class LoadedVersion:
    """A loaded version of a model, with the queue of its requests and the thread that runs their batches.

    Args:
        name: name of the model.
        number: number of the version.
        saved_model: `SavedModel`.
        settings: the `Settings`.

    Attributes:
        leases: number of requests that use this version.
        limits: `Limits` of the tensors of a request.
    """

    def __init__(self, name, number, saved_model, settings):
        self.number, self.saved_model, self.leases = number, saved_model, 0
        self.limits = Limits(settings.max_instances, saved_model.max_values, settings.max_body,
                             4 * settings.max_instances * saved_model.max_values)  # three inputs, and commas in texts
        self._name, self._settings = name, settings
        self._thread = concurrent.futures.ThreadPoolExecutor(1)
        self._batcher = Batcher(self._run, settings.max_batch_tokens, settings.batch_timeout_ms / 1000,
                                settings.max_queue)
        self._batching = asyncio.create_task(self._batcher.work())

    async def predict(self, signature, inputs, size, entry):
        """Answers a request in batches with others; returns the outputs, a dict of names to arrays.

        Args:
            signature: name of the signature.
            inputs: dict of names to arrays.
            size: size of the request in bytes.
            entry: log entry of the request, which gets the number of rows and the times.

        Raises:
            RequestError: a limit is exceeded, or the model rejects the inputs.
        """
        entry.instances, entry.queue_ms, entry.compute_ms = count_rows(inputs), 0.0, 0.0
        parts = await convert(size, self._prepare, signature, inputs, entry.instances)
        metrics.TOKENS.labels(self._name).inc(sum(tokens for _, tokens in parts))
        try:
            return await self._run_parts(signature, parts, entry)
        except RowMismatch:
            self._stop_joining(signature)
            return await self._run_parts(signature, [(inputs, sum(tokens for _, tokens in parts))], entry)

    def _prepare(self, signature, inputs, rows):
        """Checks the limits of a request; returns it in parts, see `SavedModel.split`."""
        limit = self._settings.max_characters
        for name, array in inputs.items():
            if array.dtype == STRING:
                for i, text in enumerate(array.flat):
                    if len(text) > limit and (size := len(text.decode(errors="replace"))) > limit:
                        row = i * rows // array.size + 1
                        raise RequestError(
                            413, f"{name}: row {row}: a text may have at most {limit} characters; got {size}")
        tokens, row = self.saved_model.largest_row(signature, inputs)
        if tokens > (limit := max(limit, self.saved_model.max_values) * len(inputs)):
            raise RequestError(413, f"row {row} has about {tokens} tokens; at most {limit} are allowed")
        self._check_output(self.saved_model.count_attention(inputs), rows, rows)
        return self.saved_model.split(signature, inputs, self._settings.max_batch_tokens)

    async def _run_parts(self, signature, parts, entry):
        """Runs the parts of a request one after the other, so that others need not wait for all of them."""
        outputs, size, done = [], 0, 0
        for inputs, tokens in parts:
            answer = await self._submit(signature, inputs, tokens)
            entry.queue_ms = round(entry.queue_ms + answer.queued * 1000, 2)
            entry.compute_ms = round(entry.compute_ms + answer.computed * 1000, 2)
            if len(parts) > 1:
                check_rows(answer.result, count_rows(inputs))
            outputs.append(answer.result)
            done, size = done + count_rows(inputs), size + count_bytes(answer.result)
            self._check_output(size, done, entry.instances)
        return await convert(size, self.saved_model.join, signature, outputs)

    def _check_output(self, size, done, rows):
        """Checks the size of the outputs, if that of the first rows is known."""
        limit, expected = self._settings.max_output, size * rows // max(1, done)
        if expected > limit:
            raise RequestError(413, f"the outputs would have {expected} bytes; at most {limit} are allowed: send at "
                                    f"most {limit * rows // expected} instances")

    async def _submit(self, signature, inputs, tokens):
        metrics.QUEUE.labels(self._name).set(len(self._batcher) + 1)
        try:
            return await self._batcher.submit(
                (signature, inputs), self.saved_model.batch_key(signature, inputs), tokens)
        except asyncio.QueueFull:
            raise RequestError(429, f"{self._name} is busy: {len(self._batcher)} requests wait",
                               {"Retry-After": "1"}) from None
        finally:
            metrics.ABANDONED.labels(self._name).set(self._batcher.abandoned)

    async def _run(self, requests):
        signature = requests[0][0]
        metrics.QUEUE.labels(self._name).set(len(self._batcher))
        metrics.BATCH.labels(self._name).observe(len(requests))
        try:
            with metrics.COMPUTE.labels(self._name).time():
                return await asyncio.get_running_loop().run_in_executor(
                    self._thread, self.saved_model.run, signature, [inputs for _, inputs in requests])
        except RowMismatch:
            self._stop_joining(signature)
            raise
        finally:
            metrics.ABANDONED.labels(self._name).set(0)

    def _stop_joining(self, signature):
        """From now on, runs requests of the signature one by one; logs it the first time."""
        if signature in self.saved_model.row_wise:
            self.saved_model.row_wise.remove(signature)
            logger.error({"event": "not row-wise", "model": self._name, "version": self.number,
                          "signature": signature})

    async def close(self):
        """Stops the batches and frees the memory."""
        self._batching.cancel()
        await asyncio.to_thread(self._thread.shutdown)
        await asyncio.to_thread(self.saved_model.close)


def _fingerprint(folder):
    """Returns a value that changes when the folder does."""
    return sorted((entry.path, entry.stat().st_mtime_ns, entry.stat().st_size)
                  for where, _, _ in os.walk(folder) for entry in os.scandir(where))
