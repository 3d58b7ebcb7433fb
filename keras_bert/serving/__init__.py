"""A server of exported models with TensorFlow Serving's REST and gRPC interfaces. Imports no layer or model."""

READY, ALIVE, LATE = b"r", b"a", b"l"  # what a worker writes to its supervisor, see worker.py
