"""Counts the lines, examples and labels in files of published data sets; of tagged words or characters, the entities.

    python benchmarks/count_examples.py [--task=classify --data_format=cola] CoLA/train.tsv CoLA/dev.tsv CoLA/test.tsv
    python benchmarks/count_examples.py --task=tag --data_format=snips atis/train atis/dev atis/test

Takes seconds.
"""

import collections
import os

import ruler

from keras_bert.arguments import as_list
from keras_bert.errors import InputError
from keras_bert.tasks import TASKS


def labels_of(example):
    """Returns the labels of an example as a list of str: the types of its entities, its labels, or "questions"."""
    if hasattr(example, "tags"):
        return [tag[2:] for tag in example.tags if tag[0] == "B"]
    return list(map(str, as_list(getattr(example, "label", "questions"))))


parser = ruler.parser(__doc__, data_format=None)
parser.add_argument("--task", choices=TASKS, default="classify")
parser.add_argument("files", nargs="+")
arguments = parser.parse_args()
print("| file | lines | examples | labels |\n|---|---|---|---|")
for path in arguments.files:
    with open(os.path.join(path, "seq.in") if os.path.isdir(path) else path, "rb") as file:
        lines = sum(1 for _ in file)
    try:
        examples = TASKS[arguments.task].read(path, data_format=arguments.data_format)
        labels = collections.Counter(label for example in examples for label in labels_of(example))
    except InputError:  # a test file
        examples = TASKS[arguments.task].read(path, data_format=arguments.data_format, label_column=None)
        labels = {"none": len(examples)}
    shown = [f"{label}: {count:,}" for label, count in sorted(labels.items())]
    if arguments.task == "tag":
        shown.insert(0, f"{sum(labels.values()):,} entities")
    if arguments.task == "regress" and len(labels) > 1:
        shown = [f"{len(labels)} numbers, mean {sum(example.label for example in examples) / len(examples):.4f}"]
    print(f"| {path} | {lines:,} | {len(examples):,} | {', '.join(shown)} |")
