"""Pages of the site that are not in docs/: files of the repository's root, the reference of the command line, and the
files outside docs/ that pages link to."""

import pathlib
import posixpath
import re

from mkdocs.structure.files import File

from keras_bert.cli import COMMANDS, help_of

ROOT = pathlib.Path(__file__).parents[1]
PAGES = {"changelog.md": "CHANGELOG.md", "ko.md": "README.ko.md"}
PAGE_OF = {source: page for page, source in PAGES.items()} | {"README.md": "index.md"}


def on_files(files, config):
    for page, source in PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=text))
    reference = "".join(f"## {name}\n\n```text\n{help_of(name)}\n```\n\n" for name in COMMANDS)
    files.append(File.generated(config, "commands.md", content=(
        f"# Command line\n\nAll commands and their flags, as `keras-bert COMMAND --help` prints them.\n\n{reference}")))


def on_page_markdown(markdown, page, config, files):
    """Makes links that are relative to the repository relative to the site, and adds the files that they lead to."""
    here = posixpath.dirname(PAGES.get(page.file.src_uri, f"docs/{page.file.src_uri}"))
    home = posixpath.dirname(page.file.src_uri)

    def link(match):
        target = posixpath.normpath(posixpath.join(here, match[1]))
        if target in PAGE_OF:
            target = f"docs/{PAGE_OF[target]}"
        elif not target.startswith("docs/"):
            if not (ROOT / target).is_file():
                return match[0]
            # Markdown would become a page, whose own links are relative to the repository.
            name = f"files/{target}.txt" if target.endswith(".md") else f"files/{target}"
            if name not in files.src_uris:
                files.append(File.generated(config, name, content=(ROOT / target).read_bytes()))
            target = f"docs/{name}"
        return f"]({posixpath.relpath(target, posixpath.join('docs', home))}{match[2] or ''})"

    return re.sub(r"\]\((?!https?:)([^)#\s]+)(#[^)\s]*)?\)", link, markdown)
