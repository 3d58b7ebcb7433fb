"""The folder that `finetune` writes and `predict` reads."""

import dataclasses
import json
import os

import numpy as np
from keras import ops

from keras_bert.data import TextBatches, sorted_batches
from keras_bert.errors import InputError
from keras_bert.models import BertClassifier, load_model
from keras_bert.text import BertTokenizer, save_vocabulary


@dataclasses.dataclass(frozen=True)
class Prediction:
    """The labels of one text with the highest scores (softmax probabilities), best first."""

    labels: list[str]
    scores: list[float]

    @property
    def label(self):
        return self.labels[0]

    @property
    def score(self):
        return self.scores[0]


@dataclasses.dataclass(frozen=True)
class FineTuned:
    """A fine-tuned classifier with all that it needs to answer texts.

    Args:
        model: the `BertClassifier`.
        tokenizer: its `BertTokenizer`.
        labels: names of the classes, in the order of the logits.
        task: the task that it was trained for.
        max_length: longest input in tokens, [CLS] and [SEP] included.
        pairs: whether it takes pairs of texts.
    """

    model: BertClassifier
    tokenizer: BertTokenizer
    labels: list[str]
    task: str
    max_length: int
    pairs: bool

    def save(self, folder):
        """Writes the files into a folder that exists."""
        self.model.save(os.path.join(folder, "model.keras"))
        self.model.bert.config.to_json(os.path.join(folder, "bert_config.json"))
        save_vocabulary(self.tokenizer.vocabulary, os.path.join(folder, "vocab.txt"))
        self.tokenizer.save_settings(folder)
        write_json(os.path.join(folder, "labels.json"), self.labels)
        settings = {"task": self.task, "max_length": self.max_length, "pairs": self.pairs}
        write_json(os.path.join(folder, "settings.json"), settings)

    @classmethod
    def load(cls, folder):
        """Reads the folder that `save` wrote."""
        model = load_model(folder)
        labels = _read_json(os.path.join(folder, "labels.json"))
        settings = _read_json(os.path.join(folder, "settings.json"))
        return cls(model, BertTokenizer.from_folder(folder), labels, **settings)

    def predict(self, texts, text_pairs=None, top_k=1, batch_size=32):
        """Answers texts, in their order.

        Args:
            texts: list of str.
            text_pairs: list of str, as many, where the model takes pairs; else None.
            top_k: number of labels a text.
            batch_size: texts a batch.

        Returns:
            a list of `Prediction`s.
        """
        if self.pairs != (text_pairs is not None):
            raise InputError(f"this model takes {'pairs of texts' if self.pairs else 'single texts'}; "
                             f"got {'single texts' if self.pairs else 'pairs of texts'}")
        batches = TextBatches(self.tokenizer.pack(texts, text_pairs, self.max_length), self.tokenizer.pad_id)
        predictions = [None] * len(batches.packed)
        for indices in sorted_batches(batches.lengths, batch_size):
            logits = self.model.predict_on_batch(batches.inputs(indices))
            probabilities = ops.convert_to_numpy(ops.softmax(logits))
            for index, row in zip(indices, probabilities):
                best = np.argsort(-row, kind="stable")[:top_k]
                predictions[index] = Prediction([self.labels[i] for i in best], [float(row[i]) for i in best])
        return predictions


def write_json(path, value):
    """Writes a JSON file that a person can read."""
    with open(path, "w", encoding="utf-8") as file:
        file.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def _read_json(path):
    with open(path, encoding="utf-8") as file:
        try:
            return json.load(file)
        except json.JSONDecodeError as error:
            raise InputError(f"{path}: not a JSON file: {error}") from None
