"""Which small changes of the package does no test notice?

    python tests/mutants.py draw                   draws five mutants of each of eight packages into tests/mutants.tsv
    python tests/mutants.py reach -m peers -n 2    runs pytest, and adds to that file which test files reach each mutant
    python tests/mutants.py run [NUMBER ...]       runs the tests of each mutant

A mutant has one comparison changed (< to <=, == to !=), one number increased, or the last part of a sum, a product,
`and` or `or` dropped. Each runs in a copy of the checkout, two at a time, against the test files that reach it, for
120 s at most; it is killed if a test fails in that time. The tests must pass without mutants. The Python that runs this
file runs them: .venv-peers/bin/python has what all of them need.
"""

import ast
import collections
import concurrent.futures
import contextlib
import csv
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).parents[1]
TABLE = ROOT / "tests/mutants.tsv"
PACKAGES = [*(f"keras_bert/{name}" for name in ("layers", "tasks", "data", "text", "convert", "training")), "export",
            "keras_bert/serving"]
CHANGED = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==", ast.Is: "is not",
           ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in"}
SECONDS = 120
# `probe.seen[number]` is None, and notes the test file that runs, in this process or in one that started it.
PROBE = """
import os
class Seen(dict):
    def __missing__(self, number):
        test = os.environ.get("PYTEST_CURRENT_TEST", "").partition("::")[0]
        if test and (number, test) not in self:
            self[number, test] = True
            with open(os.path.join(os.path.dirname(__file__), "seen.tsv"), "a") as file:
                file.write(f"{number}\\t{test}\\n")
seen = Seen()
"""


def mutations(path):
    """Yields rows of (path, byte, expression, mutant) of a file: expressions in functions whose mutant compiles."""
    source = path.read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def start(node):
        return starts[node.lineno - 1] + node.col_offset

    def end(node):
        return starts[node.end_lineno - 1] + node.end_col_offset

    def changes(node):
        """(first byte, byte after the last, new text)"""
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            return end(node.left), start(node.comparators[0]), f" {CHANGED[type(node.ops[0])]} "
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return start(node), end(node), str(node.value + 1)
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub, ast.Mult)):
            return end(node.left), end(node), ""
        if isinstance(node, ast.BoolOp):
            return end(node.values[-2]), end(node), ""

    def visit(node, in_function):
        if isinstance(node, (ast.JoinedStr, ast.Raise, ast.Assert, ast.arguments)):
            return
        in_function = in_function or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        if in_function and (change := changes(node)):
            first, last, new = change
            with contextlib.suppress(SyntaxError):
                compile(source[:first] + new.encode() + source[last:], path, "exec")
                before = source[start(node):end(node)]
                after = source[start(node):first] + new.encode() + source[last:end(node)]
                yield str(path.relative_to(ROOT)), start(node), before.decode(), after.decode()
        for child in ast.iter_child_nodes(node):
            yield from visit(child, in_function)

    yield from visit(ast.parse(source), False)


def draw():
    """Writes the table."""
    rng = random.Random(0)
    rows = [[row for path in sorted((ROOT / package).rglob("*.py")) for row in mutations(path)] for package in PACKAGES]
    write([[*row, ""] for some in rows for row in rng.sample(some, 5)])


def read():
    with open(TABLE, encoding="utf-8", newline="") as file:
        return list(csv.reader(file, delimiter="\t"))


def write(rows):
    with open(TABLE, "w", encoding="utf-8", newline="") as file:
        csv.writer(file, delimiter="\t", lineterminator="\n").writerows(rows)


@contextlib.contextmanager
def changed_checkout(rows, replacement):
    """A copy of the checkout in which `replacement(number, row)` stands for the expressions of rows by number."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        copy = pathlib.Path(folder) / "checkout"
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".venv*", "build", "dist", "__pycache__"))
        for number, (path, byte, before, *_) in sorted(rows.items(), key=lambda item: -int(item[1][1])):
            source = (copy / path).read_bytes()
            head, tail = source[:int(byte)], source[int(byte):]
            if not tail.startswith(before.encode()):
                sys.exit(f"{TABLE}: row {number + 1}: {path} has changed; draw again")
            new = replacement(number, rows[number]).encode()
            (copy / path).write_bytes(head + new + tail[len(before.encode()):])
        yield copy


def run_pytest(copy, *arguments, seconds=None):
    """The exit status, None if the time is over."""
    process = subprocess.Popen([sys.executable, "-m", "pytest", "-q", *arguments], cwd=copy, start_new_session=True,
                               stdout=subprocess.DEVNULL, env=os.environ | {"PYTHONPATH": str(copy)})
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def reach(*arguments):
    """Adds to the table the test files that reach each mutant."""
    rows = read()
    with changed_checkout(dict(enumerate(rows)),
                          lambda number, row: f'(__import__("probe").seen[{number}] or {row[2]})') as copy:
        (copy / "probe.py").write_text(PROBE)
        run_pytest(copy, *arguments)
        for line in (copy / "seen.tsv").read_text().splitlines():
            number, test = line.split("\t")
            row = rows[int(number)]
            row[4] = " ".join(sorted({*row[4].split(), test}))
    write(rows)


def try_mutant(number, row, tests):
    """Runs its tests; returns True if one fails."""
    started = time.monotonic()
    with changed_checkout({number: row}, lambda number, row: row[3]) as copy:
        status = run_pytest(copy, "-x", "-m", "not long", *tests, seconds=SECONDS) if tests else "no test reaches it"
    outcome = {0: "survived", 1: "killed", None: "out of time"}.get(status, status)
    seconds = time.monotonic() - started
    print(f"{number:2} {outcome:11} {seconds:4.0f} s  {row[0]}: {row[2]!r} -> {row[3]!r}", flush=True)
    return status == 1


def run(*numbers):
    """Runs the tests of some mutants, or of all: first those that reach few mutants."""
    rows = dict(enumerate(read()))
    reached = collections.Counter(test for row in rows.values() for test in row[4].split())

    def is_killed(number):
        return try_mutant(number, rows[number], sorted(rows[number][4].split(), key=reached.get))

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        killed = list(pool.map(is_killed, map(int, numbers) if numbers else rows))
    print(f"{sum(killed)} of {len(killed)} mutants are killed")


if __name__ == "__main__":
    {"draw": draw, "reach": reach, "run": run}[sys.argv[1]](*sys.argv[2:])
