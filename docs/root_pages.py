"""Pages of the site that are not in docs/: files of the repository's root, the references of the command line and of
foreign files' keys, and the files outside docs/ that pages link to."""

import html
import pathlib
import posixpath
import re
import runpy

from mkdocs.structure.files import File

from keras_bert.cli import COMMANDS, arguments_of, module_of, summary_of, usage_of

ROOT = pathlib.Path(__file__).parents[1]
PAGES = {"changelog.md": "CHANGELOG.md", "contributing.md": "CONTRIBUTING.md", "ko.md": "README.ko.md"}
KEYS = "keras_bert/files/declared_keys.toml"
PAGE_OF = {source: page for page, source in PAGES.items()} | {"README.md": "index.md", KEYS: "keys.md"}
# A page about a word is found before these, which have all words.
BOOSTS = {"changelog.md": 0.1, "log.md": 0.1, "design.md": 0.3, "ko.md": 0.3}


def on_files(files, config):
    for page, source in PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=text))
    keys_page = runpy.run_path(str(ROOT / "docs/keys.py"))["keys_page"]
    files.append(File.generated(config, "keys.md", content=keys_page()))
    reference = "".join(map(command, COMMANDS))
    files.append(File.generated(config, "commands.md", content=(
        f"# Command line\n\n`keras-bert COMMAND --help` prints the same.\n\n{reference}")))


def command(name):
    """Returns the section of a command: a sentence, its usage, an example and a table of its flags."""
    named = [argument for argument in arguments_of(name) if not argument.is_positional]
    rows = "".join(map(row, sorted(named, key=lambda argument: not argument.is_required)))
    return (f"## {name}\n\n{summary_of(name)}\n\n```text\n{usage_of(name)}\n```\n\n"
            f"Example:\n\n```sh\n{module_of(name).EXAMPLE}\n```\n\n"
            '<div class="flags"><table>\n<tr><th>Flag</th><th>Default</th><th>Meaning</th></tr>\n'
            f"{rows}</table></div>\n\n")


def row(argument):
    default = "required" if argument.is_required else code(argument.shown_default)
    meaning = re.sub(r"--\w+", lambda flag: code(flag[0]), html.escape(argument.help))
    return f"<tr><td>{code(argument.spelling)}</td><td>{default}</td><td>{meaning}</td></tr>\n"


def code(text):
    """Returns text as HTML's code, the values of a flag below each other."""
    return f"<code>{html.escape(text).replace('|', '|<br>')}</code>" if text else ""


def on_page_markdown(markdown, page, config, files):
    """Makes links that are relative to the repository relative to the site, and adds the files that they lead to."""
    if page.file.src_uri in BOOSTS:
        page.meta["search"] = {"boost": BOOSTS[page.file.src_uri]}
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


def on_page_content(html, page, config, files):
    """Keeps flags in one line, which browsers would break after their hyphens."""
    return html.replace("<code>--", '<code class="flag">--')
