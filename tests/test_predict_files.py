"""`predict --output`: many files in, a file of answers for each, also after kills and with any number of processes."""

import csv
import datetime
import decimal
import functools
import gzip
import hashlib
import io
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import time

import pyarrow
import pytest
from pyarrow import parquet

from keras_bert.data import chunks
from keras_bert.errors import InputWarning
from keras_bert.files.atomic import only_writer
from keras_bert.inference import answering, files
from keras_bert.terminal import ProgressLine

load_once = functools.cache(answering.load_answering_model)  # loading and tracing take seconds
LONG, LARGE = b"x" * 100_001, b"x" * 2**24  # longer than a text, and a line, may be
TEXTS = ["play some music", "turn the lamp off", "a song\tplease", "the \"light\"", "조명을 켜", "play, a song"]


def write(path, texts=TEXTS):
    """Writes texts as the suffix says."""
    kind = chunks.suffix_of(path)
    open_file = gzip.open if path.suffix.lower() == ".gz" else open
    with open_file(path, "wt", encoding="utf-8") as file:
        if kind == ".parquet":
            return parquet.write_table(pyarrow.table({"id": range(len(texts)), "text": texts}), path)
        if kind == ".jsonl":
            file.writelines(json.dumps({"id": i, "text": text}) + "\n" for i, text in enumerate(texts))
        elif kind == ".csv":
            csv.writer(file, delimiter=",;"[path.name == "h.csv"]).writerows([("id", "text"), *enumerate(texts)])
        else:
            file.writelines(["id\ttext\n", *(f"{i}\t{text}\n".replace("g\tp", "g p") for i, text in enumerate(texts))])


def read(path):
    text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def digests(folder):
    """The digest of each file in a folder, apart from predict.json, which has the time of the input."""
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(folder.rglob("*")) if path.is_file() and path.name != "predict.json"}


@pytest.fixture
def inputs(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    return folder


@pytest.fixture
def predict(run, trained_once, tmp_path, monkeypatch):
    """Runs the command in this process, without lines of progress however slow that is."""
    monkeypatch.setattr(files, "load_answering_model", load_once)
    monkeypatch.setattr(ProgressLine, "is_due", lambda _: False)

    def call(inputs, *more, model=trained_once):
        return run("predict", f"--model={model}", f"--input={inputs}", f"--output={tmp_path / 'out'}", "--processes=1",
                   *more)
    return call


@pytest.mark.usefixtures("eager")
def test_answers_are_those_of_the_model(predict, trained_once, inputs, tmp_path):
    """Without and with a column of the input that is kept."""
    names = ["a.jsonl", "b.tsv", "c.csv", "d.parquet", "e.jsonl.gz", "f.tsv.gz", "g.csv.gz", "h.csv"]
    for name in names:
        write(inputs / name)
    outputs = ["a.jsonl", "b.jsonl", "c.jsonl", "d.jsonl", "e.jsonl.gz", "f.jsonl.gz", "g.jsonl.gz", "h.jsonl"]
    wanted = load_once(trained_once, 1).predict(TEXTS)
    for flags, names_kept in (([], []), (["--keep_columns=id"], ["id"])):
        out = tmp_path / "-".join(["out", *names_kept])
        with pytest.warns(InputWarning, match="h.csv: read with ';' between the cells, not ','"):
            assert predict(inputs / "*", f"--output={out}", *flags) == (0, [f"{out}: 48 answers"], [])
        assert sorted(digests(out)) == outputs
        for name, answers in zip(names, outputs):
            suffix = chunks.suffix_of(name)
            kind, first = (str, 2) if suffix in (".tsv", ".csv") else (int, 1)
            found = read(out / answers)
            assert all(list(row)[:-2] == ["row", *names_kept, "text"] for row in found)
            assert found == [
                {"row": first + i, "text": text.replace("\t", " ") if suffix == ".tsv" else text, "label": answer.label,
                 "score": pytest.approx(answer.score, abs=2e-6), **dict.fromkeys(names_kept, kind(i))}
                for i, (text, answer) in enumerate(zip(TEXTS, wanted))]
    status, _, [message] = predict(inputs / "*", f"--output={out}")
    assert status == 1 and "was written with --keep_columns=id (now None); pass another --output" in message


@pytest.mark.usefixtures("eager")
def test_kept_values_have_the_types_of_json(predict, inputs, tmp_path):
    kept = [{"text": "a", "x": {"y": [1, 2.5, True, None]}, "z": "조명"}, {"text": "a", "x": 10**30}]  # a row without z
    (inputs / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in kept) + '{"text": "a", "x": NaN}\n')
    when = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
    columns = {"text": ["a", "b"], "x": [when, None], "z": [[decimal.Decimal("1.50")], []]}
    parquet.write_table(pyarrow.table(columns), inputs / "b.parquet")
    assert predict(inputs / "*", "--keep_columns=x,z")[0] == 0
    assert [(row["x"], row["z"]) for row in read(tmp_path / "out/a.jsonl")] == [
        (kept[0]["x"], "조명"), (10**30, None), (None, None)]
    assert [(row["x"], row["z"]) for row in read(tmp_path / "out/b.jsonl")] == [
        ("2026-01-02T03:04:05+00:00", ["1.50"]), (None, [])]
    parquet.write_table(pyarrow.table({"text": ["a"], "x": [b"1"], "z": [1]}), inputs / "c.parquet")
    predict(inputs / "c.parquet", "--keep_columns=x,z")
    assert read(tmp_path / "out/invalid/c.jsonl")[0]["reason"] == (
        "'x' must be of a type that JSON has; got bytes; leave it out of --keep_columns")


