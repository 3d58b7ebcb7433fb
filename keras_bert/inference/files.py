"""`predict --output`: answers the rows of many files in several processes, and continues where it was killed."""

import contextlib
import functools
import gzip
import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, BinaryIO

from keras_bert import __version__
from keras_bert.arguments import not_none
from keras_bert.data.chunks import Chunk, check_suffix, read_chunks
from keras_bert.data.rows import byte_lines
from keras_bert.data.tables import Row, Rows
from keras_bert.errors import InputError, MissingColumn, Option
from keras_bert.files import atomic, digests, json_files
from keras_bert.files.paths import find_texts
from keras_bert.inference.answering import AnsweringModel, load_answering_model
from keras_bert.processes import available_cores, map_in_order
from keras_bert.startup import quiet_tensorflow
from keras_bert.tasks import Task
from keras_bert.terminal import ProgressLine, print_error, stoppable

SETTINGS = "predict.json"
INVALID = "invalid"  # folder of the rows that were left out
_FLAGS = ("text_column", "text_pair_column", "max_characters", "keep_columns")  # that the reasons name
# The answers and the invalid rows of a chunk, lines of JSON; the numbers of `answers` and, in words, of texts that were
# cut or split; and what makes the whole file invalid.
_Answers = tuple[bytes, bytes, Counter, InputError | None]


def answer_files(model: str, patterns: list[str], output: str, columns: dict[str, Any], options: dict[str, Any],
                 max_characters: int, processes: int | None = None, prompt_name: str | None = None,
                 keep_columns: Sequence[str] = (), normalization: str | None = None) -> None:
    """Writes a file of answers, JSON Lines, for each input file, and the invalid rows to the folder `invalid`. Each one
    is written atomically. A file of answers that exists is finished: it is not written again. Prints the numbers of
    answers and of cut and split texts and, on standard error, what is wrong with each file that was left out.

    Args:
        patterns: paths, globs allowed.
        output: folder to write; if it exists, one that this function wrote with the same model and options.
        columns: arguments of `AnsweringModel.iterate`.
        options: arguments of `Task.answer_options`.
        max_characters: maximum length of a text; rows with a longer one are invalid.
        processes: number of processes, each with one thread. If None, one per core. The files do not depend on it.
        prompt_name: see `AnsweringModel.with_prompt`.
        keep_columns: columns of the input files that the answers have, too.
        normalization: see `AnsweringModel.with_normalization`.

    Raises:
        InputError: an option or a file is invalid, or rows were left out; all other rows are answered.
    """
    shards = _name_shards(find_texts(patterns), output)
    settings = {"keras_bert": __version__, "model": digests.folder_digest(model), "max_characters": max_characters,
                **columns, **options, **not_none(
                    prompt_name=prompt_name, keep_columns=list(keep_columns) or None, normalization=normalization)}
    with atomic.only_writer(output):
        written = _check_settings(output, settings, shards)
        for folder in (output, os.path.join(output, INVALID)):
            atomic.remove_workspaces(folder)
        todo = {shard: path for shard, path in shards.items() if not os.path.exists(os.path.join(output, shard))}
        settings |= {"files": written | {shard: _identify(path) for shard, path in todo.items()}}
        answerer = Answerer(model, columns, options, max_characters, prompt_name, keep_columns, normalization)
        counts, unread = _answer(answerer, todo, output, settings, processes) if todo else (Counter(), [])
        done = len(shards) - len(todo)
        long = "".join(f", {kind}: {count}" for kind, count in sorted(counts.items()) if kind != "answers" and count)
        before = f", {done} of {len(shards)} files were finished before" * bool(done)
        print(f"{output}: {counts['answers']} answers{long}{before}")
        _report(output, shards, unread)


