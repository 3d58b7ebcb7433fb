"""A server of exported models with TensorFlow Serving's REST and gRPC interfaces. Imports no layer or model."""
