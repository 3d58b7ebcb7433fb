"""The FastAPI application: TensorFlow Serving's REST interface, OpenAI's embeddings, endpoints for operators, and the
page at `/`."""

import asyncio
import contextlib
import importlib.resources
import math
import os
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any, NoReturn

from fastapi import APIRouter, Depends, FastAPI, Path, Request, Response
from fastapi.middleware import Middleware
from fastapi.responses import PlainTextResponse
from fastapi.security import HTTPBearer
from google.protobuf.json_format import MessageToDict
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.routing import Route

from keras_bert import __version__
from keras_bert.serving import embeddings, logs, metrics, rerank, schema
from keras_bert.serving.middleware import RequestMiddleware, respond_error, respond_request_error
from keras_bert.serving.model import Model, ModelServer
from keras_bert.serving.saved_model import count_bytes
from keras_bert.serving.tensors import DEFAULT, RequestError, decompress
from keras_bert.serving.version import in_thread_if_large

# ---------------------------------------------------------------------------------------------------------------------
# Dependencies. All are `async`, because FastAPI runs others in a thread.


async def get_server(request: Request) -> ModelServer:
    return request.app.state.server


async def get_entry(request: Request) -> logs.Entry:
    return request.state.entry


Server = Annotated[ModelServer, Depends(get_server)]
Entry = Annotated[logs.Entry, Depends(get_entry)]


async def check_access(request: Request, server: Server) -> None:
    """Rejects requests without the token, and all while the server is stopping."""
    server.check_access(request.headers.get("authorization", "").encode("latin-1"), "header Authorization")


async def find_model(
        server: Server, entry: Entry, name: Annotated[str, Path(description="The model; /v1/models lists them.")]
) -> Model:
    if ":" in name:  # GET for a path that needs POST
        raise HTTPException(405, headers={"Allow": "POST"})
    return server.find(name, entry)


async def check_version(version: Annotated[int, Path(description="Its version, below 2^63.")]) -> None:
    """Declares the version in the path, and rejects what is not an int64."""
    if version >= 2**63:
        raise RequestError(400, f"version: must be below 2^63; got {str(version)[:40]}")


async def get_version(request: Request) -> int | None:
    """Returns the version in the path; None, for the served version, if there is none."""
    return request.path_params.get("version")


async def read_body(request: Request, server: Server) -> bytes:
    """Returns the body of the request, decompressed."""
    body = await request.body()
    if "gzip" in request.headers.get("content-encoding", ""):
        body = await asyncio.to_thread(decompress, body, server.settings.max_body)
    return body


Body = Annotated[bytes, Depends(read_body)]
NamedModel = Annotated[Model, Depends(find_model)]
Version = Annotated[int | None, Depends(get_version)]

# ---------------------------------------------------------------------------------------------------------------------
# Endpoints of a model. The router is included twice: for the served version, and for a version in the path.

model_router = APIRouter(responses=schema.ERRORS)


@model_router.post(":predict", summary="Answer texts or ids.", openapi_extra=schema.PREDICT_REQUEST,
                   response_model=schema.Predictions | schema.Outputs)
async def predict(model: NamedModel, number: Version, body: Body, entry: Entry) -> Response:
    with model.lease(number, entry) as version:
        return respond_json(await version.answer(body, entry), entry)


@model_router.post(":classify", summary="Not for these models.", status_code=400, response_model=schema.Error)
@model_router.post(":regress", summary="Not for these models.", status_code=400, response_model=schema.Error)
async def reject_examples(model: NamedModel) -> NoReturn:
    raise RequestError(400, f"{model.name} takes no tf.Example, as classify and regress do: use predict")


