"""Texts in NFD, as macOS writes them: where they are noticed, and `normalization`, which composes them."""

import dataclasses
import json
import unicodedata
import warnings

import pytest

from keras_bert.text import BertTokenizer

import zoo
from conftest import TINY_VOCABULARY, finetune_command

VOCABULARY = [*TINY_VOCABULARY[:5], *"서울 ##의 날씨 부산 음악 틀어 ##줘 알려 é . ?".split(), *TINY_VOCABULARY[16:]]
TEXTS = ["서울의 날씨 알려줘?", "부산 음악 é 틀어줘 .", "음악 틀어줘"]
SAID = "in NFD, as on macOS, which the vocabulary cannot spell (pass normalization=NFC)"


def nfd(text):
    return unicodedata.normalize("NFD", text)


def in_nfd(value, text):
    """A record of a text in NFC, as it must be for the text in NFD: positions are those of the text that was given."""
    if isinstance(value, dict):
        return {key: len(nfd(text[:of_key])) if key in ("start", "end") else in_nfd(of_key, text)
                for key, of_key in value.items()}
    return [in_nfd(each, text) for each in value] if isinstance(value, list) else (
        nfd(value) if isinstance(value, str) else value)


@pytest.fixture
def make(tmp_path):
    """Writes a model with a cased Korean vocabulary; returns its folder."""
    def write(case):
        dataclasses.replace(zoo.make(case), tokenizer=BertTokenizer(VOCABULARY, False)).save(tmp_path / "model")
        return tmp_path / "model"

    return write


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("case", ["intent", "tag", "span"])
@pytest.mark.parametrize("command", ["litert", pytest.param("text-model", marks=pytest.mark.slow("NFC in a graph"))])
def test_texts_in_nfd_have_the_answers_of_those_in_nfc(run, make, tmp_path, case, command):
    model, exported, prefix = make(case), tmp_path / "exported", "음악?\t" * (case == "span")
    composed = [prefix + text for text in TEXTS]
    assert run("export", command, f"--model={model}", f"--output={exported}", "--normalization=NFC")[0] == 0
    status, lines, messages = run("predict", f"--model={model}", "--output_format=jsonl", *composed)
    assert (status, messages) == (0, [])
    wanted = [zoo.numbers(in_nfd(json.loads(line), text)) for line, text in zip(lines, TEXTS)]
    for folder, flags in ((model, ["--normalization=NFC"]), (exported, [])):
        _, lines, messages = run("predict", f"--model={folder}", "--output_format=jsonl", *flags, *map(nfd, composed))
        for line, (answer, scores) in zip(lines, wanted, strict=True):
            assert messages == [] and zoo.numbers(json.loads(line)) == (answer, pytest.approx(scores, abs=1e-4))
    if command == "text-model":
        _, _, messages = run("predict", f"--model={exported}", "--normalization=NFC", "a")
        assert messages == ["keras-bert: --normalization needs another model: a SavedModel has its own"]


@pytest.mark.usefixtures("eager")
def test_what_says_that_texts_are_in_nfd(run, make, tmp_path):
    model, data, texts = make("intent"), tmp_path / "data.tsv", [*map(nfd, TEXTS), "é . ?"]
    data.write_text("text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in zip(texts, "abca")))
    for command, *more in (("predict", *texts), ("evaluate", f"--data={data}"),
                           ("features", f"--input={data}", f"--output={tmp_path / 'v.npz'}", "--overwrite")):
        for flags, said in ([], [f"texts {SAID}: 3 of 4"]), (["--normalization=NFC"], []):
            with warnings.catch_warnings(record=True, action="always") as caught:
                messages = run(command, f"--model={model}", *more, *flags)[2]
            assert [line for line in [*messages, *(str(each.message) for each in caught)] if "NFD" in line] == said
    out = tmp_path / "answers"
    assert run("predict", f"--model={model}", f"--input={data}", f"--output={out}", "--processes=1")[1] == [
        f"{out}: 4 answers, texts in NFD (pass normalization=NFC): 3"]


@pytest.mark.usefixtures("eager")
def test_fine_tuning_names_nfd_and_keeps_the_setting(run, make, tmp_path):
    model, data, out = make("intent"), tmp_path / "data.tsv", tmp_path / "out"
    data.write_text("text\tlabel\n" + "".join(f"{nfd(text)}\t{label}\n" for text, label in zip(TEXTS, "aab")))
    command = finetune_command((data, data), model, out)
    said = [line for line in run(*command)[2] if line.startswith("data: warning")]
    assert said[0] == f"data: warning: texts {SAID}: 3 of 3" and not any("language" in line for line in said)
    assert "NFD" not in "".join(run(*command, "--overwrite", "--normalization=NFC")[2])
    assert json.loads((out / "metrics.json").read_text())["arguments"]["normalization"] == "NFC"
    answers = [run("predict", f"--model={out}", *texts)[1:] for texts in (TEXTS, map(nfd, TEXTS))]
    assert [line.split("\t")[:2] for line in answers[0][0]] == [line.split("\t")[:2] for line in answers[1][0]]
    assert answers[1][1] == []
