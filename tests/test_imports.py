"""Each package imports only what docs/design.md allows."""

import ast
import graphlib
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[1]
DESIGN = (ROOT / "docs/design.md").read_text(encoding="utf-8")
EVERYONE = set(re.findall(r"`(\w+)`", DESIGN.partition("Every package may import")[2].partition("which need")[0]))
# The table's rows: the packages or modules, and those that they may import.
ROWS = [(re.findall(r"`(\w+)", names), set(re.findall(r"\w+", allowed)))
        for names, allowed in re.findall(r"^\| (`.*?) \|.*\| (.*) \|$", DESIGN, re.M)]
MAY_IMPORT = dict.fromkeys(EVERYONE, EVERYONE) | {name: allowed | EVERYONE for names, allowed in ROWS for name in names}
DEFERRED = {("layers/bert.py", "weights"), ("models/base.py", "weights")}  # imports against the direction of the others
LIBRARIES = {"tensorflow", "jax", "torch", "tensorflow_hub", "tensorflow_text", "official", "orbit", "tf_keras",
             "huggingface_hub", "starlette", "uvicorn", "grpc", "tensorflow_serving",
             "prometheus_client", "apache_beam", "ai_edge_litert"}
MAY_IMPORT_LIBRARIES = {
    "kernels": {"tensorflow", "jax"},
    "files": {"tensorflow"},  # to name its errors, when it writes
    "presets": {"huggingface_hub"},  # only where it is installed
    "hub": {"tensorflow"},
    "export": {"tensorflow", "tensorflow_hub", "ai_edge_litert"},  # tensorflow-hub only where it is installed
    "litert": {"ai_edge_litert"},
    "text": {"tensorflow"},  # for the tokenizer in the graph, which keras_bert.text does not import by itself
    "weights": {"tensorflow", "torch"},  # for their own formats, when they are read
    "data": {"tensorflow"},
    "tasks": {"tensorflow"},  # where a SavedModel's answers are computed
    "training": {"tensorflow"},
    "pretraining": {"tensorflow", "jax", "apache_beam"},  # JAX for its steps, Beam for its examples
    "integrations": {"apache_beam"},
    "inference": {"tensorflow", "tensorflow_serving"},  # to run SavedModels
    "serving": {"tensorflow", "starlette", "uvicorn", "grpc", "tensorflow_serving", "prometheus_client"},
}


def sources():
    for path in sorted((ROOT / "keras_bert").rglob("*.py")):
        name = path.relative_to(ROOT / "keras_bert")
        if str(name) != "__init__.py":
            yield str(name), name.parts[0].removesuffix(".py"), path
    for path in sorted((ROOT / "export").glob("[!_]*.py")):
        yield f"export/{path.name}", "export", path


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize(
    "name,package,path", list(sources()), ids=lambda value: value if isinstance(value, str) else "")
def test_imports_are_allowed(name, package, path):
    for imported in imports(path):
        parts = imported.split(".")
        if parts[0] == "keras_bert" and parts[1] != "__version__":
            target = parts[1]
            allowed = MAY_IMPORT[package]
            assert ("everything" in allowed or target in {package, *allowed} or (name, target) in DEFERRED
                    ), f"{name} imports {imported}, which the table of docs/design.md does not name"
        elif parts[0] in LIBRARIES:
            assert parts[0] in MAY_IMPORT_LIBRARIES.get(package, set()), f"{name} imports {imported}"


def test_every_package_is_known():
    assert {package for _, package, _ in sources()} <= MAY_IMPORT.keys()


def test_no_circle_of_packages():
    graph = {package: set() for _, package, _ in sources()}
    for name, package, path in sources():
        targets = {imported.split(".")[1] for imported in imports(path) if imported.startswith("keras_bert.")}
        graph[package] |= {target for target in targets - {package} if (name, target) not in DEFERRED}
    graphlib.TopologicalSorter(graph).prepare()  # raises a CycleError
