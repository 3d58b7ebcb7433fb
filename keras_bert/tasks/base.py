"""The base class of downstream tasks, and functions that all tasks share."""

import dataclasses
import importlib
from typing import Any, ClassVar, NamedTuple

import numpy as np

from keras_bert.arguments import as_texts, check_texts, replace_surrogates
from keras_bert.data import TextBatches, sorted_batches, token_batches
from keras_bert.data.tables import Rows, open_data
from keras_bert.errors import InputError

_ABOVE_ALL = 1e-3  # a threshold that no score reaches is half of this above the highest score


class Card(NamedTuple):
    """What the model card says about a task: the pipeline tag of Hugging Face, the end of the title "BERT for …", and a
    sentence on what the model does, in which {} is replaced by the number of classes."""

    pipeline: str
    title: str
    description: str


@dataclasses.dataclass(frozen=True)
class Encoded:
    """The encoded inputs of a task.

    Args:
        examples: list of inputs.
        rows: list of rows of the encoder's input, in the form that `TextBatches` accepts; one example may have multiple
            rows.
        targets: training targets, in the form that `TextBatches` accepts; None if the examples have no labels.
        batches: the class that makes batches of the rows.
        decoding: any other data that the task needs to decode its answers; only the task itself reads it.
        cut: number of examples that were cut at the task's `max_length`.
    """

    examples: list
    rows: list
    targets: Any = None
    batches: type = TextBatches
    decoding: Any = None
    cut: int = 0

    def batched(self, tokenizer, length_multiple=1, whole=False):
        """Returns the rows as an instance of `batches`. The arguments are those of `TextBatches`."""
        return self.batches(self.rows, tokenizer.pad_id, self.targets, length_multiple, whole)


