"""The folder that `finetune` writes and `predict` reads."""

import dataclasses
import os

import numpy as np
from keras import ops

from keras_bert.data import TextBatches, sorted_batches
from keras_bert.errors import InputError
from keras_bert.files import read_json, write_json
from keras_bert.models import BertClassifier, load_model
from keras_bert.text import BertTokenizer, save_vocabulary


@dataclasses.dataclass(frozen=True)
class Prediction:
    """The labels of one text with the highest scores (softmax probabilities), best first; `in_scope` says whether the
    best score reaches the model's threshold, None where it has none."""

    labels: list[str]
    scores: list[float]
    in_scope: bool | None = None

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
        threshold: a lower score means that a text is out of scope; None for tasks without one.
    """

    model: BertClassifier
    tokenizer: BertTokenizer
    labels: list[str]
    task: str
    max_length: int
    pairs: bool
    threshold: float | None = None

    def save(self, folder):
        """Writes the files into a folder that exists."""
        self.model.save(os.path.join(folder, "model.keras"))
        self.model.bert.config.to_json(os.path.join(folder, "bert_config.json"))
        save_vocabulary(self.tokenizer.vocabulary, os.path.join(folder, "vocab.txt"))
        self.tokenizer.save_settings(folder)
        write_json(os.path.join(folder, "labels.json"), self.labels)
        self.save_settings(folder)

    def save_settings(self, folder):
        """Writes the file that changes when a threshold is chosen."""
        settings = {"task": self.task, "max_length": self.max_length, "pairs": self.pairs,
                    "threshold": self.threshold}
        write_json(os.path.join(folder, "settings.json"), settings)

    @classmethod
    def load(cls, folder):
        """Reads the folder that `save` wrote."""
        model = load_model(folder)
        labels = read_json(os.path.join(folder, "labels.json"))
        settings = read_json(os.path.join(folder, "settings.json"))
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
        rows = self.probabilities(texts, text_pairs, batch_size)
        best = np.argsort(-rows, axis=1, kind="stable")[:, :top_k]
        return [
            Prediction([self.labels[i] for i in indices], row[indices].tolist(),
                       None if self.threshold is None else bool(row.max() >= self.threshold))
            for indices, row in zip(best, rows)
        ]

    def probabilities(self, texts, text_pairs=None, batch_size=32):
        """The probability of every label: float32 [texts, labels]; arguments as of `predict`."""
        if self.pairs != (text_pairs is not None):
            raise InputError(f"this model takes {'pairs of texts' if self.pairs else 'single texts'}; "
                             f"got {'single texts' if self.pairs else 'pairs of texts'}")
        batches = TextBatches(self.tokenizer.pack(texts, text_pairs, self.max_length), self.tokenizer.pad_id)
        rows = np.zeros((len(batches.packed), len(self.labels)), np.float32)
        for indices in sorted_batches(batches.lengths, batch_size):
            logits = self.model.predict_on_batch(batches.inputs(indices))
            rows[indices] = ops.convert_to_numpy(ops.softmax(logits))
        return rows
