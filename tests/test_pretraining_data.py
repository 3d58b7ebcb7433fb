"""`keras-bert make-pretraining-data`: from documents to TFRecords that either side reads."""

import collections
import contextlib
import dataclasses
import itertools
import json
import multiprocessing
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from keras_bert.errors import InputError
from keras_bert.pretraining import corpus
from keras_bert.pretraining.examples import PretrainingSettings, make_pretraining_data
from keras_bert.text import BertTokenizer, save_vocabulary

from conftest import TINY_VOCABULARY

LENGTH, PREDICTIONS = 24, 4
SMALL = PretrainingSettings(LENGTH, PREDICTIONS, dupe_factor=2)
TOKENIZER = BertTokenizer(TINY_VOCABULARY)
WORDS = [piece for piece in TINY_VOCABULARY if piece[0] not in "[#"]
MASKS = ["masked_lm_ids", "masked_lm_positions", "masked_lm_weights"]
INPUTS = ["input_mask", "input_type_ids", "input_word_ids", "next_sentence_labels"]


@pytest.fixture
def text(tmp_path, monkeypatch):
    """A text of some ten blocks and sections: documents of 1 to 9 sentences of 1 to 12 words."""
    monkeypatch.setattr(corpus, "BLOCK", 1500)
    monkeypatch.setattr(corpus, "SECTION", 300)
    rng = np.random.default_rng(0)
    texts = ["\n".join(" ".join(rng.choice(WORDS, rng.integers(1, 13)))
                       for _ in range(rng.integers(1, 10))) for _ in range(100)]
    (tmp_path / "text.txt").write_text("\n\n".join(texts))
    return tmp_path / "text.txt"


@pytest.fixture
def command(text, tmp_path):
    save_vocabulary(TINY_VOCABULARY, tmp_path / "vocab.txt")
    return ["make-pretraining-data", f"--input={text}", f"--vocab={tmp_path}/vocab.txt", f"--output={tmp_path}/out",
            "--processes=1"]


def make(text, name="out", settings=SMALL, **options):
    """(the folder, what was returned)."""
    folder = text.parent / name
    return folder, make_pretraining_data(text, TOKENIZER, folder, settings, **{"processes": 1, "shards": 3} | options)


def read(folder):
    """The examples as TensorFlow reads them: a list of {name: list}."""
    records = tf.data.TFRecordDataset(sorted(map(str, folder.glob("*.tfrecord"))))
    return [{name: list(feature.int64_list.value or feature.float_list.value) for name, feature
             in tf.train.Example.FromString(record).features.feature.items()} for record in records.as_numpy_iterator()]


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def original(example):
    """The tokens as they were before masking, without padding."""
    ids = example["input_word_ids"][:sum(example["input_mask"])]
    for place, target, weight in zip(*(example.get(name, []) for name in ("masked_lm_positions", *MASKS[::2]))):
        ids[place] = target if weight else ids[place]
    return [TINY_VOCABULARY[i] for i in ids]


@pytest.mark.parametrize("changes", [{"whole_word_mask": True}, {"masking": "dynamic", "next_sentence": False}])
def test_files_are_the_same_for_any_number_of_processes(text, changes):
    settings = dataclasses.replace(SMALL, **changes)
    done = []
    one, description = make(text, "one", settings, progress=lambda share, examples: done.append((share, examples)))
    three, _ = make(text, "three", settings, processes=3)
    assert contents(one) == contents(three)
    assert set(contents(one)) == {"pretraining_data.json", "tokenizer_config.json", "vocab.txt",
                                  *(f"pretraining-0000{i}-of-00003.tfrecord" for i in range(3))}
    assert len(done) > 5 and done == sorted(done) and done[-1] == (1, description["counts"]["examples"])
    other, _ = make(text, "other", dataclasses.replace(settings, seed=1))
    assert contents(one).keys() == contents(other).keys() and read(one)[:50] != read(other)[:50]