@dataclasses.dataclass(frozen=True)
class Task:
    """A downstream task: reads data files, encodes inputs and targets, decodes answers, and scores them.

    An instance holds everything that answering needs apart from the weights and the vocabulary. Its fields are stored
    in `settings.json`.

    Args:
        max_length: maximum length of an input in tokens, [CLS] and [SEP] included.

    Class attributes:
        name: name of the task.
        main: name of the score that selects the best epoch; higher is better.
        percent: if True, the scores are in percent, as SQuAD's; otherwise at most 1.
        columns: names of the texts that make up an input.
        tuples: for labelled data in memory, the columns of the values of a tuple, the label's included; one entry for
            each allowed length.
        length: default of `max_length`.
        dropout: default dropout rate of the input of the head; None if the head has no dropout.
        stratified: if True, held-out examples have all `classes` in proportion.
        has_threshold: if True, `calibrated` chooses a threshold, or one for each label.
        windows: if True, a long text is split into several rows instead of cut.
        unused: names of the parts of the encoder that have no effect on the outputs and are not trained.
        supports_top_k: if True, `answers` accepts `top_k`, the number of answers per input, best first.
        compares_batch: if True, the loss compares the examples of a batch with one another.
        options: names of the arguments of `finetune` that are for some tasks alone, this one among them.
        fields: those of `options` that `from_examples` takes.
        files: what only this task reads, in words, and the suffixes of such files.
        held_out: what is held out for validation.
        output: an output of exported models that those of other tasks lack.
        card: what the model card says about the task.
    """

    max_length: int

    name: ClassVar[str]
    main: ClassVar[str]
    percent: ClassVar[bool] = False
    columns: ClassVar[tuple] = ("text",)
    tuples: ClassVar[tuple] = ()
    length: ClassVar[int] = 128
    dropout: ClassVar[float | None] = 0.1
    stratified: ClassVar[bool] = False
    has_threshold: ClassVar[bool] = False
    windows: ClassVar[bool] = False
    unused: ClassVar[tuple] = ()
    supports_top_k: ClassVar[bool] = False
    compares_batch: ClassVar[bool] = False
    options: ClassVar[tuple[str, ...]] = ()
    fields: ClassVar[tuple[str, ...]] = ()
    files: ClassVar[tuple[str, tuple[str, ...]]] = "", ()
    held_out: ClassVar[str] = "texts"
    output: ClassVar[str]
    card: ClassVar[Card]

    # Methods that each task defines. `iterate` and `from_examples` are class methods.

    @classmethod
    def iterate(cls, path, **columns):
        """Reads a data set.

        Args:
            path: the file, or `Rows`.
            columns: `text_column`, `text_pair_column`, `label_column` and `data_format`, see the functions that read
                the files, for example `iterate_examples`. If `label_column` is None, the data needs no labels.

        Yields:
            examples, each with an attribute `row`.
        """
        raise NotImplementedError

    @classmethod
    def from_examples(cls, path, examples, **settings):
        """Returns the task with the fields that a training file determines, for example its labels.

        Args:
            path: the file.
            examples: the examples that `read` returned.
            settings: `max_length` and any other fields of the task.
        """
        return cls(**settings)

    def check(self, path, examples, out_of_scope=None):
        """Raises an InputError if this task cannot score the labelled examples. `out_of_scope` is the label of texts
        that belong to none of the task's classes."""

    def example(self, *texts):
        """Returns an input without a label, made of one text for each of `columns`."""
        raise NotImplementedError

    def encode(self, examples, tokenizer):
        """Returns the examples as `Encoded`."""
        raise NotImplementedError

    def answers(self, encoded, outputs, **options):
        """Returns a list with the answer to each example, decoded from the model's output for each row."""
        raise NotImplementedError

    def answer_of(self, row, top_k=1):
        """Returns the answer in a row of the outputs of an exported model, a dict of names to Python values."""
        raise NotImplementedError

    def calibrated(self, encoded, outputs):
        """Returns the task with the thresholds that are best for labelled examples; a task without a threshold returns
        itself."""
        return self

    def score(self, encoded, outputs):
        """Returns the scores of labelled examples: a dict that JSON can represent, with `loss` and the score that
        `main` names."""
        raise NotImplementedError

    def main_score(self, examples):
        """Returns the name of the score of these labelled examples that selects the best epoch; higher is better."""
        return self.main

    def record(self, example, answer):
        """Returns an answer as a dict that JSON can represent."""
        raise NotImplementedError

    def cells(self, example, answer):
        """Returns an answer as the cells of a line: a list of str."""
        raise NotImplementedError

    # Methods that all tasks share.

    @classmethod
    def read(cls, path, **columns):
        """Returns the examples of `iterate` as a list."""
        return list(cls.iterate(path, **columns))

    @classmethod
    def open(cls, data, name, data_format=None, **columns):
        """Returns a data set in the form that `read` takes, see `open_data`. `columns` is the same as for `read`.

        Raises:
            InputError: the rows are not valid, or `data_format` is given with rows; it is only for files.
        """
        opened = open_data(data, name, [cls.column_names(fields, columns) for fields in cls.tuples])
        if data_format and isinstance(opened, Rows):
            raise InputError(f"{name}: data_format must be left out for rows in memory; got {data_format!r}")
        return opened

    @classmethod
    def column_names(cls, fields, columns):
        """Returns the names of the columns of a table that hold these fields, a list. `columns` is a dict of
        `text_column` and so on, which rename those of tasks on single texts or pairs; other tasks have fixed names."""
        renamed = columns if any("text" in names for names in cls.tuples) else {}
        return [renamed.get(f"{field}_column") or field for field in fields]

    def arguments(self, *columns):
        """Returns examples made from iterables of texts, one for each column of `self.columns`. Skips those that are
        None, so the last one can be None if the task does not use it. Surrogates are replaced by U+FFFD.

        Raises:
            InputError: there are more or fewer iterables, one is a single text or a table, they have different lengths,
                or an element is no text; the message names its row, from 1.
        """
        names = [name if name.endswith("s") else f"{name}s" for name in self.columns]
        columns = [column for column in columns if column is not None]
        if len(columns) != len(names):
            raise InputError(f"this model takes {self.describe_input()}, as lists: predict({', '.join(names)}); "
                             f"got {len(columns)} list{'s' * (len(columns) != 1)}")
        columns = [_texts(name, column) for name, column in zip(names, columns)]
        if len({len(column) for column in columns}) > 1:
            lengths = ", ".join(str(len(column)) for column in columns)
            raise InputError(f"{', '.join(names)} must be lists of the same length; got {lengths}")
        return [self.example(*texts) for texts in zip(*columns)]

    def describe_input(self):
        """Describes in words what an input consists of."""
        return f"a {' and a '.join(self.columns)} each"

    def split(self, line):
        """Splits a line at tabs into the texts of an input; if an input is a single text, it is the whole line. Returns
        None if the number of texts is wrong."""
        parts = [line] if len(self.columns) == 1 else line.split("\t")
        return parts if len(parts) == len(self.columns) else None

    def check_inputs(self, path, examples):
        """Raises an InputError if the examples are not of the kind that this task answers."""

    def text(self, example):
        """Returns the first text of an example."""
        return getattr(example, self.columns[0])

    def texts(self, example):
        """Returns the texts of an example, one for each of `columns`."""
        return self.text(example), *(getattr(example, column) for column in self.columns[1:])

    def group(self, example):
        """Returns the texts that must not be in both the training and the validation data."""
        return self.texts(example)

    def label(self, example):
        """Returns what the file says is right for an example."""
        return getattr(example, self.tuples[-1][-1])

    def classes(self, example):
        """Returns the names of the classes that occur in a labelled example; a task without classes returns none."""
        return [self.label(example)] if self.stratified else []

    def export_options(self):
        """Returns a dict of the settings that `export_text_model` needs to give the same answers as the task."""
        return dataclasses.asdict(self)

    def answer_options(self, top_k=1, aggregation_strategy=None):
        """Returns the options of `answers` as a dict, without those that keep their defaults.

        Raises:
            InputError: the task cannot give that many answers per input, or does not aggregate the labels of tokens.
        """
        if top_k > 1 and not self.supports_top_k:
            raise InputError(f"top_k must be 1 for the task {self.name}; only classifiers and the task span give "
                             f"multiple answers; got {top_k}")
        if aggregation_strategy:
            raise InputError(f"aggregation_strategy must be left out for the task {self.name}; it is for tag; "
                             f"got {aggregation_strategy!r}")
        return {"top_k": top_k} if top_k > 1 else {}

    def settings(self):
        """Returns the task's name and fields as a dict that JSON can represent."""
        return {"task": self.name} | dataclasses.asdict(self)