@model_router.get("/metadata", summary="The signatures.", response_model=schema.ModelMetadata)
async def metadata(model: NamedModel, number: Version, entry: Entry) -> dict[str, Any]:
    with model.lease(number, entry) as version:
        saved_model = version.saved_model
    signatures = {name: _to_json(signature) for name, signature in saved_model.signature_defs.items()}
    # TensorFlow Serving has no fields for these.
    more = {"hangul": saved_model.has_hangul} | ({"labels": saved_model.labels} if saved_model.labels else {})
    return {"model_spec": {"name": model.name, "signature_name": "", "version": str(version.number)},
            "metadata": {"signature_def": {"signature_def": signatures}, **more}}


@model_router.get("", summary="The state of versions.", response_model=schema.ModelStatus)
async def status(model: NamedModel, number: Version, entry: Entry) -> dict[str, Any]:
    return _to_json(model.get_status(number, entry))


def respond_json(content: bytes, entry: logs.Entry) -> Response:
    """Returns the response to a request that a model has answered."""
    times = {"Server-Timing": f"queue;dur={entry.queue_ms}, compute;dur={entry.compute_ms}"}
    return Response(content, headers=times, media_type="application/json")


def _to_json(message: Any) -> dict[str, Any]:
    return MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)


# ---------------------------------------------------------------------------------------------------------------------
# Endpoints of the server. `protected` needs the token, if the server has one.

protected = APIRouter(dependencies=[Depends(check_access)])
public = APIRouter()
protected.include_router(model_router, prefix="/v1/models/{name}")
protected.include_router(model_router, prefix="/v1/models/{name}/versions/{version:int}",
                         dependencies=[Depends(check_version)])


@protected.get("/v1/models", summary="The models, as KServe (`models`) and OpenAI (`data`) list them.",
               response_model=schema.Models)
async def models(server: Server) -> dict[str, Any]:
    return {"models": list(server.models), "object": "list", "data": [
        {"id": model.name, "object": "model", "created": model.created, "owned_by": "keras-bert"}
        for model in server.models.values()]}


@protected.post(embeddings.PATH, summary="Embed texts, as OpenAI's interface does.", responses=schema.OPENAI_ERRORS,
                openapi_extra=schema.EMBEDDINGS_REQUEST, response_model=schema.Embeddings)
async def embed(body: Body, server: Server, entry: Entry) -> Response:
    total = max((model.current.limits.total for model in server.models.values() if model.current), default=math.inf)
    asked = await in_thread_if_large(len(body), embeddings.Request, body, total)
    with server.find(asked.model, entry).lease(None, entry) as version:
        inputs = await in_thread_if_large(len(body), asked.inputs, version.saved_model.signatures, version.limits)
        outputs, estimated_tokens = await version.predict(asked.signature, inputs, len(body), entry)
    content = await in_thread_if_large(count_bytes(outputs), asked.response, outputs, estimated_tokens,
                                       server.settings.no_normalize)
    return respond_json(content, entry)


@protected.post("/rerank", summary="Re-rank texts, as text-embeddings-inference does.", responses=schema.ERRORS,
                openapi_extra=schema.rerank_request("texts", "raw_scores", "return_text"),
                response_model=list[schema.Ranked])
@protected.post("/v1/rerank", summary="Re-rank documents, as Jina's and Cohere's interfaces do.",
                responses=schema.ERRORS, response_model=schema.Reranked,
                openapi_extra=schema.rerank_request("documents", "top_n", "return_documents"))
@protected.post("/v2/rerank", summary="Re-rank documents, as Cohere's interface does.", responses=schema.ERRORS,
                openapi_extra=schema.rerank_request("documents", "top_n"), response_model=schema.Reranked)
async def rerank_documents(request: Request, body: Body, server: Server, entry: Entry) -> Response:
    total = max((model.current.limits.total for model in server.models.values() if model.current), default=math.inf)
    asked = await in_thread_if_large(len(body), rerank.Request, body, total, rerank.PATHS[request.scope["path"]])
    name = asked.choose(name for name, model in server.models.items()
                        if model.current and rerank.can_rerank(model.current.saved_model.signatures))
    with server.find(name, entry).lease(None, entry) as version:
        inputs = await in_thread_if_large(len(body), asked.inputs, name, version.saved_model.signatures, version.limits)
        outputs, tokens = await version.predict(DEFAULT, inputs, len(body), entry)
    return respond_json(await in_thread_if_large(count_bytes(outputs), asked.response, name, outputs, tokens), entry)


