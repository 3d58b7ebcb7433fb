"""`keras-bert predict`."""

import functools
import itertools
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, Unpack

from keras_bert.arguments import AggregationStrategy, Count, Normalization, TextColumns, not_none, replace_surrogates
from keras_bert.commands import glue
from keras_bert.data.chunks import ROWS, sized
from keras_bert.data.rows import ROW_FORMATS, suffix_of
from keras_bert.errors import InputError, Option, UnknownSuffix
from keras_bert.files.json_files import json_text
from keras_bert.files.paths import check_model_folder, check_readable, is_saved_model
from keras_bert.files.utf8 import decode, read_lines

if TYPE_CHECKING:
    from keras_bert.inference.answering import AnsweringModel
    from keras_bert.tasks import Task

EXAMPLE = 'keras-bert predict --model=my_model "turn off the lights"'
_FILES = ".jsonl", ".tsv", ".csv", ".parquet", ".json", ".txt", ".gz"  # what no folder of answers is called
_ESCAPES = str.maketrans({"\\": r"\\", "\t": r"\t", "\n": r"\n", "\r": r"\r", "\0": r"\0"})


def run(*texts: str, model: str, input: list[str] | None = None,
        output_format: Literal["text", "jsonl", "glue"] | None = None, top_k: Count = 1,
        aggregation_strategy: AggregationStrategy | None = None, prompt_name: str | None = None,
        normalization: Normalization | None = None, output: str | None = None, max_characters: Count | None = None,
        processes: Count | None = None, keep_columns: list[str] | None = None, beam: bool = False,
        beam_args: list[str] | None = None, **text_columns: Unpack[TextColumns]) -> None:
    r"""Answer texts with a fine-tuned model.

    Args:
        texts: Texts to answer.
        model: Folder that finetune or export litert wrote, or the SavedModel of export text-model.
        input: Instead of texts: a file as finetune takes it, labels ignored; otherwise one text per line; - for
            standard input. In lines, the parts of an input, a question and its context for instance, are separated by
            tabs. With --output: several files, globs allowed, that end in .jsonl, .tsv, .csv, .parquet, .jsonl.gz,
            .tsv.gz or .csv.gz.
        data_format: Format of a published data set, see finetune.
        text_column: Column of the text. Default: as in training; text for a SavedModel.
        text_pair_column: Column of the second text. Default: as in training; text_pair for a SavedModel.
        output_format: text: lines of answer, score and text, separated by tabs, and before the text, "in scope" or "out
            of scope" if the model has a threshold; a tab, line feed, carriage return or backslash in a text is written
            as \t, \n, \r or \\. jsonl: one JSON object per line. glue: the file that
            GLUE's server takes, for a data_format of GLUE. Default: text, or jsonl with --output.
        top_k: Labels per text of a classifier, answers per question.
        aggregation_strategy: For taggers: label each word by its first token, by the average of its tokens, or by the
            token with the highest probability; label each token (simple); or print the tokens that are not O (none).
            Default: first if the tags of the training file are those of words, simple if those of characters.
        prompt_name: For embeddings: the prompt to put before each text, query or document for example. Default: the
            model's default prompt, or none.
        normalization: NFC composes texts in NFD, as macOS writes them; none does not. Default: as in training. A
            SavedModel has that of its export.
        output: Folder to write, with a .jsonl file of answers for each file of --input, and the folder invalid for the
            rows that cannot be answered. The same command continues after it was stopped.
        max_characters: With --output: maximum length of a text, in characters; rows with a longer one are invalid.
            Default: 100000, as in serve.
        processes: With --output: worker processes. Default: one per core.
        keep_columns: With --output: columns of the input files to copy into the answers, id,url for example.
        beam: With --output and a SavedModel: run as an Apache Beam pipeline, with answers in any order.
        beam_args: Flags of the pipeline: --runner=FlinkRunner,--parallelism=8.
    """
    if bool(texts) == (input is not None):
        raise InputError("predict needs either texts as arguments or --input; "
                         + ("got both" if texts else "got neither"))
    check_model_folder(model)
    columns = not_none(**text_columns)
    for flag, value, needed, is_met in (
            ("max_characters", max_characters, "--output", output), ("processes", processes, "--output", output),
            ("keep_columns", keep_columns, "--output", output), ("beam", beam, "--output", output),
            ("beam_args", beam_args, "--beam", beam), ("processes", processes, "--nobeam", not beam),
            ("normalization", normalization, "another model: a SavedModel has its own", not is_saved_model(model))):
        if value and not is_met:
            raise InputError(f"--{flag} needs {needed}")
    options: dict[str, Any] = {"top_k": top_k, "aggregation_strategy": aggregation_strategy}
    if output is None:
        _print_answers(texts, input, model, prompt_name, normalization, columns, options, output_format)
        return
    _check_for_files(texts, columns.get("data_format"), output_format, output)
    from keras_bert.inference.files import answer_files
    from keras_bert.serving.settings import Settings

    answer: Callable[..., None] = functools.partial(answer_files, processes=processes, normalization=normalization)
    if beam:
        try:
            from keras_bert.integrations.predict_beam import answer_in_pipeline
        except ImportError:
            raise InputError("--beam needs Apache Beam: pip install apache-beam") from None
        answer = functools.partial(answer_in_pipeline, arguments=beam_args or [])
    answer(model, input or [], output, columns, options, max_characters or Settings.max_characters,
           prompt_name=prompt_name, keep_columns=keep_columns or [])


