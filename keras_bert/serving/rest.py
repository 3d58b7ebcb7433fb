"""TensorFlow Serving's REST interface, and the endpoints for operators."""

import asyncio
from typing import Annotated

from fastapi import FastAPI, Path, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse
from google.protobuf.json_format import MessageToDict
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException

from keras_bert import __version__
from keras_bert.serving import metrics, openapi
from keras_bert.serving.refusal import RequestError
from keras_bert.serving.responses import write_response
from keras_bert.serving.tensors import read_request
from keras_bert.serving.web import add_page

Name = Annotated[str, Path(description="The model.")]
Version = Annotated[int, Path(description="Its version.", ge=0, le=2**63 - 1)]


def make_app(service):
    """Returns the FastAPI application of a `Service`. It expects that its middleware adds the `Entry` of each request
    to the scope."""
    app = FastAPI(title="keras-bert serve", version=__version__, docs_url=None, redoc_url=None)
    app.openapi = lambda: openapi.describe(app, list(service.models))
    app.add_exception_handler(RequestError, lambda _, error: refusal(error))
    app.add_exception_handler(HTTPException, _unknown)
    app.add_exception_handler(RequestValidationError, _bad_path)
    app.add_exception_handler(Exception, lambda *_: refusal(RequestError(500, "the server failed; its log says where")))

    async def predict(request: Request, name: Name, version: Version | None = None):
        def read(signatures):
            signature, inputs, request.state.is_rows = read_request(body, signatures)
            return signature, inputs

        body = await request.body()
        _, outputs = await service.predict(name, version, read, request.scope["entry"])
        entry = request.scope["entry"]
        times = {"Server-Timing": f"queue;dur={entry.queue_ms}, compute;dur={entry.compute_ms}"}
        return Response(write_response(outputs, request.state.is_rows), headers=times, media_type="application/json")

    async def status(request: Request, name: Name, version: Version | None = None):
        if ":" in name:  # GET for a path that needs POST
            raise HTTPException(405, headers={"Allow": "POST"})
        return {"model_version_status": [
            {"version": str(number), "state": state,
             "status": {"error_code": "INTERNAL" if message else "OK", "error_message": message}}
            for number, state, message in service.states(name, version, request.scope["entry"])]}

    async def metadata(request: Request, name: Name, version: Version | None = None):
        number, artifact = service.metadata(name, version, request.scope["entry"])
        signatures = {key: MessageToDict(signature, preserving_proto_field_name=True,
                                         always_print_fields_with_no_presence=True)
                      for key, signature in artifact.signature_defs.items()}
        labels = {"labels": artifact.labels} if artifact.labels else {}  # TensorFlow Serving has no field for them
        return {"model_spec": {"name": name, "signature_name": "", "version": str(number)},
                "metadata": {"signature_def": {"signature_def": signatures}, **labels}}

    async def examples(request: Request, name: Name, version: Version | None = None):
        service.find(name, request.scope["entry"])
        raise RequestError(400, f"{name} takes no tf.Example, as classify and regress do: use predict")

    for place in ("/v1/models/{name}", "/v1/models/{name}/versions/{version:int}"):
        def add(path, method, function, summary, place=place):
            app.add_api_route(place + path, function, methods=[method], summary=summary,
                              operation_id=f"{function.__name__}{path}{'_of_version' * ('version}' in place)}",
                              openapi_extra=openapi.EXTRA[function.__name__])

        add(":predict", "POST", predict, "Answer texts or ids.")
        add(":classify", "POST", examples, "Not for these models.")
        add(":regress", "POST", examples, "Not for these models.")
        add("/metadata", "GET", metadata, "The signatures.")
        add("", "GET", status, "The state of versions.")

    @app.get("/v1/models", summary="The names of the models, as KServe lists them.")
    async def models():
        return {"models": list(service.models)}

    @app.get("/healthz", summary="Whether the server is alive.", response_class=PlainTextResponse)
    async def healthz():
        return "ok"

    @app.get("/readyz", summary="Whether each model has a version to answer with.", response_class=PlainTextResponse)
    async def readyz():
        if not service.is_ready():
            raise RequestError(503, "stopping" if service.stopping else "a model has no version to answer with")
        return "ok"

    @app.get("/metrics", summary="For Prometheus.", response_class=PlainTextResponse)
    async def prometheus():
        return Response(await asyncio.to_thread(metrics.exposition), media_type=CONTENT_TYPE_LATEST)

    add_page(app)
    return app


def refusal(error):
    """Returns the response for a `RequestError`."""
    return JSONResponse({"error": error.message}, error.status, error.headers)


async def _unknown(_, error):
    message = {404: "there is nothing at this path", 405: "this path takes another method"}.get(
        error.status_code, str(error.detail))
    return refusal(RequestError(error.status_code, message, error.headers))


async def _bad_path(_, error):
    fault = error.errors()[0]
    return refusal(RequestError(400, f"{fault['loc'][-1]}: must be below 2^63; got {str(fault['input'])[:40]}"))
