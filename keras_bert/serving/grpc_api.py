"""TensorFlow Serving's gRPC interface, `PredictionService` and `ModelService`, and `grpc.health.v1.Health`."""

import asyncio
import math
import resource
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import grpc
import numpy as np
import tensorflow as tf
from google.protobuf.json_format import ParseDict
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tensorflow.core.framework import types_pb2
from tensorflow_serving.apis import get_model_metadata_pb2, get_model_status_pb2, model_pb2, predict_pb2

from keras_bert.inference.served_model import DEFAULT, STRING, Arrays, RequestError
from keras_bert.serving import logs, tensors
from keras_bert.serving.memory import RequestMemory
from keras_bert.serving.model import Model, ModelServer
from keras_bert.serving.version import LoadedVersion

_CODES = {400: grpc.StatusCode.INVALID_ARGUMENT, 401: grpc.StatusCode.UNAUTHENTICATED,
          404: grpc.StatusCode.NOT_FOUND, 408: grpc.StatusCode.DEADLINE_EXCEEDED, 413: grpc.StatusCode.INVALID_ARGUMENT,
          429: grpc.StatusCode.RESOURCE_EXHAUSTED, 503: grpc.StatusCode.UNAVAILABLE,
          504: grpc.StatusCode.DEADLINE_EXCEEDED}

_MAX_RANK = 254  # TensorFlow's
_MEMORY = 4  # bytes of memory for each byte of a message: it, its fields, and their arrays
_MAX_MESSAGE = 400  # characters of an error; in a header, each takes up to 12 bytes, of 8 KiB that clients accept
_DTYPES = {number: name.removeprefix("DT_").lower() for name, number in types_pb2.DataType.items()}
_STATUS = health_pb2.HealthCheckResponse
_WATCH_S = 0.2  # seconds after which a change of the health is told

# gRPC's defaults are made for clients that are trusted: connections have no limit of time, and the server closes those
# of clients that send a ping more often than every five minutes.
_CONNECTIONS = {
    "grpc.server_handshake_timeout_ms": 10_000,
    "grpc.max_connection_idle_ms": 300_000,
    "grpc.max_connection_age_ms": 600_000,  # so that a worker that was restarted gets its share of them again
    "grpc.keepalive_time_ms": 60_000,  # the server's own pings, which find clients that have disappeared
    "grpc.keepalive_timeout_ms": 20_000,
    "grpc.keepalive_permit_without_calls": 1,
    "grpc.http2.min_ping_interval_without_data_ms": 10_000,  # of clients
}


async def start_server(models: ModelServer, address: str) -> grpc.aio.Server:
    """Returns a server that answers at an address. Methods without a handler are UNIMPLEMENTED."""
    settings = models.settings
    methods: list[tuple[str, str, Any, Callable]] = [
        ("PredictionService", "Predict", predict_pb2.PredictRequest, _predict),
        ("PredictionService", "GetModelMetadata", get_model_metadata_pb2.GetModelMetadataRequest, _metadata),
        ("ModelService", "GetModelStatus", get_model_status_pb2.GetModelStatusRequest, _status)]
    server = grpc.aio.server(options=[
        *_CONNECTIONS.items(), ("grpc.so_reuseport", 1),
        # HTTP has three quarters of the descriptors; models and refusals need some, too.
        ("grpc.max_allowed_incoming_connections", resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 8),
        ("grpc.max_receive_message_length", settings.max_body),
        ("grpc.max_connection_age_grace_ms", int(1000 * (settings.body_timeout_s + settings.timeout_s)))])
    server.add_generic_rpc_handlers([
        grpc.method_handlers_generic_handler(f"tensorflow.serving.{service}", {
            # A stream of one message, which is the same on the wire: gRPC reads and deserializes other requests before
            # it calls the handler, which has yet to check the token.
            name: grpc.stream_unary_rpc_method_handler(_make_handler(models, name, request, method))})
        for service, name, request, method in methods])
    health_pb2_grpc.add_HealthServicer_to_server(_Health(models), server)
    server.add_insecure_port(address)
    await server.start()
    return server


