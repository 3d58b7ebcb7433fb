"""What Prometheus reads, over all workers. The environment must name a folder for their files before this is imported:
PROMETHEUS_MULTIPROC_DIR."""

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
VERSION = Gauge("keras_bert_version_workers", "Workers that serve the version.", ["model", "version"],
                multiprocess_mode="livesum")
FAILED = Counter("keras_bert_load_failures", "Versions that could not be loaded.", ["model", "version"])


def exposition():
    """The metrics of all workers, bytes in Prometheus's text format."""
    registry = CollectorRegistry()
    MultiProcessCollector(registry)
    return generate_latest(registry)
