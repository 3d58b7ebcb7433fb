"""The files that name versions and packages agree."""

import pathlib
import re

import pytest

import keras_bert
from keras_bert.commands import serve

ROOT = pathlib.Path(__file__).parents[1]


def test_the_changelog_and_the_citation_have_the_version_and_its_date():
    changelog, citation = ((ROOT / name).read_text() for name in ("CHANGELOG.md", "CITATION.cff"))
    version, date = re.search(r"^## (\S+) \((\S+)\)$", changelog, re.M).groups()
    assert keras_bert.__version__.endswith(".dev0") if "\n## Unreleased\n" in changelog else (
        version == keras_bert.__version__)
    assert f"\nversion: {version}\n" in citation and f'\ndate-released: "{date}"\n' in citation


def test_the_image_of_beams_workers_has_the_launcher_of_the_version_that_it_installs():
    """Beam asks for the same version of both."""
    dockerfile = (ROOT / "Dockerfile.beam").read_text()
    launcher = re.search(r"^FROM apache/beam_python\$\{PYTHON\}_sdk:(\S+) AS beam$", dockerfile, re.M)[1]
    constraints = (ROOT / re.search(r"--constraint /source/(\S+)", dockerfile)[1]).read_text()
    assert re.search(r"^apache-beam==([^ ;\n]+)", constraints, re.M)[1] == launcher


def test_the_server_and_the_docs_name_the_packages_of_the_extra():
    extra = re.findall('"(.+?)"', re.search(r"^SERVE = \[(.*)\]$", (ROOT / "setup.py").read_text(), re.M)[1])
    assert [*serve._PACKAGES] == extra
    for name in ("docs/litert.md", "Makefile"):
        assert " ".join(extra) in (ROOT / name).read_text(), name


@pytest.mark.parametrize("name, lock", [("Dockerfile", "server"), ("Dockerfile.litert", "litert")])
def test_images_have_a_pinned_base_tested_packages_with_hashes_and_a_user_with_a_number(name, lock):
    dockerfile, packages = (ROOT / name).read_text(), (ROOT / f"docker/{lock}.txt").read_text()
    assert re.search(r"^FROM python:3\.13\.\d+-slim-bookworm@sha256:[0-9a-f]{64}$", dockerfile, re.M)
    assert f"--require-hashes --requirement /source/docker/{lock}.txt" in dockerfile
    assert re.search(r"^USER [1-9]\d+$", dockerfile, re.M)
    pinned = re.findall(r"^(\S+==\S+) \\\n    --hash=sha256:", packages, re.M)
    constraints = re.findall(r"^\S+==\S+", (ROOT / "constraints/tensorflow-2.21.txt").read_text(), re.M)
    assert pinned and {*pinned} <= {*constraints} and len(pinned) == packages.count("==")
    assert {*serve._PACKAGES, "ai-edge-litert"} <= {package.partition("==")[0] for package in pinned}