def _answer(answerer: "Answerer", todo: dict[str, str], output: str, settings: dict[str, Any],
            processes: int | None) -> tuple[Counter, list[InputError]]:
    """Writes the answers to the files of `todo`, see `_name_shards`. Returns the numbers of `answers` and, in words, of
    texts that were cut or split, and what is wrong with the files that were left out."""
    counts: Counter = Counter()
    unread: list[InputError] = []
    chunks = ((shard, chunk) for shard, path in todo.items() for chunk in read_chunks(path, answerer.keep_columns))
    results = map_in_order(answerer, chunks, processes or available_cores())
    with stoppable("stopped; the same command continues"), ProgressLine("answers") as progress:
        first = next(results)  # loads the model: if it is invalid, nothing is written
        json_files.write_json(os.path.join(output, SETTINGS), settings)
        sizes = {shard: settings["files"][shard][0] or 1 for shard in todo}
        ends = dict(zip(todo, itertools.accumulate(sizes.values())))
        for shard, parts in itertools.groupby(itertools.chain([first], results), lambda result: result[0][0]):
            of_shard: Counter = Counter()
            try:
                for share, of_shard in _write_shard(output, shard, parts, settings["files"][shard]):
                    progress((ends[shard] - (1 - share) * sizes[shard]) / max(ends.values()),
                             counts["answers"] + of_shard["answers"])
                counts += of_shard
            except _Unreadable as error:
                unread.append(error.args[0])
    return counts, unread


class Answerer:
    """Answers chunks of rows with one core, see `answer_files` for the arguments. Loads the model when first called."""

    def __init__(self, model: str, columns: dict[str, Any], options: dict[str, Any], max_characters: int,
                 prompt_name: str | None = None, keep_columns: Sequence[str] = (),
                 normalization: str | None = None) -> None:
        self._path, self._columns, self._options = model, columns, options
        self._max_characters, self._prompt_name, self._normalization = max_characters, prompt_name, normalization
        self.keep_columns = keep_columns

    def __call__(self, item: tuple[str, Chunk]) -> _Answers:
        shard, chunk = item
        loaded, options = self._loaded
        try:
            examples, invalid = examples_of_chunk(
                loaded.task, loaded.iterate, chunk, self._columns, self._max_characters, self.keep_columns)
        except MissingColumn as error:
            return b"", b"", Counter(), error
        found, counts = loaded.answer_with_cuts([example for _, example in examples], **options)
        kinds = {"cut": f"texts cut at {' or '.join(loaded.task.limits)}", "split": "texts split into windows",
                 "nfd": "texts in NFD (set normalization to NFC)"}
        long = {kinds[name]: count for name, count in counts.items()}
        answers = [head | loaded.task.record(example, answer) for (head, example), answer in zip(examples, found)]
        return (_json_lines(answers, shard), _json_lines(invalid, shard) if invalid else b"",
                Counter({"answers": len(answers)} | long), chunk.error)

    @functools.cached_property
    def _loaded(self) -> tuple[AnsweringModel, dict[str, Any]]:
        quiet_tensorflow()
        os.environ["TF_NUM_INTRAOP_THREADS"] = os.environ["TF_NUM_INTEROP_THREADS"] = "1"
        loaded = load_answering_model(self._path, 1, self._normalization).with_prompt(self._prompt_name)
        options = loaded.task.answer_options(**self._options)
        # Keras traces a model for the first shape of its inputs, then for all others, and the traces round differently.
        # The first shapes are the same in each process, whichever rows it gets.
        for count in (1, 2):
            names = ["row", *answer_columns(loaded, options, count)]
        check_kept(self.keep_columns, names)
        return loaded, options


def answer_columns(model: AnsweringModel, options: dict[str, Any], count: int = 2) -> list[str]:
    """Answers `count` equal examples of `count` words. Returns the columns of an answer."""
    text = " ".join("a" * count)
    example = model.task.example(*([text] * (count + 1) if name == "choices" else text for name in model.task.inputs))
    answers, _ = model.answer_with_cuts([example] * count, **options)
    return list(model.task.record(example, answers[0]))


def check_kept(keep_columns: Sequence[str], names: Sequence[str]) -> None:
    """Raises an InputError if one of the columns to keep has the name of one of the answers' own."""
    for name in keep_columns:
        if name in names:
            raise InputError(Option("keep_columns"), " must differ from the columns of the answers, "
                             f"{', '.join(names)}; got {name}")


