"""What a downstream task is made of."""

import dataclasses
import importlib
import operator
from typing import ClassVar

import keras
import numpy as np

from keras_bert.data import TextBatches, sorted_batches, token_batches
from keras_bert.errors import InputError


@dataclasses.dataclass(frozen=True)
class Encoded:
    """The inputs of a task as the encoder gets them.

    Args:
        examples: list of inputs.
        rows: list of rows of the encoder's input, as `TextBatches` takes them; an example may have several.
        targets: what to learn, as `TextBatches` takes it; None where the examples say nothing of it.
        batches: the class that makes batches of the rows.
        places: what more the task needs to read its answers off, its own affair.
    """

    examples: list
    rows: list
    targets: object = None
    batches: type = TextBatches
    places: object = None

    def batched(self, tokenizer, length_multiple=1, whole=False):
        """The rows as `TextBatches`, whose arguments see."""
        return self.batches(self.rows, tokenizer.pad_id, self.targets, length_multiple, whole)


@dataclasses.dataclass(frozen=True)
class Task:
    """How the files of a task are read, what the encoder gets and learns, how answers are read off and scored. An
    instance holds what answers need besides weights and vocabulary; the file `settings.json` keeps its fields.

    Args:
        max_length: longest input in tokens, [CLS] and [SEP] included.

    Class attributes:
        name: of the task.
        main: the score that tells which epoch is best; more is better.
        columns: names of the texts that an input consists of.
        length: the default of `max_length`.
        dropout: the default dropout rate of what the head gets.
        unused: names of the encoder's parts that have no effect on the outputs, and are not trained.
        several: whether `answers` takes `top_k`, how many answers to give of each, the best first.
    """

    max_length: int

    name: ClassVar[str]
    main: ClassVar[str]
    columns: ClassVar[tuple] = ("text",)
    length: ClassVar[int] = 128
    dropout: ClassVar[float] = 0.1
    unused: ClassVar[tuple] = ()
    several: ClassVar[bool] = False

    # What a task defines. `read` and `learn` are class methods, the rest are of an instance.

    @classmethod
    def read(cls, path, **columns):
        """Reads a data file.

        Args:
            path: the file.
            columns: `text`, `text_pair`, `label` and `format`, see the readers; without a label where that is None.

        Returns:
            a list of examples, each with `row`.
        """
        raise NotImplementedError

    @classmethod
    def learn(cls, path, examples, **settings):
        """The task that a training file describes.

        Args:
            path: the file.
            examples: what `read` returned.
            settings: `max_length`, and what else a task has as fields of its own.
        """
        return cls(**settings)

    def check(self, path, examples, out_of_scope=None):
        """Raises an InputError for labelled examples that this task cannot score; `out_of_scope` is a label that
        stands for none of the task's."""

    def head(self, bert, dropout):
        """A new model on an encoder."""
        raise NotImplementedError

    def loss(self):
        """What `compile` takes: `loss` and perhaps `metrics` and `loss_weights`, a dict."""
        return {"loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True)}

    def example(self, *texts):
        """An input without a label, of as many texts as there are `columns`."""
        raise NotImplementedError

    def encode(self, examples, tokenizer):
        """`Encoded` examples."""
        raise NotImplementedError

    def answers(self, encoded, outputs, **options):
        """The answer to each example, from the model's output for each row: a list."""
        raise NotImplementedError

    def tuned(self, encoded, outputs):
        """The task with its threshold, where it has one, as is best for labelled examples."""
        return self

    def score(self, encoded, outputs):
        """Scores of labelled examples: a dict that JSON can hold, with `loss` and `main`."""
        raise NotImplementedError

    def record(self, example, answer):
        """An answer as a dict that JSON can hold."""
        raise NotImplementedError

    def line(self, example, answer):
        """An answer as a line of text, its parts separated by tabs."""
        raise NotImplementedError

    # What all have.

    def arguments(self, *columns):
        """Examples of lists of texts, one list a column of `columns`; the last may be left out where that is None."""
        columns = [column for column in columns if column is not None]
        if len(columns) != len(self.columns):
            raise InputError(f"this model takes {self.takes()}; got {len(columns)} texts")
        return [self.example(*texts) for texts in zip(*columns, strict=True)]

    def takes(self):
        """What an input consists of, in words."""
        return f"a {' and a '.join(self.columns)} each"

    def split(self, line):
        """The texts of an input in a line, separated by tabs; a lone text is the whole line. None if there are not as
        many as it takes."""
        parts = [line] if len(self.columns) == 1 else line.split("\t")
        return parts if len(parts) == len(self.columns) else None

    def check_inputs(self, path, examples):
        """Raises an InputError for examples of another kind than this task answers."""

    def text(self, example):
        """The first text of an example."""
        return getattr(example, self.columns[0])

    def answering(self):
        """What `export_text_model` must know to answer as the task does: a dict."""
        return dataclasses.asdict(self)

    def settings(self):
        """The fields as JSON holds them."""
        return {"task": self.name} | dataclasses.asdict(self)


def run(model, batches, batch_size=None, after_batch=None):
    """The output of a model for each row of some `TextBatches`: a list of arrays or of dicts of arrays, with what the
    padding gave behind them.

    Args:
        batch_size: rows a batch; where None, as many as have 2,048 tokens.
        after_batch: called with the outputs of each batch.
    """
    rows = [None] * len(batches.packed)
    plan = sorted_batches(batches.lengths, batch_size) if batch_size else token_batches(batches.lengths)
    for indices in plan:
        outputs = model.predict_on_batch(batches.inputs(indices))
        for place, row in enumerate(indices):
            rows[row] = keras.tree.map_structure(operator.itemgetter(place), outputs)
        if after_batch:
            after_batch(outputs)
    return rows


def log_softmax(logits):
    """Over the last axis, in float64."""
    logits = np.asarray(logits, np.float64)
    logits = logits - logits.max(axis=-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


def needs(module):
    """A module of the extra `tasks`, imported."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise InputError(f'scores need {module.partition(".")[0]}: pip install "keras-bert-hub[tasks]"') from None