def test_examples(text):
    folder, description = make(text)
    examples = read(folder)
    assert description == json.loads((folder / "pretraining_data.json").read_text())
    assert description["counts"] == {
        "documents": 100, "examples": len(examples), "tokens": sum(sum(e["input_mask"]) for e in examples),
        "masked": sum(sum(e["masked_lm_weights"]) for e in examples),
        "random_next": sum(e["next_sentence_labels"][0] for e in examples)}
    sizes = {name: LENGTH for name in INPUTS[:3]} | {name: PREDICTIONS for name in MASKS} | {INPUTS[3]: 1}
    sentences = {sentence for line in text.read_text().splitlines() for sentence in [tuple(line.split())] if sentence}
    words = {pair for sentence in sentences for pair in itertools.pairwise(sentence)}
    pairs = words | {(a[-1], b[0]) for a in sentences for b in sentences}
    for example in examples:
        assert {name: len(values) for name, values in example.items()} == sizes
        tokens = original(example)
        assert tokens[0] == "[CLS]" and tokens.count("[SEP]") == 2 and tokens[-1] == "[SEP]"
        middle = tokens.index("[SEP]") + 1
        assert 1 < middle < len(tokens) - 1
        padding = [0] * (LENGTH - len(tokens))
        assert example["input_type_ids"] == [0] * middle + [1] * (len(tokens) - middle) + padding
        assert example["input_mask"] == [1] * len(tokens) + padding
        assert {*itertools.pairwise(tokens[1:middle - 1]), *itertools.pairwise(tokens[middle:-1])} <= pairs
    assert np.mean([len(original(example)) for example in examples]) > 0.7 * LENGTH
    plain = description["counts"]["tokens"] - 3 * len(examples)
    assert description["counts"]["masked"] / plain == pytest.approx(0.15, abs=0.01)


NUMBERS = BertTokenizer([*TINY_VOCABULARY[:5], *map(str, range(5000))])


@pytest.mark.parametrize("files", [[[8]] * 8, [[900], [1100]], [[8] * 100, [500]], [[1, 700]], [[1], [1], [2], [30]]])
def test_random_second_texts_are_from_another_document_of_any_file(tmp_path, monkeypatch, files):
    """Each sentence is a number, so that a text says where it comes from. `files`: sentences of their documents."""
    monkeypatch.setattr(corpus, "BLOCK", 1000)
    monkeypatch.setattr(corpus, "SECTION", 200)
    sizes, numbers = [size for file in files for size in file], itertools.count()
    for index, file in enumerate(files):
        texts = ("\n".join(str(next(numbers)) for _ in range(size)) for size in file)
        (tmp_path / f"{index:03}.txt").write_text("\n\n".join(texts))
    document = np.repeat(range(len(sizes)), sizes)
    settings = PretrainingSettings(12, masking="dynamic", dupe_factor=9)
    make_pretraining_data(sorted(tmp_path.glob("*.txt")), NUMBERS, tmp_path / "out", settings, processes=1)
    seconds = collections.defaultdict(set)
    for example in read(tmp_path / "out"):
        ids = example["input_word_ids"]
        a, b = ids[1:ids.index(3)], ids[ids.index(3) + 1:sum(example["input_mask"]) - 1]
        first, second = document[a[0] - 5], document[b[0] - 5]
        if example["next_sentence_labels"] == [1]:
            assert first != second
            seconds[first].add(second)
        else:
            assert b[0] == a[-1] + 1 and first == second
    assert set.union(*seconds.values()) == set(range(len(sizes)))


@pytest.mark.parametrize("content", ["one\ntwo\nthree", "\x00\n\none\n\n\x00"])
def test_a_single_document_has_no_random_second_texts(run, command, tmp_path, content):
    (tmp_path / "text.txt").write_text(content)
    assert run(*command) == (1, [], [
        f"keras-bert: {tmp_path}/text.txt: random second texts are from other documents, and there is only one; "
        "separate documents by blank lines, or pass --nonext_sentence"])
    assert run(*command, "--nonext_sentence")[0] == 0