class _Health(health_pb2_grpc.HealthServicer):
    """`grpc.health.v1.Health`: the status of each model and, under the name "", of the server. grpcio-health-checking
    has a servicer, too, but one client that reads nothing would stop its changes for all others."""

    def __init__(self, models: ModelServer) -> None:
        self._models = models

    def _status(self, name: str) -> int:
        if name and name not in self._models.models:
            return _STATUS.SERVICE_UNKNOWN
        return _STATUS.SERVING if self._models.is_ready(name) else _STATUS.NOT_SERVING

    async def Check(self, request: Any, context: grpc.aio.ServicerContext) -> Any:  # type: ignore[override]
        if (status := self._status(request.service)) == _STATUS.SERVICE_UNKNOWN:
            await context.abort(grpc.StatusCode.NOT_FOUND, "there is no model of this name")
        return _STATUS(status=status)

    async def Watch(self, request: Any, context: grpc.aio.ServicerContext) -> None:  # type: ignore[override]
        last = None
        while not self._models.stopping:  # otherwise, each watcher would delay the end by `grace_s`
            if (status := self._status(request.service)) != last:
                await context.write(_STATUS(status=status))
                last = status
            await asyncio.sleep(_WATCH_S)


def _make_handler(models: ModelServer, name: str, request_type: Any,
                  method: Callable[[Model, Any, int, logs.Entry, RequestMemory], Awaitable[bytes]]) -> Callable:
    """Returns a method's handler: checks the token, reads the request, limits the time, sets the status, and logs."""
    settings = models.settings

    async def handle(_: Any, context: grpc.aio.ServicerContext) -> bytes:
        with logs.log_request(name, name, f"/grpc/{name}", context.peer()) as entry, models.memory.request() as memory:
            try:
                authorization = dict(context.invocation_metadata()).get("authorization", "")
                models.check_access(authorization.encode(), "metadata authorization")
                body = await _read(context, settings.body_timeout_s)
                memory.reserve(_MEMORY * len(body))
                async with asyncio.timeout(settings.timeout_s):
                    request = await tensors.in_thread_if_large(len(body), request_type.FromString, body)
                    model = models.find(request.model_spec.name, entry)
                    response = await method(model, request, len(body), entry, memory)
                entry.status, entry.bytes = "OK", len(response)
                return response
            except RequestError as error:
                code, message = _CODES[error.status], error.message
            except DecodeError:
                code, message = _CODES[400], f"the request is not a {request_type.__name__}"
            except TimeoutError:
                code, message = _CODES[504], f"the answer took more than {settings.timeout_s:g} seconds"
            except asyncio.CancelledError:
                entry.status = "CANCELLED"
                raise
            except Exception:
                logs.logger.exception("%s failed", name)
                code, message = grpc.StatusCode.INTERNAL, "the server failed; its log says where"
            entry.status = code.name
        return await context.abort(code, " ".join(message[:_MAX_MESSAGE].split()))  # raises

    return handle


async def _read(context: grpc.aio.ServicerContext, seconds: float) -> bytes:
    try:
        async with asyncio.timeout(seconds):
            body = await context.read()
    except TimeoutError:
        raise RequestError(408, f"the request must come within {seconds:g} seconds") from None
    return b"" if body is grpc.aio.EOF else body


async def _predict(model: Model, request: Any, size: int, entry: logs.Entry, memory: RequestMemory) -> bytes:
    signature = request.model_spec.signature_name or DEFAULT
    with model.lease(_version(request), entry) as version:
        specs = tensors.find_signature(version.model.signatures, signature).inputs
        if specs.keys() != request.inputs.keys():
            raise RequestError(400, f"input names must be {', '.join(specs)}; got {', '.join(sorted(request.inputs))}")
        claimed = max(size, 8 * sum(math.prod(dim.size for dim in tensor.tensor_shape.dim[:_MAX_RANK])
                                    for tensor in request.inputs.values()))  # a few bytes can claim any shape
        inputs = await tensors.in_thread_if_large(
            claimed, _to_arrays, request.inputs, specs, version.limits, memory, _MEMORY * size)
        outputs, _ = await version.predict(signature, inputs, claimed, entry, memory)
    if unknown := set(request.output_filter) - outputs.keys():
        raise RequestError(400, f"output_filter: must be of {', '.join(outputs)}; got {', '.join(sorted(unknown))}")
    outputs = {name: outputs[name] for name in request.output_filter or outputs}
    return await tensors.in_thread_if_large(
        tensors.count_bytes(outputs), _write, outputs, _spec(model, version, signature))


