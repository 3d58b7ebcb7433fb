"""Pages of the site that stand in the repository's root."""

import pathlib

from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).parents[1]
PAGES = {"changelog.md": "CHANGELOG.md", "ko.md": "README.ko.md"}


def on_files(files, config):
    for page, source in PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        text = text.replace("](docs/", "](").replace("](README.md)", "](index.md)")
        files.append(File.generated(config, page, content=text))