def test_dynamic_masking_leaves_the_texts_as_they_are(text):
    static, dynamic = (read(make(text, name, dataclasses.replace(SMALL, masking=name, dupe_factor=1))[0])
                       for name in ("static", "dynamic"))
    assert all(sorted(example) == INPUTS for example in dynamic) and len(dynamic) > 100
    assert [original(example) for example in static] == [original(example) for example in dynamic]
    assert not any("[MASK]" in original(example) for example in dynamic)


def test_each_duplicate_is_paired_and_masked_anew(text):
    once, five = (read(make(text, str(n), dataclasses.replace(SMALL, dupe_factor=n))[0]) for n in (1, 5))
    assert len(five) == pytest.approx(5 * len(once), rel=0.1)
    assert len({tuple(example["input_word_ids"]) for example in five}) > 0.95 * len(five)
    once, five = (read(make(text, f"packed {n}", dataclasses.replace(SMALL, dupe_factor=n, next_sentence=False))[0])
                  for n in (1, 5))
    counts = collections.Counter(tuple(original(example)) for example in five)
    assert counts == collections.Counter([tuple(original(example)) for example in once] * 5)
    found = collections.Counter(token for example in once for token in original(example) if token[0] != "[")
    assert found == collections.Counter(text.read_text().split())
    assert not any(sum(e["input_type_ids"]) + e["next_sentence_labels"][0] for e in five)


def test_a_killed_worker_is_one_line_and_leaves_nothing(text):
    def kill(*_):
        for process in multiprocessing.active_children():
            with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
                os.kill(process.pid, signal.SIGKILL)

    with pytest.raises(InputError, match="^a worker process was killed, perhaps because memory ran out"):
        make(text, processes=2, progress=kill)
    assert os.listdir(text.parent) == [text.name]


PLAIN_SCRIPT = """
from keras_bert import BertTokenizer, make_pretraining_data
made = make_pretraining_data([TEXT], BertTokenizer(VOCABULARY), "out", processes=2)
print("made", made["counts"]["documents"])
"""
# Workers need the script's own class, so they must run the script.
GUARDED_SCRIPT = """
from keras_bert import BertTokenizer, make_pretraining_data
class Tokenizer(BertTokenizer):
    pass
if __name__ == "__main__":
    made = make_pretraining_data([TEXT], Tokenizer(VOCABULARY), "out", processes=2)
    print("made", made["counts"]["documents"])
"""


@pytest.mark.parametrize("script", [PLAIN_SCRIPT, GUARDED_SCRIPT], ids=["plain", "guarded"])
def test_a_script_needs_a_guard_for_its_own_classes_alone(text, tmp_path, script):
    values = f"TEXT, VOCABULARY = {str(text)!r}, {TINY_VOCABULARY!r}\n"
    (tmp_path / "script.py").write_text(values + script)
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("made 100\n", "")


def test_bad_text_behind_good_text_ends_the_workers(text):
    with open(text, "ab") as file:
        file.write(b"\n\n" + b"the a\n\n" * 2000 + b"\xff")
    with pytest.raises(InputError, match=r"text.txt: row \d+: must be UTF-8 text"):
        make(text, processes=2)
    assert os.listdir(text.parent) == [text.name]


def test_a_folder_is_replaced_whole_or_not_at_all(run, command, tmp_path):
    output = tmp_path / "out"
    assert run(*command, "--shards=5")[0] == 0
    before = contents(output)
    assert run(*command) == (
        1, [], [f"keras-bert: {output}: exists already; pass another path or --overwrite"])
    (tmp_path / "bad.txt").write_bytes(b"\xff")
    assert run(*command, f"--input={tmp_path}/bad.txt", "--overwrite")[0] == 1
    assert contents(output) == before
    assert run(*command, "--shards=2", "--overwrite")[0] == 0
    assert len(list(output.glob("*.tfrecord"))) == 2
    assert sorted(os.listdir(tmp_path)) == ["bad.txt", "out", "text.txt", "vocab.txt"]


