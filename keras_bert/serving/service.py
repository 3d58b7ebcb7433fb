"""The steps that REST and gRPC share: finding the model, checking the limits, waiting for the batch."""

import asyncio
import concurrent.futures

from keras_bert.serving import logs, metrics
from keras_bert.serving.artifact import Artifact, count_rows
from keras_bert.serving.batching import Batcher, QueueFull
from keras_bert.serving.refusal import RequestError
from keras_bert.serving.tensors import STRING
from keras_bert.serving.versions import Model


class Service:
    """The models of a server and its limits.

    Args:
        settings: `Settings`.

    Attributes:
        models: dict of names to `Model`s.
        stopping: True once the server accepts no more requests.
    """

    def __init__(self, settings):
        self.settings, self.stopping = settings, False
        self.models = {name: self._model(name, path) for name, path in settings.models.items()}

    def _model(self, name, path):
        async def load(folder):
            artifact = await asyncio.to_thread(_load, folder, self.settings.threads)
            return _Loaded(name, artifact, self.settings)

        def tell(**event):
            logs.tell(**event)
            if event["event"] == "failed":
                metrics.FAILED.labels(name, event["version"]).inc()
            else:
                metrics.VERSION.labels(name, event["version"]).set(event["event"] == "available")

        return Model(name, path, load, tell)

    def is_ready(self):
        """Returns True if each model has a version to answer with and the server is not stopping."""
        return not self.stopping and all(model.current is not None for model in self.models.values())

    def find(self, name, entry):
        """Returns the model of that name, and records the name in the log entry.

        Args:
            name: name of the model.
            entry: the `Entry` of the request.

        Raises:
            RequestError: there is no such model.
        """
        if name not in self.models:
            raise RequestError(404, f"there is no model of this name; there are {', '.join(self.models)}")
        entry.model = name
        return self.models[name]

    def states(self, name, number, entry):
        """Returns a list of (number, state, message) for one version or, if `number` is None, for all versions."""
        states = self.find(name, entry).states
        if number is None:
            return [(version, *states[version]) for version in sorted(states, reverse=True)]
        if number not in states:
            raise RequestError(404, f"{name} has no version {number}")
        entry.version = number
        return [(number, *states[number])]

    def metadata(self, name, number, entry):
        """Returns the number of a version and its `Artifact`."""
        with self.find(name, entry).lease(number) as (entry.version, loaded):
            return entry.version, loaded.artifact

    async def predict(self, name, number, read, entry):
        """Answers a request.

        Args:
            name: name of the model.
            number: the version number; None for the served version.
            read: function from the model's signatures to the name of one of them and the inputs, a dict of names to
                arrays.
            entry: the `Entry` of the request.

        Returns:
            The number of the version and the outputs, a dict of names to arrays.

        Raises:
            RequestError: the request cannot be answered, for a reason that can be foreseen.
        """
        with self.find(name, entry).lease(number) as (entry.version, loaded):
            signature, inputs = read(loaded.artifact.signatures)
            entry.instances = count_rows(inputs)
            self._check(inputs, entry.instances)
            answer = await loaded.predict(signature, inputs)
        entry.queue_ms, entry.compute_ms = round(answer.queued * 1000, 2), round(answer.computed * 1000, 2)
        return entry.version, answer.result

    def _check(self, inputs, rows):
        if rows > (most := self.settings.max_instances):
            raise RequestError(413, f"a request may have {most} instances; got {rows}")
        most = self.settings.max_characters
        for name, array in inputs.items():
            if array.dtype == STRING:
                for i, text in enumerate(array.flat):
                    if len(text) > most and (size := len(text.decode(errors="replace"))) > most:
                        row = i * rows // array.size + 1
                        raise RequestError(413, f"{name}: row {row}: a text may have {most} characters; got {size}")


def _load(folder, threads):
    artifact = Artifact(folder, threads)
    try:
        artifact.warm_up()
    except Exception:
        artifact.close()
        raise
    return artifact


class _Loaded:
    """A loaded version with its thread and its batches."""

    def __init__(self, name, artifact, settings):
        self.artifact, self._name = artifact, name
        self._thread = concurrent.futures.ThreadPoolExecutor(1)
        self._batcher = Batcher(self._run, settings.max_batch_tokens, settings.batch_timeout_ms / 1000,
                                settings.max_queue)
        self._work = asyncio.create_task(self._batcher.work())

    async def _run(self, requests):
        signature = requests[0][0]
        metrics.QUEUE.labels(self._name).set(len(self._batcher))
        metrics.BATCH.labels(self._name).observe(len(requests))
        with metrics.COMPUTE.labels(self._name).time():
            return await asyncio.get_running_loop().run_in_executor(
                self._thread, self.artifact.run, signature, [inputs for _, inputs in requests])

    async def predict(self, signature, inputs):
        tokens = self.artifact.count_tokens(inputs)
        metrics.TOKENS.labels(self._name).inc(tokens)
        metrics.QUEUE.labels(self._name).set(len(self._batcher) + 1)
        try:
            return await self._batcher.submit((signature, inputs), self.artifact.key(signature, inputs), tokens)
        except QueueFull:
            raise RequestError(429, f"{self._name} is busy: {len(self._batcher)} requests wait",
                               {"Retry-After": "1"}) from None

    async def close(self):
        self._work.cancel()
        await asyncio.to_thread(self._thread.shutdown)
        await asyncio.to_thread(self.artifact.close)
