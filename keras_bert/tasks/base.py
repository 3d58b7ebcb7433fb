"""The base class of downstream tasks, and functions that all tasks share."""

import dataclasses
import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Self, TypeAlias
from unicodedata import is_normalized

import numpy as np

from keras_bert.arguments import AggregationStrategy, Data, Length, Path, check_rules, plural, texts_of_argument
from keras_bert.data.batches import TextBatches, sorted_batches, token_batches
from keras_bert.data.tables import Rows, open_data
from keras_bert.errors import InputError, Option
from keras_bert.lazy import warn_deprecated
from keras_bert.text import Tokenizer
from keras_bert.text.same import SameTexts
from keras_bert.types import Encoder, Head, Tensor

if TYPE_CHECKING:  # it needs TensorFlow, without which a `LiteModel` answers
    from keras_bert.tasks import graph

Reader: TypeAlias = "graph.Reader"
Windows: TypeAlias = "graph.Windows"
# How the page shows an answer, and the outputs that it reads. `label`: label, score, probabilities, in_scope;
# `labels`: labels, probabilities, holds; `value`: value; `score`: score; `entities`: word_* and entity_*; `frame`:
# those of `label` and `entities`; `span`: answer, start, end, score; `choice`: choice, probabilities; `outputs`: any,
# as numbers.
Display = Literal["label", "labels", "value", "score", "entities", "frame", "span", "choice", "outputs"]
Answers = dict[str, Tensor]  # of a SavedModel, by the names of its outputs
Outputs = list | np.ndarray  # a model's output for each row: an array, or a dict of arrays
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
        examples: the inputs.
        rows: rows of the encoder's input, in the form that `batches` accepts; one example may have multiple rows.
        targets: training targets, in the form that `batches` accepts; None if the examples have no labels.
        batches: the class that makes batches of the rows.
        decoding: any other data that the task needs to decode its answers; only the task itself reads it.
        firsts: int [texts], the first row of each text, if its rows are its windows; None if each example is one row.
        cut: number of examples of which a part was left out.
        split: number of examples that were split into windows.
    """

    examples: Sequence
    rows: Sequence
    targets: Any = None
    batches: type[TextBatches] = TextBatches
    decoding: Any = None
    firsts: np.ndarray | None = None
    cut: int = 0
    split: int = 0

    @property
    def text_targets(self) -> Any:
        """The target of each text, which its windows share."""
        return self.targets if self.firsts is None else self.targets[self.firsts]

    def batched(self, tokenizer: Tokenizer, length_multiple: int = 1, drop_remainder: bool = False) -> TextBatches:
        """Returns the batches of the rows; see `TextBatches` for the arguments."""
        return self.batches(self.rows, tokenizer.pad_id, self.targets, length_multiple, drop_remainder)


@dataclasses.dataclass(frozen=True)
class Task:
    """A downstream task: reads data files, encodes inputs and targets, decodes answers, and scores them. An instance
    holds everything that answering needs apart from weights and vocabulary; `settings.json` stores its fields.

    Args:
        max_length: maximum length of an input in tokens, [CLS] and [SEP] included.

    Class attributes:
        name: name of the task.
        main: name of the score that selects the best epoch; higher is better.
        percent: if True, the scores are in percent, as SQuAD's; otherwise at most 1.
        tuples: the columns that a tuple of labelled data in memory holds, for each allowed length.
        length: default of `max_length`.
        dropout: default dropout rate of the input of the head; None if the head has no dropout.
        stratified: if True, held-out examples have all `classes` in proportion.
        names_classes: if True, labels are names, see `open_data`.
        has_threshold: if True, `calibrated` chooses a threshold, or one for each label.
        unused: names of the parts of the encoder that have no effect on the outputs and are not trained.
        supports_top_k: if True, `answers` accepts `top_k`, the number of answers per input, best first.
        compares_batch: if True, the loss compares the examples of a batch with one another.
        options: names of the arguments of `finetune` that are for some tasks alone, this one among them.
        fields: those of `options` that `from_examples` takes.
        files: what only this task reads, in words, and the suffixes of such files.
        held_out: what is held out for validation.
        heads: names of the classes of models that answer the task; classes derived from these do, too.
        weights: the kind of the weights in `keras_bert.weights.kinds`; None if only this package's folders store them.
        lite_outputs: the float32 outputs of the LiteRT file and their axes, see `exported_outputs`; S is the length.
        output: an output of exported SavedModels that those of other tasks lack.
        root: the output that the root object of a SavedModel returns alone; None if it returns all.
        display: how the server's page shows an answer, and so which outputs it has, see `Display`.
        weighed: the one of `exported_outputs`, B or BL, for which `word_weights` says how much each word counts; ""
            if the answer is of another kind.
        activation: the function that turns the outputs into probabilities; None if they are not logits of classes.
        score_names: names in words of scores, for those that are not in `score_names.SCORES`, or differ from it.
        named: the fields with the names of classes, and the attributes of the head that count these.
        card: what the model card says about the task.
    """

    max_length: Length

    name: ClassVar[str]
    main: ClassVar[str]
    percent: ClassVar[bool] = False
    tuples: ClassVar[tuple[tuple[str, ...], ...]] = ()
    length: ClassVar[int] = 128
    dropout: ClassVar[float | None] = 0.1
    stratified: ClassVar[bool] = False
    names_classes: ClassVar[bool] = False
    has_threshold: ClassVar[bool] = False
    unused: ClassVar[tuple[str, ...]] = ()
    supports_top_k: ClassVar[bool] = False
    compares_batch: ClassVar[bool] = False
    options: ClassVar[tuple[str, ...]] = ()
    fields: ClassVar[tuple[str, ...]] = ()
    files: ClassVar[tuple[str, tuple[str, ...]]] = "", ()
    held_out: ClassVar[str] = "texts"
    heads: ClassVar[tuple[str, ...]] = ()
    weights: ClassVar[str | None] = None
    lite_outputs: ClassVar[dict[str, str]]
    output: ClassVar[str]
    root: ClassVar[str | None] = None
    display: ClassVar[Display] = "outputs"
    weighed: ClassVar[str] = ""
    activation: ClassVar[Literal["softmax", "sigmoid"] | None] = None
    score_names: ClassVar[dict[str, str]] = {}
    named: ClassVar[dict[str, str]] = {}
    card: ClassVar[Card] = Card("text-classification", "texts", "Answers texts.")

    # Methods that each task defines. `iterate` and `from_examples` are class methods.

    @classmethod
    def iterate(cls, path: Path | Rows, **columns: Any) -> Iterator:
        """Yields the examples of a file or of `Rows`. `columns` are `text_column`, `text_pair_column`, `label_column`
        and `data_format`, see `iterate_examples`. If `label_column` is None, the data needs no labels."""
        raise NotImplementedError

    @classmethod
    def from_examples(cls, path: Path | Rows, examples: Sequence, **settings: Any) -> Self:
        """Returns the task with the fields that training examples determine, such as labels, and with `settings`."""
        return cls(**settings)

    @classmethod
    def fits(cls, model: Any) -> bool:
        """Returns True if a model is one of the task's `heads`."""
        return any(base.__name__ in cls.heads for base in type(model).__mro__)

    def check(self, path: Path | Rows, examples: Sequence, out_of_scope: str | None = None) -> None:
        """Raises an InputError if the task cannot score labelled examples. Texts that its classes do not cover have the
        label `out_of_scope`."""
        self.check_inputs(path, examples)

    def check_tokenizer(self, tokenizer: Tokenizer) -> None:
        """Raises an InputError if the task cannot use a tokenizer."""

    def example(self, *texts: Any) -> Any:
        """Returns an input without a label, made of one text for each of `inputs`."""
        raise NotImplementedError

    def encode(self, examples: Sequence, tokenizer: Tokenizer) -> Encoded:
        raise NotImplementedError

    def for_training(self, encoded: Encoded) -> Encoded:
        """Returns the rows that the model is trained on, each with its target, from labelled examples."""
        return encoded

    def answers(self, encoded: Encoded, outputs: Outputs) -> list | np.ndarray:
        """Returns an answer for each example, from an output for each row."""
        raise NotImplementedError

    def new_head(self, bert: Encoder, dropout: float) -> Head:
        """Returns a new model for the task on an encoder. `dropout` is the rate of the head's input, if it has one."""
        raise NotImplementedError

    def loss_arguments(self) -> dict[str, Any]:
        """Returns the arguments of Keras's `compile`: `loss`, and perhaps `metrics` and `loss_weights`."""
        raise NotImplementedError

    def encode_in_graph(self, outputs: Any, mask: Tensor) -> Answers:
        """Returns the answers of a SavedModel to token ids, for its signature `encode`: by default the model's outputs.
        `mask` is int32 [batch, seq], 1 for real tokens."""
        return outputs

    def answer_of(self, row: dict[str, Any], top_k: int = 1) -> Any:
        """Returns the answer in a row of an exported SavedModel's outputs, Python values by their names."""
        raise NotImplementedError

    @property
    def exported_outputs(self) -> dict[str, tuple[type, str]]:
        """The outputs of exported SavedModels: the dtype of each, and the axes of its shape. B is the batch, L the
        number of labels, H the hidden size; the texts determine the size of another letter."""
        raise NotImplementedError

    def exported_rows(self, encoded: Encoded, outputs: Outputs) -> list[dict[str, Any]]:
        """Returns the answers as rows of `exported_outputs`, which `answer_of` reads: a value or an array of each."""
        raise NotImplementedError

    def calibrated(self, encoded: Encoded, outputs: Outputs) -> Self:
        """Returns the task with the thresholds that are best for labelled examples, or itself if it has none."""
        return self

    def describe_thresholds(self) -> list[str]:
        """Returns lines for the console and the model card on what set the thresholds; none if there are none."""
        return []

    def score(self, encoded: Encoded, outputs: Outputs) -> dict[str, Any]:
        """Returns the scores of labelled examples as JSON holds them, with `loss` and the score that `main` names."""
        raise NotImplementedError

    def kind(self, examples: Sequence) -> str:
        """Returns in words what the rows of labelled examples hold."""
        return "texts"

    def main_score(self, examples: Sequence) -> str:
        """Returns the name of the score of these labelled examples that selects the best epoch; higher is better."""
        return self.main

    def record(self, example: Any, answer: Any) -> dict[str, Any]:
        """Returns an answer as JSON holds it."""
        raise NotImplementedError

    def cells(self, example: Any, answer: Any) -> list[str]:
        """Returns an answer as the cells of a line."""
        raise NotImplementedError

    # Methods that all tasks share.

    def answer_in_graph(self, reader: Reader, *inputs: Tensor) -> Answers:
        """Returns the `exported_outputs` of a SavedModel for a text for each of `self.inputs` and, if there are
        `named_prompts`, the number of tokens of the prompt. By default, the texts are truncated to one input."""
        packed = reader.pack(*map(reader.tokens, inputs[:len(self.inputs)]))
        return self.encode_in_graph(reader.run(*packed), packed[1])

    def outputs_in_graph(self, model: Head, inputs: Sequence[Tensor]) -> Answers:
        """Returns the `lite_outputs` of a model for word ids, mask and segment ids, each [batch, seq]."""
        import tensorflow as tf

        outputs = model(list(inputs))
        if self.activation:
            outputs = {"softmax": tf.nn.softmax, "sigmoid": tf.sigmoid}[self.activation](outputs)
        return outputs if isinstance(outputs, dict) else dict.fromkeys(self.lite_outputs, outputs)

    @property
    def columns(self) -> tuple[str, ...]:
        warn_deprecated("Task.columns", "Task.inputs")  # its name in version 0.2
        return self.inputs

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the texts that make up an input."""
        return ("text",)

    @classmethod
    def read(cls, path: Path | Rows, **columns: Any) -> list:
        return list(cls.iterate(path, **columns))

    @classmethod
    def open(cls, data: Data, name: str, data_format: str | None = None, **columns: Any) -> str | Rows:
        """Returns a data set in the form that `iterate` takes, see `open_data`. `columns` are those of `iterate`."""
        opened = open_data(data, name, [cls.column_names(fields, columns) for fields in cls.tuples],
                           cls.names_classes and not columns.get("label_columns"))
        if data_format and isinstance(opened, Rows):
            raise InputError(f"{name}: ", Option("data_format"),
                             f" must be left out for rows in memory; got {data_format!r}")
        return opened

    @classmethod
    def column_names(cls, fields: Sequence[str], columns: Mapping[str, Any]) -> list[str]:
        """Returns the columns of a table that hold these fields. `columns`, `text_column` and so on, rename them for
        tasks on single texts or pairs; other tasks have fixed names."""
        renamed = columns if any("text" in names for names in cls.tuples) else {}
        return [renamed.get(f"{field}_column") or field for field in fields]

    def arguments(self, *lists: Iterable | None) -> list:
        """Returns examples made from the texts of each of `self.inputs`; a last one that the task does not use may be
        None. Surrogates are replaced by U+FFFD. An InputError names the row, from 1, of an element that is no text."""
        names = [name if name.endswith("s") else f"{name}s" for name in self.inputs]
        given = [texts for texts in lists if texts is not None]
        if len(given) != len(names):
            raise InputError(f"this model takes {self.describe_input()}, as lists: predict({', '.join(names)}); "
                             f"got {len(given)} {plural('list', len(given))}")
        checked = [texts_of_argument(name, texts) for name, texts in zip(names, given)]
        if len(set(map(len, checked))) > 1:
            lengths = ", ".join(str(len(texts)) for texts in checked)
            raise InputError(f"{', '.join(names)} must be lists of the same length; got {lengths}")
        return [self.example(*texts) for texts in zip(*checked)]

    @property
    def windows(self) -> bool:
        """True if a long text is split into windows instead of cut."""
        return False

    def describe_input(self) -> str:
        return f"a {' and a '.join(self.inputs)} each"

    def split(self, line: str) -> Sequence | None:
        """Splits a line at tabs into the texts of an input; a single text is the whole line. Returns None if the number
        of texts is wrong."""
        parts = [line] if len(self.inputs) == 1 else line.split("\t")
        return parts if len(parts) == len(self.inputs) else None

    def check_encoded(self, path: Path | Rows, encoded: Encoded) -> None:
        """Raises an InputError if the task cannot score the labelled examples, as the model reads them."""

    def check_inputs(self, path: Path | Rows, examples: Sequence) -> None:
        """Raises an InputError if the examples are not of the kind that this task answers."""

    def text(self, example: Any) -> str:
        """Returns the first text of an example."""
        return getattr(example, self.inputs[0])

    @property
    def limits(self) -> tuple[str, ...]:
        """Names of the fields at which longer texts are cut."""
        return ("max_length",)

    def describe_long(self, counts: Mapping[str, int], total: int) -> list[str]:
        """Returns lines about the numbers of texts that were `split`, and `cut`, and that are in `nfd`."""
        limits = " or ".join(f"{name} {getattr(self, name):,}" for name in self.limits)
        kinds = {"split": f"split into windows of max_length {self.max_length:,}", "cut": f"cut at {limits}",
                 "nfd": "in NFD, as on macOS, which the vocabulary cannot spell (set normalization to NFC)"}
        return [f"texts {kind}: {counts[name]:,} of {total:,}" for name, kind in kinds.items() if counts.get(name)]

    def count_nfd(self, examples: Sequence, tokenizer: Tokenizer) -> int:
        """Returns the number of examples that would have fewer [UNK], or as many and fewer tokens, in NFC."""
        texts = [text for text in map(" ".join, map(self.all_texts, examples)) if not is_normalized("NFC", text)]
        if not (texts and tokenizer.can_normalize):  # nearly always; the rest takes longer than to tokenize a text
            return 0
        now, better = ([(ids.count(tokenizer.unk_id), len(ids)) for ids in each.ids(texts)]
                       for each in (tokenizer, tokenizer.with_normalization("NFC")))
        return sum(tokens > fewer for tokens, fewer in zip(now, better))

    def texts(self, example: Any) -> tuple:
        """Returns the texts of an example, one for each of `inputs`."""
        return self.text(example), *(getattr(example, name) for name in self.inputs[1:])

    def all_texts(self, example: Any) -> Iterator[str]:
        """Yields the texts of an example, of a list of choices or words each."""
        for text in self.texts(example):
            yield from [text] if isinstance(text, str) else text or ()

    def tokens_read(self, tokenizer: Tokenizer) -> int:
        """Returns the number of tokens of a text that the model reads at most."""
        return self.max_length - tokenizer.special_tokens(len(self.inputs))

    def same_texts(self, tokenizer: Tokenizer) -> SameTexts:
        return SameTexts(tokenizer, self.tokens_read(tokenizer))

    def groups(self, examples: Sequence, same: SameTexts) -> list[tuple]:
        """Returns the `group` of each example as a value that is equal for the same texts in any order."""
        return [tuple(sorted(key)) for key in same.keys(map(self.group, examples))]

    def group(self, example: Any) -> tuple:
        """Returns the texts that must not be in both the training and the validation data."""
        return self.texts(example)

    def label(self, example: Any) -> Any:
        """Returns what the file says is right for an example."""
        return getattr(example, self.tuples[-1][-1])

    def classes(self, example: Any) -> Sequence[str]:
        """Returns the classes that occur in a labelled example; a task without classes returns none."""
        return [self.label(example)] if self.stratified else []

    def strata(self, example: Any) -> Sequence[str]:
        """Returns what held-out examples have in proportion: by default, the classes."""
        return self.classes(example)

    @property
    def named_prompts(self) -> Mapping[str, str]:
        """The texts by name that can be put before the texts of `predict`, see `with_prompt`."""
        return {}

    @property
    def default_prompt(self) -> str:
        """The text that is put before the texts of `predict`."""
        return ""

    def with_prompt(self, prompt_name: str) -> Self:
        """Returns the task with this prompt for the texts of `predict`; raises an InputError if it has none."""
        raise InputError(Option("prompt_name"), f" must be left out for the task {self.name}; it is for embed; "
                         f"got {prompt_name!r}")

    def answer_options(self, top_k: int = 1, aggregation_strategy: AggregationStrategy | None = None) -> dict[str, Any]:
        """Returns the options of `answers` that are not the defaults; raises an InputError if the task lacks one."""
        check_rules(("top_k", top_k, f"1 for the task {self.name}; only classifiers and the task span give multiple "
                     "answers", top_k == 1 or self.supports_top_k),
                    ("aggregation_strategy", aggregation_strategy, f"left out for the task {self.name}; it is for tag",
                     not aggregation_strategy))
        return {"top_k": top_k} if top_k > 1 else {}

    def settings(self) -> dict[str, Any]:
        """Returns the task's name and fields as JSON holds them."""
        return {"task": self.name} | dataclasses.asdict(self)

    def training_settings(self) -> dict[str, Any]:
        """Returns the settings with those that only training needs, named as the arguments of `finetune`."""
        return self.settings()