def _print_answers(texts: tuple[str, ...], input: list[str] | None, model: str, prompt_name: str | None,
                   normalization: str | None, columns: dict[str, Any], options: dict[str, Any],
                   output_format: str | None) -> None:
    """Prints the answers to texts or to one file and, on standard error, how many texts were cut or split."""
    from keras_bert.inference.answering import load_answering_model

    if input is not None and len(input) != 1:
        raise InputError(f"--input must be one file without --output; got {len(input)}")
    path = input[0] if input else None
    if path not in (None, "-"):
        check_readable(path)
    loaded = load_answering_model(model, normalization=normalization).with_prompt(prompt_name)
    task, top_k = loaded.task, options["top_k"]
    options = task.answer_options(**options)
    chunks = _chunks(texts, path, columns, loaded)
    if output_format == "glue":
        glue.check(columns.get("data_format"), task, top_k)
        chunks = glue.complete(chunks)
    total, counts = 0, Counter[str]()
    for examples in chunks:
        answers, long = loaded.answer_with_cuts(examples, **options)
        for number, (example, answer) in enumerate(zip(examples, answers), total):
            match output_format:
                case "jsonl":
                    print(json_text(task.record(example, answer)))
                case "glue":
                    if number == 0:
                        print(glue.HEADER)
                    print(glue.line(number, example, answer))
                case _:
                    print("\t".join(cell.translate(_ESCAPES) for cell in task.cells(example, answer)))
        total, counts = total + len(answers), counts + long
        sys.stdout.flush()
    for line in task.describe_long(counts, total):
        print(line, file=sys.stderr)


def _check_for_files(texts: tuple[str, ...], data_format: str | None, output_format: str | None, output: str) -> None:
    if texts:
        raise InputError("--output needs --input; got texts as arguments")
    if data_format:
        raise InputError(f"--data_format must be left out with --output; got {data_format}; for tables with a header, "
                         "copy them to names that end in .tsv or .csv, and pass --text_column")
    if output_format not in (None, "jsonl"):
        raise InputError(f"--output_format must be jsonl with --output; got {output_format}")
    if os.path.splitext(output)[1].lower() in _FILES and not os.path.isdir(output):
        raise InputError(f"--output must be a folder; got {output}; for one file of answers, redirect the standard "
                         f"output instead: --output_format=jsonl > {output}")


def _chunks(texts: tuple[str, ...], path: str | None, columns: dict[str, str],
            model: "AnsweringModel") -> Iterator[list]:
    task = model.task
    if path is None:
        yield [_example(task, text, f"argument {number}") for number, text in enumerate(texts, 1)]
    elif path == "-":
        examples = _of_lines(sys.stdin.buffer, "standard input", task)
        yield from sized(examples, task.all_texts, 1 if sys.stdin.isatty() else ROWS)
    elif "data_format" in columns or _is_data(path):
        examples = model.iterate(path, **columns, label_column=None)
        try:
            for chunk in sized(examples, task.all_texts):
                task.check_inputs(path, chunk)
                yield chunk
        except UnknownSuffix as error:
            pattern = os.path.join(path, "*.jsonl")
            hint = f"; to answer all of them, pass --output and --input='{pattern}'" * os.path.isdir(path)
            raise InputError(*error.parts, hint) from None
    else:
        with open(path, "rb") as file:
            chunks = sized(_of_lines(file, path, task), task.all_texts)
            if not (first := next(chunks, [])):
                raise InputError(f"{path}: must have a text in each line; it is empty")
            data_format = getattr(model, "columns", {}).get("data_format")  # a SavedModel has no columns
            if data_format and any("\t" in text for text in task.texts(first[0])):
                raise InputError(f"{path}: line 1: must be a text; it has a tab; the model was trained with ",
                                 Option(f"data_format={data_format!r}"), ": pass it, too, for files of this format")
            yield from itertools.chain([first], chunks)


def _is_data(path: str) -> bool:
    """Returns True for what `finetune` takes, and False for a file with one text per line."""
    from keras_bert.tasks import TASKS

    of_tasks = (suffix for task in TASKS.values() for suffix in task.files[1])
    return os.path.isdir(path) or suffix_of(path) in (*ROW_FORMATS, ".json", *of_tasks)


def _of_lines(stream: BinaryIO, name: str, task: "Task") -> Iterator:
    """Yields the example in each line of a stream."""
    for number, _, line in read_lines(stream, f"{name}: line"):
        place = f"{name}: line {number}"
        yield _example(task, decode(line, place, number == 1).rstrip("\r\n"), place)


def _example(task: "Task", text: str, place: str) -> Any:
    parts = task.split(replace_surrogates(text))
    if parts is None:
        raise InputError(f"{place}: this model takes {task.describe_input()}, separated by tabs; got {text[:60]!r}")
    return task.example(*parts)
