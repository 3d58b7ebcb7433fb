"""The files that name the version agree."""

import pathlib
import re

import keras_bert

ROOT = pathlib.Path(__file__).parents[1]


def test_the_changelog_and_the_citation_have_the_version_and_its_date():
    version, date = re.search(r"^## (\S+) \((\S+)\)$", (ROOT / "CHANGELOG.md").read_text(), re.M).groups()
    citation = (ROOT / "CITATION.cff").read_text()
    assert version == keras_bert.__version__
    assert f"\nversion: {version}\n" in citation and f'\ndate-released: "{date}"\n' in citation
