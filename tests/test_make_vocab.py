"""`keras-bert make-vocab`: what it learns, from what, and that the tokenizer reads it as it was learned."""

import collections
import itertools
import math
import os
import pathlib
import subprocess
import sys
import unicodedata

import pytest

from keras_bert.errors import InputError
from keras_bert.files.paths import find_texts
from keras_bert.text import BertTokenizer, load_vocabulary, vocabulary_training
from keras_bert.text.vocabulary_training import SPECIALS, format_report, report_vocabulary, train_vocabulary

TEXT = """The cat sat on the mat, the other cat on the other mat.
Ein Café, zwei Cafés; the café on the hat.
한국어 문장은 한국어 단어로, 한국말은 한국 말로.
漢字漢字 [MASK] the [MASK] 한국어 漢字
"""
KOREAN = ["".join(syllables) for syllables in itertools.product("한국말로닭밟", repeat=3)]
OPTIONS = [{}, {"lower_case": True}, {"strip_accents": True}, {"lower_case": True, "strip_accents": False},
           {"lower_case": True, "hangul": "jamo"}, {"strip_accents": True, "hangul": "jamo"}]


def write(folder, text):
    (folder / "text.txt").write_text(text, encoding="utf-8")
    return folder / "text.txt"


@pytest.fixture
def text(tmp_path):
    return write(tmp_path, TEXT)


def learn(path, size=90, held_out=0, **options):
    return train_vocabulary([str(path)], size, held_out=held_out, **options)


def merge_naively(counts, first_pieces, size, min_frequency):
    """What the trainer must learn, straight from the definition; ties go to the pieces that came first."""
    ids = {piece: index for index, piece in enumerate(first_pieces)}
    words = [([word[0], *("##" + character for character in word[1:])], count) for word, count in counts.items()]
    while len(ids) < size:
        pairs = collections.Counter()
        for word, count in words:
            for pair in itertools.pairwise(word):
                pairs[pair] += count
        best = max(pairs, key=lambda pair: (pairs[pair], -ids[pair[0]], -ids[pair[1]]), default=None)
        if best is None or pairs[best] < min_frequency:
            break
        merged = best[0] + best[1].removeprefix("##")
        ids.setdefault(merged, len(ids))
        for word, _ in words:
            for i in range(len(word) - 1):
                if tuple(word[i:i + 2]) == best:
                    word[i:i + 2] = [merged]
    return list(ids)


@pytest.mark.parametrize("options", OPTIONS)
def test_pieces_are_the_most_frequent_merges(text, options):
    learned = learn(text, size=150, **options)
    characters = [piece for piece in learned.tokens[5:] if len(piece.removeprefix("##")) == 1]
    words = collections.Counter(word for line in TEXT.splitlines() for word in learned.rules.normalize(line).split())
    words = {word: count for word, count in words.items() if set(word) <= set(characters)}
    assert learned.tokens == merge_naively(words, [*SPECIALS, *characters], 150, 2)
    assert len(set(learned.tokens)) == len(learned.tokens)


def test_specials_come_first_then_characters_that_begin_words_and_continue_them(text):
    pieces = train_vocabulary(text, 200, held_out=0).tokens
    assert pieces[:5] == list(SPECIALS)
    assert not any("[" in piece for piece in pieces[5:] if len(piece) > 1)  # although the text contains [MASK]
    for character, count in collections.Counter("".join(TEXT.split())).items():
        assert (character in pieces) == (count >= 2), character
        assert ("##" + character in pieces) == (count >= 2 and character not in "[],.;漢字"), character


def test_characters_take_half_of_the_vocabulary_unless_merges_leave_more(tmp_path):
    ideographs = [chr(0x4e00 + index) for index in range(1000)]
    words = ["".join(letters) for letters in itertools.product("abcdef", repeat=3)]
    path = write(tmp_path, " ".join([*words, *ideographs] * 2))
    for size, characters in ((65, 30), (1500, 12 + 1000)):
        lengths = [len(piece.removeprefix("##")) for piece in learn(path, size=size).tokens[5:]]
        assert lengths.count(1) == characters and len(lengths) >= characters + 30


def test_words_that_bert_does_not_spell_are_not_learned(tmp_path):
    pieces = learn(write(tmp_path, f"{'a' * 201} bb bb {'c' * 200}\n" * 3), size=50).tokens
    assert not any("a" in piece for piece in pieces) and {"bb", "##cc"} <= set(pieces)


