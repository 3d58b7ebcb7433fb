"""The OpenAPI document of the REST interface. FastAPI makes it of the declarations below, which have the paths of
`app.py`; it answers no request."""

import functools
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Path
from fastapi.responses import PlainTextResponse
from fastapi.security import HTTPBearer

from keras_bert import __version__
from keras_bert.serving import embeddings, schema

Name = Annotated[str, Path(description="The model; /v1/models lists them.")]


def declare_version(version: Annotated[int, Path(description="Its version, below 2^63.")]) -> None:
    """Declares the version in the path."""


of_model = APIRouter(responses=schema.ERRORS)
protected = APIRouter()
public = APIRouter()


@of_model.post(":predict", summary="Answer texts or ids.", openapi_extra=schema.PREDICT_REQUEST,
               response_model=schema.Predictions | schema.Outputs)
def predict(name: Name) -> None: ...


@of_model.post(":classify", summary="Not for these models.", status_code=400, response_model=schema.Error)
@of_model.post(":regress", summary="Not for these models.", status_code=400, response_model=schema.Error)
def reject_examples(name: Name) -> None: ...


@of_model.get("/metadata", summary="The signatures.", response_model=schema.ModelMetadata)
def metadata(name: Name) -> None: ...


@of_model.get("", summary="The state of versions.", response_model=schema.ModelStatus)
def status(name: Name) -> None: ...


protected.include_router(of_model, prefix="/v1/models/{name}")
protected.include_router(of_model, prefix="/v1/models/{name}/versions/{version:int}",
                         dependencies=[Depends(declare_version)])


@protected.get("/v1/models", summary="The models, as KServe (`models`) and OpenAI (`data`) list them.",
               response_model=schema.Models)
def models() -> None: ...


@protected.post(embeddings.PATH, summary="Embed texts, as OpenAI's interface does.", responses=schema.OPENAI_ERRORS,
                openapi_extra=schema.EMBEDDINGS_REQUEST, response_model=schema.Embeddings)
def embed() -> None: ...


@protected.post("/rerank", summary="Re-rank texts, as text-embeddings-inference does.", responses=schema.ERRORS,
                openapi_extra=schema.rerank_request("texts", "raw_scores", "return_text"),
                response_model=list[schema.Ranked])
@protected.post("/v1/rerank", summary="Re-rank documents, as Jina's and Cohere's interfaces do.",
                responses=schema.ERRORS, response_model=schema.Reranked,
                openapi_extra=schema.rerank_request("documents", "top_n", "return_documents"))
@protected.post("/v2/rerank", summary="Re-rank documents, as Cohere's interface does.", responses=schema.ERRORS,
                openapi_extra=schema.rerank_request("documents", "top_n"), response_model=schema.Reranked)
def rerank_documents() -> None: ...


@protected.get("/metrics", summary="For Prometheus.", response_class=PlainTextResponse)
def prometheus() -> None: ...


@public.get("/healthz", summary="Whether the server is alive.", response_class=PlainTextResponse)
def healthz() -> None: ...


@public.get("/readyz", summary="Whether each model has a version to answer with.", response_class=PlainTextResponse)
def readyz() -> None: ...


@functools.cache
def openapi(needs_token: bool) -> dict[str, Any]:
    app = FastAPI(title="keras-bert serve", version=__version__)
    token = [Depends(HTTPBearer(scheme_name="token", auto_error=False))] if needs_token else []
    app.include_router(protected, dependencies=token)
    app.include_router(public)
    return app.openapi()