@pytest.mark.usefixtures("eager")
def test_a_file_without_a_column_to_keep_is_left_out(predict, inputs, tmp_path):
    for name, content in (
            ("a.tsv", b"text\tx\n"), ("b.jsonl", b'{"text": "a", "x": 1}\n{\n{"text": "a", "y": 1}\n'),
            ("c.jsonl", b'{\n{"text": "a"}\n{"text": "a", "id": 1}\n'),
            ("d.csv.gz", gzip.compress(b"text,id\n")), ("e.jsonl", b"")):
        (inputs / name).write_bytes(content)
    status, lines, messages = predict(f"{inputs}/*", "--keep_columns=id")
    assert (status, lines) == (1, [f"{tmp_path / 'out'}: 2 answers"])
    assert "files were left out: 2 of 5; correct" in messages[-1] and messages[:-1] == [
        f"keras-bert: {inputs / name}: there is no column 'id'; the columns are {columns}; leave it out of "
        "--keep_columns"
        for name, columns in (("a.tsv", "text, x"), ("b.jsonl", "text, x, y"))]
    assert sorted(digests(tmp_path / "out")) == ["c.jsonl", "d.jsonl.gz", "e.jsonl", "invalid/c.jsonl"]
    assert read(tmp_path / "out/d.jsonl.gz") == read(tmp_path / "out/e.jsonl") == []
    assert [row["id"] for row in read(tmp_path / "out/c.jsonl")] == [None, 1]


@pytest.mark.usefixtures("eager")
def test_the_summary_says_how_many_texts_were_cut(predict, inputs, tmp_path):
    write(inputs / "a.jsonl", ["play " * 126, "play " * 127])  # with [CLS] and [SEP], 128 tokens fit
    write(inputs / "b.jsonl", ["lamp", "play " * 200])
    assert predict(inputs / "*") == (0, [f"{tmp_path / 'out'}: 4 answers, texts cut at max_length: 2"], [])
    (tmp_path / "out/b.jsonl").unlink()
    assert predict(inputs / "*")[1] == [
        f"{tmp_path / 'out'}: 2 answers, texts cut at max_length: 1, 1 of 2 files were finished before"]