def test_the_size_is_exact_and_small_texts_give_less(run, text, tmp_path):
    output = tmp_path / "new/vocab.txt"
    status, lines, messages = run("make-vocab", f"--input={text}", "--vocab_size=70", f"--output={output}")
    assert (status, messages) == (0, [])
    assert len(output.read_text(encoding="utf-8").splitlines()) == 70
    assert lines[0] == f"{output}: 70 tokens; lower_case=False, strip_accents=False"
    status, lines, messages = run("make-vocab", f"--input={text}", "--vocab_size=1000", f"--output={output}",
                                  "--overwrite")
    pieces = load_vocabulary(output)
    assert status == 0 and 70 < len(pieces) < 1000
    assert messages == [f"keras-bert: the texts give only {len(pieces)} of 1000 tokens; use more text or a lower "
                        "--min_frequency"]


@pytest.mark.parametrize("form, flag, count", [("NFD", "--nolower_case", 1), ("NFC", "--nolower_case", 0),
                                               ("NFD", "--lower_case", 0)])
def test_texts_in_nfd_are_no_silent_source_of_jamo(run, tmp_path, form, flag, count):
    text = write(tmp_path, unicodedata.normalize(form, "\n".join(KOREAN) + TEXT))
    messages = run("make-vocab", f"--input={text}", "--vocab_size=90", f"--output={tmp_path / 'vocab.txt'}", flag)[2]
    assert len(messages) == count and all("the texts are in NFD, as on macOS" in line for line in messages)


def test_the_same_texts_give_the_same_file(text, tmp_path):
    code = ("import sys; from keras_bert.text.vocabulary_training import train_vocabulary;"
            "sys.stdout.buffer.write(repr(train_vocabulary([sys.argv[1]], 110).tokens).encode())")
    outputs = {subprocess.run([sys.executable, "-c", code, text], env=os.environ | {"PYTHONHASHSEED": seed}, check=True,
                              capture_output=True).stdout for seed in "12"}
    assert len(outputs) == 1


def test_large_counts_are_scaled_and_many_words_forgotten(tmp_path, monkeypatch):
    path = write(tmp_path, "".join(f"the cat the mat w{number:03} the\n" for number in range(500)))
    first = learn(path, size=40).tokens[:12]
    monkeypatch.setattr(vocabulary_training, "FED_CHARACTERS", 2000)
    assert learn(path, size=40).tokens[:12] == first
    assert list(vocabulary_training._repeated({"the": 2500, "cat": 3}, 2)) == ["the " * 1000, "the " * 250, "cat "]
    monkeypatch.setattr(vocabulary_training, "MAX_WORDS", 50)
    counts, _ = vocabulary_training.count_words([str(path)], vocabulary_training.Rules(), 0, lambda line: None)
    assert len(counts) <= 50 and 1400 < counts["the"] <= 1500 and 400 < counts["cat"] <= 500


@pytest.mark.parametrize("options", OPTIONS)
def test_the_tokenizer_reads_what_was_learned(tmp_path, options):
    learned = learn(write(tmp_path, "\n".join(f"{word} {word[::-1]}, Été" for word in KOREAN)), 200, 0.1, **options)
    tokenizer = BertTokenizer(learned.tokens, options.get("lower_case", False), options.get("strip_accents"))
    assert tokenizer.rules == learned.rules
    assert len(learned.held_out) == len(KOREAN) // 10 and tokenizer.unknown_rate(learned.held_out) == 0
    assert any("\u1100" <= piece[0] < "\u1200" for piece in learned.tokens) == (options.get("hangul") == "jamo")


def test_texts_without_korean_are_learned_as_the_tokenizer_reads_them(tmp_path):
    path = write(tmp_path, "কো কো কো 한\n" * 10)  # composes under NFC
    learned = learn(path, size=13, lower_case=True)  # no room for the syllable
    assert learned.rules == BertTokenizer(learned.tokens).rules
    assert BertTokenizer(learned.tokens).unknown_rate(["কো"]) == 0


