"""The example of the paper's ablations: its encoders, and its tables after a handful of steps."""

import dataclasses
import json
import math
import random

import ablations
import numpy as np
import pytest
from ablations_parts.encoders import SideBySide, WithLstm
from keras.ops import convert_to_numpy as numpy
from matplotlib import image

from keras_bert.errors import InputError
from keras_bert.layers import BertLayer
from keras_bert.models import BertClassifier

from conftest import TINY, TINY_VOCABULARY, random_inputs, randomize, write_huggingface

WORDS = TINY_VOCABULARY[5:35]
SIZES = "L1-H16-A2", "L2-H8-A4"
BASE = SIZES[0]


def test_encoders_side_by_side_have_the_outputs_of_both(bert):
    other, inputs = randomize(BertLayer(TINY), seed=1), random_inputs(2, 7)
    for got, *parts in zip(SideBySide(bert, other)(inputs), bert(inputs), other(inputs)):
        np.testing.assert_allclose(numpy(got), np.concatenate(list(map(numpy, parts)), axis=-1), rtol=0, atol=1e-6)


@pytest.mark.parametrize("make", [lambda bert: SideBySide(bert, bert), WithLstm])
def test_a_head_takes_what_is_pooled(bert, make):
    encoder, inputs = make(bert), random_inputs(2, 7)
    classifier = BertClassifier(encoder, 3, dropout=0.0)
    logits = numpy(classifier(inputs))
    pooled = numpy(encoder(inputs)[0])
    kernel, bias = map(numpy, classifier.classifier.weights)
    np.testing.assert_allclose(logits, pooled @ kernel + bias, rtol=0, atol=1e-6)


def test_the_lstm_reads_each_real_token_in_both_directions(bert):
    encoder, inputs = WithLstm(bert), random_inputs(2, 7)
    whole, sequence = map(numpy, encoder(inputs))
    np.testing.assert_allclose(whole, np.concatenate([sequence[:, -1, :16], sequence[:, 0, 16:]], axis=-1), atol=1e-6)
    inputs["input_mask"][:, 5:] = 0
    padded, cut = (numpy(encoder(given)[0]) for given in (inputs, {key: row[:, :5] for key, row in inputs.items()}))
    np.testing.assert_allclose(padded, cut, rtol=0, atol=1e-6)
    assert np.abs(padded - whole).max() > 1e-3


def write_files(folder):
    """A text, tagged sentences and an encoder of four blocks; the arguments that name them."""
    rng = random.Random(0)

    def sentences(count, length):
        return [rng.choices(WORDS, k=length) for _ in range(count)]

    documents = ["\n".join(map(" ".join, sentences(6, 8))) for _ in range(60)]
    (folder / "text.txt").write_text("\n\n".join(documents))
    for split in ("train", "valid"):
        tagged = ["\n".join(f"{word} {'B-X' if word in WORDS[:10] else 'O'}" for word in words)
                  for words in sentences(16, 5)]
        (folder / f"{split}.conll").write_text("\n\n".join(tagged) + "\n")
    write_huggingface(folder / "encoder", randomize(BertLayer(dataclasses.replace(TINY, num_hidden_layers=4))))
    return [f"--text={folder}/text.txt", f"--folder={folder}/out", "--steps=2", "--epochs=1", f"--size={BASE}",
            f"--sizes={','.join(SIZES)}", f"--encoder={folder}/encoder", "--tag_epochs=1",
            f"--tagged_train={folder}/train.conll", f"--tagged_valid={folder}/valid.conll"]


def write_intents(folder):
    """In place of demo-176, which takes minutes."""
    folder.mkdir(exist_ok=True)
    for split in ("train", "valid"):
        (folder / f"{split}.tsv").write_text("text\tlabel\n" + "play a song\tmusic\nturn on the light\tlight\n" * 8)


def tables(output):
    """The printed tables: a dict of rows, each a list of its columns' values, for each table."""
    found = {}
    for line in output.splitlines():
        if line.startswith("Table "):
            rows = found[line.split(":")[0]] = {}
        elif line.strip() and found and not line.endswith(".png"):
            rows[line[:30].strip()] = [line[i:i + 22].strip() for i in range(30, len(line), 22)]
    return found


def parameters(size):
    """Those of an encoder, by arithmetic, without its embeddings of pieces."""
    layers, width, _ = (int(part[1:]) for part in size.split("-"))
    block = 4 * (width * width + width) + 2 * 4 * width * width + 5 * width + 4 * width
    return layers * block + (64 + 2 + 2) * width + width * width + width


@pytest.mark.long
def test_the_tables_are_printed_and_drawn_and_a_second_run_does_nothing_again(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(ablations, "build", write_intents)
    arguments, folder = write_files(tmp_path), tmp_path / "out"
    ablations.main(arguments)
    output = capsys.readouterr().out
    tasks, sizes, features = found = tables(output).values()
    assert list(tables(output)) == ["Table 5", "Table 6", "Table 7"]
    assert [list(rows) for rows in found] == [
        ["", *(name.strip() for name in ablations.TASKS)], ["", *SIZES], ["", *ablations.FEATURES]]

    def held_out(name):
        return json.loads((folder / name / "metrics.json").read_text())["valid"]

    pieces = len((folder / "vocab").read_text().splitlines())
    for size in SIZES:
        count = parameters(size) + pieces * int(size.split("-")[1][1:])
        perplexity = math.exp(held_out(f"{size}-pairs-bidi")["mlm_loss"])
        assert sizes[size][:2] == [f"{count:,}", f"{perplexity:.2f}"]
    base = held_out(f"{BASE}-pairs-bidi")
    assert tasks["BERT"] == [sizes[BASE][0], f"{100 * base['next_sentence_accuracy']:.2f}",
                             f"{100 * base['mlm_accuracy']:.2f}", sizes[BASE][2]]
    single, lstm, both = (int(tasks[name][0].replace(",", "")) for name in (
        "left-to-right, no NSP", "+ BiLSTM", "left-to-right + right-to-left"))
    assert both == 2 * single and lstm - single == 2 * 4 * (16 * 16 + 16 * 16 + 16)
    assert [name for name, row in tasks.items() if row[2] == "-"] == [
        "+ BiLSTM", "left-to-right + right-to-left", "BERT, not pretrained"]
    scores = json.loads((folder / "entities-concat-last-4/metrics.json").read_text())
    assert features["last four side by side"] == [f"{100 * scores[name]:.2f}" for name in ("precision", "recall", "f1")]
    for name in ("table5", "table6", "table7"):
        height, width, _ = image.imread(folder / f"{name}.png").shape
        assert height > 150 and width > 500

    for name in ("pretrain", "finetune", "finetuned", "run"):
        monkeypatch.delattr(ablations, name)
    ablations.main(arguments)
    assert tables(capsys.readouterr().out) == tables(output)
    with pytest.raises(InputError, match="out: holds a run with --steps=2; name another --folder"):
        ablations.main([*arguments, "--steps=3"])


@pytest.mark.parametrize("size", ["L2-H8", "base", "L2-H8-A3"])
def test_a_size_that_cannot_be_is_refused_before_anything_is_done(tmp_path, size):
    with pytest.raises(InputError, match="a size must name|hidden_size must be a multiple"):
        ablations.main([f"--text={tmp_path}/none.txt", f"--folder={tmp_path}/out", f"--sizes={BASE},{size}"])
    assert not (tmp_path / "out").exists()