@protected.get("/metrics", summary="For Prometheus.", response_class=PlainTextResponse)
async def prometheus() -> Response:
    return Response(await asyncio.to_thread(metrics.exposition), media_type=CONTENT_TYPE_LATEST)


@protected.get("/openapi.json", include_in_schema=False)
async def openapi(request: Request) -> dict[str, Any]:
    return request.app.openapi()


@public.get("/healthz", summary="Whether the server is alive.", response_class=PlainTextResponse)
async def healthz() -> str:
    return "ok"


@public.get("/readyz", summary="Whether each model has a version to answer with.", response_class=PlainTextResponse)
async def readyz(server: Server) -> str:
    if not server.is_ready():
        raise RequestError(503, "stopping" if server.stopping else
                           "a model is still loading, cannot be loaded or has no version")
    return "ok"


# ---------------------------------------------------------------------------------------------------------------------
# The page, which calls the REST interface from a browser. It refers to no other site, contains no secret and needs no
# token; it asks for the token.

_PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
                               "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
                               "require-trusted-types-for 'script'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
_MEDIA_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}


def page_routes() -> Iterator[Route]:
    """Returns routes for the page's files. Not `StaticFiles`, which would answer for all paths."""
    for file in (importlib.resources.files("keras_bert.serving") / "page").iterdir():
        response = Response(file.read_bytes(), headers=_PAGE_HEADERS,
                            media_type=_MEDIA_TYPES[os.path.splitext(file.name)[1]])
        yield Route(f"/{file.name}".removesuffix("index.html"), response, methods=["GET"])  # a Response is an ASGI app


# ---------------------------------------------------------------------------------------------------------------------
# Errors


async def respond_http_exception(request: Request, error: HTTPException) -> Response:
    """Answers 404 and 405 for paths without an endpoint, to clients with the token."""
    try:
        await check_access(request, request.app.state.server)
    except RequestError as denied:
        return await respond_request_error(request, denied)
    if error.status_code == 405 and error.headers:
        message = f"this path takes {' and '.join(sorted(error.headers['Allow'].split(', ')))}"
    else:
        message = {404: "there is nothing at this path"}.get(error.status_code, str(error.detail))
    return respond_error(request, error.status_code, message, error.headers)


async def respond_bug(request: Request, _: Exception) -> Response:
    return respond_error(request, 500, "the server failed; its log says where")


# ---------------------------------------------------------------------------------------------------------------------
# The application


@contextlib.asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Loads the models and watches for their new versions until the server stops."""
    tasks = [asyncio.create_task(model.watch()) for model in app.state.server.models.values()]
    yield
    for task in tasks:
        task.cancel()


def create_app(server: ModelServer) -> FastAPI:
    app = FastAPI(
        title="keras-bert serve", version=__version__, lifespan=lifespan,
        openapi_url=None, docs_url=None, redoc_url=None,  # /openapi.json needs the token
        redirect_slashes=False,  # redirects would not ask for the token
        middleware=[Middleware(RequestMiddleware, settings=server.settings)],
        exception_handlers={RequestError: respond_request_error, HTTPException: respond_http_exception,
                            Exception: respond_bug})
    app.state.server = server
    # `check_access` compares the header; HTTPBearer only declares it in the OpenAPI document.
    declared = [Depends(HTTPBearer(scheme_name="token", auto_error=False))] if server.settings.token else []
    app.include_router(protected, dependencies=declared)
    app.include_router(public)
    app.routes.extend(page_routes())
    return app
