"""The files that name versions and packages agree."""

import pathlib
import re

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
    for name in ("docs/litert.md", "Dockerfile.litert"):
        assert " ".join(extra) in (ROOT / name).read_text(), name