def test_report(tmp_path):
    path = write(tmp_path, "the cat sat\nthe cat ☃ thé theca\n" * 10)
    learned = learn(path, size=60, held_out=0.5)
    assert learned.held_out == ["the cat ☃ thé theca\n"] * 10
    report = report_vocabulary(learned)
    assert (report.lines, report.words, report.longest[:2]) == (10, 50, ["cat", "sat"])
    assert (report.coverage, report.unknown_rate) == (pytest.approx(13 / 15), 2 / 5)
    assert (report.tokens_per_word, report.single_token_rate) == (pytest.approx(7 / 5), 2 / 5)
    assert report.unknown_rate == BertTokenizer(learned.tokens, False).unknown_rate(learned.held_out)
    assert "[UNK]              0.4000 of the words" in format_report(report).splitlines()
    assert math.isnan(report_vocabulary(learn(path, size=60)).coverage)


def test_a_terminal_shows_progress(run, text, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    status, lines, messages = run("make-vocab", f"--input={text}", "--vocab_size=60",
                                  f"--output={tmp_path / 'vocab.txt'}", "--held_out=0.25")
    assert status == 0 and lines[1:3] == ["lines held out     1", "words held out     14"]
    assert messages[0].startswith("\x1b[Ktraining 60 tokens on") and messages[-1] == "\x1b[K"


def test_nothing_is_replaced_unasked_or_half_written(run, text, tmp_path, monkeypatch):
    output = tmp_path / "vocab.txt"
    output.write_text("mine")
    command = ("make-vocab", f"--input={text}", "--vocab_size=110", f"--output={output}")
    assert run(*command)[2][0].startswith(f"keras-bert: {output}: exists already")

    def fail(pieces, path):
        pathlib.Path(path).write_text("half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("keras_bert.text.vocabulary.save_vocabulary", fail)
    assert run(*command, "--overwrite")[::2] == (
        1, [f"keras-bert: {output}: cannot be written: No space left on device"])
    assert output.read_text() == "mine" and sorted(os.listdir(tmp_path)) == ["text.txt", "vocab.txt"]
    for flag, message in ((f"--input={tmp_path}/*.txt", f"{output}: must not be one of the input files"),
                          (f"--output={tmp_path}", f"{tmp_path}: must be a file; it is a folder")):
        assert run(*command, "--overwrite", flag)[2] == [f"keras-bert: {message}"]


def test_files_to_read(tmp_path):
    for name in ("b.txt", "a.txt", "c.md", "d[1].txt"):
        (tmp_path / name).write_text("text")
    folder = str(tmp_path)
    assert find_texts([f"{folder}/*.txt", f"{folder}/a.*"]) == [f"{folder}/{n}" for n in ("a.txt", "b.txt", "d[1].txt")]
    assert find_texts([f"{folder}/d[1].txt"]) == [f"{folder}/d[1].txt"]
    for pattern in (f"{folder}/*.tsv", folder):
        with pytest.raises(InputError, match="must name files, as in"):
            find_texts([f"{folder}/*.txt", pattern])
    with pytest.raises(InputError, match="no.txt: cannot be read: No such file or directory"):
        learn(tmp_path / "no.txt")


@pytest.mark.parametrize("content, message", [
    (b"\n \r\n", "must contain text; it has none"),
    (b"fine\nfine \xff\n", "line 2: must be UTF-8 text: invalid start byte at byte 6; "),
    (b"abc", "no character occurs at least --min_frequency=2 times in the lines that are not held out"),
])
def test_bad_texts(run, tmp_path, content, message):
    path = tmp_path / "text.txt"
    path.write_bytes(content)
    status, _, [line] = run("make-vocab", f"--input={path}", "--vocab_size=99", f"--output={tmp_path}/vocab.txt")
    assert status == 1 and line.startswith(f"keras-bert: {path}: {message}")
    assert os.listdir(tmp_path) == ["text.txt"]


@pytest.mark.parametrize("options, message", [
    ({"size": 6}, "vocab_size must be from 7 to 1000000, .*; got 6"), ({"size": 10**12}, "vocab_size must be"),
    ({"hangul": "jamo"}, "strip_accents must be True for hangul=jamo"),
    ({"hangul": "letters"}, "hangul must be one of syllables, jamo"), ({"min_frequency": 0}, "min_frequency must"),
    ({"held_out": 1}, "held_out must be at least 0 and below 1; got 1"), ({"held_out": math.nan}, "held_out must"),
])
def test_bad_arguments(text, options, message):
    with pytest.raises(InputError, match=message):
        learn(text, **options)
    with pytest.raises(InputError, match="paths must name at least one text file; got none"):
        train_vocabulary([], 100)
