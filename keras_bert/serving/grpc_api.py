"""TensorFlow Serving's gRPC interface: `PredictionService` and `ModelService` from `tensorflow-serving-api`."""

import asyncio
import math

import grpc
import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import (
    get_model_metadata_pb2,
    get_model_status_pb2,
    predict_pb2,
)

from keras_bert.serving import logs
from keras_bert.serving.middleware import has_token
from keras_bert.serving.refusal import RequestError
from keras_bert.serving.tensors import DEFAULT, find_signature

_CODES = {400: grpc.StatusCode.INVALID_ARGUMENT, 401: grpc.StatusCode.UNAUTHENTICATED,
          404: grpc.StatusCode.NOT_FOUND, 413: grpc.StatusCode.INVALID_ARGUMENT,
          429: grpc.StatusCode.RESOURCE_EXHAUSTED, 503: grpc.StatusCode.UNAVAILABLE,
          504: grpc.StatusCode.DEADLINE_EXCEEDED}


def make_server(service):
    """Returns a `grpc.aio.Server` for a `Service`. Methods that are not listed here are UNIMPLEMENTED."""
    methods = {
        "PredictionService": {"Predict": (predict_pb2.PredictRequest, _predict),
                              "GetModelMetadata": (get_model_metadata_pb2.GetModelMetadataRequest, _metadata)},
        "ModelService": {"GetModelStatus": (get_model_status_pb2.GetModelStatusRequest, _status)},
    }
    server = grpc.aio.server(options=[("grpc.so_reuseport", 1),
                                      ("grpc.max_receive_message_length", service.settings.max_body)])
    server.add_generic_rpc_handlers([
        grpc.method_handlers_generic_handler(f"tensorflow.serving.{name}", {
            method: grpc.unary_unary_rpc_method_handler(
                _observed(service, method, function), request.FromString, _to_bytes)
            for method, (request, function) in table.items()})
        for name, table in methods.items()])
    return server


def _to_bytes(message):
    return message.SerializeToString()


def _observed(service, method, function):
    """Wraps a method's function: checks the token first, limits the time, sets the status code and writes the log."""
    async def call(request, context):
        client = context.peer()
        with logs.observed(method, method, f"/grpc/{method}", client) as entry:
            try:
                _admit(service, context)
                async with asyncio.timeout(service.settings.timeout_s):
                    response = await function(service, request, entry)
                entry.status, entry.bytes = "OK", response.ByteSize()
                return response
            except RequestError as error:
                code, message = _CODES[error.status], error.message
            except TimeoutError:
                code, message = _CODES[504], f"the answer took more than {service.settings.timeout_s:g} seconds"
            except asyncio.CancelledError:
                entry.status = "CANCELLED"
                raise
            except Exception as error:
                logs.tell_bug(error)
                code, message = grpc.StatusCode.INTERNAL, "the server failed; its log says where"
            entry.status = code.name
        await context.abort(code, message)

    return call


def _admit(service, context):
    header = dict(context.invocation_metadata()).get("authorization", "")
    if not has_token(header.encode(), service.settings.token):
        raise RequestError(401, "the metadata authorization must be Bearer and the token")
    if service.stopping:
        raise RequestError(503, "the server is stopping")


async def _predict(service, request, entry):
    def read(signatures):
        specs = find_signature(signatures, signature).inputs
        if specs.keys() != request.inputs.keys():
            raise RequestError(400, f"inputs: must be {', '.join(specs)}; got {', '.join(sorted(request.inputs))}")
        return signature, {name: _to_array(name, request.inputs[name], spec) for name, spec in specs.items()}

    signature = request.model_spec.signature_name or DEFAULT
    number, outputs = await service.predict(request.model_spec.name, _version(request), read, entry)
    if unknown := set(request.output_filter) - outputs.keys():
        raise RequestError(400, f"output_filter: must be of {', '.join(outputs)}; got {', '.join(sorted(unknown))}")
    wanted = request.output_filter or outputs
    response = predict_pb2.PredictResponse(outputs={name: tf.make_tensor_proto(outputs[name]) for name in wanted})
    _fill(response.model_spec, request, number, signature)
    return response


async def _metadata(service, request, entry):
    if list(request.metadata_field) != ["signature_def"]:
        raise RequestError(400, f"metadata_field: must be signature_def; got {', '.join(request.metadata_field)}")
    number, artifact = service.metadata(request.model_spec.name, _version(request), entry)
    response = get_model_metadata_pb2.GetModelMetadataResponse()
    _fill(response.model_spec, request, number, "")
    signature_map = get_model_metadata_pb2.SignatureDefMap(signature_def=artifact.signature_defs)
    response.metadata["signature_def"].Pack(signature_map)
    return response


async def _status(service, request, entry):
    response = get_model_status_pb2.GetModelStatusResponse()
    for number, state, message in service.states(request.model_spec.name, _version(request), entry):
        code = grpc.StatusCode.INTERNAL if message else grpc.StatusCode.OK
        response.model_version_status.add(
            version=number, state=state, status={"error_code": code.value[0], "error_message": message})
    return response


def _version(request):
    if request.model_spec.version_label:
        raise RequestError(400, "version_label: versions have no labels here; name the number")
    return request.model_spec.version.value if request.model_spec.HasField("version") else None


def _fill(spec, request, number, signature):
    spec.name, spec.version.value, spec.signature_name = request.model_spec.name, number, signature


def _to_array(name, tensor, spec):
    """Converts a tensor to an array. Checks the shape before reading, because a TensorProto of a few bytes can claim
    any size."""
    dtype = tf.as_dtype(tensor.dtype) if tensor.dtype else None
    if dtype is None or np.dtype(dtype.as_numpy_dtype) != spec.dtype:
        raise RequestError(400, f"{name}: must be {spec}; got {dtype and dtype.name}")
    shape = [dim.size for dim in tensor.tensor_shape.dim]
    if not spec.fits(shape):
        raise RequestError(400, f"{name}: must be {spec}; got the shape {shape}")
    if min(shape, default=0) < 0 or math.prod(shape) > tensor.ByteSize():
        raise RequestError(400, f"{name}: the shape {shape} must have as many values as the tensor")
    try:
        return tf.make_ndarray(tensor)
    except (TypeError, ValueError) as error:
        raise RequestError(400, f"{name}: not a tensor: {' '.join(str(error).split())[:200]}") from None
