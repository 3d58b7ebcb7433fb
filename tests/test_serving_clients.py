"""The clients of examples/clients against a running server."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest
from serving_server import serving, write_echo

CLIENTS = pathlib.Path(__file__).parents[1] / "examples/clients"
TEXTS = ["play 🎵 'some' \"music\"\\", "각각의 집\né", ""]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    (folder / "token").write_text("a token")
    with serving({"echo": write_echo(folder / "echo")}, f"--token_file={folder}/token") as server:
        yield server


def ask(*command, token="a token", **options):
    return subprocess.run(map(str, command), capture_output=True, text=True, env=os.environ | {"TOKEN": token},
                          timeout=300, **options)


@pytest.mark.parametrize("script,port,refused", [
    ("rest.py", "port", "401: {\"error\":"),
    pytest.param("rpc.py", "grpc_port", "UNAUTHENTICATED: the token in the metadata", marks=pytest.mark.slow)])
def test_a_python_client(server, script, port, refused):
    address = f"{'http://' if port == 'port' else ''}127.0.0.1:{getattr(server, port)}"
    answered = ask(sys.executable, CLIENTS / script, address, "echo", *TEXTS)
    assert answered.returncode == 0, answered.stderr
    assert [json.loads(line)["echo"] for line in answered.stdout.splitlines()] == TEXTS
    answered = ask(sys.executable, CLIENTS / script, address, "echo", '{"text": "a"}')
    assert json.loads(answered.stdout)["echo"] == "a"
    answered = ask(sys.executable, CLIENTS / script, address, "echo", "a", token="another")
    assert (answered.returncode, answered.stdout) == (1, "") and refused in answered.stderr.splitlines()[-1]


def test_a_python_client_without_a_server():
    answered = ask(sys.executable, CLIENTS / "rest.py", "http://127.0.0.1:9", "echo", "a")
    assert (answered.returncode, answered.stderr) == (1, "http://127.0.0.1:9: [Errno 111] Connection refused\n")
    assert ask(sys.executable, CLIENTS / "rest.py").stderr.startswith("usage: ")


@pytest.mark.skipif(not shutil.which("curl"), reason="needs curl")
@pytest.mark.slow
def test_the_shell_client(server):
    command = [CLIENTS / "rest.sh", f"http://127.0.0.1:{server.port}", "echo"]
    answered = ask(*command, input=json.dumps({"instances": TEXTS}))
    assert [row["echo"] for row in json.loads(answered.stdout)["predictions"]] == TEXTS
    answered = ask(*command, input="{}", token="")
    assert answered.returncode == 22 and "Authorization" in json.loads(answered.stdout)["error"]
