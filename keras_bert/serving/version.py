"""A loaded version of a model: it checks the requests, and runs them in batches."""

import asyncio
import concurrent.futures
from collections.abc import Mapping

import numpy as np
import orjson

from keras_bert.inference import served_model
from keras_bert.inference.served_model import STRING, Arrays, RequestError, RowMismatch, ServedModel, count_rows
from keras_bert.serving import metrics, tensors
from keras_bert.serving.batcher import Batcher, Overloaded, Part
from keras_bert.serving.logs import Entry, logger
from keras_bert.serving.memory import RequestMemory
from keras_bert.serving.settings import Settings

_RESPONSE = 6  # bytes of memory for each byte of the outputs: these, their JSON, and its copies


class LoadedVersion:
    """A loaded version of the model with this name, with the queue of its requests and the threads that run their
    batches. As a context manager, counts in `leases` the blocks that use it."""

    def __init__(self, name: str, number: int, model: ServedModel, settings: Settings) -> None:
        self.number, self.model, self.leases = number, model, 0
        separators = tensors.needed_separators(model.signatures, settings.max_instances, model.max_values)
        self.limits = tensors.Limits(settings.max_instances, model.max_values, settings.max_body, separators)
        self._name, self._settings = name, settings
        self._classes = orjson.dumps(model.labels) if model.labels else b""
        self._threads = concurrent.futures.ThreadPoolExecutor(model.parallel)
        self._batch_tokens, delay = model.batching(settings.max_batch_tokens, settings.batch_timeout_ms / 1000)
        self.batcher = Batcher(self._run_batch, self._batch_tokens, delay, settings.max_queue, settings.timeout_s,
                               model.parallel)
        self._batching = asyncio.create_task(self.batcher.work())

    def __enter__(self) -> "LoadedVersion":
        self.leases += 1
        return self

    def __exit__(self, *_: object) -> None:
        self.leases -= 1

    async def answer(self, body: bytes, entry: Entry, memory: RequestMemory) -> bytes:
        """Answers a predict request, JSON to JSON; see `predict`."""
        signature, inputs, is_rows = await tensors.in_thread_if_large(
            len(body), tensors.read_request, body, self.model.signatures, self.limits, memory.reserve)
        outputs, _ = await self.predict(signature, inputs, len(body), entry, memory)
        return await tensors.in_thread_if_large(
            tensors.count_bytes(outputs), tensors.write_response, outputs, entry.instances if is_rows else None,
            self._classes)

    async def predict(self, signature: str, inputs: Arrays, size: int, entry: Entry, memory: RequestMemory,
                      keys: Mapping[str, str] | None = None) -> tuple[Arrays, int]:
        """Answers a request of `size` bytes in batches with others. `keys` are the names of the inputs in messages, if
        the request has others. Returns the outputs, for which and for whose response it reserves memory, and the
        estimated number of tokens of the inputs. The log entry gets the number of rows and the times. Raises a
        `RequestError` if a limit is exceeded, or the model rejects the inputs."""
        entry.instances, entry.queue_ms, entry.compute_ms = count_rows(inputs), 0.0, 0.0
        parts = await tensors.in_thread_if_large(
            size, self._check_and_split, signature, inputs, entry.instances, keys or {})
        tokens = sum(tokens for _, tokens in parts)
        metrics.TOKENS(self._name).inc(tokens)
        try:
            return await self._run_parts(signature, parts, entry, memory), tokens
        except RowMismatch:
            self._stop_joining(signature)
            return await self._run_parts(signature, [(inputs, tokens)], entry, memory), tokens

    def _check_and_split(self, signature: str, inputs: Arrays, rows: int,
                         keys: Mapping[str, str]) -> list[tuple[Arrays, int]]:
        """Checks the limits of a request; returns it in parts, see `ServedModel.split`."""
        limit: float = self._settings.max_characters
        for name, array in inputs.items():
            if array.dtype == STRING:
                for i, text in enumerate(array.flat):
                    if len(text) > limit and (size := len(text.decode(errors="replace"))) > limit:
                        raise RequestError(413, f"{keys.get(name, name)}: row {i * rows // array.size + 1}: a text may "
                                                f"have at most {limit} characters (--max_characters); got {size}")
        tokens = self.model.count_tokens(signature, inputs)
        again, most = self.model.leaves_out_words(signature), self.model.max_values * len(inputs)
        longest, limit = int(tokens.max(initial=0)), max(limit * len(inputs), most * (most + 1) if again else most)
        if longest > limit:
            found = f"would be about {longest} tokens: the text once more for each of its words" if again else (
                f"has about {longest} tokens")
            raise RequestError(413, f"row {np.argmax(tokens) + 1} {found}; at most {limit} are allowed")
        self._check_output(self.model.count_attention(inputs, longest), rows, rows)
        return self.model.split(signature, inputs, tokens, self._batch_tokens)

    async def _run_parts(self, signature: str, parts: list[tuple[Arrays, int]], entry: Entry,
                         memory: RequestMemory) -> Arrays:
        outputs: list[Arrays] = []
        size, done, compute_ms, rows = 0, 0, 0.0, sum(count_rows(inputs) for inputs, _ in parts)
        queue = self.batcher.queue([Part((signature, inputs), self.model.batch_key(signature, inputs),
                                         max(1, tokens)) for inputs, tokens in parts])
        try:
            with queue as results:
                for (inputs, _), result in zip(parts, results):
                    answer = await result
                    entry.queue_ms = round(max(0, 1000 * answer.queued - compute_ms), 2)
                    compute_ms += 1000 * answer.computed
                    entry.compute_ms = round(compute_ms, 2)
                    if len(parts) > 1:
                        served_model.check_rows(answer.result, count_rows(inputs))
                    outputs.append(answer.result)
                    memory.reserve(_RESPONSE * (part_size := tensors.count_bytes(answer.result)))
                    done, size = done + count_rows(inputs), size + part_size
                    self._check_output(size, done, rows)
        except Overloaded as error:
            metrics.REJECTED(self._name).inc()
            raise RequestError(429, f"{self._name} is busy; waiting requests: {len(self.batcher)}, their tokens: "
                                    f"{self.batcher.tokens}", {"Retry-After": str(error.retry_after)}) from None
        return await tensors.in_thread_if_large(size, self.model.join, signature, outputs)

    def _check_output(self, size: int, done: int, rows: int) -> None:
        """Checks the size of the outputs for all rows, if the first `done` rows have outputs of `size` bytes."""
        limit, expected = self._settings.max_output, size * rows // max(1, done)
        if expected > limit:
            raise RequestError(413, f"the outputs would have {expected} bytes; at most {limit} are allowed "
                                    f"(--max_output_mb): send at most {limit * rows // expected} instances")

    async def _run_batch(self, requests: list[tuple[str, Arrays]]) -> list[Arrays]:
        signature = requests[0][0]
        metrics.BATCH(self._name).observe(len(requests))
        try:
            with metrics.COMPUTE(self._name).time():
                return await asyncio.get_running_loop().run_in_executor(
                    self._threads, self.model.run, signature, [inputs for _, inputs in requests])
        except RowMismatch:
            self._stop_joining(signature)
            raise

    def _stop_joining(self, signature: str) -> None:
        """From now on, runs requests of the signature one by one; logs it the first time."""
        if signature in self.model.row_wise:
            self.model.row_wise.remove(signature)
            logger.error({"event": "not row-wise", "model": self._name, "version": self.number, "signature": signature})

    async def close(self) -> None:
        """Stops the batches and frees the memory."""
        self._batching.cancel()
        await asyncio.to_thread(self._threads.shutdown)
        await asyncio.to_thread(self.model.close)