def _name_shards(paths: list[str], output: str) -> dict[str, str]:
    """Returns the path of the input of each file of answers, by its name. Skips files in the output."""
    folder = os.path.realpath(output)
    shards: dict[str, str] = {}
    outside = [path for path in paths if os.path.commonpath([os.path.realpath(path), folder]) != folder]
    if not outside:
        raise InputError(f"{paths[0]}: is in the folder {output} of the output; pass an ", Option("output=…"),
                         " elsewhere")
    for path in outside:
        check_suffix(path)
        stem, suffix = os.path.splitext(os.path.basename(path))
        compressed = suffix.lower() == ".gz"
        shard = f"{os.path.splitext(stem)[0] if compressed else stem}.jsonl{'.gz' * compressed}"
        if shard in shards:
            raise InputError(f"{path}: would be answered in {os.path.join(output, shard)}, as {shards[shard]}; "
                             "rename one of them, or pass another ", Option("output=…"), " for it")
        shards[shard] = path
    return shards


def _change(name: str, *settings: dict[str, Any]) -> list[Option | str]:
    before, now = (",".join(value) if isinstance(value := given.get(name), list) else repr(value) for given in settings)
    return [Option(f"{name}={before}"), f" (now {now})"]


def _check_settings(output: str, settings: dict[str, Any], shards: dict[str, str]) -> dict[str, Any]:
    """Returns what `predict.json` in the output folder says about the input of each file, see `_identify`. Raises an
    InputError if the folder was written otherwise than now."""
    path = os.path.join(output, SETTINGS)
    if not os.path.exists(path):
        if not atomic.is_empty(output):
            raise InputError(f"{output}: exists already, without a {SETTINGS}; pass another ", Option("output=…"))
        return {}
    saved = json_files.read_json(path)
    if not isinstance(saved, dict) or not isinstance(files := saved.pop("files", None), dict):
        raise InputError(f"{path}: must be a file of predict; pass another ", Option("output=…"),
                         f" or remove the folder {output}")
    if not any(os.path.exists(os.path.join(output, shard)) for shard in files):  # nothing has been answered
        return {}
    names = dict.fromkeys([*saved, *settings])
    changed = [part for name in names if saved.get(name) != settings.get(name)
               for part in (", ", *(["another model"] if name == "model" else _change(name, saved, settings)))]
    if changed:
        raise InputError(f"{output}: was written with ", *changed[1:], "; pass another ", Option("output=…"),
                         " or remove the folder")
    for shard, source in shards.items():
        answers = os.path.join(output, shard)
        if os.path.exists(answers) and files.get(shard) != _identify(source):
            raise InputError(f"{answers}: was written from another file than {source}, or that has changed; remove it "
                             "to answer the file again, or pass another ", Option("output=…"))
    return files


