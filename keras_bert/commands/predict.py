"""`keras-bert predict`: answers texts with a fine-tuned model, or what was exported from it."""

import itertools
import json
import os
import sys

from absl import flags

from keras_bert.commands import layout
from keras_bert.errors import InputError

_AT_ONCE = 1024
_FILES = (".tsv", ".csv", ".jsonl", ".json", ".parquet", ".conll", ".bio", ".iob")  # others hold a text a line

REQUIRED = ("model",)


def define(values):
    flags.DEFINE_string("model", None, "Folder that finetune wrote, or the SavedModel of export text-model.",
                        flag_values=values)
    flags.DEFINE_string("input", None, "File of the model's task, as finetune takes it, labels aside; else one text a "
                        "line; - for standard input. In lines the texts of an input, a question and its context say, "
                        "are separated by tabs.", flag_values=values)
    layout.define(values, label=False)
    flags.DEFINE_enum("format", "text", ["text", "jsonl"],
                      "Lines of answer, score, text; or one JSON object a line.", flag_values=values)
    flags.DEFINE_integer("top_k", 1, "Labels a text of a classifier, answers to a question of spans.",
                         flag_values=values, lower_bound=1)


def run(values, texts):
    if bool(texts) == (values.input is not None):
        raise InputError("predict answers either texts as arguments or --input; "
                         + ("got both" if texts else "got neither"))
    model = _load(values.model)
    if values.top_k > 1 and not model.task.several:
        raise InputError(f"--top_k is for classes and spans; {values.model} is of the task {model.task.name}")
    options = {"top_k": values.top_k} if model.task.several else {}
    for examples in _chunks(values, texts, model.task):
        for example, answer in zip(examples, model.answer(examples, **options)):
            print(json.dumps(model.task.record(example, answer), ensure_ascii=False) if values.format == "jsonl"
                  else model.task.line(example, answer))
        sys.stdout.flush()


def _load(path):
    if os.path.isfile(os.path.join(path, "saved_model.pb")):
        from keras_bert.commands.exported import Exported

        return Exported(path)
    from keras_bert.training import FineTuned

    return FineTuned.load(path)


def _chunks(values, texts, task):
    """Lists of examples, in order."""
    if values.input is None:
        yield [_example(task, text, f"argument {number}") for number, text in enumerate(texts, 1)]
    elif values.input == "-":
        yield from _line_chunks(sys.stdin.buffer, "standard input", task)
    elif values.layout or values.input.endswith(_FILES):
        examples = task.read(values.input, **layout.of(values))
        task.check_inputs(values.input, examples)
        yield from (examples[begin:begin + _AT_ONCE] for begin in range(0, len(examples), _AT_ONCE))
    else:
        with open(values.input, "rb") as file:
            yield from _line_chunks(file, values.input, task)


def _line_chunks(stream, name, task):
    """One line at once from a terminal, many from a file or a pipe."""
    size = 1 if stream.isatty() else _AT_ONCE
    lines = enumerate(stream, 1)
    while chunk := list(itertools.islice(lines, size)):
        yield [_example(task, _decode(line, f"{name}: line {number}"), f"{name}: line {number}")
               for number, line in chunk]


def _decode(line, place):
    try:
        return line.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise InputError(f"{place}: must be UTF-8 text: {error.reason} at byte {error.start}") from None


def _example(task, text, place):
    parts = task.split(text)
    if parts is None:
        raise InputError(f"{place}: this model takes {task.takes()}, separated by tabs; got {text[:60]!r}")
    return task.example(*parts)
