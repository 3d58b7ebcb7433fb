"""The application: TensorFlow Serving's REST interface, embeddings, re-ranking, what operators need, and the page."""

import asyncio
import functools
import importlib.resources
import json
import os
from collections.abc import Awaitable, Callable, Iterator
from typing import NoReturn

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route, Router
from starlette.types import Receive, Scope, Send

from keras_bert import __version__
from keras_bert.inference.served_model import RequestError
from keras_bert.serving import embeddings, logs, metrics, rerank, tensors
from keras_bert.serving.middleware import RequestMiddleware, answering, check_access, read_body
from keras_bert.serving.model import Model, ModelServer

Answer = Callable[[Request], Awaitable[Response]]  # the function of an endpoint
_FILES = importlib.resources.files("keras_bert.serving")
_DOCUMENT = (_FILES / "openapi.json").read_bytes()  # written by hand; of a server with a token

# ---------------------------------------------------------------------------------------------------------------------
# What endpoints read from a request.


def find(request: Request) -> tuple[Model, int | None]:
    """Returns the model in the path, and its version; None, for the served one, if the path has none."""
    name = request.path_params["name"]
    if ":" in name:  # GET for a path that needs POST
        raise HTTPException(405, headers={"Allow": "POST"})
    return request.app.server.find(name, request.state.entry), request.path_params.get("version")


# ---------------------------------------------------------------------------------------------------------------------
# Endpoints of a model.


async def predict(request: Request) -> Response:
    (model, number), entry = find(request), request.state.entry
    body = await read_body(request)
    async with answering(request, request.app.server.settings.timeout_s):
        with model.lease(number, entry) as version:
            return respond_json(await version.answer(body, entry, request.state.memory), entry)


async def reject_examples(request: Request) -> NoReturn:
    raise RequestError(400, f"{find(request)[0].name} takes no tf.Example, as classify and regress do: use predict")


async def metadata(request: Request) -> Response:
    model, number = find(request)
    with model.lease(number, request.state.entry) as version:
        served = version.model
    # TensorFlow Serving has no fields for these.
    more = {"hangul": served.has_hangul, "display": served.display} | (
        {"labels": served.labels} if served.labels else {}) | (
        {} if served.threshold is None else {"threshold": served.threshold})
    return JSONResponse({
        "model_spec": {"name": model.name, "signature_name": "", "version": str(version.number)},
        "metadata": {"signature_def": {"signature_def": served.signature_defs}, **more}})


async def status(request: Request) -> Response:
    model, number = find(request)
    of_openai = describe(model) if number is None else {}
    return JSONResponse(of_openai | model.get_status(number, request.state.entry))


def describe(model: Model) -> dict[str, str | int]:
    """Returns a model as OpenAI's clients read it."""
    return {"id": model.name, "object": "model", "created": model.created, "owned_by": "keras-bert"}


def respond_json(content: bytes, entry: logs.Entry) -> Response:
    """Returns the response to a request that a model has answered."""
    times = {"Server-Timing": f"queue;dur={entry.queue_ms}, compute;dur={entry.compute_ms}"}
    return Response(content, headers=times, media_type="application/json")


# ---------------------------------------------------------------------------------------------------------------------
# Endpoints of the server.


async def models(request: Request) -> Response:
    models = request.app.server.models
    return JSONResponse({"models": list(models), "object": "list", "data": list(map(describe, models.values()))})


async def embed(request: Request) -> Response:
    no_normalize = request.app.server.settings.no_normalize
    return await answer_texts(request, functools.partial(embeddings.Request, no_normalize=no_normalize))


