"""Counts the lines, examples and labels, or entities, in files of published data sets.

    python benchmarks/count_examples.py [--task=classify --data_format=cola] CoLA/train.tsv CoLA/dev.tsv CoLA/test.tsv

Takes seconds.
"""

import argparse
import collections
import pathlib

from keras_bert.arguments import as_list
from keras_bert.errors import InputError
from keras_bert.tasks import TASKS

parser = argparse.ArgumentParser()
parser.add_argument("--task", choices=TASKS, default="classify")
parser.add_argument("--data_format")
parser.add_argument("files", nargs="+")
arguments = parser.parse_args()
print("| file | lines | examples | labels |\n|---|---|---|---|")
task = TASKS[arguments.task]


def labels_of(example):
    """Returns the labels of an example; for a tagged one, the types of its entities; for a question, `answers`."""
    if arguments.task == "tag":
        return [tag[2:] for tag in example.tags if tag.startswith("B-")]
    return as_list(getattr(example, "label", "answers"))


for path in map(pathlib.Path, arguments.files):
    with open(path / "seq.in" if path.is_dir() else path, "rb") as file:
        lines = sum(1 for _ in file)
    try:
        examples = task.read(str(path), data_format=arguments.data_format)
        labels = collections.Counter(str(label) for example in examples for label in labels_of(example))
    except InputError:  # a test file
        examples = task.read(str(path), data_format=arguments.data_format, label_column=None)
        labels = {"none": len(examples)}
    shown = [f"{label}: {count:,}" for label, count in sorted(labels.items())]
    if arguments.task == "tag":
        shown = [f"{sum(labels.values()):,} entities of {len(labels)} types"]
    if arguments.task == "regress" and len(labels) > 1:
        shown = [f"{len(labels)} numbers, mean {sum(example.label for example in examples) / len(examples):.4f}"]
    print(f"| {path} | {lines:,} | {len(examples):,} | {', '.join(shown)} |")
