"""The same answers with Ray Serve, which manages replicas, scaling and batching; for clusters.

    serve run keras_bert.integrations.ray_app:build intents=models/intents
"""

import asyncio
from typing import Any, cast

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from pydantic import TypeAdapter
from ray import serve
from ray.exceptions import RayActorError

from keras_bert.inference.answering import load_served_model
from keras_bert.inference.served_model import RequestError
from keras_bert.serving.logs import Entry
from keras_bert.serving.memory import MemoryBudget
from keras_bert.serving.settings import ModelSettings, find_first_version
from keras_bert.serving.version import LoadedVersion

app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)


@app.exception_handler(RequestError)
async def respond_request_error(_: Request, error: RequestError) -> Response:
    return JSONResponse({"error": error.message}, error.status, error.headers)


@serve.deployment(max_ongoing_requests=64, ray_actor_options={"num_cpus": 1},
                  autoscaling_config={"min_replicas": 1, "max_replicas": 8, "target_ongoing_requests": 16})
class Replica:
    """A replica of a model. It serves the largest version under the path that exists when the replica starts."""

    # Ray awaits it, which mypy does not know.
    async def __init__(self, name: str, path: str, settings: ModelSettings) -> None:  # type: ignore[misc]
        number, folder = find_first_version(path)
        model = load_served_model(folder, threads=1, timeout_s=settings.timeout_s)
        self._version = LoadedVersion(name, number, model, settings)
        self._timeout_s, self._memory = settings.timeout_s, MemoryBudget(settings.memory)

    async def predict(self, body: bytes, number: int | None) -> bytes | RequestError:
        """Answers a request, JSON to JSON. A `RequestError` is returned, not raised, because Ray wraps exceptions."""
        if number not in (None, self._version.number):
            return RequestError(404, f"version {number} is not served, version {self._version.number} is")
        try:
            async with asyncio.timeout(self._timeout_s):
                with self._memory.request() as memory:
                    return await self._version.answer(body, Entry("POST", "", ""), memory)
        except TimeoutError:
            return RequestError(504, f"the answer took more than {self._timeout_s:g} seconds")
        except RequestError as error:
            return error


@serve.deployment(max_ongoing_requests=1000)
@serve.ingress(app)
class Ingress:
    """The HTTP interface, which passes requests of at most `max_body` bytes to the replicas of the models, by name."""

    def __init__(self, models: dict[str, Any], max_body: int) -> None:
        self._models, self._max_body = models, max_body

    @app.post("/v1/models/{name}:predict")
    @app.post("/v1/models/{name}/versions/{version:int}:predict")
    async def predict(self, request: Request, name: str, version: int | None = None) -> Response:
        if name not in self._models:
            raise RequestError(404, f"there is no model of this name; there are {', '.join(self._models)}")
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > self._max_body:
                raise RequestError(413, f"the body may have at most {self._max_body} bytes")
        try:
            answer = await self._models[name].predict.remote(bytes(body), version)
        except RayActorError:  # the replica died while it had the request
            raise RequestError(503, f"{name} lost this request: ask again", {"Retry-After": "1"}) from None
        if isinstance(answer, RequestError):
            raise answer
        return Response(answer, media_type="application/json")


def build(arguments: dict[str, Any]) -> serve.Application:
    """Returns the Ray Serve application.

    Args:
        arguments: names of models with their paths, and fields of `ModelSettings` with their values.
    """
    given = {name: value for name, value in arguments.items() if name in ModelSettings.__dataclass_fields__}
    settings = TypeAdapter(ModelSettings).validate_python(given)  # the values may be texts of the command line
    replica, ingress = cast(Any, Replica), cast(Any, Ingress)
    models = {name: replica.options(name=name).bind(name, path, settings)
              for name, path in arguments.items() if name not in given}
    return ingress.bind(models, settings.max_body)
