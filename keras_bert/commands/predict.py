"""`keras-bert predict`."""

import itertools
import json
import os
import sys
from typing import Literal

from keras_bert.arguments import Count
from keras_bert.errors import InputError

EXAMPLE = 'keras-bert predict --model=my_model "turn off the lights"'
_AT_ONCE = 1024
_FILES = (".tsv", ".csv", ".jsonl", ".json", ".parquet", ".conll", ".bio", ".iob")  # others hold a text a line


def run(*texts: str, model: str, input: str | None = None, layout: str | None = None, text: str = "text",
        text_pair: str | None = None, format: Literal["text", "jsonl"] = "text", top_k: Count = 1):
    """Answer texts with a fine-tuned model.

    Args:
        texts: Texts to answer.
        model: Folder that finetune wrote, or the SavedModel of export text-model.
        input: Instead of texts: a file as finetune takes it, labels ignored; otherwise one text per line; - for
            standard input. In lines, the parts of an input, a question and its context for instance, are separated by
            tabs.
        layout: Layout of a published file, see finetune.
        text: Column of the text.
        text_pair: Column of the second text; text_pair if there is one.
        format: Lines of answer, score and text; or one JSON object per line.
        top_k: Labels per text of a classifier, answers per question.
    """
    if bool(texts) == (input is not None):
        raise InputError("predict answers either texts as arguments or --input; "
                         + ("got both" if texts else "got neither"))
    loaded = _load(model)
    task = loaded.task
    if top_k > 1 and not task.supports_top_k:
        raise InputError(f"--top_k is for classes and spans; {model} is of the task {task.name}")
    options = {"top_k": top_k} if task.supports_top_k else {}
    columns = {"format": layout, "text": text, "text_pair": text_pair, "label": None}
    for examples in _chunks(texts, input, columns, task):
        for example, answer in zip(examples, loaded.answer(examples, **options)):
            print(json.dumps(task.record(example, answer), ensure_ascii=False) if format == "jsonl"
                  else task.line(example, answer))
        sys.stdout.flush()


def _load(path):
    if os.path.isfile(os.path.join(path, "saved_model.pb")):
        from keras_bert.commands.exported import Exported

        return Exported(path)
    from keras_bert.training import FineTuned

    return FineTuned.load(path)


def _chunks(texts, path, columns, task):
    """Lists of examples, in order."""
    if path is None:
        yield [_example(task, text, f"argument {number}") for number, text in enumerate(texts, 1)]
    elif path == "-":
        yield from _line_chunks(sys.stdin.buffer, "standard input", task)
    elif columns["format"] or path.endswith(_FILES):
        examples = task.read(path, **columns)
        task.check_inputs(path, examples)
        yield from (examples[begin:begin + _AT_ONCE] for begin in range(0, len(examples), _AT_ONCE))
    else:
        with open(path, "rb") as file:
            yield from _line_chunks(file, path, task)


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
        raise InputError(f"{place}: this model takes {task.describe_input()}, separated by tabs; got {text[:60]!r}")
    return task.example(*parts)
