"""The paper's ablations at small scale (Devlin et al., 2018, sections 5.1 and 5.2): without next sentences,
left-to-right, right-to-left, both of these beside each other as ELMo has them, and other sizes. Each is pretrained on
the same text and fine-tuned on the bundled 176 intents; at the end their scores stand side by side.

    python examples/ablations.py --text='books/*.txt' [--folder=ablations --steps=2000 --size=L2-H128]

The text has a sentence a line and a blank line between documents. A run that was stopped goes on where it was. On two
cores the fine-tuning alone takes six minutes; the steps come on top.
"""

import argparse
import dataclasses
import json
import os
import pathlib

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
from keras import ops

from keras_bert import cli
from keras_bert.layers import BertLayer
from keras_bert.models import BertClassifier
from keras_bert.text import BertTokenizer
from keras_bert.text.learning import find_texts
from keras_bert.training import Labelled, make_optimizer, pretrain

from intents.build import build

VOCABULARY, LENGTH, HELD_OUT, EPOCHS = 4000, 64, 20, 6


class SideBySide(keras.layers.Layer):
    """Encoders whose outputs are joined, in place of one `BertLayer`."""

    def __init__(self, encoders):
        super().__init__()
        self.encoders = encoders
        config = encoders[0].config
        self.config = dataclasses.replace(
            config, hidden_size=len(encoders) * config.hidden_size,
            num_attention_heads=len(encoders) * config.num_attention_heads)
        self.dropout_seed = encoders[0].dropout_seed
        self.built = True

    def call(self, inputs, training=False, seed=None):
        outputs = [encoder(inputs, training=training, seed=seed) for encoder in self.encoders]
        return tuple(ops.concatenate(parts, axis=-1) for parts in zip(*outputs))


def run(*command):
    if cli.run([str(part) for part in command]):
        raise SystemExit(1)


def make_examples(text, folder):
    """A vocabulary, and examples with and without next sentences; every twentieth document is held out."""
    if not (folder / "vocab").exists():
        documents = "\n\n".join(pathlib.Path(path).read_text(encoding="utf-8") for path in find_texts([text]))
        documents = documents.split("\n\n")
        for split, chosen in (("valid", documents[::HELD_OUT]),
                              ("train", [document for number, document in enumerate(documents) if number % HELD_OUT])):
            (folder / f"{split}.txt").write_text("\n\n".join(chosen), encoding="utf-8")
        run("make-vocab", f"--input={folder}/train.txt", f"--size={VOCABULARY}", "--lower_case",
            f"--output={folder}/vocab")
    for pairs in (True, False):
        for split in ("train", "valid"):
            output = folder / f"{split}-{'pairs' if pairs else 'packed'}"
            if not output.exists():
                run("make-pretraining-data", f"--input={folder}/{split}.txt", f"--vocab={folder}/vocab",
                    f"--output={output}", f"--max_seq_length={LENGTH}", f"--next_sentence={pairs}",
                    f"--masking={'dynamic' if split == 'train' else 'static'}", "--dupe_factor=1")


def intent_accuracy(encoder, tokenizer, folder):
    """Fine-tunes an encoder; the accuracy on held-out texts after the last epoch."""
    keras.utils.set_random_seed(0)
    train = Labelled.read(folder / "intents/train.tsv")
    valid = Labelled.read(folder / "intents/valid.tsv", labels=train.labels)
    batches = train.batches(tokenizer, LENGTH)
    model = BertClassifier(encoder, len(train.labels))
    model.compile(make_optimizer(model, 1e-3, EPOCHS * batches.steps(32)),
                  keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    for epoch in range(EPOCHS):
        model.fit(batches.training_dataset(32, 0, epoch, 0), verbose=0)
    scores = model.evaluate(valid.batches(tokenizer, LENGTH).validation_dataset(32), return_dict=True, verbose=0)
    return scores["accuracy"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--text", required=True)
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path("ablations"))
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--size", default="L2-H128")
    given = parser.parse_args()
    folder = given.folder
    folder.mkdir(parents=True, exist_ok=True)
    build(folder / "intents")
    make_examples(given.text, folder)
    tokenizer = BertTokenizer.from_folder(folder / "train-pairs")
    layers, hidden = (int(number[1:]) for number in given.size.split("-"))

    variants = {"BERT": ("pairs", given.size, "bidi"), "no NSP": ("packed", given.size, "bidi"),
                "left-to-right, no NSP": ("packed", given.size, "ltr"),
                "right-to-left, no NSP": ("packed", given.size, "rtl"),
                f"BERT, {2 * layers} layers": ("pairs", f"L{2 * layers}-H{hidden}", "bidi"),
                f"BERT, width {2 * hidden}": ("pairs", f"L{layers}-H{2 * hidden}", "bidi")}
    rows, encoders = [], {}
    for number, (name, (data, size, directionality)) in enumerate(variants.items()):
        output = folder / f"model-{number}"
        if not output.exists():
            print(name)
            pretrain(folder / f"train-{data}", output, given.steps, valid=folder / f"valid-{data}", config=size,
                     directionality=directionality, batch_size=32, learning_rate=1e-3, warmup_ratio=0.05)
        metrics = json.loads((output / "metrics.json").read_text())["valid"]
        rows.append((name, BertLayer.from_pretrained(output), metrics))
        encoders[directionality] = output
    both = SideBySide([BertLayer.from_pretrained(encoders[direction]) for direction in ("ltr", "rtl")])
    rows.insert(4, ("left-to-right + right-to-left", both, {}))
    rows.append(("BERT, not pretrained", BertLayer(rows[0][1].config), {}))

    print(f"\n{'encoder':32}{'parameters':>11}{'token acc.':>12}{'NSP acc.':>10}{'intents':>9}")
    for name, encoder, metrics in rows:
        scores = metrics.get("mlm_accuracy"), metrics.get("next_sentence_accuracy")
        scores = ["-" if score is None else f"{score:.4f}" for score in scores]
        print(f"{name:32}{encoder.count_params():11,}{scores[0]:>12}{scores[1]:>10}"
              f"{intent_accuracy(encoder, tokenizer, folder):9.4f}", flush=True)


if __name__ == "__main__":
    main()
