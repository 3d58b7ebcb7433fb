"""Questions that a span of their context answers."""

import dataclasses
import os

from keras_bert.data.tables import json_values, read_table
from keras_bert.errors import InputError

_NAMES = {str: "a text", int: "a whole number", bool: "true or false", list: "a list", dict: "an object"}


@dataclasses.dataclass(frozen=True)
class QuestionExample:
    """A question on a context.

    Args:
        answers: list of (text, start), the start in characters of the context; empty where the file does not say, or
            says that the question is `impossible` to answer.
        place: where the question stands in its file.
    """

    id: str
    question: str
    context: str
    answers: list[tuple[str, int]]
    impossible: bool
    place: str


def read_questions(path):
    """Reads `.json` files of SQuAD v1.1 and v2.0 (Rajpurkar et al., 2016 and 2018) or KorQuAD v1 (Lim et al., 2019), or
    the same questions in rows: `.jsonl` and `.parquet` of `id`, `question`, `context`, and `answers`, an object of the
    lists `text` and `answer_start`.

    Args:
        path: the file, UTF-8.

    Yields:
        `QuestionExample`s. `is_impossible` may be missing; a question with an empty list of answers is impossible then.

    Raises:
        InputError: names the file and the place, of an answer too that does not stand at its start.
    """
    suffix = os.path.splitext(path)[1].lower()
    if suffix not in _READERS:
        raise InputError(f"{path}: a file of questions must end in {', '.join(_READERS)}; got {suffix or 'no suffix'}")
    example = None
    for where, values, context in _READERS[suffix](path):
        example = _example(path, where, values, context)
        yield example
    if example is None:
        raise InputError(f"{path}: holds no questions")


# Readers yield (where, values, context): the path and the place; the question's values, answers as SQuAD has them.

def _read_squad(path):
    values = json_values(path)
    if len(values) != 1 or not isinstance(values[0], dict):
        raise InputError(f"{path}: must hold one JSON object, as SQuAD's files do")
    for article, paragraphs in _items(path, ": article", values[0], "data"):
        for paragraph, questions in _items(article, ", paragraph", paragraphs, "paragraphs"):
            context = _field(paragraph, questions, "context", str)
            for where, question in _items(paragraph, ", question", questions, "qas"):
                yield where, question, context


def _read_rows(path):
    _, rows = read_table(path, ("id", "question", "context"))
    for row, values in rows:
        where = f"{path}: row {row}"
        if values.get("answers") is not None:
            answers = _field(where, values, "answers", dict)
            texts, starts = (_field(where, answers, name, list) for name in ("text", "answer_start"))
            if len(texts) != len(starts):
                raise InputError(f"{where}: answers must have as many starts as texts, {len(texts)}; got {len(starts)}")
            values["answers"] = [{"text": text, "answer_start": start} for text, start in zip(texts, starts)]
        yield where, values, _field(where, values, "context", str)


def _example(path, where, values, context):
    id = _field(where, values, "id", str)
    where += f" (id {id})"
    listed = values.get("answers") is not None
    answers = [_answer(place, answer, context) for place, answer in _items(where, ", answer", values, "answers")
               ] if listed else []
    impossible = listed and not answers
    if values.get("is_impossible") is not None:
        impossible = _field(where, values, "is_impossible", bool)
    if impossible and answers:
        raise InputError(f"{where}: an impossible question must have no answers; got {len(answers)}")
    question = _field(where, values, "question", str)
    return QuestionExample(id, question, context, answers, impossible, where.removeprefix(f"{path}: "))


def _answer(where, values, context):
    text, start = _field(where, values, "text", str), _field(where, values, "answer_start", int)
    found = context[start:start + len(text)]
    if not text or start < 0 or found != text:
        raise InputError(f"{where}: context[start:start+{len(text)}] must be the answer, {text!r:.40}; "
                         f"got {found!r:.40} at {start}")
    return text, start


def _items(where, item, values, name):
    """Yields (where it stands, object) for each object of a list."""
    for number, value in enumerate(_field(where, values, name, list), 1):
        if not isinstance(value, dict):
            raise InputError(f"{where}{item} {number}: must be an object; got {value!r:.40}")
        yield f"{where}{item} {number}", value


def _field(where, values, name, kind):
    value = values.get(name)
    if type(value) is not kind:  # True is an int
        raise InputError(f"{where}: {name!r} must be {_NAMES[kind]}; got {value!r:.40}")
    return value


_READERS = {".json": _read_squad, ".jsonl": _read_rows, ".parquet": _read_rows}