async def answer_texts(request: Request, read: Callable[..., embeddings.Request | rerank.Request]) -> Response:
    """Answers with the model that the body names. `read` makes a request from the body."""
    server: ModelServer = request.app.server
    body, entry, memory = await read_body(request), request.state.entry, request.state.memory
    async with answering(request, server.settings.timeout_s):
        # The widest of all models, because the name of the model is in the body.
        limits = max((model.current.limits for model in server.models.values() if model.current),
                     key=lambda limits: limits.separators, default=tensors.Limits())
        asked = await tensors.in_thread_if_large(len(body), read, body, limits, memory.reserve)
        name = rerank.only_model(server.models) if asked.model is None else asked.model
        with server.find(name, entry).lease(None, entry) as version:
            inputs, keys = await tensors.in_thread_if_large(
                len(body), asked.inputs, name, version.model.signatures, version.limits)
            outputs, tokens = await version.predict(asked.signature, inputs, len(body), entry, memory, keys)
        size = tensors.count_bytes(outputs)
        if asked.returns_texts:
            memory.reserve(2 * len(body))  # the response, and the part of it that is written
            size += len(body)
        content = await tensors.in_thread_if_large(size, asked.response, name, outputs, tokens)
        return respond_json(content, entry)


async def prometheus(_: Request) -> Response:
    return Response(await asyncio.to_thread(metrics.exposition), media_type=CONTENT_TYPE_LATEST)


async def openapi(request: Request) -> Response:
    document = json.loads(_DOCUMENT)
    document["info"]["version"] = __version__
    if not request.app.server.settings.token:
        del document["security"], document["components"]["securitySchemes"]
    return JSONResponse(document)


async def healthz(_: Request) -> Response:
    return PlainTextResponse("ok")


async def readyz(request: Request) -> Response:
    server = request.app.server
    if not server.is_ready():
        raise RequestError(503, "stopping" if server.draining else
                           "a model is still loading, cannot be loaded or has no version: GET /v1/models/NAME says why")
    return PlainTextResponse("ok")


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
    for file in (_FILES / "page").iterdir():
        response = Response(file.read_bytes(), headers=_PAGE_HEADERS,
                            media_type=_MEDIA_TYPES[os.path.splitext(file.name)[1]])
        yield Route(f"/{file.name}".removesuffix("index.html"), response, methods=["GET"])  # a Response is an ASGI app


# ---------------------------------------------------------------------------------------------------------------------
# The application


# The methods and endpoints of paths; `openapi.json` describes them.
OF_MODEL: dict[str, tuple[str, Answer]] = {
    ":predict": ("POST", predict), ":classify": ("POST", reject_examples), ":regress": ("POST", reject_examples),
    "/metadata": ("GET", metadata), "": ("GET", status)}
PROTECTED: dict[str, tuple[str, Answer]] = {
    f"{start}{end}": operation for start in ("/v1/models/{name}", "/v1/models/{name}/versions/{version:int}")
    for end, operation in OF_MODEL.items()} | {
    "/v1/models": ("GET", models), embeddings.PATH: ("POST", embed),
    **{path: ("POST", functools.partial(answer_texts, read=functools.partial(rerank.Request, path=path)))
       for path in rerank.PATHS},
    "/metrics": ("GET", prometheus),
    "/openapi.json": ("GET", openapi)}
PUBLIC: dict[str, tuple[str, Answer]] = {"/healthz": ("GET", healthz), "/readyz": ("GET", readyz)}


class Endpoint:
    """An ASGI application that answers by a function of the request; if it is protected, to requests with the token, if
    the server has one. Functions as endpoints of routes would get another layer of Starlette's."""

    def __init__(self, answer: Answer, is_protected: bool) -> None:
        self._answer, self._is_protected = answer, is_protected

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        if self._is_protected:
            check_access(request)
        response = await self._answer(request)
        await response(scope, receive, send)


def create_app(server: ModelServer) -> RequestMiddleware:
    routes = [Route(path, Endpoint(answer, operations is PROTECTED), methods=[method])
              for operations in (PROTECTED, PUBLIC) for path, (method, answer) in operations.items()]
    router = Router([*routes, *page_routes()], redirect_slashes=False)  # redirects would not ask for the token
    return RequestMiddleware(router, server)
