"""Pages of the site that are files in the repository's root, and the reference of the command line."""

import pathlib

from mkdocs.structure.files import File

from keras_bert.cli import COMMANDS, help_of

ROOT = pathlib.Path(__file__).parents[1]
PAGES = {"changelog.md": "CHANGELOG.md", "ko.md": "README.ko.md"}


def on_files(files, config):
    for page, source in PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        text = text.replace("](docs/", "](").replace("](README.md)", "](index.md)")
        files.append(File.generated(config, page, content=text))
    reference = "".join(f"## {name}\n\n```text\n{help_of(name)}\n```\n\n" for name in COMMANDS)
    files.append(File.generated(config, "commands.md", content=f"# Command line\n\n{reference}"))