def test_the_command_says_what_it_made(run, command, tmp_path, monkeypatch):
    status, output, messages = run(*command, "--max_length=32", "--whole_word_mask", "--dupe_factor=1", "--seed=5")
    settings, counts = (json.loads((tmp_path / "out/pretraining_data.json").read_text())[name]
                        for name in ("settings", "counts"))
    assert (status, messages) == (0, [])
    assert output == [f"{tmp_path}/out: " + ", ".join(f"{count} {name}" for name, count in counts.items())]
    assert settings == {"max_length": 32, "max_predictions_per_seq": 5, "next_sentence": True, "masking": "static",
                        "whole_word_mask": True, "dupe_factor": 1, "seed": 5, "paths": [f"{tmp_path}/text.txt"],
                        "text_column": "text", "split_sentences": False, "shards": 10}
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setattr("time.monotonic", itertools.count(100).__next__)
    bar = run(*command, "--overwrite")[2][-2]
    assert bar.startswith("\x1b[K[====================] 100%  ") and bar.endswith(" examples/s  0:00 left")


def test_a_stopped_command_leaves_nothing(command, tmp_path):
    stop = ("import keras_bert.pretraining.pairs as p, keras_bert.cli as c, os, signal, sys;"
            "p.truncate = lambda *_: os.kill(os.getpid(), signal.SIGTERM); import keras_bert.pretraining.examples as m;"
            "sys.exit(c.run(sys.argv[1:]))")
    done = subprocess.run([sys.executable, "-c", stop, *command], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (143, "", "keras-bert: stopped; nothing was written\n")
    assert sorted(os.listdir(tmp_path)) == ["text.txt", "vocab.txt"]


@pytest.mark.parametrize("arguments, status, message", [
    (["--masking=none"], 2, "masking"), (["--processes=0"], 1, "processes"),
    (["--max_length=4"], 1, "max_length must be from 5 to 8192; got 4"),
    (["--max_predictions_per_seq=200"], 1, "max_predictions_per_seq must be at most 128, the --max_length; got 200"),
    (["--dupe_factor=0"], 1, "dupe_factor must be at least 1; got 0"), (["--seed=-1"], 1, "seed must be from 0"),
    (["--shards=0"], 1, "shards must be from 1 to 10000; got 0"),
    (["--beam_args=--runner=X"], 1, "--beam_args needs --beam"),
    (["--input=/no/*.txt"], 1, "/no/*.txt: must name files"),
    (["--vocab=/nowhere.txt"], 1, "/nowhere.txt: cannot be read: No such file or directory"),
])
def test_bad_usage_is_one_line(run, command, tmp_path, arguments, status, message):
    got, output, messages = run(*command, *arguments)
    assert (got, output, len(messages)) == (status, [], 1) and message in messages[0]
    assert not (tmp_path / "out").exists()


def test_beam_is_not_ignored(run, command, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "apache_beam", None)
    monkeypatch.delitem(sys.modules, "keras_bert.pretraining.pipelines", raising=False)
    status, _, messages = run(*command, "--beam")
    assert (status, messages) == (1, ["keras-bert: --beam needs Apache Beam: pip install apache-beam"])
    assert not (tmp_path / "out").exists()


def test_vocabularies(run, command, tmp_path):
    folder = make(tmp_path / "text.txt", "made")[0]
    assert run(*command, f"--vocab={folder}", "--max_length=24", "--max_predictions_per_seq=4", "--dupe_factor=2",
               "--shards=3")[0] == 0
    assert read(tmp_path / "out") == read(folder)
    assert run(*command, f"--vocab={folder}", "--nolower_case", "--overwrite")[2] == [
        f"keras-bert: --lower_case: only for a vocab.txt; the folder {folder} has its own tokenizer settings"]
    save_vocabulary(TINY_VOCABULARY[:4] + TINY_VOCABULARY[5:], tmp_path / "vocab.txt")
    assert run(*command, "--overwrite")[2] == [
        "keras-bert: the vocabulary must have [MASK]; keras-bert make-vocab makes such a vocabulary"]
