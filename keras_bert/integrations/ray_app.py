"""The same answers with Ray Serve, which manages replicas, scaling and batching; for clusters.

    serve run keras_bert.integrations.ray_app:build intents=models/intents
"""

import asyncio
import math

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from ray import serve
from ray.exceptions import RayActorError

from keras_bert.serving.batcher import Batcher
from keras_bert.serving.saved_model import SavedModel, count_rows
from keras_bert.serving.settings import check_model, find_versions
from keras_bert.serving.tensors import RequestError, read_request, write_response

_BUDGET = 2048  # tokens per batch

app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)


@app.exception_handler(RequestError)
async def respond_request_error(_, error):
    return JSONResponse({"error": error.message}, error.status, error.headers)


@serve.deployment(max_ongoing_requests=64, ray_actor_options={"num_cpus": 1},
                  autoscaling_config={"min_replicas": 1, "max_replicas": 8, "target_ongoing_requests": 16})
class Replica:
    """A replica of a model. It serves the largest version that exists when the replica starts.

    Args:
        path: see `find_versions`.
    """

    async def __init__(self, path):
        self._version = check_model(path)
        self._saved_model = SavedModel(find_versions(path)[self._version], threads=1)
        # The defaults of `keras-bert serve`; Ray itself limits the number of requests.
        self._batcher = Batcher(self._run, budget=_BUDGET, delay=0.002, limit=math.inf)
        self._batching = asyncio.create_task(self._batcher.work())

    async def predict(self, body, version):
        """Answers a request. A `RequestError` is returned, not raised, because Ray wraps exceptions.

        Args:
            body: JSON as bytes.
            version: number of the requested version, or None.

        Returns:
            JSON as bytes, or a `RequestError`.
        """
        try:
            if version not in (None, self._version):
                raise RequestError(404, f"version {version} is not served, version {self._version} is")
            model = self._saved_model
            # In threads, because a long request would block the replica's event loop.
            signature, inputs, is_rows = await asyncio.to_thread(read_request, body, model.signatures)
            answers = [await self._batcher.submit((signature, part), model.batch_key(signature, part), tokens)
                       for part, tokens in await asyncio.to_thread(model.split, signature, inputs, _BUDGET)]
            outputs = model.join(signature, [answer.result for answer in answers])
            return await asyncio.to_thread(write_response, outputs, count_rows(inputs) if is_rows else None)
        except RequestError as error:
            return error

    async def _run(self, requests):
        signature = requests[0][0]
        return await asyncio.to_thread(self._saved_model.run, signature, [inputs for _, inputs in requests])


@serve.deployment(max_ongoing_requests=1000)
@serve.ingress(app)
class Ingress:
    """The HTTP interface, which passes requests to the models.

    Args:
        models: dict of names to handles.
    """

    def __init__(self, models):
        self._models = models

    @app.post("/v1/models/{name}:predict")
    @app.post("/v1/models/{name}/versions/{version:int}:predict")
    async def predict(self, request: Request, name: str, version: int | None = None):
        if name not in self._models:
            raise RequestError(404, f"there is no model of this name; there are {', '.join(self._models)}")
        try:
            answer = await self._models[name].predict.remote(await request.body(), version)
        except RayActorError:  # the replica died while it had the request
            raise RequestError(503, f"{name} lost this request: ask again", {"Retry-After": "1"}) from None
        if isinstance(answer, RequestError):
            raise answer
        return Response(answer, media_type="application/json")


def build(models):
    """Returns the Ray Serve application.

    Args:
        models: dict of names to paths.
    """
    return Ingress.bind({name: Replica.options(name=name).bind(path) for name, path in models.items()})
