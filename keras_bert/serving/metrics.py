"""The Prometheus metrics, collected over all workers.

The environment variable PROMETHEUS_MULTIPROC_DIR must name a folder for the metrics' files before this module is
imported.
"""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

_SECONDS = (.002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10, 30)
_COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)

REQUESTS = Counter("keras_bert_requests", "Requests answered.", ["model", "method", "code"])
LATENCY = Histogram("keras_bert_request_seconds", "From the first byte to the last.", ["model", "method"],
                    buckets=_SECONDS)
COMPUTE = Histogram("keras_bert_batch_seconds", "What the calls of TensorFlow took.", ["model"], buckets=_SECONDS)
BATCH = Histogram("keras_bert_batch_requests", "Requests in a batch.", ["model"], buckets=_COUNTS)
TOKENS = Counter("keras_bert_tokens", "Tokens, estimated.", ["model"])
QUEUE = Gauge("keras_bert_queue_requests", "Requests that wait.", ["model"], multiprocess_mode="livesum")
QUEUE_TOKENS = Gauge("keras_bert_queue_tokens", "Tokens of the requests that wait, estimated.", ["model"],
                     multiprocess_mode="livesum")
REJECTED = Counter("keras_bert_rejected_requests", "Requests rejected because too much waits.", ["model"])
INFLIGHT = Gauge("keras_bert_inflight_bytes", "Memory of the requests that are received and answered, estimated.",
                 multiprocess_mode="livesum")
ABANDONED = Gauge("keras_bert_abandoned_requests", "Requests that still run although nobody waits for the answer.",
                  ["model"], multiprocess_mode="livesum")
VERSION = Gauge("keras_bert_version_workers", "Workers that serve the version.", ["model", "version"],
                multiprocess_mode="livesum")
FAILED = Counter("keras_bert_load_failures", "Versions that could not be loaded.", ["model", "version"])


def exposition() -> bytes:
    """Returns the metrics of all workers in Prometheus's text format."""
    registry = CollectorRegistry()
    MultiProcessCollector(registry)
    return generate_latest(registry)