@pytest.mark.parametrize("name, header, good, invalid", [
    ("a.jsonl", b"", b'{"text": "a"}\n', {
        b'{"text": 1}\n': "'text' must be a text; got 1", b"[]\n": "must be an object; got []",
        b'{"text": "\xff"}\n': "must be UTF-8 text: invalid start byte at byte",
        b'{"text": "\\ud800"}\n': "not JSON: 'utf-8' codec can't encode",
        b'{"x": "c"}\n': "there is no column 'text'; the columns are x; pass --text_column",
        b'{"text": "a", "text_pair": "b"}\n': "must have one text per row for this model; got two",
        b'{"text": "%b"}\n' % LONG: "a text has 100001 characters, more than --max_characters=100000",
        b'{"text": "%b"}\n' % LARGE: "may have at most 16,777,216 bytes; got 16,777,229",
        b'{"tex': "not JSON: Unterminated string starting"}),
    ("a.tsv", b"text\tid\n", b"a\t1\n", {
        b"x\n": "must have 2 columns (text, id); got 1", b"\xea\t1\n": "must be UTF-8 text: ",
        b"%b\n" % LARGE: "may have at most 16,777,216 bytes; got 16,777,217"}),
    ("a.csv", b"text,id\n", b"a,1\n", {
        b'"x" y,1\n': "line 3: ',' expected after '\"'",
        b'"x\n\xff",1\n': "must be UTF-8 text: invalid start byte at byte 3"})])
def test_invalid_rows_are_kept_apart(predict, inputs, tmp_path, name, header, good, invalid):
    """Each after a valid one."""
    (inputs / name).write_bytes(header + b"".join(good + row for row in invalid))
    status, lines, messages = predict(inputs / "a.*")
    out, count = tmp_path / "out", len(invalid)
    assert (status, lines) == (1, [f"{out}: {count} answers"])
    assert messages == [
        f"keras-bert: {out}: invalid rows were left out: {count}, of 1 of 1 files; see {out / 'invalid'}"]
    assert [answer["text"] for answer in read(out / "a.jsonl")] == ["a"] * count
    found = read(out / "invalid/a.jsonl")
    assert [(row["file"], row["row"]) for row in found] == [
        (str(inputs / name), 2 * number + (3 if header else 2)) for number in range(count)]
    assert all(row["reason"].startswith(reason) for row, reason in zip(found, invalid.values()))
    again = predict(inputs / "a.*")  # the rows are reported again, nothing is answered
    assert again == (1, [f"{out}: 0 answers, 1 of 1 files were finished before"], messages)


def test_a_file_and_its_compressed_copy_keep_their_invalid_rows(predict, inputs, tmp_path):
    (inputs / "a.tsv").write_bytes(b"text\ta\nplay\t1\nx\n")
    (inputs / "a.tsv.gz").write_bytes(gzip.compress(b"text\ta\nx\ny\n"))
    _, _, [message] = predict(inputs / "a.*")
    assert "invalid rows were left out: 3, of 2 of 2 files" in message
    rows = [row for name in ("a.jsonl", "a.jsonl.gz") for row in read(tmp_path / "out/invalid" / name)]
    assert [(row["file"], row["row"]) for row in rows] == [
        (str(inputs / name), number) for name, number in (("a.tsv", 3), ("a.tsv.gz", 2), ("a.tsv.gz", 3))]


