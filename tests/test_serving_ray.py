"""The application of Ray Serve: two replicas answer the REST client; one that is killed costs what it held."""

import asyncio
import concurrent.futures
import contextlib
import functools
import importlib.util
import json
import os
import pathlib
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import urllib.error

import pytest
import serving_server
from serving_server import load, write_echo

from keras_bert.files.digests import file_digest

pytestmark = [pytest.mark.long, pytest.mark.skipif(importlib.util.find_spec("ray") is None,
                                                   reason='needs Ray: pip install "ray[serve]"')]
predict = runpy.run_path(str(pathlib.Path(__file__).parents[1] / "examples/clients/rest.py"))["predict"]
wait = functools.partial(serving_server.wait, turns=6000)  # Ray takes minutes to start
APP = f"test{os.getpid()}"  # the name of its processes, too


def replicas():
    """The pids of the replicas of the model."""
    named = {}
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            named[int(folder.name)] = (folder / "cmdline").read_bytes()
    return {pid for pid, name in named.items() if name.startswith(f"ray::ServeReplica:{APP}:echo".encode())}


def is_ready(url):
    try:
        return predict(url, "echo", ["a"]) and len(replicas()) == 2
    except OSError:
        return False


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ray")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    write_echo(folder / "echo")
    (folder / "echo/assets.extra").mkdir()
    (folder / "echo/assets.extra/keras_bert_row_wise.json").write_text(json.dumps({
        "saved_model_sha256": file_digest(folder / "echo/saved_model.pb"), "signatures": ["serving_default"]}))
    (folder / "config.yaml").write_text(f"""
http_options: {{port: {port}}}
applications:
- name: {APP}
  import_path: keras_bert.integrations.ray_app:build
  args: {{echo: {folder / "echo"}, max_instances: 5, max_body: 9000}}
  deployments:
  - name: echo
    autoscaling_config: {{min_replicas: 2, max_replicas: 2}}
    ray_actor_options: {{num_cpus: 0.5}}
""")
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [shutil.which("serve", path=os.path.dirname(sys.executable)), "run", folder / "config.yaml"],
            stdout=log, stderr=log, env=os.environ | {"RAY_USAGE_STATS_ENABLED": "0"})
    url = f"http://127.0.0.1:{port}"
    try:
        wait(lambda: process.poll() is not None or is_ready(url))
        assert process.poll() is None, (folder / "log").read_text()[-3000:]
        yield url
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(120)


def test_it_answers_and_refuses_as_the_server_does(url):
    texts = ["play 🎵", "각각의 집", ""]
    assert [row["echo"] for row in predict(url, "echo", texts)] == texts
    with concurrent.futures.ThreadPoolExecutor(32) as pool:
        answers = list(pool.map(lambda i: predict(url, "echo", [f"text {i}", "x"]), range(400)))
    assert [rows[0]["echo"] for rows in answers] == [f"text {i}" for i in range(400)]
    assert max(rows[0]["batch"] for rows in answers) > 2  # of the rows that TensorFlow saw
    for model, instances, status, message in (
            ("no", ["a"], 404, "there is no model of this name; there are echo"),
            ("echo", ["a"] * 6, 413, "a request may have at most 5 instances (max_instances); got 6"),
            ("echo", ["a" * 10_000], 413, "the body may have at most 9000 bytes"),
            ("echo/versions/7", ["a"], 404, "version 7 is not served, version 1 is")):
        with pytest.raises(urllib.error.HTTPError) as error:
            predict(url, model, instances)
        assert error.value.code == status and message in error.value.read().decode()
    assert predict(url, "echo/versions/1", ["a"])[0]["echo"] == "a"


def test_a_replica_that_is_killed_costs_what_it_held_and_is_replaced(url):
    before, clients = wait(lambda: len(found := replicas()) == 2 and found), 8

    def ask(_, text):
        try:
            (row,) = predict(url, "echo", [text])
            return row["echo"] == text
        except urllib.error.HTTPError as error:
            return error.code

    with load(ask, clients, wait) as answers:
        os.kill(min(before), signal.SIGKILL)
        wait(lambda: len(found := replicas()) == 2 and min(before) not in found)
    lost = [answer for answer in answers if answer is not True]
    assert set(lost) <= {503} and len(lost) <= clients


@pytest.mark.filterwarnings("ignore")  # of Ray's imports
def test_a_replica_has_the_limits_of_the_server(tmp_path):
    from keras_bert.integrations.ray_app import Replica
    from keras_bert.serving.settings import ModelSettings

    async def main():
        replica = Replica.func_or_class.__new__(Replica.func_or_class)  # without a cluster
        await replica.__init__("echo", str(write_echo(tmp_path / "echo")), ModelSettings(
            max_characters=50, timeout_s=0.5, max_output=10_000))
        for texts, status, message in ((["a" * 51], 413, "text: row 1: a text may have at most 50 characters; got 51"),
                                       (["sleep 60"], 504, "the answer took more than 0.5 seconds"),
                                       (["a"] * 1000, 413, "the outputs would have")):
            error = await replica.predict(json.dumps({"instances": texts}).encode(), None)
            assert error.status == status and message in error.message

    asyncio.run(main())


@pytest.mark.filterwarnings("ignore")  # of Ray's imports
def test_the_builder_takes_models_and_limits(tmp_path):
    from keras_bert.integrations.ray_app import build

    app = build({"echo": str(tmp_path), "max_body": "100", "timeout_s": 5})
    models, max_body = app._bound_deployment.init_args
    name, path, settings = models["echo"]._bound_deployment.init_args
    assert (models.keys(), max_body, name, path) == ({"echo"}, 100, "echo", str(tmp_path))
    assert (settings.max_body, settings.timeout_s, settings.max_instances) == (100, 5, 1024)
