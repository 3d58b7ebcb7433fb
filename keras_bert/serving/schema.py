"""The requests and responses of the REST interface, as the OpenAPI document describes them.

FastAPI validates and writes only the small ones by these models. Tensors are read and written by `tensors.py` instead,
whose messages name the row. Validating them here too would add 22 ms to the 7 ms of a request of 3 x 32 x 128 ids, and
5 ms to the 19 ms of a response with 32 x 150 probabilities.
"""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypeAliasType


class Base64(BaseModel):
    """A binary string."""

    model_config = ConfigDict(extra="forbid")
    b64: str = Field(json_schema_extra={"contentEncoding": "base64"})


Tensor = TypeAliasType("Tensor", str | float | bool | Base64 | list["Tensor"])  # type: ignore[misc]


class Predictions(BaseModel):
    """The response to `instances`: one prediction per row, and the names of the classes if there are probabilities."""

    predictions: list[Tensor | dict[str, Tensor]]
    classes: list[str] | None = None


class Outputs(BaseModel):
    """The response to `inputs`: one tensor per output."""

    outputs: Tensor | dict[str, Tensor]


class StatusMessage(BaseModel):
    error_code: Literal["OK", "INTERNAL"]
    error_message: str


class VersionStatus(BaseModel):
    version: str
    state: Literal["LOADING", "AVAILABLE", "UNLOADING", "END"]
    status: StatusMessage


class ModelStatus(BaseModel):
    model_version_status: list[VersionStatus]


class ModelSpec(BaseModel):
    name: str
    signature_name: Literal[""]
    version: str


class ModelMetadata(BaseModel):
    """The signatures as TensorFlow Serving writes them; `hangul`, true if the model's vocabulary or a class contains
    Hangul; and, if the model has classes, their names as `labels`."""

    model_spec: ModelSpec
    metadata: dict[str, Any]


class Model(BaseModel):
    """A model; `created` is when the process that answers was started, in Unix seconds."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class Models(BaseModel):
    models: list[str]
    object: Literal["list"]
    data: list[Model]


class Error(BaseModel):
    error: str


class Embedding(BaseModel):
    """The embedding of one text: numbers, or base64 of float32 values, little-endian."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class Usage(BaseModel):
    """The number of tokens, [CLS] and [SEP] included; `estimated` from the bytes if the model does not count them."""

    prompt_tokens: int
    total_tokens: int
    estimated: Literal[True] | None = None


class Embeddings(BaseModel):
    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: Usage


class Ranked(BaseModel):
    """A text, the most relevant one first; `score` is from 0 to 1, or with `raw_scores`, the logit."""

    index: int
    score: float
    text: str | None = None


class Document(BaseModel):
    text: str


class Result(BaseModel):
    """A document, the most relevant one first; `relevance_score` is from 0 to 1."""

    index: int
    relevance_score: float
    document: Document | None = None


class Reranked(BaseModel):
    id: str
    model: str
    results: list[Result]
    usage: Usage
    meta: dict[str, Any]


class OpenAIErrorBody(BaseModel):
    message: str
    type: Literal["invalid_request_error", "server_error"]
    param: str | None
    code: str | None


class OpenAIError(BaseModel):
    """An error, as OpenAI's clients expect it."""

    error: OpenAIErrorBody


_TENSOR = {"$ref": "#/components/schemas/Tensor"}
_TENSORS = {"anyOf": [_TENSOR, {"type": "object", "additionalProperties": _TENSOR}]}
PREDICT_REQUEST = {"requestBody": {"required": True, "content": {"application/json": {"schema": {
    "type": "object",
    "oneOf": [{"required": ["instances"]}, {"required": ["inputs"]}],
    "properties": {
        "signature_name": {"type": "string", "default": "serving_default",
                           "description": "One of those that metadata lists."},
        "instances": {"type": "array", "minItems": 1, "items": _TENSORS, "description":
                      "Rows: an object with a value for each input, or the value of a single input."},
        "inputs": {**_TENSORS, "description":
                   "An object with a tensor for each input, or the tensor of a single input."}}}}}}}
EMBEDDINGS_REQUEST = {"requestBody": {"required": True, "content": {"application/json": {"schema": {
    "type": "object", "required": ["model", "input"],
    "properties": {
        "model": {"type": "string", "description": "The name of a model."},
        "input": {"anyOf": [{"type": "string"}, {"type": "array", "minItems": 1, "items": {"type": "string"}}]},
        "encoding_format": {"enum": ["float", "base64", None], "default": "float"},
        "dimensions": {"type": ["integer", "null"], "minimum": 1, "description":
                       "Keeps the first dimensions, for models that were trained for it."},
        "prompt_name": {"type": ["string", "null"], "description":
                        "The prompt of the model to put before each text, query or document for example."}}}}}}}
_RERANK_PROPERTIES: dict[str, dict[str, Any]] = {
    "model": {"type": ["string", "null"], "description": "The name of a model; needed if several re-rank."},
    "query": {"type": "string"},
    "texts": {"type": "array", "minItems": 1, "items": {"type": "string"}},
    "documents": {"type": "array", "minItems": 1, "items": {"anyOf": [
        {"type": "string"}, {"type": "object", "properties": {"text": {"type": "string"}}}]}},
    "top_n": {"type": ["integer", "null"], "minimum": 1, "description": "Number of results; all by default."},
    "raw_scores": {"type": "boolean", "default": False, "description": "Logits instead of their sigmoid."},
    "return_text": {"type": "boolean", "default": False},
    "return_documents": {"type": "boolean", "default": True}}


def rerank_request(documents: str, *options: str) -> dict[str, Any]:
    """Returns the description of a request for re-ranking; `documents` is the key of the documents."""
    properties = {name: _RERANK_PROPERTIES[name] for name in ("model", "query", documents, *options)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": {
        "type": "object", "required": ["query", documents], "properties": properties}}}}}


_ERRORS: dict[int | str, str] = {
    400: "The request is wrong; the message names the key and the row.", 401: "The bearer token is wrong.",
    404: "There is no such model or version.", 408: "The body came too slowly.",
    413: "The body, a text, the number of instances or the outputs are too large.", 414: "The path is too long.",
    415: "The content coding is not supported.",
    421: "The header Host is not a name of this server.",
    429: "Too many requests wait.", 500: "The server failed.", 503: "The model is not ready, or the server stops.",
    504: "The request took too long.", "default": "Another error, such as a wrong method."}
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": Error, "description": message} for status, message in _ERRORS.items()}
OPENAI_ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": OpenAIError, "description": message} for status, message in _ERRORS.items()}