@pytest.mark.parametrize("name, content, reason", [
    ("b.jsonl.gz", gzip.compress(b'{"text": "a"}\n' * 5000)[:-9], "cannot be read: Compressed file ended"),
    ("b.JSONL.GZ", b"abc", "cannot be read: Not a gzipped file"),
    ("b.csv", b"t\xffxt\na\n", "row 1: must be UTF-8 text"),
    # No row is made of what may be the rest of a cell.
    ("b.csv", b'text,id\na,1\n"x\n%b\nz",1\nb,2\n' % LARGE, "line 4: may have at most 16,777,216 bytes"),
    ("b.csv", b'text,id\na,1\n"%b\nz",2\nb,2\n' % (LARGE[:2**23] + b"\n" + LARGE[:2**23]),
     "line 4: a cell may have at most 16,777,216 characters; perhaps a closing quote is missing"),
    ("b.parquet", b"abc", "not a Parquet file"),
])
def test_a_file_that_cannot_be_read_is_left_out_and_can_be_corrected(predict, inputs, tmp_path, name, content, reason):
    write(inputs / "a.jsonl")
    (inputs / name).write_bytes(content)
    write(inputs / "c.jsonl")
    status, lines, messages = predict(f"{inputs}/*")
    assert (status, lines) == (1, [f"{tmp_path / 'out'}: 12 answers"])
    left_out, message = messages
    assert left_out.startswith(f"keras-bert: {inputs / name}: {reason}")
    assert message.endswith("files were left out: 1 of 3; correct them and run the command again")
    assert sorted(digests(tmp_path / "out")) == ["a.jsonl", "c.jsonl"]
    write(inputs / name)
    assert predict(f"{inputs}/*") == (0, [f"{tmp_path / 'out'}: 6 answers, 2 of 3 files were finished before"], [])


def test_a_wrong_column_of_all_rows_is_that_of_the_file_and_another_may_follow(predict, inputs, tmp_path):
    (inputs / "a.jsonl").write_text('{"document": "play"}\n{"document": "stop"}\n')
    reason = "a.jsonl: there is no column 'text'; the columns are document; pass --text_column"
    status, lines, messages = predict(inputs / "a.jsonl")
    assert (status, lines, messages[0]) == (1, [f"{tmp_path / 'out'}: 0 answers"], f"keras-bert: {inputs}/{reason}")
    assert predict(inputs / "a.jsonl", "--text_column=document") == (0, [f"{tmp_path / 'out'}: 2 answers"], [])


def test_columns_of_parquet_must_differ_too(tmp_path):
    parquet.write_table(pyarrow.table([[1], [2]], names=["text", "text"]), tmp_path / "a.parquet")
    [chunk] = chunks.read_chunks(tmp_path / "a.parquet")
    assert "column names must differ; got text, text" in str(chunk.error) and not chunk.rows


def test_what_is_refused(predict, trained, inputs, tmp_path):
    write(inputs / "a.jsonl")
    out = tmp_path / "out"

    def message(*arguments, **options):
        status, lines, messages = predict(*arguments, **options)
        assert (status, lines, len(messages)) == (1, [], 1)
        return messages[0].removeprefix("keras-bert: ")

    for arguments, start in (
            (["--aggregation_strategy=max"], "--aggregation_strategy must be left out"),
            (["--data_format=nsmc"], "--data_format must be left out with --output; got nsmc; for tables with"),
            (["--output_format=text"], "--output_format must be jsonl with --output; got text"),
            (["--keep_columns=id,label"], "--keep_columns must differ from the columns of the answers, row, text, "
             "label, score; got label"),
            (["a text"], "predict needs either texts as arguments or --input; got both"),
            ([f"--output={tmp_path}/x.JSONL.gz"], f"--output must be a folder; got {tmp_path}/x.JSONL.gz; for one")):
        assert message(inputs / "*", *arguments).startswith(start)
    assert message(inputs / "none.tsv") == f"{inputs / 'none.tsv'}: cannot be read: No such file or directory"
    assert not out.exists()  # nothing is written for an invalid command
    (out / "x").mkdir(parents=True)
    assert message(inputs / "*") == f"{out}: exists already, without a predict.json; pass another --output"
    (out / "x").rmdir()
    for content in ("[]", "{}", '{"files": 1}'):
        (out / "predict.json").write_text(content)
        assert message(inputs / "*") == (f"{out / 'predict.json'}: must be a file of predict; pass another --output or "
                                         f"remove the folder {out}")
    (out / "predict.json").unlink()
    write(inputs / "a.tsv")
    assert message(inputs / "*").startswith(f"{inputs / 'a.tsv'}: would be answered in {out / 'a.jsonl'}, as ")
    (inputs / "a.tsv").rename(inputs / "a.parquet.gz")
    assert message(inputs / "*").startswith(f"{inputs / 'a.parquet.gz'}: a data file must end in .tsv, ")
    (inputs / "a.parquet.gz").unlink()
    assert predict(inputs / "a.jsonl")[0] == 0
    assert message(inputs / "a.jsonl", "--top_k=2") == (
        f"{out}: was written with --top_k=1 (now 2); pass another --output or remove the folder")
    assert message(out / "a.jsonl").startswith(f"{out / 'a.jsonl'}: is in the folder {out} of the output")
    (trained / "settings.json").write_text((trained / "settings.json").read_text() + " ")
    assert message(inputs / "a.jsonl", model=trained) == (
        f"{out}: was written with another model; pass another --output or remove the folder")


