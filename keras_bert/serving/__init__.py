"""A server of exported SavedModels with TensorFlow Serving's REST and gRPC interfaces.

It reads only SavedModels and imports no layer, model or tokenizer of this package.
"""
