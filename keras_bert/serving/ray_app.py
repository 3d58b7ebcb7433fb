"""The same answers with Ray Serve, which manages replicas, scaling and batching; for clusters.

    serve run keras_bert.serving.ray_app:build intents=models/intents
"""

import asyncio

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from ray import serve
from ray.exceptions import RayActorError

from keras_bert.serving.artifact import Artifact
from keras_bert.serving.refusal import RequestError
from keras_bert.serving.responses import write_response
from keras_bert.serving.tensors import read_request
from keras_bert.serving.versions import check_model, find_versions

app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)


@app.exception_handler(RequestError)
async def _refuse(_, error):
    return JSONResponse({"error": error.message}, error.status, error.headers)


@serve.deployment(max_ongoing_requests=64, ray_actor_options={"num_cpus": 1},
                  autoscaling_config={"min_replicas": 1, "max_replicas": 8, "target_ongoing_requests": 16})
class Model:
    """A replica of a model. It serves the largest version that exists when the replica starts.

    Args:
        path: see `find_versions`.
    """

    def __init__(self, path):
        self._version = check_model(path)
        self._artifact = Artifact(find_versions(path)[self._version], threads=1)

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
            signature, inputs, is_rows = read_request(body, self._artifact.signatures)
            outputs = await self._batched((signature, inputs))
            return outputs if isinstance(outputs, RequestError) else write_response(outputs, is_rows)
        except RequestError as error:
            return error

    @serve.batch(max_batch_size=64, batch_wait_timeout_s=0.002)
    async def _batched(self, requests):
        """Returns the outputs, or a `RequestError`, for each request."""
        alike = {}  # by key: positions of requests that may be joined
        for place, (signature, inputs) in enumerate(requests):
            alike.setdefault(self._artifact.key(signature, inputs), []).append(place)
        answers = {}
        for places in alike.values():
            signature, batch = requests[places[0]][0], [requests[place][1] for place in places]
            answers |= zip(places, await asyncio.to_thread(self._run, signature, batch))
        return [answers[place] for place in range(len(requests))]

    def _run(self, signature, batch):
        try:
            return self._artifact.run(signature, batch)
        except RequestError as error:
            if len(batch) == 1:
                return [error]
            return [answer for inputs in batch for answer in self._run(signature, [inputs])]


@serve.deployment(max_ongoing_requests=1000)
@serve.ingress(app)
class Gate:
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
    return Gate.bind({name: Model.options(name=name).bind(path) for name, path in models.items()})