def test_a_changed_file_is_refused_and_more_files_are_added(predict, inputs, tmp_path):
    write(inputs / "a.jsonl")
    assert predict(inputs / "a.jsonl")[0] == 0
    write(inputs / "b.jsonl")
    assert predict(inputs / "*") == (0, [f"{tmp_path / 'out'}: 6 answers, 1 of 2 files were finished before"], [])
    write(inputs / "a.jsonl", TEXTS[:2])
    status, _, [message] = predict(inputs / "*")
    answers = tmp_path / "out/a.jsonl"
    assert status == 1 and message.startswith(f"keras-bert: {answers}: was written from another file than ")
    answers.unlink()
    assert predict(inputs / "*")[0] == 0 and len(read(answers)) == 2


def test_the_answers_are_no_input_of_the_next_run(predict, inputs):
    write(inputs / "a.jsonl")
    out = inputs / "out.txt"  # called like a file, but it exists
    out.mkdir()
    assert predict(f"{inputs}/**", f"--output={out}") == (0, [f"{out}: 6 answers"], [])
    assert predict(f"{inputs}/**", f"--output={out}") == (
        0, [f"{out}: 0 answers, 1 of 1 files were finished before"], [])


def test_a_second_run_at_the_same_time_is_refused(predict, inputs, tmp_path):
    write(inputs / "a.jsonl")
    with only_writer(tmp_path / "out"):
        status, lines, [message] = predict(inputs / "*")
        assert (status, lines) == (1, []) and not (tmp_path / "out/predict.json").exists()
    assert message.startswith(f"keras-bert: {tmp_path / 'out'}: another process writes to it; wait until ")


def test_the_command_continues_where_it_was_killed_before_its_first_file(predict, inputs, tmp_path):
    write(inputs / "a.jsonl")
    for name in ("predict.json", "writer"):
        (tmp_path / f"out/.keras_bert.{name}.abcd1234/new").mkdir(parents=True)
    assert predict(inputs / "*") == (0, [f"{tmp_path / 'out'}: 6 answers"], [])
    assert sorted(os.listdir(tmp_path / "out")) == ["a.jsonl", "predict.json"]


@pytest.mark.parametrize("change", [lambda path: write(path, TEXTS[:2]), pathlib.Path.unlink], ids=["write", "remove"])
def test_a_file_that_changes_while_the_model_loads_is_answered_later(predict, inputs, tmp_path, monkeypatch, change):
    path, out = inputs / "a.jsonl", tmp_path / "out"
    write(path)
    write(inputs / "b.jsonl")

    def load(*arguments):
        if path.exists():
            change(path)
        return load_once(*arguments)

    monkeypatch.setattr(files, "load_answering_model", load)
    assert predict(inputs / "*") == (1, [f"{out}: 6 answers"], [
        f"keras-bert: {path}: was changed while it was read",
        f"keras-bert: {out}: files were left out: 1 of 2; correct them and run the command again"])
    assert sorted(digests(out)) == ["b.jsonl"]
    write(path, TEXTS[:3])
    monkeypatch.setattr(files, "load_answering_model", load_once)
    assert predict(inputs / "*")[1] == [f"{out}: 3 answers, 1 of 2 files were finished before"]