def _identify(path: str) -> list[int]:
    """Returns the size and the time of change of a file; zeros if there is none."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return [0, 0]
    return [status.st_size, status.st_mtime_ns]


class _Unreadable(Exception):
    """Ends the writing of a file whose input cannot be read."""


def _write_shard(output: str, shard: str, parts: Iterable[tuple[tuple[str, Chunk], _Answers]],
                 identity: list[int]) -> Iterator[tuple[float, Counter]]:
    """Writes the answers to a file, and its invalid rows to another. Yields the share of the file and the counts so far
    after each part. Raises `_Unreadable` if the file is invalid or no longer what `_identify` returned."""
    invalid_path = os.path.join(output, INVALID, shard)
    with contextlib.suppress(FileNotFoundError):
        os.remove(invalid_path)
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(_writing(os.path.join(output, shard)))
        invalid_file: BinaryIO | None = None
        total: Counter = Counter()
        for (_, chunk), (answers, invalid, counts, error) in parts:
            if error:
                raise _Unreadable(error)
            file.write(answers)
            if invalid:
                if not invalid_file:
                    os.makedirs(os.path.dirname(invalid_path), exist_ok=True)
                    # Written before the answers, because these say that the file is finished.
                    invalid_file = stack.enter_context(_writing(invalid_path))
                invalid_file.write(invalid)
            total += counts
            yield chunk.share, total
        if _identify(chunk.path) != identity:
            raise _Unreadable(InputError(f"{chunk.path}: was changed while it was read"))


@contextlib.contextmanager
def _writing(path: str) -> Iterator[BinaryIO]:
    with atomic.atomic_file(path) as new, open(new, "wb") as file:
        yield file


def examples_of_chunk(task: Task, iterate: Callable[..., Iterator], chunk: Chunk, columns: dict[str, Any],
                      max_characters: int, keep_columns: Sequence[str] = ()
                      ) -> tuple[list[tuple[dict[str, Any], Any]], list[dict[str, Any]]]:
    """Returns the examples of a chunk, each with the first columns of its answer, and its invalid rows as JSON holds
    them. Raises a MissingColumn if that is the fault of the whole file. `iterate` is that method of an `AnsweringModel`
    or of the task, and `columns` are its arguments. Rows with a text of more than `max_characters` are invalid."""
    def read(rows: list[Row]) -> list[tuple[dict[str, Any], Any]]:
        if not rows:
            return []
        numbers, values = map(list, zip(*rows))
        found = list(iterate(Rows(chunk.path, values, numbers), **columns, label_column=None))
        task.check_inputs(chunk.path, found)
        longest = max((len(text) for example in found for text in task.all_texts(example)), default=0)
        if longest > max_characters:
            raise InputError(f"{chunk.path}: a text has {longest} characters, more than ",
                             Option(f"max_characters={max_characters}"))
        return list(zip([_head(chunk.path, row, keep_columns) for row in rows], found))

    parsed = list(chunk.parse())
    rows = [(number, values) for number, values in parsed if isinstance(values, dict)]
    invalid = {number: error for number, error in parsed if not isinstance(error, dict)}
    try:
        examples = read(rows)
    except InputError:  # of one row or several
        examples = []
        for row in rows:
            try:
                examples += read([row])
            except InputError as error:
                if isinstance(error, MissingColumn) and chunk.columns is not None:
                    raise
                invalid[row[0]] = error
        # In JSON Lines each row has its own columns, but one that all first rows lack is a wrong name.
        if parsed[0][0] == 1 and not examples and all(isinstance(error, MissingColumn) for error in invalid.values()):
            raise invalid[1] from None
    return examples, [_describe(chunk.path, number, invalid[number]) for number in sorted(invalid)]


def _head(path: str, row: Row, keep_columns: Sequence[str]) -> dict[str, Any]:
    """Returns the number of a row and its values of the columns to keep."""
    number, values = row
    head = {"row": number}
    for name in keep_columns:
        try:
            head[name] = json_files.json_value(values.get(name))
        except TypeError as error:
            raise InputError(f"{path}: row {number}: {name!r} {error}; leave it out of ", Option("keep_columns=…")
                             ) from None
    return head


def _describe(path: str, number: int, error: InputError) -> dict[str, Any]:
    reason = error.on_command_line(_FLAGS).removeprefix(f"{path}: ").removeprefix(f"row {number}: ")
    return {"file": path, "row": number, "reason": reason}


def _json_lines(records: Iterable[dict[str, Any]], name: str) -> bytes:
    """Returns the bytes of a JSON Lines file, compressed if its name ends in .gz."""
    lines = "".join(json_files.json_text(record) + "\n" for record in records).encode()
    return gzip.compress(lines, mtime=0) if name.endswith(".gz") else lines


def _report(output: str, shards: dict[str, str], unread: list[InputError]) -> None:
    """Names the files that were left out. Raises an InputError if rows or files were left out."""
    for error in unread:
        print_error(" ".join(error.on_command_line(_FLAGS).split()))
    paths = filter(os.path.exists, (os.path.join(output, INVALID, shard) for shard in shards))
    counts = [sum(1 for _ in byte_lines(path)) for path in paths]
    problems = []
    if counts:
        problems.append(f"invalid rows were left out: {sum(counts)}, of {len(counts)} of {len(shards)} files; see "
                        f"{os.path.join(output, INVALID)}")
    if unread:
        problems.append(f"files were left out: {len(unread)} of {len(shards)}; correct them and run the command again")
    if problems:
        raise InputError(f"{output}: {'; '.join(problems)}")
