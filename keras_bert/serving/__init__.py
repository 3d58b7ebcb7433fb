"""A server of exported models with TensorFlow Serving's REST and gRPC interfaces. Imports no layer or model."""

READY, ALIVE, LATE, STUCK = b"r", b"a", b"l", b"ls"  # what a worker writes to its supervisor, see worker.py
