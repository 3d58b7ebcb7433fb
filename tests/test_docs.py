"""What the pages name exists: links, commands with their flags, names of the package; and what they repeat agrees."""

import functools
import importlib.util
import pathlib
import pkgutil
import re
import shlex

import pytest
import yaml
from absl import flags

from keras_bert.cli import COMMANDS, arguments_of, make_flags

ROOT = pathlib.Path(__file__).parents[1]
PAGES = sorted([*(page for page in ROOT.glob("*.md") if page.name != "CHANGELOG.md"),  # which has flags of the past
                *ROOT.glob("docs/**/*.md"), ROOT / "examples/README.md"])
# Flags of Beam, of TensorFlow Serving and of examples/ray_data.py.
OF_OTHERS = {"runner", "environment_type", "spark_master_url", "enable_batching", "actors", "address", "id_column"}

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def blocks(text):
    """The code between fences."""
    return re.findall(r"^```\w*\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def codes(text):
    """Lines of code, and code within sentences, each as one line."""
    lines = "".join(blocks(text)).replace("\\\n", " ").splitlines()
    prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    return [*lines, *(" ".join(code.split()) for code in re.findall(r"`([^`]+)`", prose))]


def numbers(text):
    return set(re.findall(r"\d[\d.,e+-]*\d|\d", text))


@functools.cache
def flags_of(command):
    return make_flags(arguments_of(command))


def complaint(line):
    """What the command line would say against a command; None where that is nothing."""
    _, name, *rest = shlex.split(re.sub(r"=N\b", "=1", line), comments=True)  # N stands for a number
    if rest and f"{name} {rest[0]}" in COMMANDS:
        name, rest = f"{name} {rest[0]}", rest[1:]
    if name in ("COMMAND", "--version"):
        return None
    if name not in COMMANDS:
        return f"{line}: no such command"
    if any(flag.startswith("--import=") for flag in rest):  # the module registers a task
        rest = [flag for flag in rest if not flag.startswith("--task=")]
    try:
        flags_of(name)([name, *rest])
    except flags.Error as error:
        return None if "--help" in rest else f"{line}: {error}"


def test_texts_are_split_into_lines_as_the_commands_do():
    """Not by `str.splitlines`, which splits at form feeds and U+2028, too, except for what is no text."""
    paths = [*ROOT.glob("README*"), *(path for folder in ("docs", "examples", "benchmarks", "keras_bert", "export")
                                      for end in ("md", "py", "ipynb") for path in ROOT.glob(f"{folder}/**/*.{end}"))]
    assert {str(path.relative_to(ROOT)) for path in paths if "splitlines(" in path.read_text()} == {
        "benchmarks/ruler.py", "benchmarks/serving.py", "keras_bert/commands/serve.py", "keras_bert/errors.py",
        "keras_bert/pretraining/pretrain.py"}  # output of programs, a token, messages of errors


@each_page
def test_relative_links_lead_somewhere(page):
    targets = re.findall(r"\]\((?!https?:)([^)#\s]+)", page.read_text())
    assert [target for target in targets if not (page.parent / target).exists()] == []


@functools.cache
def anchors(page):
    """The anchors of a page: those of its headings, as GitHub and Python-Markdown make them, and others."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)", text, re.MULTILINE)
    return {re.sub(r"[^\w\s-]", "", heading).strip().lower().replace(" ", "-") for heading in headings} | {
        *re.findall(r'id="([^"]+)"', text)}


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=lambda page: str(page.relative_to(ROOT)))
def test_anchors_of_links_exist(page):
    links = re.findall(r"\]\((?!https?:)([^)#\s]*)#([^)\s]+)\)", page.read_text())
    assert [(target, anchor) for target, anchor in links
            if anchor not in anchors(page.parent / target if target else page)] == []


@each_page
def test_commands_take_the_flags_that_pages_give_them(page):
    commands = [code for code in codes(page.read_text()) if code.startswith("keras-bert ")]
    assert [said for said in map(complaint, commands) if said] == []


@each_page
def test_flags_by_themselves_are_some_commands(page):
    known = OF_OTHERS.union(*map(flags_of, COMMANDS))
    named = [name for code in codes(page.read_text()) if code.startswith("--")
             for name in re.findall(r"--(\w+)", code)]
    assert [name for name in named if not {name, name.removeprefix("no")} & known] == []


def test_the_servers_of_kubernetes_get_flags_that_exist():
    assert {*re.findall(r"--(\w+)", (ROOT / "examples/kubernetes.yml").read_text())} <= {*flags_of("serve")}


@each_page
def test_names_of_the_package_can_be_imported(page):
    for name in re.findall(r"\bkeras_bert(?:\.\w+)+", page.read_text()):
        if not is_module(name):  # one that is there may need a library that is not
            pkgutil.resolve_name(name)


@each_page
def test_tests_that_pages_name_exist(page):
    for file, names in re.findall(r"`(test_\w+\.py)`: ((?:`test_\w+`(?:, )?)+)", page.read_text(encoding="utf-8")):
        found = re.findall(r"^def (test_\w+)", (ROOT / "tests" / file).read_text(encoding="utf-8"), re.MULTILINE)
        assert set(re.findall(r"`(\w+)`", names)) <= set(found)


def is_module(name):
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # its parent has none
        return False


def test_the_home_page_lists_the_pages_of_the_site_in_its_groups():
    def pages(entries):
        for entry in entries:
            page = next(iter(entry.values())) if isinstance(entry, dict) else entry
            yield page if isinstance(page, str) else page[0]  # a section by its first page

    generated = {"ko.md": "../README.ko.md", "changelog.md": "../CHANGELOG.md",
                 "contributing.md": "../CONTRIBUTING.md"}
    site = [(name, generated.get(page, page)) for group in yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
            for name, entries in group.items() for page in pages(entries)
            if page not in ("index.md", "commands.md", "keys.md")]
    home, name = [], ""
    for line in re.findall(r"^\| (?:\| .*|\*\*.*)", (ROOT / "docs/index.md").read_text(), re.M):
        name = line.split("|")[1].strip(" *") or name
        home += [(name, page) for page in re.findall(r"\]\((.+?)\)", line)]
    assert home == site


def test_figures_that_the_performance_page_repeats_stand_on_another_page():
    page = ROOT / "docs/performance.md"
    others = "".join(other.read_text() for other in PAGES if other != page and other.name != "README.ko.md")
    own, _, repeated = page.read_text().partition("## On other pages")
    assert own and numbers(repeated) - numbers(others) == set()


def test_the_korean_readme_has_the_code_and_the_figures_of_the_english_one():
    english, korean = ((ROOT / name).read_text() for name in ("README.md", "README.ko.md"))
    korean = korean.replace("AdamW(5e-5)", "AdamW(2e-4)")  # another encoder, which needs another learning rate
    # Quoted texts and comments may be translated.
    code = [[re.sub(r'"[^"]*"| *# .*', "", block) for block in blocks(text)] for text in (english, korean)]
    assert code[0] == code[1]
    assert numbers(english) - numbers(korean) == set()
