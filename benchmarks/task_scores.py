"""Compares scores and time of fine-tuning with the heads of PyTorch transformers, for every task, on the CPU; for the
task embed, with sentence-transformers (pip install sentence-transformers).

    python benchmarks/task_scores.py --task=demo-176 --model=minilm --results=FILE.jsonl
    python benchmarks/task_scores.py --task=wnut17 --model=minilm --results=FILE.jsonl --download

`demo-176` is the data set of `examples/intents`. For the other tasks, `--download` gets the complete data, if it has a
stable address (`real_texts.py`), or `KERAS_BERT_DATA` names a folder with it; otherwise, samples of some data sets are
read, which are too small for a useful score. If a data set has no split, fixed rules make one. Each run is a separate
process. For each seed, the two libraries take turns, on the same batches in the same order with the same settings, and
the same code scores both after the last epoch; other scores than the main one are those of the best epoch. The
difference is the mean over the seeds, with its 95% interval (Student's t). The time is that of the whole call, which
for this package includes checkpoints, pictures and the model card. Runs that are already in `--results` are skipped.

`--seeds`, `--epochs` and `--learning_rate` are by default the task's own; the rate is the one for MiniLM. With
`--dtype=mixed_bfloat16`, PyTorch computes by autocast.
"""

import argparse
import collections.abc
import csv
import dataclasses
import importlib
import itertools
import json
import os
import pathlib
import random
import re
import runpy
import statistics
import subprocess
import sys
import tempfile
import time

import ruler
from real_texts import DATA, DOWNLOADS, ROOT, announce, fetch, find
from scipy import stats

MODULES = {"keras_bert": "keras_bert.training", "transformers": "task_scores_torch"}  # each has a `finetune`


@dataclasses.dataclass(frozen=True)
class Run:
    """The training settings of a task.

    Args:
        task, data_format, epochs, batch_size, learning_rate: as in `finetune`.
        files: names of the data files, for `find` and `fetch`.
        seeds: default of `--seeds`.
        split: function of a folder and the paths of `files` that writes the training and the validation file to the
            folder and returns their paths; None if `files` are these two.
    """

    task: str
    files: tuple
    epochs: int
    batch_size: int = 32
    learning_rate: float = 2e-4
    data_format: str | None = None
    seeds: tuple = (0, 1, 2)
    split: collections.abc.Callable | None = None


def build_demo(folder):
    """Writes demo-176."""
    runpy.run_path(str(ROOT / "examples/intents/build.py"))["build"](folder)
    return folder / "train.tsv", folder / "valid.tsv"


def split_sst2(folder, sentences):
    """Writes every tenth sentence for validation and the rest for training."""
    rows = _sst2(sentences)
    return write(folder, "train", (row for number, row in enumerate(rows, 1) if number % 10)), write(
        folder, "valid", rows[9::10])


def split_sst2_16(folder, few, sentences):
    """Writes the few-shot sentences for training, and the other sentences of `split_sst2`'s validation for validation.

    The few-shot development file is not used because it has only 32 sentences. The two files spell punctuation and
    brackets differently, so two sentences are the same if their letters are.
    """
    train = _sst2(few)[1:]
    known = {_letters(text) for text, _ in train}
    valid = (row for row in _sst2(sentences)[9::10] if _letters(row[0]) not in known)
    return write(folder, "train", train), write(folder, "valid", valid)


def _sst2(path):
    return [line.rstrip("\n").rsplit("\t", 1) for line in open(path)]


def _letters(text):
    return re.sub(r"\b[lr]rb\b|[^a-z]", "", text)


def write(folder, name, rows):
    path = folder / f"{name}.jsonl"
    path.write_text("".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in rows))
    return path


def sample_training_rows(folder, train, valid):
    """Writes a fixed sample of 20,000 rows of the training file, which has a header."""
    with open(train, encoding="utf-8") as file:
        header, *rows = file
    path = folder / train.name
    path.write_text("".join([header, *random.Random(0).sample(rows, min(20_000, len(rows)))]), encoding="utf-8")
    return path, valid


def split_2000(read):
    """Returns a split that writes two samples of 2,000 rows of (text, label), which `read` returns: one to train, one
    for validation."""
    def split(folder, path):
        rows = random.Random(0).sample(list(read(path)), 4000)
        return write(folder, "train", rows[:2000]), write(folder, "valid", rows[2000:])
    return split


def split_xquad(folder, path):
    """Writes every fifth article for validation and the rest for training."""
    articles = json.loads(path.read_text())["data"]
    train = [article for number, article in enumerate(articles, 1) if number % 5]
    for name, some in (("train", train), ("valid", articles[4::5])):
        (folder / f"{name}.json").write_text(json.dumps({"data": some}))
    return folder / "train.json", folder / "valid.json"


def rewritten(read):
    """Returns a split that writes rows of (text, label), which `read` returns; the test file is for validation."""
    return lambda folder, train, test: (write(folder, "train", read(train)), write(folder, "valid", read(test)))


def read_3i4k(path):
    with open(path, encoding="utf-8") as file:
        return [reversed(line.rstrip("\n").split("\t")) for line in file]