def _write(outputs: Arrays, model_spec: model_pb2.ModelSpec) -> bytes:
    return predict_pb2.PredictResponse(
        outputs={name: tf.make_tensor_proto(array) for name, array in outputs.items()},
        model_spec=model_spec).SerializeToString()


async def _metadata(model: Model, request: Any, _: int, entry: logs.Entry, __: RequestMemory) -> bytes:
    if list(request.metadata_field) != ["signature_def"]:
        raise RequestError(400, f"metadata_field: must be signature_def; got {', '.join(request.metadata_field)}")
    with model.lease(_version(request), entry) as version:
        signatures = ParseDict({"signature_def": version.model.signature_defs},
                               get_model_metadata_pb2.SignatureDefMap())
    response = get_model_metadata_pb2.GetModelMetadataResponse(model_spec=_spec(model, version, ""))
    response.metadata["signature_def"].Pack(signatures)
    return response.SerializeToString()


async def _status(model: Model, request: Any, _: int, entry: logs.Entry, __: RequestMemory) -> bytes:
    status = model.get_status(_version(request), entry)
    return ParseDict(status, get_model_status_pb2.GetModelStatusResponse()).SerializeToString()


def _version(request: Any) -> int | None:
    if request.model_spec.version_label:
        raise RequestError(400, "version_label: versions have no labels here; name the number")
    return request.model_spec.version.value if request.model_spec.HasField("version") else None


def _spec(model: Model, version: LoadedVersion, signature: str) -> model_pb2.ModelSpec:
    return model_pb2.ModelSpec(name=model.name, version={"value": version.number}, signature_name=signature)


def _to_arrays(protos: Mapping[str, Any], specs: Mapping[str, tensors.Spec], limits: tensors.Limits,
               memory: RequestMemory, reserved: int) -> Arrays:
    """Converts tensors to arrays, and reserves memory for them, less the bytes that are already reserved."""
    arrays = {name: _to_array(name, protos[name], spec, limits) for name, spec in specs.items()}
    memory.reserve(max(0, tensors.count_bytes(arrays) - reserved))
    return arrays


def _to_array(name: str, tensor: Any, spec: tensors.Spec, limits: tensors.Limits) -> np.ndarray:
    """Converts a tensor to an array. Like TensorFlow, repeats the last value where the shape needs more."""
    if tensor.dtype != tf.as_dtype(spec.dtype).as_datatype_enum:
        raise RequestError(400, f"{name}: must be {spec}; got {_DTYPES.get(tensor.dtype, tensor.dtype)}")
    if len(tensor.tensor_shape.dim) > _MAX_RANK:
        raise RequestError(400, f"{name}: a shape may have at most {_MAX_RANK} dimensions; "
                                f"got {len(tensor.tensor_shape.dim)}")
    shape = [dim.size for dim in tensor.tensor_shape.dim]
    if min(shape, default=0) < 0:
        raise RequestError(400, f"{name}: the sizes of the shape must be at least 0; got {shape}")
    limits.check_shape(name, spec, shape)
    if spec.dtype == STRING and not tensor.string_val and math.prod(shape):
        tensor.string_val.append(b"")
    try:
        array = tf.make_ndarray(tensor)
    except (TypeError, ValueError) as error:
        raise RequestError(400, f"{name}: not a tensor: {' '.join(str(error).split())[:200]}") from None
    if spec.dtype == STRING and (size := sum(map(len, array.flat))) > limits.size:  # TensorFlow copies repeated strings
        raise RequestError(413, f"{name}: may have at most {limits.size} bytes; got {size}")
    return array
