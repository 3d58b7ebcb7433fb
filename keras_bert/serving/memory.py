"""The memory of the requests that a process answers at the same time."""

import asyncio
import contextlib
import math
import threading
from collections.abc import Iterator

from keras_bert.inference.served_model import RequestError, trim

TRIM_BYTES, TRIM_S = 64 * 2**20, 5  # released bytes after which memory is returned to the system, after so many seconds


class MemoryBudget:
    """A limit for the estimated bytes of all requests together, from their first byte to the last of their response.
    `used` are the bytes in use. After much has been released, makes glibc return free memory to the system: by itself,
    it returns only what is free at the end of its arena, so the memory of many large requests would stay."""

    def __init__(self, limit: float = math.inf) -> None:
        self.limit, self.used, self.peak = limit, 0, 0  # the peak since memory was last returned
        self.lock, self._will_trim = threading.Lock(), False  # large bodies are converted in threads

    @contextlib.contextmanager
    def request(self) -> Iterator["RequestMemory"]:
        """Yields the memory of a request, which is released when the block ends. Needs a running event loop."""
        memory = RequestMemory(self)
        try:
            yield memory
        finally:
            with self.lock:
                memory.has_ended = True
                self.used -= memory.size
            if self.peak - self.used >= TRIM_BYTES and not self._will_trim:
                self._will_trim = True
                asyncio.get_running_loop().call_later(TRIM_S, self._trim)

    def _trim(self) -> None:
        self.peak, self._will_trim = self.used, False
        asyncio.get_running_loop().run_in_executor(None, trim)


class RequestMemory:
    """The memory that one request has reserved, `size` in bytes, until it has ended."""

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget, self.size, self.has_ended = budget, 0, False

    def reserve(self, size: int) -> None:
        """Reserves more bytes. Raises a `RequestError` if the budget has not as many left, or the request has ended: a
        thread may still convert what nobody waits for."""
        budget = self._budget
        with budget.lock:
            if self.size + size > budget.limit:
                raise RequestError(413, f"the request needs about {self.size + size} bytes of memory; all requests "
                                        f"together may have {budget.limit}")
            if self.has_ended:
                raise RequestError(503, "the request has ended")
            if budget.used + size > budget.limit:
                raise RequestError(503, "the server has no memory for this request now", {"Retry-After": "1"})
            self.size += size
            budget.used += size
            budget.peak = max(budget.peak, budget.used)