def read_nsmc(path):
    from keras_bert.data import read_examples

    return [(example.text, example.label) for example in read_examples(path, data_format="nsmc")]


def read_banking77(path):
    with open(path, newline="") as file:
        return [(row["text"], row["category"]) for row in csv.DictReader(file)]


# Admiration, amusement, curiosity, gratitude, joy, love, sadness, surprise: those of the sample in tests/data/real.
EIGHT_EMOTIONS = {"0", "1", "7", "15", "17", "18", "25", "26"}


def split_goemotions(folder, train, dev):
    """Writes the first 2,000 comments for training and the first 800 for validation whose emotions are all among eight:
    the 28 of the data set need more steps before anything but their frequency is learned."""
    for path, count in ((train, 2000), (dev, 800)):
        with open(path, encoding="utf-8") as file:
            lines = (line for line in file if EIGHT_EMOTIONS.issuperset(line.split("\t")[1].split(",")))
            (folder / path.name).write_text("".join(itertools.islice(lines, count)), encoding="utf-8")
    return folder / train.name, folder / dev.name


def in_folders(_, train, *files):
    """Returns the folders of the training and the validation files."""
    return train.parent, files[-1].parent


def _folders(name, *parts):
    """Returns the names of the files of `in_folders`."""
    return tuple(f"intent/{name}/{split}/{part}" for split in ("train", "dev") for part in parts)


def _pair(pattern, train="train", valid="dev"):
    return pattern.format(train), pattern.format(valid)


SST2 = "glue/SST-2/clairett/train.tsv"
RUNS = {
    "demo-176": Run("intent", (), 4, learning_rate=4e-4, split=build_demo),
    "clinc-hwu-176": Run("intent", _pair("intent/intent176/{}.tsv", valid="valid"), 4, seeds=(0,)),
    "sst2-16": Run("classify", ("glue/SST-2/fewshot16-42_train.tsv", SST2), 10, 8, seeds=(0, 1, 2, 3, 4),
                   split=split_sst2_16),
    "sst2": Run("classify", (SST2,), 2, split=split_sst2),
    "glue-sst2": Run("classify", _pair("glue/SST-2/{}.tsv"), 1, data_format="sst2", split=sample_training_rows),
    "banking77": Run("intent", _pair("intent/banking77/{}.csv", valid="test"), 4, split=rewritten(read_banking77)),
    "goemotions": Run("multilabel", _pair("multilabel/goemotions/{}.tsv"), 12, 16, data_format="goemotions",
                      split=split_goemotions),
    "atis": Run("tag", _folders("atis", "seq.in", "seq.out"), 4, 16, data_format="snips", split=in_folders),
    "snips": Run("intent", _folders("snips", "seq.in", "label"), 1, data_format="snips", split=in_folders),
    "snips-joint": Run("joint", _folders("snips", "seq.in", "seq.out", "label"), 2, data_format="snips",
                       split=in_folders),
    "snips-slots": Run("tag", _folders("snips", "seq.in", "seq.out"), 1, data_format="snips", split=in_folders),
    "wnut17": Run("tag", _pair("ner/wnut17/{}.conll"), 3, 16),
    "codah": Run("choice", _pair("multiple_choice/codah/fold0_{}.tsv"), 2, 16, data_format="codah"),
    "xquad": Run("span", ("qa/xquad/xquad.en.json",), 4, 16, split=split_xquad),
    "korsts": Run("regress", _pair("ko/kornlu/KorSTS/sts-{}.tsv"), 3, data_format="korsts"),
    "korsts-embed": Run("embed", _pair("ko/kornlu/KorSTS/sts-{}.tsv"), 1, learning_rate=5e-5, data_format="korsts",
                        seeds=(0, 1, 2, 3, 4)),
    "question_pair": Run("classify", _pair("ko/question_pair/{}.tsv"), 3, data_format="qqp"),
    "nsmc": Run("classify", _pair("ko/nsmc/ratings_{}.txt", valid="test"), 1, data_format="nsmc",
                split=sample_training_rows),
    "nsmc-2000": Run("classify", ("ko/nsmc/train_rebuilt.txt",), 4, learning_rate=1e-4, split=split_2000(read_nsmc)),
    "3i4k-2000": Run("intent", ("intent/3i4k_ko/fci_train_val.txt",), 4, learning_rate=1e-4,
                     split=split_2000(read_3i4k)),
    "3i4k": Run("intent", _pair("intent/3i4k_ko/fci_{}.txt", "train_val", "test"), 1, split=rewritten(read_3i4k)),
    "klue-ner": Run("tag", _pair("ko/klue-ner/klue-ner-v1.1_{}.tsv"), 1, data_format="klue-ner"),
}


def files_of(run, folder, download=False):
    """Returns the paths of the training and the validation file. Files that must be made are written to `folder`."""
    paths = map(fetch if download else find, run.files)
    return run.split(folder, *paths) if run.split else tuple(paths)


