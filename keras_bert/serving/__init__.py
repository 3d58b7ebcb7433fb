"""A server of exported models with TensorFlow Serving's REST and gRPC interfaces.

It imports no layer or model of this package: TensorFlow runs SavedModels, and `LiteModel` LiteRT folders.
"""
