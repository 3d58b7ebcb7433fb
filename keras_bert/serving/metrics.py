"""The Prometheus metrics, collected over all workers. A metric with labels is a function of their values.

prometheus_client has a mode for several processes, in which each writes files. Here these are memory that the
supervisor has made: no disk can be full, and nobody can remove it. A worker that replaces one that has died continues
its memory, so counters do not fall. Before this module is imported in a worker, `environment` must have been set.
"""

import json
import os
from collections.abc import Iterable, Mapping
from functools import cache, partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, generate_latest, mmap_dict, values
from prometheus_client.multiprocess import MultiProcessCollector

_MEMORIES, _WORKER, _LOST = "KERAS_BERT_METRICS", "KERAS_BERT_WORKER", "KERAS_BERT_LOST"  # environment variables
_SIZE = 2**24  # bytes of a memory; only what is used takes any. It never grows, for which descriptors could be missing
_memories: dict[str, int] = json.loads(os.environ.get(_MEMORIES, "{}"))  # file descriptors by prometheus_client's names


def make_memories(workers: int) -> dict[str, int]:
    """Returns file descriptors of memory for the metrics of workers."""
    kinds = "counter", "histogram", "gauge_livesum"
    memories = {f"{kind}_{worker}.db": os.memfd_create(kind) for worker in range(workers) for kind in kinds}
    for memory in memories.values():
        os.ftruncate(memory, _SIZE)
    return memories


def environment(memories: Mapping[str, int], worker: int, lost: str) -> dict[str, str]:
    """Returns the environment variables of a worker with this number. `lost` says what happened to its predecessor."""
    return {_MEMORIES: json.dumps(memories), "PROMETHEUS_MULTIPROC_DIR": "", _WORKER: str(worker), _LOST: lost}


def reset_gauges(memories: Mapping[str, int], worker: int) -> None:
    """Removes the gauges of a worker that has died."""
    os.pwrite(memories[f"gauge_livesum_{worker}.db"], bytes(8), 0)  # the size of what is used


if _memories:
    mmap_dict.open = lambda name, mode: open(f"/proc/self/fd/{_memories[name]}", mode)  # type: ignore[attr-defined]
    values.ValueClass = values.MultiProcessValue(lambda: os.environ[_WORKER])

_SECONDS = (.002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10, 30)
_COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_Gauge = partial(Gauge, multiprocess_mode="livesum")  # the sum over the live workers

# With `cache`, a metric is found without the lock of `labels`.
REQUESTS = cache(Counter("keras_bert_requests", "Requests answered.", ["model", "method", "code"]).labels)
LATENCY = cache(Histogram(
    "keras_bert_request_seconds", "From the first byte to the last.", ["model", "method"], buckets=_SECONDS).labels)
COMPUTE = cache(Histogram(
    "keras_bert_batch_seconds", "What the calls of the model took.", ["model"], buckets=_SECONDS).labels)
BATCH = cache(Histogram("keras_bert_batch_requests", "Requests in a batch.", ["model"], buckets=_COUNTS).labels)
TOKENS = cache(Counter("keras_bert_tokens", "Tokens, estimated.", ["model"]).labels)
QUEUE = cache(_Gauge("keras_bert_queue_requests", "Requests that wait.", ["model"]).labels)
QUEUE_TOKENS = cache(_Gauge(
    "keras_bert_queue_tokens", "Tokens of the requests that wait, estimated.", ["model"]).labels)
REJECTED = cache(Counter("keras_bert_rejected_requests", "Requests rejected because too much waits.", ["model"]).labels)
INFLIGHT = _Gauge("keras_bert_inflight_bytes", "Memory of the requests that are received and answered, estimated.")
ABANDONED = cache(_Gauge(
    "keras_bert_abandoned_requests", "Requests that still run although nobody waits for the answer.", ["model"]).labels)
VERSION = cache(_Gauge("keras_bert_version_workers", "Workers that serve the version.", ["model", "version"]).labels)
UNLOADABLE = cache(_Gauge("keras_bert_failed_versions", "Versions that cannot be loaded.", ["model"]).labels)
FAILED = cache(Counter("keras_bert_load_failures", "Versions that could not be loaded.", ["model"]).labels)
DROPPED = Counter("keras_bert_dropped_log_lines", "Lines of the log that nobody read in time.")
LOST = Counter("keras_bert_lost_workers", "Workers that were replaced because they died or hung.", ["cause"]).labels
for cause in ("died", "hung"):
    LOST(cause).inc(cause == os.environ.get(_LOST))


class _Collector:
    def collect(self) -> Iterable[Metric]:
        return MultiProcessCollector.merge(_memories)


def exposition() -> bytes:
    """Returns the metrics of all workers in Prometheus's text format."""
    registry = CollectorRegistry()
    registry.register(_Collector())
    return generate_latest(registry)
