"""OpenAI's interface for embeddings: its requests, responses and errors, against what the official client needs."""

import base64
import json

import jsonschema
import numpy as np
import pytest
import tensorflow as tf
from serving_server import serving, write_echo

PATH, TOKEN = "/v1/embeddings", {"Authorization": "Bearer secret"}
TEXTS = ["a", "four", "각각"]
# What the Python client sends for `client.embeddings.create(model="words", input=TEXTS)`, openai 3.57.0.
SENT = {"input": TEXTS, "model": "words", "encoding_format": "base64"}


class Lengths(tf.Module):
    """Returns the number of bytes and of characters of a text, and 2; divided by their norm, if it counts tokens too.
    "nan" has an embedding that is not finite."""

    def __init__(self, counts):
        super().__init__()
        self._counts = counts

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "text")])
    def __call__(self, text):
        counts = [tf.strings.length(text), tf.strings.length(text, unit="UTF8_CHAR"), 2 * tf.ones_like(text, tf.int32)]
        vectors = tf.cast(tf.stack(counts, axis=1), tf.float32)
        vectors = tf.where(tf.equal(text, "nan")[:, None], float("nan"), vectors)
        if not self._counts:
            return {"embedding": vectors}
        return {"embedding": tf.linalg.l2_normalize(vectors, axis=1), "tokens": counts[0]}


def vectors_of(texts):
    return np.array([[len(text.encode()), len(text), 2] for text in texts], np.float32)


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    (folder / "token").write_text("secret")
    for name, counts in (("words", True), ("plain", False)):
        model = Lengths(counts)
        tf.saved_model.save(model, str(folder / name), model.__call__.get_concrete_function())
    models = {"words": folder / "words", "plain": folder / "plain", "echo": write_echo(folder / "echo")}
    with serving(models, "--max_instances=5", "--max_characters=50", f"--token_file={folder}/token") as server:
        yield server


def ask(server, body, **more):
    return server.ask(PATH, body, **{"headers": TOKEN} | more)


def test_what_the_python_client_sends_and_reads(server):
    status, answer, headers = ask(server, SENT)
    assert status == 200 and "compute;dur=" in headers["server-timing"]
    assert answer.keys() == {"object", "data", "model", "usage"}
    assert (answer["object"], answer["model"]) == ("list", "words")
    assert [(row["object"], row["index"]) for row in answer["data"]] == [("embedding", row) for row in range(3)]
    found = [np.frombuffer(base64.b64decode(row["embedding"]), "float32") for row in answer["data"]]  # as the client
    np.testing.assert_allclose(found, unit(vectors_of(TEXTS)), rtol=1e-6)
    assert answer["usage"] == {"prompt_tokens": 11, "total_tokens": 11}


def test_numbers_are_the_default_and_one_text_is_a_list_of_one(server):
    for more in ({}, {"encoding_format": "float"}, {"encoding_format": None, "user": "somebody"}):
        status, answer, _ = ask(server, {"model": "plain", "input": "four"} | more)
        assert status == 200 and [row["embedding"] for row in answer["data"]] == [[4.0, 4.0, 2.0]]


def test_tokens_that_a_model_does_not_count_are_estimated_and_it_says_so(server):
    assert ask(server, {"model": "plain", "input": ["four", "a" * 40]})[1]["usage"] == {
        "prompt_tokens": 15, "total_tokens": 15, "estimated": True}


def test_fewer_dimensions_keep_the_length_of_1(server):
    for model, whole, wanted in (("plain", vectors_of(TEXTS), lambda vectors: vectors),
                                 ("words", unit(vectors_of(TEXTS)), unit)):
        for count in (1, 2, 3):
            _, answer, _ = ask(server, {"model": model, "input": TEXTS, "dimensions": count})
            np.testing.assert_allclose(
                [row["embedding"] for row in answer["data"]], wanted(whole[:, :count]), rtol=1e-6)


def test_values_that_are_not_finite_are_those_of_predict(server):
    assert np.isnan(ask(server, {"model": "plain", "input": "nan"})[1]["data"][0]["embedding"]).all()


def test_answers_are_as_the_openapi_document_says(server):
    document = server.ask("/openapi.json", headers=TOKEN)[1]
    operation = document["paths"][PATH]["post"]
    jsonschema.validate(SENT, operation["requestBody"]["content"]["application/json"]["schema"])
    for body in (SENT, {"model": "plain", "input": "a"}, {"model": "no", "input": "a"}, {}):
        status, answer, _ = ask(server, body)
        schema = operation["responses"][str(status)]["content"]["application/json"]["schema"]
        jsonschema.validate(answer, {**schema, "components": document["components"]})


