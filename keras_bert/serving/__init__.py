"""A server of exported SavedModels, with TensorFlow Serving's REST and gRPC interfaces.

It reads SavedModels alone: no layer, model or tokenizer of this package is imported.
"""