def _texts(name, values, unit="row"):
    """Returns the texts of an argument of `predict`, or a list of texts for each row of its `choices`."""
    values = as_texts(name, values)
    if name == "choices":
        return [_texts(f"choices: row {row}", texts, "choice") for row, texts in enumerate(values, 1)]
    check_texts(name, values, unit)
    return list(map(replace_surrogates, values))


def run(model, batches, batch_size=None, after_batch=None):
    """Runs a model on each row of a `TextBatches`.

    Args:
        batch_size: rows per batch. If None, batches have about 2,048 tokens.
        after_batch: function that is called with the outputs of each batch.

    Returns:
        a list of arrays, or of dicts of arrays, one per row. The array of a row may end with the outputs of its padding
        tokens, which are not removed.
    """
    rows = [None] * len(batches.packed)
    plan = sorted_batches(batches.lengths, batch_size) if batch_size else token_batches(batches.lengths)
    for indices in plan:
        outputs = model.predict_on_batch(batches.inputs(indices))
        for position, row in enumerate(indices):
            rows[row] = ({name: values[position] for name, values in outputs.items()} if isinstance(outputs, dict)
                         else outputs[position])
        if after_batch:
            after_batch(outputs)
    return rows


def log_softmax(logits):
    """Computes the logarithm of the softmax over the last axis, in float64."""
    logits = np.asarray(logits, np.float64)
    logits = logits - logits.max(axis=-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


def threshold_between(lower: float, higher: float) -> float:
    """Returns the float32 in the middle of two scores, above the lower one; `higher` may be infinite. The scores of a
    text differ in their last bits between batches, so no score itself is a good threshold; and a number with more bits
    than a float32 may be rounded to a score when it is compared."""
    low, high = np.float32(lower), np.float32(lower + _ABOVE_ALL if np.isinf(higher) else higher)
    middle = low + (high - low) / np.float32(2)
    return float(middle if middle > low else high)


def require(module, user="scores need"):
    """Imports and returns a module that the extra `tasks` installs; `user` begins the message if it is missing."""
    try:
        return importlib.import_module(module)
    except ImportError:
        name = module.partition(".")[0].replace("sklearn", "scikit-learn")
        raise InputError(f"{user} {name}, which the extra `tasks` installs: pip install {name}") from None
