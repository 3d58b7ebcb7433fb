"""Compares examples per second of `keras-bert make-pretraining-data` and of the Model Garden's equivalent script.

    python benchmarks/pretraining_data.py [--text=text.txt --vocab=vocab.txt --dupe_factor=10 --turns=3]

The Garden's `create_pretraining_data.py` is Google's own script of 2018 with more options. Without `--text` and
`--vocab`, both read English books and BERT's uncased vocabulary (`real_texts.py`). Each program runs as its command,
with one process and with two; the Garden's script can use only one, so two instances of it share the text. The programs
take turns. The start-up time of a command is measured with a short text and reported separately: a rate is the number
of examples divided by the seconds after the start-up, and `whole` divides by all seconds. The Garden's script gets only
`--peer_megabytes` of the text instead of `--megabytes`, because its rate does not depend on the size. Takes about five
minutes.
"""

import glob
import itertools
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

import ruler
from real_texts import announce, find

# Each process gets one core: without this setting, this package's tokenizer would use more.
ENVIRONMENT = os.environ | {"TOKENIZERS_PARALLELISM": "false"}
GARDEN = "Model Garden"
SETTINGS = {"max_length": 128, "max_predictions_per_seq": 20}


def our_commands(parts, vocab, folder, flags):
    return [[sys.executable, "-m", "keras_bert.cli", "make-pretraining-data", f"--input={','.join(parts)}",
             f"--vocab={vocab}", f"--output={folder}/examples", f"--processes={len(parts)}", *flags]]


def garden_commands(parts, vocab, folder, flags):
    flags = [flag.replace("max_length", "max_seq_length") for flag in flags]
    return [[sys.executable, "-m", "official.nlp.data.create_pretraining_data", f"--input_file={part}",
             f"--vocab_file={vocab}", f"--output_file={folder}/{number}.tfrecord", "--use_v2_feature_names", *flags]
            for number, part in enumerate(parts)]


COMMANDS = {ruler.OURS: our_commands, GARDEN: garden_commands}


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
        pathlib.Path(path).write_text("\n\n".join(texts) + "\n", encoding="utf-8")
    return paths


def first(documents, characters):
    """Returns the first documents, as many as it takes to have the given number of characters."""
    starts = itertools.accumulate(map(len, documents), initial=0)
    return [document for document, start in zip(documents, starts) if start < characters]


def main():
    arguments = ruler.parser(__doc__, text=None, vocab=None, dupe_factor=10, megabytes=12.0, peer_megabytes=1.0,
                             turns=3).parse_args()
    arguments.text = arguments.text or str(find("corpora/en/classic_books.txt"))
    arguments.vocab = arguments.vocab or str(find("vocab/bert-base-uncased/vocab.txt"))
    text = pathlib.Path(arguments.text).read_text(encoding="utf-8")
    documents = [document for document in re.split(r"\n\s*\n", text) if document.strip()]
    announce(arguments.text, len(documents), "documents")
    sizes = {ruler.OURS: arguments.megabytes, GARDEN: arguments.peer_megabytes}
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
    versions, rows = ruler.describe("keras-bert-hub", "tf-models-official", "tensorflow", "tokenizers", "numpy"), []
    for (name, processes), results in runs.items():
        start = statistics.median(seconds for seconds, _ in starts[name, processes])
        whole, examples = statistics.median(seconds for seconds, _ in results), results[0][1]
        rows.append({"library": name, "processes": processes, "examples": examples, "start_seconds": start,
                     "seconds": whole, "examples_per_second": examples / (whole - start),
                     "whole_per_second": examples / whole})
    ours = {row["processes"]: row["examples_per_second"] for row in rows if row["library"] == ruler.OURS}
    rows = [row | {"ratio": ours[row["processes"]] / row["examples_per_second"]} for row in rows]
    ruler.print_table(f"{arguments.text}, dupe_factor {arguments.dupe_factor}, {arguments.turns} turns", rows)
    ruler.finish("pretraining_data", versions, arguments, rows)


if __name__ == "__main__":
    main()
