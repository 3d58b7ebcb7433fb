"""The parts of the OpenAPI document beyond the paths."""

from fastapi.openapi.utils import get_openapi

_TENSOR = {"anyOf": [
    {"type": ["string", "number", "boolean"]},
    {"type": "object", "properties": {"b64": {"type": "string", "contentEncoding": "base64"}}, "required": ["b64"],
     "additionalProperties": False},
    {"type": "array", "items": {"$ref": "#/components/schemas/Tensor"}}]}
_NAMED = {"type": "object", "additionalProperties": {"$ref": "#/components/schemas/Tensor"}}
_SIGNATURE = {"type": "string", "default": "serving_default", "description": "One of those that metadata lists."}
_REQUEST = {"oneOf": [
    {"type": "object", "required": ["instances"], "not": {"required": ["inputs"]},
     "properties": {"signature_name": _SIGNATURE, "instances": {
         "type": "array", "minItems": 1, "items": {"anyOf": [{"$ref": "#/components/schemas/Tensor"}, _NAMED]},
         "description": "A row each: an object with a value for each input, or the value itself of a single input."}}},
    {"type": "object", "required": ["inputs"], "not": {"required": ["instances"]},
     "properties": {"signature_name": _SIGNATURE, "inputs": {
         "anyOf": [{"$ref": "#/components/schemas/Tensor"}, _NAMED],
         "description": "An object with a tensor for each input, or the tensor itself of a single input."}}}]}
_RESPONSE = {"type": "object", "minProperties": 1, "maxProperties": 1, "additionalProperties": False,
             "properties": {"predictions": {"type": "array"}, "outputs": {}}}
_STATUS = {"type": "object", "required": ["model_version_status"], "properties": {"model_version_status": {
    "type": "array", "items": {"type": "object", "required": ["version", "state", "status"], "properties": {
        "version": {"type": "string"},
        "state": {"enum": ["LOADING", "AVAILABLE", "UNLOADING", "END"]},
        "status": {"type": "object", "properties": {"error_code": {"type": "string"},
                                                    "error_message": {"type": "string"}}}}}}}}
_METADATA = {"type": "object", "required": ["model_spec", "metadata"]}
_ERROR = {"type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}}
_ERRORS = {400: "The request is wrong; the message names the key and the row.", 401: "The bearer token is not right.",
           404: "There is no such model or version.", 408: "The body came too slowly.",
           413: "The body, a text or the number of instances is too large.", 429: "Too many requests wait.",
           500: "The server failed.", 503: "The model is not ready, or the server stops.",
           504: "The request took too long."}


def _json(description, schema):
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _extra(schema, body=None):
    responses = {str(code): _json(text, {"$ref": "#/components/schemas/Error"}) for code, text in _ERRORS.items()}
    if schema:
        responses["200"] = _json("The answer.", schema)
    extra = {"responses": responses}
    if body:
        extra["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
    return extra


EXTRA = {"predict": _extra(_RESPONSE, {"$ref": "#/components/schemas/Request"}), "status": _extra(_STATUS),
         "metadata": _extra(_METADATA), "examples": _extra(None, {"type": "object"})}


def describe(app, names):
    """Returns the OpenAPI document of the application, for models with these names."""
    if not app.openapi_schema:
        document = get_openapi(title=app.title, version=app.version, routes=app.routes)
        document["components"] = {
            "schemas": {"Error": _ERROR, "Tensor": _TENSOR, "Request": _REQUEST},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}}
        document["security"] = [{"token": []}, {}]
        for path in document["paths"].values():
            for operation in path.values():
                operation["responses"].pop("422", None)  # FastAPI's default; this server answers 400
                for parameter in operation.get("parameters", []):
                    if parameter["name"] == "name":
                        parameter["schema"]["enum"] = names
                if "examples" in operation["operationId"]:
                    del operation["responses"]["200"]
        app.openapi_schema = document
    return app.openapi_schema
