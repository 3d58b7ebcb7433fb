"""The Prometheus metrics, collected over all workers. A metric with labels is a function of their values.

Two environment variables must be set before this module is imported: PROMETHEUS_MULTIPROC_DIR, a folder for the
metrics' files, and `WORKER`, the number of the worker whose files they are. A worker that replaces one that has died
continues its files, so counters do not fall, and files do not pile up.
"""

import os
from functools import cache, partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest, values
from prometheus_client.multiprocess import MultiProcessCollector

WORKER = "KERAS_BERT_WORKER"
if worker := os.environ.get(WORKER):
    values.ValueClass = values.MultiProcessValue(lambda: worker)

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
FAILED = cache(Counter("keras_bert_load_failures", "Versions that could not be loaded.", ["model"]).labels)
DROPPED = Counter("keras_bert_dropped_log_lines", "Lines of the log that nobody read in time.")


def exposition() -> bytes:
    """Returns the metrics of all workers in Prometheus's text format."""
    registry = CollectorRegistry()
    MultiProcessCollector(registry)
    return generate_latest(registry)
