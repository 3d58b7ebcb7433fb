"""Compares examples per second of `keras-bert make-pretraining-data` and of the Model Garden's equivalent script.

    python benchmarks/pretraining_data.py [--text=text.txt --vocab=vocab.txt --dupe_factor=10 --turns=3]

The Garden's `create_pretraining_data.py` is Google's own script of 2018 with more options. Without `--text` and
`--vocab`, both read English books and BERT's uncased vocabulary (`real_texts.py`). Each program runs as its command,
with one process and with two; the Garden's script can use only one, so two instances of it share the text. The programs
take turns. The start-up time of a command is measured with a short text and reported separately: a rate is the number
of examples divided by the seconds after the start-up, and `whole` divides by all seconds. The Garden's script gets only
the first part of the text, because its rate does not depend on the size. Takes about five minutes.
"""

import argparse
import glob
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time

from real_texts import announce, find
from ruler import describe

# Each process gets one core: without this setting, this package's tokenizer would use more.
ENVIRONMENT = os.environ | {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3",
                            "TOKENIZERS_PARALLELISM": "false"}
OURS, GARDEN = "keras_bert", "Model Garden"
SETTINGS = {"max_length": 128, "max_predictions_per_seq": 20}


def our_commands(parts, vocab, folder, flags):
    return [[sys.executable, "-m", "keras_bert.cli", "make-pretraining-data", f"--input={','.join(parts)}",
             f"--vocab={vocab}", f"--output={folder}/examples", f"--processes={len(parts)}", *flags]]


def garden_commands(parts, vocab, folder, flags):
    return [[sys.executable, "-m", "official.nlp.data.create_pretraining_data", f"--input_file={part}",
             f"--vocab_file={vocab}", f"--output_file={folder}/{number}.tfrecord", "--use_v2_feature_names", *flags]
            for number, part in enumerate(parts)]


COMMANDS = {OURS: our_commands, GARDEN: garden_commands}


def measure(commands, folder):
    """Runs commands in parallel; returns (seconds until the last one ends, number of examples)."""
    from keras_bert.pretraining.tfrecord import RecordFiles

    started = time.perf_counter()
    runs = [subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            for command in commands]
    for run, (output, _) in [(run, run.communicate()) for run in runs]:
        if run.returncode:
            raise SystemExit(output[-2000:])
    seconds = time.perf_counter() - started
    return seconds, len(RecordFiles(glob.glob(f"{folder}/**/*.tfrecord", recursive=True)))


def split(documents, parts, folder, name):
    """Writes documents to files of about the same size; returns the paths."""
    paths, size = [f"{folder}/{name}-{part}-of-{parts}.txt" for part in range(parts)], sum(map(len, documents))
    files, done = [[] for _ in paths], 0
    for document in documents:
        files[min(parts * done // size, parts - 1)].append(document)
        done += len(document)
    for path, texts in zip(paths, files):
        with open(path, "w", encoding="utf-8") as file:
            file.write("\n\n".join(texts) + "\n")
    return paths


def first(documents, characters):
    """Returns the first documents, as many as it takes to have the given number of characters."""
    kept = []
    while len(kept) < len(documents) and sum(map(len, kept)) < characters:
        kept.append(documents[len(kept)])
    return kept


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", help="default: books in English")
    parser.add_argument("--vocab", help="default: BERT's, uncased")
    parser.add_argument("--dupe_factor", type=int, default=10)
    parser.add_argument("--megabytes", type=float, default=12, help="of the text, for us")
    parser.add_argument("--peer_megabytes", type=float, default=1, help="of the text, for the Garden")
    parser.add_argument("--turns", type=int, default=3)
    arguments = parser.parse_args()
    arguments.text = arguments.text or find("corpora/en/classic_books.txt")
    arguments.vocab = arguments.vocab or find("vocab/bert-base-uncased/vocab.txt")
    with open(arguments.text, encoding="utf-8") as file:
        documents = [document for document in re.split(r"\n\s*\n", file.read()) if document.strip()]
    announce(arguments.text, len(documents), "documents")
    sizes = {OURS: arguments.megabytes, GARDEN: arguments.peer_megabytes}
    flags = [f"--{name}={value}" for name, value in (SETTINGS | {"dupe_factor": arguments.dupe_factor}).items()]
    runs = {(name, processes): [] for processes in (1, 2) for name in COMMANDS}
    starts = {key: [] for key in runs}
    with tempfile.TemporaryDirectory() as folder:
        texts = {key: split(first(documents, sizes[key[0]] * 1e6), key[1], folder, key[0]) for key in runs}
        short = {processes: split(documents[:2], processes, folder, "short") for processes in (1, 2)}
        for _ in range(arguments.turns):
            for key in runs:
                for results, parts in ((starts, short[key[1]]), (runs, texts[key])):
                    with tempfile.TemporaryDirectory(dir=folder) as output:
                        results[key].append(measure(COMMANDS[key[0]](parts, arguments.vocab, output, flags), output))
    report(arguments, runs, starts)


def report(arguments, runs, starts):
    describe("keras-bert-hub", "tf-models-official", "tensorflow", "tokenizers", "numpy")
    print(f"{arguments.text}, dupe_factor {arguments.dupe_factor}, {arguments.turns} turns\n")
    print(f"{'':14}{'processes':>10}{'examples':>10}{'start, s':>10}{'whole, s':>10}{'examples/s':>12}{'whole':>10}")
    rows = []
    for (name, processes), results in runs.items():
        start = statistics.median(seconds for seconds, _ in starts[name, processes])
        whole, examples = statistics.median(seconds for seconds, _ in results), results[0][1]
        rows.append({"name": name, "processes": processes, "examples": examples, "start": start, "seconds": whole,
                     "rate": examples / (whole - start), "whole_rate": examples / whole})
        print(f"{name:14}{processes:10}{examples:10,}{start:10.1f}{whole:10.1f}{rows[-1]['rate']:12,.0f}"
              f"{rows[-1]['whole_rate']:10,.0f}")
    ratios = {ours["processes"]: ours["rate"] / theirs["rate"] for ours, theirs in zip(rows[::2], rows[1::2])}
    print("\n" + "; ".join(f"{ratio:.1f} times the Garden's rate with {processes} process{'es' * (processes > 1)}"
                           for processes, ratio in ratios.items()))
    print(json.dumps({"benchmark": "pretraining_data", "dupe_factor": arguments.dupe_factor, "rows": rows,
                      "ratios": ratios}))


if __name__ == "__main__":
    main()