def score_of(run, given, seed):
    """Fine-tunes a model; returns a dict of the name of the score, its value after the last epoch, the seconds, and the
    other scores of the best epoch that the task names."""
    from keras_bert.tasks import TASKS

    finetune = importlib.import_module(MODULES[given.run]).finetune
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        train, valid = files_of(run, folder, given.download)
        for path in (train, valid):
            announce(path, len(list(TASKS[run.task].read(path, data_format=run.data_format))), "examples")
        started = time.monotonic()
        finetune(train, valid, model=given.model, output=folder / "model", task=run.task, data_format=run.data_format,
                 epochs=run.epochs, batch_size=run.batch_size, learning_rate=run.learning_rate, dtype=given.dtype,
                 seed=seed)
        seconds = time.monotonic() - started
        metrics = json.loads((folder / "model/metrics.json").read_text())
    main = metrics["main"]
    return {"metric": main, "score": metrics["history"][f"val_{main}"][-1], "seconds": seconds,
            "others": {name: metrics[name] for name in TASKS[run.task].score_names if name != main}}


def matching(results, wanted):
    """Returns the runs in a JSON Lines file, which may be missing, that match the dict `wanted`, as a list of dicts."""
    if not os.path.exists(results):
        return []
    with open(results) as file:
        return [run for run in map(json.loads, file) if wanted.items() <= run.items()]


def append(results, row):
    """Adds a run to a JSON Lines file."""
    with open(results, "a") as file:
        file.write(json.dumps(row) + "\n")


def print_scores(title, metric, runs):
    """Prints a table of scores and seconds.

    Args:
        title: str.
        metric: name of the score.
        runs: dict of names to lists of runs, dicts with `score` and `seconds`.

    Returns:
        a dict of the names to dicts of the numbers in the table.
    """
    print(f"{title:14} {metric + ', by seed':32} {'mean':>8} {'std. error':>10} {'median s':>9}")
    table = {}
    for name, some in runs.items():
        scores = [run["score"] for run in some]
        mean, seconds = statistics.mean(scores), statistics.median(run["seconds"] for run in some)
        error = statistics.stdev(scores) / len(scores) ** 0.5 if len(scores) > 1 else None
        by_seed = "  ".join(f"{score:.4f}" for score in scores)
        print(f"{name:14} {by_seed:32} {mean:8.4f} {'-' if error is None else f'{error:.4f}':>10} {seconds:9.0f}")
        table[name] = {"mean": mean, "standard_error": error, "seconds": seconds, "runs": len(scores)}
    return table


def summarize(wanted, results):
    ruler.describe("tensorflow", "keras", "torch", "transformers", "sentence-transformers")
    runs = {library: sorted(matching(results, wanted | {"library": library}), key=lambda run: run["seed"])
            for library in MODULES}
    metric, = {run["metric"] for some in runs.values() for run in some}
    for name in next(run.get("others", {}) for some in runs.values() for run in some):
        compare(wanted["task"], name, {library: [run | {"score": run["others"][name]} for run in some]
                                       for library, some in runs.items()})
    print(json.dumps(wanted | {"metric": metric} | compare(wanted["task"], metric, runs)))


def compare(task, metric, runs):
    """Prints a score of both libraries' runs, and their difference; returns the numbers as a dict."""
    summary = print_scores(task, metric, runs)
    ours, theirs = ({run["seed"]: run["score"] for run in some} for some in runs.values())
    pairs = [(ours[seed], theirs[seed]) for seed in ours if seed in theirs]
    if len(pairs) > 1:
        mean = statistics.mean(one - other for one, other in pairs)
        summary["difference"] = [mean, *map(float, stats.ttest_rel(*zip(*pairs)).confidence_interval(0.95))]
        print("difference {:+.4f}, 95% interval from {:+.4f} to {:+.4f}".format(*summary["difference"]))
    return summary


def main():
    parser = ruler.parser(__doc__, model=str, results=str, download=False, seeds=[], epochs=0, learning_rate=0.0)
    parser.add_argument("--task", required=True, choices=RUNS)
    parser.add_argument("--dtype", default="float32", choices=["float32", "mixed_bfloat16"])
    parser.add_argument("--run", choices=MODULES, help=argparse.SUPPRESS)
    given = parser.parse_args()
    own = RUNS[given.task]
    seeds = [int(seed) for seed in given.seeds] or own.seeds
    run = dataclasses.replace(own, epochs=given.epochs or own.epochs,
                              learning_rate=given.learning_rate or own.learning_rate)
    wanted = {"task": given.task, "model": given.model, "learning_rate": run.learning_rate,
              "epochs": run.epochs, "dtype": given.dtype, "data": str(DOWNLOADS if given.download else DATA)}
    if given.run:
        seed, = seeds
        return append(given.results, wanted | {"library": given.run, "seed": seed} | score_of(run, given, seed))
    with tempfile.TemporaryDirectory() as folder:
        files_of(run, pathlib.Path(folder), given.download)  # a missing file ends the program here, not during a run
    for seed in seeds:
        for library in MODULES:
            if not matching(given.results, wanted | {"library": library, "seed": seed}):
                subprocess.run([sys.executable, *sys.argv, f"--run={library}", f"--seeds={seed}"], check=True)
    summarize(wanted, given.results)


if __name__ == "__main__":
    main()