@pytest.mark.parametrize("body,status,param,code,message", [
    ({"model": "words"}, 400, "input", None, "input: must be a string or a list of at least one string; got null"),
    ({"model": "words", "input": []}, 400, "input", None, "input: must be a string or a list of at least one string"),
    ({"model": "words", "input": [15339, 1917]}, 400, "input", None, "got token ids, but the model has a tokenizer of"),
    ({"model": "words", "input": [[15339], [1917]]}, 400, "input", None, "check_embedding_ctx_length=False"),
    ({"model": "words", "input": ["a", None]}, 400, "input", None, "input: row 2: must be a string of valid Unicode"),
    ({"model": "words", "input": ["a", ["a"]]}, 400, "input", None, "input: row 2: must be a string of valid Unicode"),
    ({"model": "words", "input": ["a"] * 6}, 413, None, None, "a request may have at most 5 instances; got 6"),
    ({"model": "words", "input": ["a", "a" * 51]}, 413, None, None, "row 2: a text may have at most 50 characters"),
    ({"input": "a"}, 400, "model", None, "model: must be the name of a model; got null"),
    ({"model": "no", "input": "a"}, 404, None, "model_not_found", "no model of this name; there are words, plain, ec"),
    ({"model": "echo", "input": "a"}, 400, "model", None, "model: echo computes no embeddings: its serving_def"),
    ({"model": "words", "input": "a", "encoding_format": "hex"}, 400, "encoding_format", None, "float or base64; got"),
    ({"model": "words", "input": "a", "dimensions": 0}, 400, "dimensions", None, "a whole number, at least 1; got 0"),
    ({"model": "words", "input": "a", "dimensions": True}, 400, "dimensions", None, "a whole number, at least 1; got "),
    ({"model": "words", "input": "a", "dimensions": 4}, 400, "dimensions", None, "must be at most 3, those of the mod"),
    (b"{", 400, None, None, "the body must be JSON in UTF-8"),
])
def test_errors_have_openais_form_and_one_line(server, body, status, param, code, message):
    got, answer, _ = ask(server, body)
    assert got == status and answer.keys() == {"error"}
    error = answer["error"]
    assert error == {"message": error["message"], "type": "invalid_request_error", "param": param, "code": code}
    assert message in error["message"] and "\n" not in error["message"]


def test_errors_before_the_endpoint_have_openais_form_too(server):
    for status, code, more in ((401, "invalid_api_key", {"headers": {}}), (405, None, {"method": "GET"}),
                               (413, None, {"headers": TOKEN | {"Content-Length": str(2**30)}})):
        got, answer, _ = ask(server, SENT, **more)
        assert (got, answer["error"]["code"]) == (status, code) and answer["error"]["message"]


def test_the_log_and_the_metrics(server):
    def found():
        return [event for event in server.events() if (event.get("path"), event.get("instances")) == (PATH, 5)]

    ask(server, {"model": "words", "input": ["a"] * 5})  # no other test sends five texts
    server.wait(found)
    event = found()[-1]
    assert (event["model"], event["version"], event["status"], event["method"]) == ("words", 1, 200, "POST")
    assert event["compute_ms"] > 0 and "input" not in json.dumps(event)
    metrics = server.ask("/metrics", headers=TOKEN)[1]
    assert 'keras_bert_requests_total{code="200",method="embeddings",model="words"}' in metrics


@pytest.mark.slow
def test_the_official_client(server):
    openai = pytest.importorskip("openai", reason="needs openai: pip install openai")
    with openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="secret", max_retries=0) as client:
        created = client.embeddings.create(model="words", input=TEXTS)
        np.testing.assert_allclose([row.embedding for row in created.data], unit(vectors_of(TEXTS)), rtol=1e-6)
        assert (created.model, created.usage.prompt_tokens, created.usage.total_tokens) == ("words", 11, 11)
        short = client.embeddings.create(model="words", input="four", dimensions=2, encoding_format="float")
        np.testing.assert_allclose(short.data[0].embedding, [0.5**0.5] * 2, rtol=1e-6)
        assert {(model.id, model.object) for model in client.models.list()} == {
            ("words", "model"), ("plain", "model"), ("echo", "model")}
        with pytest.raises(openai.NotFoundError) as info:
            client.embeddings.create(model="no", input="a")
        assert (info.value.code, info.value.type) == ("model_not_found", "invalid_request_error")
    with openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="wrong", max_retries=0) as client:
        with pytest.raises(openai.AuthenticationError, match="the token in the header Authorization is wrong"):
            client.embeddings.create(model="words", input="a")
