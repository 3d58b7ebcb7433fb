"""`predict --output`: answers the rows of many files in several processes, and continues where it was killed."""

import collections
import contextlib
import functools
import gzip
import itertools
import os
import sys

from keras_bert import __version__, startup
from keras_bert.arguments import with_flags
from keras_bert.data.chunks import check_suffix, read_chunks
from keras_bert.data.rows import byte_lines
from keras_bert.data.tables import Rows
from keras_bert.errors import InputError, MissingColumn
from keras_bert.files import (
    atomic_file,
    find_texts,
    folder_digest,
    is_empty,
    json_text,
    only_writer,
    read_json,
    remove_workspaces,
    write_json,
)
from keras_bert.processes import map_in_order
from keras_bert.terminal import ProgressLine, stoppable

SETTINGS = "predict.json"
INVALID = "invalid"  # folder of the rows that were left out
_FLAGS = ("text_column", "text_pair_column")  # that the reasons name


def answer_files(load, model, patterns, output, columns, options, processes=None):
    """Writes a file of answers, JSON Lines, for each input file, and the invalid rows to the folder `invalid`.

    Each file is written atomically. A file of answers that exists is finished: it is not written again.

    Args:
        load: function of `model` that returns a `FineTuned` or `Exported`.
        model: path of the model.
        patterns: list of paths, globs allowed.
        output: folder to write; if it exists, one that this function wrote with the same model and options.
        columns: dict of the arguments of `FineTuned.iterate`.
        options: dict of the arguments of `Task.answer_options`.
        processes: number of processes, each with one thread. If None, one per core. The files do not depend on it.

    Prints the numbers of answers and of cut texts and, on standard error, what is wrong with each file that was
    left out.

    Raises:
        InputError: an option or a file is invalid, or rows were left out; all other rows are answered.
    """
    shards = _name_shards(find_texts(patterns), output)
    settings = {"keras_bert": __version__, "model": folder_digest(model), **columns, **options}
    with only_writer(output):
        written = _check_settings(output, settings, shards)
        for folder in (output, os.path.join(output, INVALID)):
            remove_workspaces(folder)
        todo = {shard: path for shard, path in shards.items() if not os.path.exists(os.path.join(output, shard))}
        files = written | {shard: _identify(path) for shard, path in todo.items()}
        answerer = Answerer(load, model, columns, options)
        counts, unread = collections.Counter(), []
        if todo:
            counts, unread = _answer(answerer, todo, output, settings | {"files": files}, processes)
        done = len(shards) - len(todo)
        cut = f", texts cut at max_length: {counts['cut']}" * bool(counts["cut"])
        before = f", {done} of {len(shards)} files were finished before" * bool(done)
        print(f"{output}: {counts['answers']} answers{cut}{before}")
        _report(output, shards, unread)


def _answer(answerer, todo, output, settings, processes):
    """Writes the answers to the files `todo`, a dict as `_name_shards` returns it. Returns a `Counter` of `answers` and
    of texts that were `cut`, and a list of what is wrong with the files that were left out."""
    counts, unread = collections.Counter(), []
    chunks = ((shard, chunk) for shard, path in todo.items() for chunk in read_chunks(path))
    results = map_in_order(answerer, chunks, processes or os.cpu_count() or 1)
    with stoppable("stopped; the same command continues"), ProgressLine("answers") as progress:
        first = next(results)  # loads the model: if it is invalid, nothing is written
        write_json(os.path.join(output, SETTINGS), settings)
        sizes = {shard: settings["files"][shard][0] or 1 for shard in todo}
        ends = dict(zip(todo, itertools.accumulate(sizes.values())))
        for shard, parts in itertools.groupby(itertools.chain([first], results), lambda result: result[0][0]):
            of_shard = collections.Counter()
            try:
                for share, of_shard in _write_shard(output, shard, parts, settings["files"][shard]):
                    progress((ends[shard] - (1 - share) * sizes[shard]) / max(ends.values()),
                             counts["answers"] + of_shard["answers"])
                counts += of_shard
            except _Unreadable as error:
                unread.append(error.args[0])
    return counts, unread