@pytest.mark.parametrize("flags, message", [
    (["--processes=2", "--input=a.txt"], "--processes needs --output"),
    (["--input=a.txt,b.txt"], "--input must be one file without --output; got 2")])
def test_flags_that_belong_together(run, trained_once, flags, message):
    assert run("predict", f"--model={trained_once}", *flags) == (1, [], [f"keras-bert: {message}"])


def test_chunks_end_where_rows_or_bytes_are_enough(tmp_path):
    for name in ("a.jsonl", "b.csv", "c.tsv", "d.parquet"):
        write(tmp_path / name, ["a b"] * 1500)
        assert len(list(chunks.read_chunks(tmp_path / name))) == 2
    write(tmp_path / "long.jsonl", ["a" * 400_000] * 7)
    parts = list(chunks.read_chunks(tmp_path / "long.jsonl"))
    assert [len(part.rows) for part in parts] == [3, 3, 1]
    assert [round(part.share, 2) for part in parts] == [0.43, 0.86, 1.0]


@pytest.mark.slow("killed processes that change answers")
def test_kills_and_the_number_of_processes_change_no_byte(predict, trained_once, inputs, tmp_path):
    rng = random.Random(0)
    for number in range(6):
        texts = [rng.choices(["play", "the", "music", "lamp", "off"], k=rng.randint(1, 9)) for _ in range(1200)]
        write(inputs / f"part-{number}.{'jsonl.gz' if number % 2 else 'jsonl'}", [" ".join(words) for words in texts])
    with gzip.open(inputs / "part-3.jsonl.gz", "at") as file:
        file.write("{\n")
    one, killed = tmp_path / "out", tmp_path / "killed"
    assert predict(inputs / "*")[:2] == (1, [f"{one}: 7200 answers"])
    expected = digests(one)
    assert len(expected) == 7
    command = [sys.executable, "-m", "keras_bert.cli", "predict", f"--model={trained_once}", f"--input={inputs}/*",
               f"--output={killed}", "--processes=2"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None and not list(killed.glob("part-*")):
        time.sleep(0.01)
    process.kill()
    process.wait()
    found = {name: digest for name, digest in digests(killed).items() if not name.startswith((".", "invalid/."))}
    assert found.items() <= expected.items()  # what has its name is complete
    times = {path: path.stat().st_mtime_ns for path in killed.glob("part-*")}
    last = subprocess.run(command, capture_output=True, text=True)
    assert last.returncode == 1 and "files were finished before" in last.stdout
    assert digests(killed) == expected  # nothing else is left
    assert all(path.stat().st_mtime_ns == time for path, time in times.items())


def test_the_time_left_does_not_count_the_start(monkeypatch):
    clock = 0.0
    monkeypatch.setattr("time.monotonic", lambda: clock)
    line = ProgressLine("answers", io.StringIO())
    for chunk in range(1, 61):
        clock = 60.0 + 2 * chunk  # the model is loaded in a minute
        line(chunk / 60, 100 * chunk)
    shown = [(re.search(r"\] +(\d+)%  (\d+) answers", text)[2], re.search(r"  (\d+) answers/s  (\S+) left", text))
             for text in line.stream.getvalue().splitlines()]
    assert len(shown) == 12 and [found is None for _, found in shown] == [True] * 4 + [False] * 8
    for count, found in shown[4:]:
        left = 2 * (60 - int(count) // 100)
        assert found.groups() == ("50", f"{left // 60}:{left % 60:02d}")