def run_model(model: Any, batches: TextBatches, batch_size: int | None = None,
              after_batch: Callable[[Any], None] | None = None) -> list:
    """Returns the output of a Keras model for each row of batches: an array, or a dict of arrays, which may end with
    the outputs of padding tokens. If `batch_size`, in rows, is None, batches have about 2,048 tokens. `after_batch` is
    called with the outputs of each."""
    rows: list = [None] * len(batches.packed)
    plan = sorted_batches(batches.lengths, batch_size) if batch_size else token_batches(batches.lengths)
    for indices in plan:
        outputs = model.predict_on_batch(batches.inputs(indices))
        for position, row in enumerate(indices):
            rows[row] = ({name: values[position] for name, values in outputs.items()} if isinstance(outputs, dict)
                         else outputs[position])
        if after_batch:
            after_batch(outputs)
    return rows


def log_softmax(logits: Sequence[float] | np.ndarray) -> np.ndarray:
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


def best_threshold(scores: np.ndarray, right: np.ndarray, end: float) -> float:
    """Returns the threshold, between two scores, with the best F1 for which texts are `right`, bool [texts]: those with
    lower `scores`, float [texts], if their `end` is infinite, and those with higher ones if it is 0. Of equally good
    thresholds, it is the one with the fewest such texts."""
    order = np.argsort(scores if end else -scores, kind="stable")
    f1 = 2 * np.cumsum(right[order]) / (np.arange(1, len(scores) + 1) + right.sum())
    ranked = np.append(scores[order], end)
    f1[ranked[1:] == ranked[:-1]] = -1  # no threshold can separate equal scores
    last = int(f1.argmax())
    return threshold_between(*sorted(ranked[last:last + 2]))


def require(module: str, *user: str) -> ModuleType:
    """Imports a module of the extra `tasks`. The message that it is missing begins with `user`, or "scores need"."""
    try:
        return importlib.import_module(module)
    except ImportError:
        name = module.partition(".")[0].replace("sklearn", "scikit-learn")
        raise InputError(*(user or ("scores need",)),
                         f" {name}, which the extra `tasks` installs: pip install {name}") from None
