"""Do tests of servers, processes and kills depend on chance?

    python tests/under_load.py [RUNS] [pytest arguments]

Runs them 20 times, while other work keeps all cores busy. Arguments of pytest are added, for example `-k killed`.
Prints the counts and the seconds of each run and, at the end, how often each test failed that failed at all; then the
exit status is 1. Tests that take minutes, or need other libraries, are left out.
"""

import collections
import os
import pathlib
import re
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).parents[1]
# Those with servers, processes, threads, kills, or runs that are resumed; of other files, the tests with these words.
TESTS = [*(f"tests/test_{name}.py" for name in (
    "serving_app", "serving_limits", "serving_server", "serving_foreign", "serving_litert", "serving_processes",
    "serving_page", "serving_batching", "serving_folder", "resume", "pretrain_resume", "predict_files", "files",
    "pretraining_data")), "-k", "serving or resume or kill or process or stopped or writer or continue"]
# Ends with this process, even if that is killed.
BUSY = "import os; parent = os.getppid()\nwhile os.getppid() == parent: sum(range(10**6))"


def run(arguments):
    """Returns the line with the counts of a run, and the tests that failed, with the reasons."""
    command = ["pytest", "-q", "-n2", "--dist=loadfile", "-m", "not long and not peers", *TESTS, *arguments]
    try:
        process = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, stdout=subprocess.PIPE,
                                 stderr=subprocess.STDOUT, text=True, timeout=3600)
    except subprocess.TimeoutExpired as error:
        sys.exit(f"{(error.stdout or b'').decode(errors='replace')}\nit hangs: no end within an hour")
    failed = re.findall(r"^(?:FAILED|ERROR) (.+?)( - .*)?$", process.stdout, re.MULTILINE)
    if process.returncode not in (0, 1) or (process.returncode and not failed):
        sys.exit(process.stdout)  # pytest itself has failed
    return process.stdout.splitlines()[-1], failed


def main(*arguments):
    runs, arguments = (int(arguments[0]), arguments[1:]) if arguments and arguments[0].isdigit() else (20, arguments)
    busy = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in os.sched_getaffinity(0)]
    failures = collections.Counter()
    try:
        for number in range(1, runs + 1):
            start = time.monotonic()
            counts, failed = run(arguments)
            failures.update(test for test, _ in failed)
            print(f"run {number}: {counts} ({time.monotonic() - start:.0f} s)", *map("".join, failed), sep="\n  ",
                  flush=True)
    finally:
        for process in busy:
            process.kill()
    for test, count in failures.most_common():
        print(f"{count} of {runs} runs: {test}")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
