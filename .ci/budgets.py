"""The budgets of this repository. A change that exceeds one raises it here, in the same commit, and says why.

    python3 .ci/budgets.py                        lines and words; a part of `make lint`
    python3 .ci/budgets.py SECONDS JUNIT_XML      seconds, too: of all of `.ci/run`, and the report of `make test`

Exceeded lines and words end with status 1. Seconds only warn, since other programs may slow a machine down. They are
divided by the seconds of a fixed computation on two cores, so that different machines can be compared.

A line of code has a token that is neither a comment nor a docstring.
"""

import ast
import io
import json
import os
import pathlib
import sys
import time
import tokenize
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).parents[1]
BUDGETS = {  # what: (at most, why as many)
    "lines of code, keras_bert and export": (19_159, "release 0.3, and the capabilities of 0.4"),
    "lines of docstrings, keras_bert and export": (4_510, "release 0.3, less 45"),
    "lines of code, tests": (21_900, "release 0.3, less 648; 11 for crashes of imports, and models given to `verify`"),
    "words, docs and READMEs": (36_000, "release 0.3, less 9,000"),
    "pytest in `make test` / fixed work": (89, "0.55 of release 0.3"),
    ".ci/run / fixed work": (482, "0.55 of release 0.3"),
}
LAYOUT = tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER


def count_lines(path):
    """Returns the numbers of lines of code and of docstrings of a Python file."""
    source, docstrings, code = path.read_text(encoding="utf-8"), set(), set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            if ast.get_docstring(node, clean=False) is not None:
                docstrings.update(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in LAYOUT:
            code.update(range(token.start[0], token.end[0] + 1))
    return len(code - docstrings), len(docstrings)


def sum_lines(*folders):
    counts = [count_lines(path) for folder in folders for path in (ROOT / folder).rglob("*.py")]
    return [sum(column) for column in zip(*counts)]


def measure_fixed_work():
    """Returns the seconds of the fixed computation."""
    start, row = time.perf_counter(), {"text": 50 * "play some music ", "ids": [*range(200)]}
    child = os.fork()  # on two cores
    for _ in range(100_000):
        json.loads(json.dumps(row))
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
    return time.perf_counter() - start


def run(seconds=None, junit=None):
    pages = [*ROOT.glob("README*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("docs/tasks/*.md")]
    words = sum(len(page.read_text(encoding="utf-8").split()) for page in pages)
    found = dict(zip(BUDGETS, [*sum_lines("keras_bert", "export"), sum_lines("tests")[0], words]))
    counted = {*found}
    if seconds:
        fixed_work = measure_fixed_work()
        pytest = sum(float(suite.get("time")) for suite in xml.etree.ElementTree.parse(junit).iter("testsuite"))
        print(f"fixed work: {fixed_work:.2f} s, pytest in `make test`: {pytest:.0f} s, .ci/run: {seconds} s")
        found |= dict(zip([*BUDGETS][len(found):], [pytest / fixed_work, int(seconds) / fixed_work]))
    exceeded = {name for name, value in found.items() if value > BUDGETS[name][0]}
    if seconds or exceeded:
        for name, value in found.items():
            verdict = "EXCEEDED" if name in exceeded else ""
            print(f"{name:45}{value:9,.0f} of {BUDGETS[name][0]:7,}  {verdict}")
    if exceeded & counted:
        sys.exit("A budget is exceeded: shorten the change, or raise the budget in .ci/budgets.py and say why.")


if __name__ == "__main__":
    run(*sys.argv[1:])
