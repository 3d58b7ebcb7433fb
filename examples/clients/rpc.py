"""Asks a model of `keras-bert serve`, or of TensorFlow Serving, over gRPC, with the stock stubs.

    pip install tensorflow-serving-api
    TOKEN=… python rpc.py localhost:8500 intents "play some music" "lights off"
    python rpc.py localhost:8500 pairs '{"text": "lights off", "text_pair": "turn the lamp off"}'
"""

import json
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import grpc
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc


def predict(channel, model, inputs, token=""):
    """The outputs, a dict of names to arrays, for a dict of names to lists of texts."""
    request = predict_pb2.PredictRequest(
        model_spec={"name": model}, inputs={name: tf.make_tensor_proto(texts) for name, texts in inputs.items()})
    metadata = [("authorization", f"Bearer {token}".encode())] if token else []
    response = prediction_service_pb2_grpc.PredictionServiceStub(channel).Predict(request, 60, metadata)
    return {name: tf.make_ndarray(tensor) for name, tensor in response.outputs.items()}


def main(address, model, *texts):
    rows = [json.loads(text) if text.startswith("{") else {"text": text} for text in texts]
    inputs = {name: [row[name] for row in rows] for name in rows[0]}
    try:
        with grpc.insecure_channel(address) as channel:
            outputs = predict(channel, model, inputs, os.environ.get("TOKEN", ""))
    except grpc.RpcError as error:
        sys.exit(f"{error.code().name}: {error.details()}")
    for row in zip(*(array.tolist() for array in outputs.values())):
        print(json.dumps(dict(zip(outputs, row)), ensure_ascii=False, default=bytes.decode))


if __name__ == "__main__":
    main(*sys.argv[1:])
