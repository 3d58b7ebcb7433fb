"""`predict --beam`: answers the rows of many files in an Apache Beam pipeline, on this machine or a cluster."""

import os
from collections.abc import Iterator, Sequence
from typing import Any

import apache_beam as beam
from apache_beam.io import WriteToText
from apache_beam.ml.inference.base import RunInference

from keras_bert.data.chunks import Chunk, check_suffix, read_chunks
from keras_bert.errors import InputError, MissingColumn, Option
from keras_bert.files.atomic import atomic_folder
from keras_bert.files.json_files import json_text
from keras_bert.files.paths import find_texts, is_saved_model
from keras_bert.inference.files import answer_columns, check_kept, examples_of_chunk
from keras_bert.inference.saved_model import Exported
from keras_bert.integrations.beam import SavedModelHandler
from keras_bert.integrations.pipelines import new_pipeline, run_pipeline


def answer_in_pipeline(model: str, patterns: list[str], output: str, columns: dict[str, Any], options: dict[str, Any],
                       max_characters: int, arguments: list[str], prompt_name: str | None = None,
                       keep_columns: Sequence[str] = ()) -> None:
    """Writes the answers of a SavedModel to all rows, JSON Lines with `file` and `row`, in any order, and the invalid
    rows: `answers-….jsonl` and `invalid-….jsonl`. All workers need access to the paths.

    Args:
        columns: arguments of the task's `iterate`.
        options: arguments of `Task.answer_options`.
        max_characters: maximum length of a text; rows with a longer one are invalid.
        arguments: the pipeline's flags, e.g. `--runner=FlinkRunner`.
        prompt_name: see `AnsweringModel.with_prompt`.
        keep_columns: columns of the input files that the answers have, too.

    Raises:
        InputError: an option or a file is invalid, or rows were left out; all other rows are answered.
    """
    paths = find_texts(patterns)
    for path in paths:
        check_suffix(path)
    if os.path.lexists(output):
        raise InputError(f"{output}: exists already; pass another ", Option("output=…"))
    if not is_saved_model(model):
        raise InputError(f"{model}: must be a SavedModel with ", Option("beam=True"), ": keras-bert export text-model")
    exported = Exported(model).with_prompt(prompt_name)
    task, options = exported.task, exported.task.answer_options(**options)
    check_kept(keep_columns, ["file", "row", *answer_columns(exported, options)])
    for path in paths if keep_columns else ():  # in the pipeline, a file without one of them would end it
        if isinstance(error := next(read_chunks(path, keep_columns)).error, MissingColumn):
            raise error
    handler = _Answers(os.path.abspath(model), options, prompt_name)
    pipeline = new_pipeline(arguments)
    with atomic_folder(output) as folder:
        rows = (pipeline
                | "Files" >> beam.Create([os.path.abspath(path) for path in paths])
                | "Chunks" >> beam.FlatMap(read_chunks, keep_columns)
                | "Share out" >> beam.Reshuffle()
                | "Rows" >> beam.ParDo(_Rows(), task, columns, max_characters, keep_columns)
                .with_outputs("invalid", main="examples"))
        _ = (rows.examples | "Answers" >> RunInference(handler)
             | "Write" >> WriteToText(os.path.join(folder, "answers"), ".jsonl"))
        _ = rows.invalid | "Write invalid" >> WriteToText(os.path.join(folder, "invalid"), ".jsonl", skip_if_empty=True)
        counts = run_pipeline(pipeline, __name__)
    print(f"{output}: {counts['answers']} answers")
    if counts["invalid"]:
        raise InputError(f"{output}: invalid rows were left out: {counts['invalid']}; see "
                         f"{os.path.join(output, 'invalid-*')}")


class _Rows(beam.DoFn):
    """Yields (first columns of the answer, example) for each row of a chunk; and invalid rows, JSON, as "invalid"."""

    def process(self, chunk: Chunk, task: Any, columns: dict[str, Any], max_characters: int,
                keep_columns: Sequence[str]) -> Iterator[Any]:
        if chunk.error:
            raise chunk.error
        examples, invalid = examples_of_chunk(task, task.iterate, chunk, columns, max_characters, keep_columns)
        for head, example in examples:
            yield {"file": chunk.path} | head, example
        beam.metrics.Metrics.counter(__name__, "answers").inc(len(examples))
        beam.metrics.Metrics.counter(__name__, "invalid").inc(len(invalid))
        for record in invalid:
            yield beam.pvalue.TaggedOutput("invalid", json_text(record))


class _Answers(SavedModelHandler):
    """A handler whose elements are those of `_Rows`, and whose results are lines of JSON."""

    def __init__(self, path: str, options: dict[str, Any], prompt_name: str | None) -> None:
        super().__init__(path)
        self._options, self._prompt_name = options, prompt_name

    def load_model(self) -> Any:
        return Exported(self._path, threads=1).with_prompt(self._prompt_name)

    def run_inference(self, batch: Sequence[Any], model: Any, inference_args: dict | None = None) -> Iterator[str]:
        answers, _ = model.answer_with_cuts([example for _, example in batch], **self._options)
        for (head, example), answer in zip(batch, answers):
            yield json_text(head | model.task.record(example, answer))

    def get_num_bytes(self, batch: Sequence[Any]) -> int:
        return sum(map(self._size, batch))

    def _size(self, element: Any) -> int:
        return super()._size(str(element[1]))