class Answerer:
    """A function that answers chunks of rows, for a process that has one core. It loads the model when it is first
    called. The arguments are those of `answer_files`."""

    def __init__(self, load, model, columns, options):
        self._load, self._path, self._columns, self._options = load, model, columns, options

    def __call__(self, item):
        """Returns (answers, invalid rows, `Counter`, error): bytes of lines of JSON, none if there are no invalid rows;
        the numbers of `answers` and of texts that were `cut`; and what makes the whole file invalid."""
        shard, chunk = item
        loaded, options = self._loaded
        try:
            examples, invalid = read_examples(loaded, chunk, self._columns)
        except MissingColumn as error:
            return b"", b"", collections.Counter(), error
        answers, counts = [], collections.Counter()
        # The texts of a call must have the same number of choices.
        for _, group in itertools.groupby(examples, lambda pair: len(getattr(pair[1], "choices", ()))):
            group = list(group)
            found, cut = loaded.answer_with_cuts([example for _, example in group], **options)
            counts.update(answers=len(found), cut=cut)
            answers += [{"row": number} | loaded.task.record(example, answer)
                        for (number, example), answer in zip(group, found)]
        return _json_lines(answers, shard), _json_lines(invalid, shard) if invalid else b"", counts, chunk.error

    @functools.cached_property
    def _loaded(self):
        startup.quiet_tensorflow()
        os.environ["TF_NUM_INTRAOP_THREADS"] = os.environ["TF_NUM_INTEROP_THREADS"] = "1"
        loaded = self._load(self._path)
        options = loaded.task.answer_options(**self._options)
        # Keras traces a model for the first shape of its inputs, then for all others, and the traces round differently.
        # The first shapes are the same in each process, whichever rows it gets.
        for count in (1, 2):
            loaded.answer_with_cuts([_example(loaded.task, count)] * count, **options)
        return loaded, options


def _example(task, count):
    """Returns an example of texts of `count` words."""
    texts = [" ".join("a" * count)] * len(task.columns)
    if "choices" in task.columns:
        texts[-1] = texts[-1:] * (count + 1)
    return task.example(*texts)


def _name_shards(paths, output):
    """Returns a dict from the name of each file of answers to the path of its input. Skips files in the output."""
    folder, shards = os.path.realpath(output), {}
    outside = [path for path in paths if os.path.commonpath([os.path.realpath(path), folder]) != folder]
    if not outside:
        raise InputError(f"{paths[0]}: is in the folder {output} of the output; pass an output=… elsewhere")
    for path in outside:
        check_suffix(path)
        stem, suffix = os.path.splitext(os.path.basename(path))
        compressed = suffix.lower() == ".gz"
        shard = f"{os.path.splitext(stem)[0] if compressed else stem}.jsonl{'.gz' * compressed}"
        if shard in shards:
            raise InputError(f"{path}: would be answered in {os.path.join(output, shard)}, as {shards[shard]}; "
                             "rename one of them, or pass another output=… for it")
        shards[shard] = path
    return shards


def _check_settings(output, settings, shards):
    """Returns what `predict.json` in the output folder says about its files: a dict from their names to their inputs,
    see `_identify`. Raises an InputError if the folder was written otherwise than now."""
    path = os.path.join(output, SETTINGS)
    if not os.path.exists(path):
        if not is_empty(output):
            raise InputError(f"{output}: exists already, without a {SETTINGS}; pass another output=…")
        return {}
    saved = read_json(path)
    if not isinstance(saved, dict) or not isinstance(files := saved.pop("files", None), dict):
        raise InputError(f"{path}: must be a file of predict; pass another output=… or remove the folder {output}")
    names = dict.fromkeys([*saved, *settings])
    changed = [f"{name}={saved.get(name)!r} (now {settings.get(name)!r})" if name != "model" else "another model"
               for name in names if saved.get(name) != settings.get(name)]
    if changed:
        raise InputError(f"{output}: was written with {', '.join(changed)}; pass another output=… or remove the folder")
    for shard, source in shards.items():
        answers = os.path.join(output, shard)
        if os.path.exists(answers) and files.get(shard) != _identify(source):
            raise InputError(f"{answers}: was written from another file than {source}, or that has changed; remove it "
                             "to answer the file again, or pass another output=…")
    return files


