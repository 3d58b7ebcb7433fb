"""OpenAI's interface to embeddings: https://platform.openai.com/docs/api-reference/embeddings."""

import base64
from typing import Any

import numpy as np
import orjson

from keras_bert.inference.served_model import DEFAULT, STRING, Arrays, RequestError, Signature, Signatures
from keras_bert.serving import tensors

PATH = "/v1/embeddings"
_KEYS = "model", "input", "encoding_format", "dimensions", "prompt_name"
_CODES = {401: "invalid_api_key", 404: "model_not_found", 429: "rate_limit_exceeded"}


class Request:
    """A request, JSON: the name of the `model`; the `texts`, not checked; whether the client wants base64 of float32
    instead of numbers; how many `dimensions` to keep, None for all; and the `signature` that puts the prompt before
    texts. Vectors have the length 1 unless `no_normalize`. A `RequestError` begins with the key of the wrong value."""

    returns_texts = False

    def __init__(self, body: bytes, limits: tensors.Limits, reserve: tensors.Reserve, no_normalize: bool) -> None:
        request = tensors.parse(body, limits, reserve)
        tensors.check_keys(request, PATH)
        values: list[Any] = [*map(request.get, _KEYS)]
        self.model, texts, encoding, self.dimensions, prompt_name = values
        self.signature, self._no_normalize = prompt_name or DEFAULT, no_normalize
        self.texts, self.is_base64 = [texts] if isinstance(texts, str) else texts, encoding == "base64"
        tensors.check_rules(
            ("model", self.model, "the name of a model", isinstance(self.model, str)),
            ("encoding_format", encoding, "float or base64", encoding in (None, "float", "base64")),
            ("dimensions", self.dimensions, "a whole number, at least 1",
             self.dimensions is None or type(self.dimensions) is int and self.dimensions > 0),
            ("prompt_name", prompt_name, "a string", isinstance(prompt_name, str | None)),
            ("input", texts, "a string or a list of at least one string",
             isinstance(self.texts, list) and self.texts))
        if isinstance(self.texts[0], int | list):
            raise RequestError(400, "input: must be texts; got token ids, but the model has a tokenizer of its own (in "
                                    "LangChain, pass check_embedding_ctx_length=False)")

    def inputs(self, name: str, signatures: Signatures, limits: tensors.Limits) -> tuple[Arrays, dict[str, str]]:
        """Returns the texts as the only input of a model, and the input's key in the request. Raises a `RequestError`
        if the model computes no embeddings, or a text is wrong."""
        embedders = [name for name, signature in sorted(signatures.items()) if _embeds(signature)]
        if DEFAULT not in embedders:
            raise RequestError(400, f"model: {name} computes no embeddings: its {DEFAULT} must take one string "
                                    "[batch] and return embedding, as after export text-model --pooling=mean")
        if self.signature not in embedders:
            prompts = [name for name in embedders if name != DEFAULT]
            rule = f"one of {', '.join(prompts)}" if prompts else f"left out: {name} has no prompts"
            raise RequestError(400, f"prompt_name: must be {rule}; got {tensors.show(self.signature)}")
        (column, spec), = signatures[self.signature].inputs.items()
        return {column: tensors.to_array(self.texts, spec, "input", limits)}, {column: "input"}

    def response(self, name: str, outputs: Arrays, estimated_tokens: int) -> bytes:
        """Returns the body of the response, JSON, from `embedding`, float [texts, dim], and perhaps `tokens`, int
        [texts]; without these, it has the estimate for all texts and says so. Raises a `RequestError` if there is not
        one embedding for each text, or they have fewer dimensions than requested."""
        vectors, tokens = np.asarray(outputs["embedding"], np.float32), outputs.get("tokens", np.empty(0))
        if vectors.ndim != 2 or len(vectors) != len(self.texts):
            raise RequestError(400, f"model: {name} must return one vector for each text; got the shape "
                                    f"{list(vectors.shape)}")
        if self.dimensions is not None and self.dimensions > vectors.shape[1]:
            raise RequestError(400, f"dimensions: must be at most {vectors.shape[1]}, those of the model; got "
                                    f"{self.dimensions}")
        vectors = vectors[:, :self.dimensions]
        if not self._no_normalize:
            vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        rows = ([base64.b64encode(vector.astype("<f4").tobytes()).decode() for vector in vectors] if self.is_base64 else
                [orjson.Fragment(tensors.dump(row)) for row in tensors.to_json_values("embedding", vectors)])
        is_exact = tokens.dtype.kind == "i"
        count = int(tokens.sum()) if is_exact else estimated_tokens
        usage = {"prompt_tokens": count, "total_tokens": count} | ({} if is_exact else {"estimated": True})
        return orjson.dumps({
            "object": "list", "model": name, "usage": usage,
            "data": [{"object": "embedding", "index": i, "embedding": row} for i, row in enumerate(rows)]})


def _embeds(signature: Signature) -> bool:
    """Returns True if a signature takes one string [batch] and returns embeddings."""
    embedding, columns = signature.outputs.get("embedding"), list(signature.inputs.values())
    return bool(embedding and embedding.dtype.kind == "f" and len(columns) == 1 and columns[0].dtype == STRING
                and columns[0].fits((1,)))


def error(status: int, message: str) -> dict[str, str | None]:
    """Returns what OpenAI's clients find under `error` in a response."""
    key = message.partition(": ")[0]
    return {"message": message, "type": "server_error" if status >= 500 else "invalid_request_error",
            "param": key if key in _KEYS else None, "code": _CODES.get(status)}
