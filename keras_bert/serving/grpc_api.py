"""TensorFlow Serving's gRPC interface: `PredictionService` and `ModelService` from `tensorflow-serving-api`."""

import asyncio
import math

import grpc
import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import get_model_metadata_pb2, get_model_status_pb2, predict_pb2

from keras_bert.serving import logs
from keras_bert.serving.tensors import DEFAULT, RequestError, find_signature

_CODES = {400: grpc.StatusCode.INVALID_ARGUMENT, 401: grpc.StatusCode.UNAUTHENTICATED,
          404: grpc.StatusCode.NOT_FOUND, 413: grpc.StatusCode.INVALID_ARGUMENT,
          429: grpc.StatusCode.RESOURCE_EXHAUSTED, 503: grpc.StatusCode.UNAVAILABLE,
          504: grpc.StatusCode.DEADLINE_EXCEEDED}


def create_server(models):
    """Returns a `grpc.aio.Server` for a `ModelServer`. Methods without a handler below are UNIMPLEMENTED."""
    services = {
        "PredictionService": {"Predict": (predict_pb2.PredictRequest, _predict),
                              "GetModelMetadata": (get_model_metadata_pb2.GetModelMetadataRequest, _metadata)},
        "ModelService": {"GetModelStatus": (get_model_status_pb2.GetModelStatusRequest, _status)},
    }
    server = grpc.aio.server(options=[("grpc.so_reuseport", 1),
                                      ("grpc.max_receive_message_length", models.settings.max_body)])
    server.add_generic_rpc_handlers([
        grpc.method_handlers_generic_handler(f"tensorflow.serving.{service}", {
            name: grpc.unary_unary_rpc_method_handler(
                _make_handler(models, name, method), request.FromString, lambda message: message.SerializeToString())
            for name, (request, method) in methods.items()})
        for service, methods in services.items()])
    return server


def _make_handler(models, name, method):
    """Returns the handler of a method: checks the token first, limits the time, sets the status code and writes the
    log."""
    async def handle(request, context):
        with logs.log_request(name, name, f"/grpc/{name}", context.peer()) as entry:
            try:
                authorization = dict(context.invocation_metadata()).get("authorization", "")
                models.check_access(authorization.encode(), "metadata authorization")
                async with asyncio.timeout(models.settings.timeout_s):
                    model = models.find(request.model_spec.name, entry)
                    response = await method(model, request, entry)
                entry.status, entry.bytes = "OK", response.ByteSize()
                return response
            except RequestError as error:
                code, message = _CODES[error.status], error.message
            except TimeoutError:
                code, message = _CODES[504], f"the answer took more than {models.settings.timeout_s:g} seconds"
            except asyncio.CancelledError:
                entry.status = "CANCELLED"
                raise
            except Exception:
                logs.logger.exception("%s failed", name)
                code, message = grpc.StatusCode.INTERNAL, "the server failed; its log says where"
            entry.status = code.name
        await context.abort(code, message)

    return handle


async def _predict(model, request, entry):
    signature = request.model_spec.signature_name or DEFAULT
    with model.lease(_version(request), entry) as version:
        specs = find_signature(version.saved_model.signatures, signature).inputs
        if specs.keys() != request.inputs.keys():
            raise RequestError(400, f"inputs: must be {', '.join(specs)}; got {', '.join(sorted(request.inputs))}")
        inputs = {name: _to_array(name, request.inputs[name], spec) for name, spec in specs.items()}
        outputs = await version.predict(signature, inputs, entry)
    if unknown := set(request.output_filter) - outputs.keys():
        raise RequestError(400, f"output_filter: must be of {', '.join(outputs)}; got {', '.join(sorted(unknown))}")
    names = request.output_filter or outputs
    response = predict_pb2.PredictResponse(outputs={name: tf.make_tensor_proto(outputs[name]) for name in names})
    _fill(response.model_spec, model, version, signature)
    return response


async def _metadata(model, request, entry):
    if list(request.metadata_field) != ["signature_def"]:
        raise RequestError(400, f"metadata_field: must be signature_def; got {', '.join(request.metadata_field)}")
    with model.lease(_version(request), entry) as version:
        signatures = get_model_metadata_pb2.SignatureDefMap(signature_def=version.saved_model.signature_defs)
    response = get_model_metadata_pb2.GetModelMetadataResponse()
    _fill(response.model_spec, model, version, "")
    response.metadata["signature_def"].Pack(signatures)
    return response


async def _status(model, request, entry):
    return model.get_status(_version(request), entry)


def _version(request):
    if request.model_spec.version_label:
        raise RequestError(400, "version_label: versions have no labels here; name the number")
    return request.model_spec.version.value if request.model_spec.HasField("version") else None


def _fill(spec, model, version, signature):
    spec.name, spec.version.value, spec.signature_name = model.name, version.number, signature


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