def _identify(path):
    """Returns the size and the time of change of a file; zeros if there is none."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return [0, 0]
    return [status.st_size, status.st_mtime_ns]


class _Unreadable(Exception):
    """Ends the writing of a file whose input cannot be read."""


def _write_shard(output, shard, parts, identity):
    """Writes the answers to a file, and its invalid rows to another. Yields (share of the file, `Counter` so far) after
    each part, and raises `_Unreadable` if the file is invalid or no longer what `_identify` returned."""
    invalid_path = _invalid_path(output, shard)
    with contextlib.suppress(FileNotFoundError):
        os.remove(invalid_path)
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(_writing(os.path.join(output, shard)))
        invalid_file, total = None, collections.Counter()
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
            raise _Unreadable(f"{chunk.path}: was changed while it was read")


def _invalid_path(output, shard):
    return os.path.join(output, INVALID, shard)


@contextlib.contextmanager
def _writing(path):
    with atomic_file(path) as new, open(new, "wb") as file:
        yield file


def read_examples(loaded, chunk, columns):
    """Returns the examples of a chunk and its invalid rows: lists of (row, example), and of dicts that JSON can
    represent. Raises a MissingColumn if that is the fault of the whole file.

    Args:
        loaded: an object with the `task` and `iterate` of `FineTuned`.
        chunk: `Chunk`.
        columns: dict of the arguments of `iterate`.
    """
    parsed = list(chunk.parse())
    rows = [(number, values) for number, values in parsed if isinstance(values, dict)]
    invalid = {number: error for number, error in parsed if not isinstance(error, dict)}
    try:
        examples = _read(loaded, chunk, rows, columns)
    except InputError:  # of one row or several
        examples = []
        for row in rows:
            try:
                examples += _read(loaded, chunk, [row], columns)
            except InputError as error:
                if isinstance(error, MissingColumn) and chunk.columns is not None:
                    raise
                invalid[row[0]] = error
    return examples, [_describe(chunk.path, number, invalid[number]) for number in sorted(invalid)]


def _read(loaded, chunk, rows, columns):
    if not rows:
        return []
    numbers, values = zip(*rows)
    examples = list(loaded.iterate(Rows(chunk.path, list(values), list(numbers)), **columns, label_column=None))
    loaded.task.check_inputs(chunk.path, examples)
    return list(zip(numbers, examples))


def _describe(path, number, error):
    reason = with_flags(str(error), _FLAGS).removeprefix(f"{path}: ").removeprefix(f"row {number}: ")
    return {"file": path, "row": number, "reason": reason}


def _json_lines(records, name):
    """Returns the bytes of a JSON Lines file, compressed if its name ends in .gz."""
    lines = "".join(json_text(record) + "\n" for record in records).encode()
    return gzip.compress(lines, mtime=0) if name.endswith(".gz") else lines


def _report(output, shards, unread):
    """Names the files that were left out. Raises an InputError if rows or files were left out."""
    for error in unread:
        print("keras-bert:", " ".join(with_flags(str(error), _FLAGS).split()), file=sys.stderr)
    paths = filter(os.path.exists, (_invalid_path(output, shard) for shard in shards))
    counts = [sum(1 for _ in byte_lines(path)) for path in paths]
    problems = []
    if counts:
        problems.append(f"invalid rows were left out: {sum(counts)}, of {len(counts)} of {len(shards)} files; see "
                        f"{os.path.join(output, INVALID)}")
    if unread:
        problems.append(f"files were left out: {len(unread)} of {len(shards)}; correct them and run the command again")
    if problems:
        raise InputError(f"{output}: {'; '.join(problems)}")
