"""Re-ranking as in text-embeddings-inference (/rerank), Jina and Cohere's version 1 (/v1/rerank) and 2 (/v2/rerank).

https://huggingface.github.io/text-embeddings-inference, https://api.jina.ai/redoc, https://docs.cohere.com/reference/rerank
"""

import uuid
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import orjson

from keras_bert.inference.served_model import DEFAULT, STRING, Arrays, RequestError, Signatures
from keras_bert.serving import tensors

Form = Literal["tei", "v1", "v2"]
PATHS: dict[str, Form] = {"/rerank": "tei", "/v1/rerank": "v1", "/v2/rerank": "v2"}
_QUERY, _DOCUMENT = "text", "text_pair"  # inputs of a model


def can_rerank(signatures: Signatures) -> bool:
    """Returns True for a model that takes two strings and returns a logit, as exports of the task rerank do."""
    signature = signatures.get(DEFAULT)
    logit = signature and signature.outputs.get("logit")
    return bool(signature and logit and logit.dtype.kind == "f" and signature.inputs.keys() == {_QUERY, _DOCUMENT}
                and all(spec.dtype == STRING for spec in signature.inputs.values()))


def only_model(models: Mapping[str, Any]) -> str:
    """Returns the name of the only one of these `Model`s that re-ranks."""
    names = [name for name, model in models.items() if model.current and can_rerank(model.current.model.signatures)]
    names = names or [name for name, model in models.items() if not model.current][:1]  # is loading
    if len(names) != 1:
        raise RequestError(400, "model: must be the name of a model; several re-rank: " + ", ".join(names) if names
                           else "model: no served model re-ranks, as those of finetune --task=rerank do")
    return names[0]


class Request:
    """A request, JSON: the name of the `model`, None for the only one that re-ranks; the query; the documents, not
    checked; and whether the response `returns_texts`. A `RequestError` begins with the key of the wrong value."""

    signature = DEFAULT

    def __init__(self, body: bytes, limits: tensors.Limits, reserve: tensors.Reserve, path: str) -> None:
        self._form, values = (form := PATHS[path]), tensors.parse(body, limits, reserve)
        tensors.check_keys(values, path)
        self._keys = {_QUERY: "query", _DOCUMENT: "texts" if form == "tei" else "documents"}
        self.model, self._query = values.get("model"), values.get("query")
        key, top_n = self._keys[_DOCUMENT], values.get("top_n")
        documents: Any = values.get(key)
        tensors.check_rules(
            ("model", self.model, "the name of a model", isinstance(self.model, str | None)),
            ("query", self._query, "a string", isinstance(self._query, str)),
            (key, documents, "a list of at least one string", isinstance(documents, list) and documents),
            ("top_n", top_n, "a whole number, at least 1", top_n is None or type(top_n) is int and top_n > 0))
        # Jina and Cohere's version 1 also take objects.
        self._documents = [document.get("text") if isinstance(document, dict) and form == "v1" else document
                           for document in documents]
        self._top_n = len(documents) if top_n is None else top_n
        self._raw_scores = form == "tei" and _read_bool(values, "raw_scores", False)
        self.returns_texts = (form == "tei" and _read_bool(values, "return_text", False)
                              or form == "v1" and _read_bool(values, "return_documents", True))

    def inputs(self, name: str, signatures: Signatures, limits: tensors.Limits) -> tuple[Arrays, dict[str, str]]:
        """Returns the query and the documents as the inputs of a model, and the keys of these inputs in the request.
        Raises a `RequestError` if the model does not re-rank, or a document is wrong."""
        if not can_rerank(signatures):
            raise RequestError(400, f"model: {name} does not re-rank: its {DEFAULT} must take text and text_pair and "
                                    "return logit, as after finetune --task=rerank and export text-model")
        query, documents = (tensors.to_array(texts, signatures[DEFAULT].inputs[name], self._keys[name], limits)
                            for name, texts in ((_QUERY, [self._query]), (_DOCUMENT, self._documents)))
        return {_QUERY: np.repeat(query, len(documents)), _DOCUMENT: documents}, self._keys

    def response(self, name: str, outputs: Arrays, tokens: int) -> bytes:
        """Returns the body of the response, JSON: the documents, the most relevant first. A score is the sigmoid of the
        logit, or if the request asks for raw scores, the logit. Raises a `RequestError` if there is not one logit for
        each document."""
        logits = np.asarray(outputs["logit"], np.float64)
        if logits.size != len(self._documents):
            raise RequestError(400, f"model: {name} must return one logit for each document; got the shape "
                                    f"{list(logits.shape)}")
        logits = logits.ravel()
        scores = logits if self._raw_scores else np.exp(-np.logaddexp(0, -logits))
        order = np.argsort(-logits, kind="stable")[:self._top_n].tolist()
        if self._form == "tei":
            return orjson.dumps([{"index": i, "score": float(scores[i])} | (
                {"text": self._documents[i]} if self.returns_texts else {}) for i in order])
        results = [{"index": i, "relevance_score": float(scores[i])} | (
            {"document": {"text": self._documents[i]}} if self.returns_texts else {}) for i in order]
        return orjson.dumps({
            "id": str(uuid.uuid4()), "model": name, "results": results,
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens, "estimated": True},
            "meta": {"api_version": {"version": "1" if self._form == "v1" else "2"},
                     "billed_units": {"search_units": 1}}})


def _read_bool(values: dict[str, Any], key: str, default: bool) -> bool:
    value = values.get(key)
    tensors.check_rules((key, value, "true or false", isinstance(value, bool | None)))
    return default if value is None else value
