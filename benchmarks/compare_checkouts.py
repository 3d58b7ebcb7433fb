"""Compares the speed of another checkout of this repository with this one: answers to texts and fine-tuning steps.

    git worktree add ../before v0.1
    python benchmarks/compare_checkouts.py ../before [--size=L6-H384 --dtype=float32 --turns=9]

Each checkout runs in its own process, with its own code and its own benchmarks. The other checkout runs in two
processes; the ratio between these two shows how much equal code varies by chance. The processes take turns, one step at
a time (`texts.py`, `training_step.py`), while the others wait. Ratios compare neighbouring turns. Takes about ten
minutes on two cores.
"""

import functools
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CORPORA = ("intents", "mixed")
WORK = "--work"  # the first argument of the processes
BATCHES = 16  # number of mixed-text batches to train on


def work(checkout, size, dtype):
    """Runs the steps that are named on standard input; writes the seconds of each one to standard output."""
    answers, sys.stdout = sys.stdout, sys.stderr
    sys.path[:1] = [checkout, os.path.join(checkout, "benchmarks")]  # in place of this program's folder
    import keras_bert

    keras_bert.__path__.append(checkout)  # otherwise version 0.1 finds its export/ only if it is installed
    steps = _steps(size, dtype)
    print(json.dumps([os.path.dirname(keras_bert.__file__), list(steps)]), file=answers, flush=True)
    for line in sys.stdin:
        started = time.perf_counter()
        steps[line.strip()]()
        print(time.perf_counter() - started, file=answers, flush=True)


def _steps(size, dtype):
    import texts
    import training_step
    from peer_models import config_of, write_encoder

    steps = {}
    with tempfile.TemporaryDirectory() as folder:
        for corpus in CORPORA:
            read, vocabulary, max_length = texts.CORPORA[corpus]
            tokenizer = texts.tokenizer_of(vocabulary)
            config = config_of(size, vocab_size=len(tokenizer.vocabulary))
            write_encoder(config, os.path.join(folder, corpus), tokenizer)
            for name, answer in texts.ours(os.path.join(folder, corpus), tokenizer, max_length, dtype).items():
                steps[f"{corpus}, {name}"] = functools.partial(answer, read())
    batches = {"train 16 x 128": training_step.full_batch(config),
               f"train {BATCHES} x 16 texts": training_step.real_batches(training_step.mixed_texts(tokenizer, BATCHES))}
    for name, given in batches.items():
        steps[name] = functools.partial(training_step.train, training_step.ours(config, dtype), given)
    return steps


def start(checkout, given, settling):
    """Starts a process that runs `work`; returns a function from a step's name to its seconds, and the names."""
    process = subprocess.Popen([sys.executable, os.path.abspath(__file__), WORK, checkout, given.size, given.dtype],
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(name):
        time.sleep(settling)
        print(name, file=process.stdin, flush=True)
        return float(answer())

    def answer():
        line = process.stdout.readline()
        if not line:
            raise SystemExit(f"{checkout}: its process ended; see above")
        return line

    package, names = json.loads(answer())
    if package != os.path.join(checkout, "keras_bert"):
        raise SystemExit(f"{checkout}: imports {package}")
    return ask, names


def main():
    if sys.argv[1:2] == [WORK]:
        return work(*sys.argv[2:])
    import ruler  # only here: `work` imports the other checkout's

    parser = ruler.parser(__doc__, size="L6-H384", dtype="float32", turns=9)
    parser.add_argument("other", help="folder of the other checkout")
    given = parser.parse_args()
    if given.turns < 2:
        raise SystemExit("--turns must be at least 2")
    other = os.path.abspath(given.other)
    ruler.describe("tensorflow", "keras")
    (this, names), (before, known), (again, _) = (
        start(checkout, given, ruler.SETTLING) for checkout in (HERE, other, other))
    if names != known:
        raise SystemExit(f"the checkouts must have the same steps; {HERE} has {names}, {other} {known}")
    seconds = {name: [] for name in names}
    for turn, name in itertools.product(range(ruler.UNCOUNTED + given.turns), names):
        row = [ask(name) for ask in (before, this, again)]
        if turn >= ruler.UNCOUNTED:
            seconds[name].append(row)
    title = f"median of {given.turns}"
    print(f"\n{title:28}{'other, ms':>12}{'this, ms':>12}{'this/other':>12}{'other/other, quartiles':>30}")
    for name, rows in seconds.items():
        this = statistics.median(ours for _, ours, _ in rows)
        before = statistics.median((first + second) / 2 for first, _, second in rows)
        ratio = statistics.median(2 * ours / (first + second) for first, ours, second in rows)
        chance = statistics.quantiles(second / first for first, _, second in rows)
        print(f"{name:28}{1000 * before:12,.0f}{1000 * this:12,.0f}{ratio:12.3f}"
              + f"{' '.join(f'{quartile:.3f}' for quartile in chance):>30}")


if __name__ == "__main__":
    main()
