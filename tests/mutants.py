"""Which small changes of the package does no test notice?

    python tests/mutants.py [NUMBER ...]      tries all mutants, or those with these numbers
    python tests/mutants.py draw COUNT SEED   prints new rows, each of another file, without their tests

A mutant is a line of tests/mutants.tsv, counted from 0: a file, the qualified name of a function, an expression that
occurs once in its source, the expression that replaces it, and the test files, or tests, that should notice, the most
specific first. In place of them, "equivalent: " and a reason say that no test can. A comparison is changed (< to <=,
== to !=), a number is increased, or the last part of a sum, a product, `and` or `or` is dropped. Rows 40 to 79 were
drawn with the seed 58.

Each runs in a copy of the checkout, against the quick tests of these files, then the slow ones, until one fails, for
240 s at most. The tests must pass without mutants.
"""

import ast
import collections
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).parents[1]
TABLE = ROOT / "tests/mutants.tsv"
SECONDS = 240
CHANGED = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
           ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In}
MARKS = "not slow and not long and not peers", "slow and not long and not peers"


def mutate(number, path, function, expression, mutant):
    """Returns the source of a file with the mutant in it."""
    file = ROOT / path
    lines = file.read_text(encoding="utf-8").split("\n") if file.exists() else []
    node = ast.parse("\n".join(lines))
    for name in function.split("."):
        node = next((child for child in getattr(node, "body", ()) if getattr(child, "name", None) == name), None)
    first, last = (node.lineno - 1, node.end_lineno) if node else (0, 0)
    source = "\n".join(lines[first:last])
    if (count := source.count(expression)) != 1:
        sys.exit(f"{TABLE}: mutant {number}: {expression!r} must occur once in {function} of {path}; got {count} times")
    return "\n".join([*lines[:first], source.replace(expression, mutant), *lines[last:]])


def run_pytest(copy, arguments, seconds):
    """Returns the exit status, None if the time is over, and the output."""
    with tempfile.TemporaryFile("w+", encoding="utf-8") as output:  # a pipe would wait for servers that tests started
        process = subprocess.Popen([sys.executable, "-m", "pytest", "-q", "-x", *arguments], cwd=copy, stdout=output,
                                   stderr=subprocess.STDOUT, start_new_session=True,
                                   env=os.environ | {"PYTHONPATH": str(copy)})
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            status = None
        output.seek(0)
        return status, output.read()


def try_mutant(path, source, tests):
    """Returns what became of a mutant, and the test that failed or why none can."""
    if tests.startswith("equivalent: "):
        return tuple(tests.split(": ", 1))
    ends = time.monotonic() + SECONDS
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        copy = pathlib.Path(folder) / "checkout"
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".venv*", "build", "dist", "__pycache__"))
        (copy / path).write_text(source, encoding="utf-8")
        for marks in MARKS:
            status, output = run_pytest(copy, ["-m", marks, *tests.split()], ends - time.monotonic())
            if failed := re.search(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", output, re.MULTILINE):
                return "killed", failed[1]
            if status not in (0, 5):  # 5: no test has these marks
                return "out of time" if status is None else f"pytest ended with status {status}", ""
    return "survived", ""


def read_table():
    """Returns the rows of the table."""
    return [line.split("\t") for line in TABLE.read_text(encoding="utf-8").splitlines()]


def changed(node):
    """Returns an expression with a small change, None if it has no part of the kinds that are changed."""
    match node:
        case ast.Compare(left, [kind], right) if type(kind) in CHANGED:
            return ast.Compare(left, [CHANGED[type(kind)]()], right)
        case ast.Constant(int() | float() as number) if not isinstance(number, bool):
            return ast.Constant(number + 1)
        case ast.BinOp(left, ast.Add() | ast.Mult()):
            return left
        case ast.BoolOp(kind, [*first, _]):
            return ast.BoolOp(kind, first) if len(first) > 1 else first[0]


def find_mutants(path):
    """Yields (function, expression, mutant) for each part of a file that can be changed and occurs once."""
    def functions(node, names):
        for child in node.body:
            if isinstance(child, ast.ClassDef):
                yield from functions(child, [*names, child.name])
            elif isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield ".".join([*names, child.name]), child

    source = path.read_text(encoding="utf-8")
    for name, function in functions(ast.parse(source), []):
        for node in ast.walk(function):
            other, expression = changed(node), ast.get_source_segment(source, node) or "\n"
            if other and "\n" not in expression and ast.get_source_segment(source, function).count(expression) == 1:
                yield name, expression, ast.unparse(other)


def draw(count, seed):
    """Prints a mutant of each of some files, drawn from all that can be changed."""
    rng = random.Random(seed)
    found = {path.relative_to(ROOT): [*find_mutants(path)]
             for folder in ("keras_bert", "export") for path in sorted((ROOT / folder).rglob("*.py"))}
    for path in sorted(rng.sample([path for path in found if found[path]], count)):
        print(path, *rng.choice(found[path]), sep="\t")


def run(numbers):
    rows = read_table()
    sources = [mutate(number, *row[:4]) for number, row in enumerate(rows)]
    outcomes = collections.Counter()
    for number in numbers or range(len(rows)):
        path, function, expression, mutant, tests = rows[number]
        started = time.monotonic()
        outcome, reason = try_mutant(path, sources[number], tests)
        outcomes[outcome] += 1
        print(f"{number:2} {outcome:11} {time.monotonic() - started:4.0f} s  {path}, {function}: "
              f"{expression!r} -> {mutant!r}  ({reason})", flush=True)
    print(", ".join(f"{count} {outcome}" for outcome, count in outcomes.items()))


if __name__ == "__main__":
    if sys.argv[1:2] == ["draw"]:
        draw(*map(int, sys.argv[2:]))
    else:
        run([int(number) for number in sys.argv[1:]])
