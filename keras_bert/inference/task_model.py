"""`TaskModel`: what every model of a task has in common, whatever computes its outputs."""

import abc
import dataclasses
import operator
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Self, Unpack, cast

import numpy as np

from keras_bert import arguments
from keras_bert.arguments import AggregationStrategy, Count, Data, Delimiter, Path, ScoreColumns, check, not_none
from keras_bert.data.tables import Rows, check_columns
from keras_bert.errors import InputError, InputWarning, MissingColumn, Option, UnknownSuffix
from keras_bert.inference.card import rewrite_card
from keras_bert.tasks import TASKS, Classify, Embed, Encoded, MultiLabel, Task, WordWeight, save_settings, tasks_with
from keras_bert.tasks.calibration import describe_repeats, halves, recalibrated
from keras_bert.tasks.word_weights import weigh
from keras_bert.text import Tokenizer


class TaskModel(abc.ABC):
    """A model that reads, encodes, answers and scores the data of a task. Needs neither TensorFlow nor Keras. Its
    classes are dataclasses.

    Attributes:
        tokenizer: the model's `Tokenizer`.
        task: the task that the model was trained for, see `keras_bert.tasks`.
        columns: dict of the arguments `text_column`, `text_pair_column`, `label_column`, `label_columns` and
            `label_delimiter` of `finetune` that were not defaults; they are the defaults of `predict`, `encode`,
            `evaluate` and `calibrate`. Also `data_format`, which is no default: errors suggest it.
    """

    tokenizer: Tokenizer
    task: Task
    columns: dict[str, str | list[str]]

    def __post_init__(self) -> None:
        self.task.check_tokenizer(self.tokenizer)

    @property
    @abc.abstractmethod
    def runtime(self) -> str:
        """The runtime and the dtype that compute the outputs, such as "LiteRT int8"."""

    @abc.abstractmethod
    def outputs(self, encoded: Encoded, batch_size: int | None = None) -> list:
        """Returns the model's output for each row of `Encoded` examples: an array, or a dict of arrays."""

    def with_task(self, task: Task) -> Self:
        """Returns a copy with the same weights and another task, for instance another threshold."""
        return dataclasses.replace(cast(Any, self), task=task)

    def save_settings(self, folder: Path) -> None:
        """Writes the task's labels and settings, which change when a threshold is chosen, and the columns; and the
        threshold into the model card, if the folder has one."""
        save_settings(self.task, self.columns, folder)
        rewrite_card(folder, self.task)

    def predict(self, *texts: Iterable, batch_size: Count | None = None, top_k: Count = 1,
                aggregation_strategy: AggregationStrategy | None = None,
                prompt_name: str | None = None) -> list | np.ndarray:
        """Returns the answers to inputs, in the order of the inputs. An InputWarning says how many of them were cut at
        the model's `max_length`; a tagger, the task span and a model with a `doc_stride` split long texts instead, and
        cut them at `max_windows`. Another one says how many are in NFD, see `with_normalization`.

        Args:
            texts: lists of the same length, one list for each text of an input: `texts` or `texts, text_pairs`;
                `questions, contexts` for the task span; `prompts, choices` for the task choice, where each element of
                `choices` is a list of texts. A Series, an array or a generator of str is read like a list. Or one
                table, a DataFrame or a dict of columns, with the columns of the training, by default `text` and
                `text_pair`, `question` and `context`, or `prompt` and `choices`. Surrogates are replaced by U+FFFD.
            batch_size: rows of the encoder's input per batch. If None, batches have about 2,048 tokens, or 32 rows if
                XLA compiles each shape.
            top_k: for classifiers and the task span, the number of answers per input; for the task multilabel, of the
                labels with the highest scores, whether they reach their thresholds or not.
            aggregation_strategy: for taggers, how the labels of tokens become entities, as in the
                TokenClassificationPipeline of transformers. "first", "average" and "max" label each word by its first
                token, by the mean of its tokens' probabilities, or by the token with the highest probability; "simple"
                labels each token; "none" returns each token that is not O, with its BIO label. If None, "first" if the
                tags of the training file are those of words, "simple" if they are those of characters.
            prompt_name: for the task embed, the prompt to put before each text: `query`, `document`, or another one of
                the model. If None, the model's default prompt, or none.

        Returns:
            a list of the task's answers: `Prediction`s of a classifier, `LabelSet`s of the task multilabel, floats of
            the tasks regress and rerank, lists of `Entity`s of a tagger, `Answer`s of the task span, `Choice`s of the
            task choice; or the embeddings of the task embed, float32 [texts, hidden].

        Raises:
            InputError: an argument is out of range, the texts do not fit the task or have another form, the table lacks
                a column, or an element is no text; the message names its row.
        """
        check(TaskModel.predict, locals())
        options = self.task.answer_options(top_k, aggregation_strategy)
        model = self.with_prompt(prompt_name)
        answers, counts = model.answer_with_cuts(self.task.arguments(*self._lists(texts)), batch_size, **options)
        for line in self.task.describe_long({**counts, "split": 0}, len(answers)):
            warnings.warn(InputWarning(line), stacklevel=2)
        return answers

    def word_weights(self, *texts: Iterable, label: str | None = None,
                     batch_size: Count | None = None) -> list[list[WordWeight]]:
        """Returns how much each word of the inputs counts for their answers: for each input, a `WordWeight` for each
        word, in the order of its texts. Words are what is between spaces. A word's weight is the probability of the
        label, or the number that the model answers, minus that for the input without the word. Words that the model
        does not read, because they are beyond the first `max_length` tokens, have the weight 0. An input of n words
        costs as much as n + 1 predictions.

        Args:
            texts, batch_size: as for `predict`.
            label: for models with labels, the one whose probability is compared. If None, each input's most probable
                one.

        Raises:
            InputError: the task has no such answers, the label is unknown, or the texts are not as for `predict`.
        """
        check(TaskModel.word_weights, locals())
        if not self.task.weighed:
            weighed = ", ".join(name for name, task in TASKS.items() if task.weighed)
            raise InputError(f"only answers of the tasks {weighed} have word weights; this model is of the task "
                             f"{self.task.name}")
        labels = getattr(self.task, "labels", [])
        if label is not None and label not in labels:
            rule = "must be a label of the model" if labels else f"must be left out for the task {self.task.name}"
            raise InputError(Option("label"), f" {rule}; got {label!r:.100}{arguments.did_you_mean(label, labels)}")
        found = []
        for example in self.task.arguments(*self._lists(texts)):
            strings = self.task.texts(example)
            row, values = weigh(self.task, self.tokenizer, strings, lambda encoded: self.outputs(encoded, batch_size))
            column = int(values.argmax()) if label is None else labels.index(label)
            found.append([WordWeight(strings[segment][start:end], start, end, float(weights[column]),
                                     self.task.inputs[segment])
                          for start, end, segment, weights in zip(*(part.tolist() for part in row.values()))])
        return found

    def with_prompt(self, prompt_name: str | None) -> Self:
        """Returns a copy that puts this prompt before the texts to embed, or itself if it is None."""
        return self if prompt_name is None else self.with_task(self.task.with_prompt(prompt_name))

    def with_normalization(self, normalization: str | None) -> Self:
        """Returns a copy whose tokenizer has this `normalization`, or the same one if it is None."""
        return dataclasses.replace(cast(Any, self), tokenizer=self.tokenizer.with_normalization(normalization))

    def _lists(self, texts: tuple) -> Sequence:
        """Returns the arguments of `predict`; instead of a single table, its columns."""
        if len(texts) != 1 or not arguments.is_table(texts[0]):
            return texts
        table, names = texts[0], self.task.column_names(self.task.inputs, self.columns)
        pass_columns = f"; pass the columns themselves: predict({', '.join(['table[…]'] * len(names))})"
        columns = list(getattr(table, "columns", table))
        check_columns("texts", list(map(str, columns)), names, pass_columns)
        by_name = dict(zip(map(str, columns), columns))
        return [table[by_name[name]] for name in names]

    def answer(self, examples: Sequence, batch_size: int | None = None, **options: Any) -> list | np.ndarray:
        """Returns the answers to examples that the task's `read` returned; see `predict`."""
        return self.answer_with_cuts(examples, batch_size, **options)[0]

    def answer_with_cuts(self, examples: Sequence, batch_size: int | None = None,
                         **options: Any) -> tuple[list | np.ndarray, Counter]:
        """Returns what `answer` returns, and the numbers of examples that were `cut`, and `split` into windows, and
        that are in `nfd`, see `Task.count_nfd`."""
        if isinstance(self.task, Embed) and not examples:  # no embeddings are as wide as that of a text
            return self.answer([self.task.example("")])[:0], Counter()
        encoded = self.task.encode(examples, self.tokenizer)
        answers = self.task.answers(encoded, self.outputs(encoded, batch_size), **options)
        return answers, Counter(cut=encoded.cut, split=encoded.split, nfd=self.task.count_nfd(examples, self.tokenizer))

    def evaluate(self, data: Data, **columns: Unpack[ScoreColumns]) -> dict:
        """Returns the scores of the model on labelled data, the same as in the `metrics.json` that `finetune` writes:
        `model.evaluate("test.tsv")["accuracy"]`. For the arguments see `encode`.

        Raises:
            InputError: the data is invalid or has other labels than the model; the message names the row.
        """
        return self.score(self.encode(data, **columns))[0]

    def calibrate(self, data: Data | None = None, *, temperature_data: Data | None = None,
                  max_error: arguments.MaxError | None = None,
                  threshold: arguments.Probability | None = None, seed: arguments.Seed = 0,
                  **columns: Unpack[ScoreColumns]) -> Self:
        """Returns a copy whose scores are closer to probabilities, or with other thresholds: the lowest one at which a
        bound on the errors holds, one set by hand, or those that are best on labelled data. `save_settings` writes
        them. Needs scikit-learn for a temperature or a bound.

        Args:
            data: labelled data that did not train the model. With `max_error`, it measures the threshold. Otherwise, it
                chooses the best thresholds: for the task intent, one that separates texts in scope from those with the
                `out_of_scope_label`; for the task multilabel, one for each label. Thresholds that the data do not
                decide stay: of an intent model if all texts are in scope, and of a label that no text has.
            temperature_data: other such data, which fits the temperature of a classifier if the expected calibration
                error of its texts is above 0.02, and determines which thresholds are tested. If None, there is no
                temperature; but with `max_error`, half of `data` is used.
            max_error: for classifiers, with confidence 0.95 at most this share of the answers that are `in_scope` is
                wrong, for texts like those of `data`. Texts out of scope that are answered count as wrong.
            threshold: an answer with a lower score is not `in_scope`.
            seed: determines the halves.
            columns: see `encode`.

        Raises:
            InputError: the data is invalid, an argument does not fit the task or the others, or no threshold keeps
                `max_error`; the message says which bound holds, and about how many texts it would take.
        """
        task, given = self.task, not_none(temperature_data=temperature_data, max_error=max_error, threshold=threshold)
        check(TaskModel.calibrate, {"seed": seed, **given})
        if not isinstance(task, Classify) and (given or not task.has_threshold):
            names = ["classify and intent take ", Option(next(iter(given)))] if given else [
                "classify, intent and multilabel can be calibrated"]
            raise InputError("only the tasks ", *names, f"; this model is of the task {task.name}")
        if not given and not task.has_threshold:
            raise InputError("a model of the task classify needs a ", Option("max_error"), ", ",
                             Option("temperature_data"), " or a ", Option("threshold"))
        alone = not not_none(data=data, temperature_data=temperature_data, max_error=max_error, **columns)
        arguments.check_rules(("threshold", threshold, "the only argument", threshold is None or alone),
                              ("data", data, ["labelled data, or left out with a ", Option("threshold")],
                               threshold is not None or data is not None))
        if threshold is not None:
            return self.with_task(cast(Classify, task).with_threshold(threshold, "hand"))
        encoded = self.encode(cast(Data, data), **columns)
        total = len(encoded.examples)
        if not given:
            return self.score(encoded, choose_threshold=True)[1]
        if temperature_data is not None:
            fit = self.encode(temperature_data, **columns)
        else:
            fit, encoded = (task.encode(half, self.tokenizer) for half in halves(
                cast(Classify, task), encoded.examples, seed))
        if max_error is not None and (line := describe_repeats(task, fit.examples, encoded.examples)):
            warnings.warn(InputWarning(f"data: {line}"), stacklevel=2)
        return self.with_task(recalibrated(cast(Classify, task), self.runtime, (fit, self.outputs(fit)),
                                           (encoded, self.outputs(encoded)), max_error, total))

    def encode(self, data: Data, *, data_format: str | None = None, text_column: str | None = None,
               text_pair_column: str | None = None, label_column: str | None = None,
               label_columns: list[str] | None = None, label_delimiter: Delimiter | None = None,
               out_of_scope_label: str | None = None) -> Encoded:
        """Reads labelled data and encodes it for the model.

        Args:
            data: a file, a pandas DataFrame, or a list of dicts or tuples, see `finetune`.
            data_format: see `finetune`. Default: by the file's suffix, also if the training file had another format.
            text_column, text_pair_column, label_column, label_columns, label_delimiter: see `finetune`. Default: as in
                training.
            out_of_scope_label: label of the texts that are out of scope, for classifiers.
        """
        columns = not_none(data_format=data_format, text_column=text_column, text_pair_column=text_pair_column,
                           label_column=label_column, label_columns=label_columns, label_delimiter=label_delimiter)
        check(TaskModel.encode, columns)
        for name, value in not_none(out_of_scope_label=out_of_scope_label, **columns).items():
            if (tasks := tasks_with(name)) and name not in self.task.options:
                raise InputError(Option(name), f" must be left out unless the task is {' or '.join(tasks)}; "
                                 f"got {value!r} for the task {self.task.name}")
        opened = self.task.open(data, "data", **self._with_remembered(columns))
        examples = list(self.iterate(opened, **columns))
        if isinstance(self.task, MultiLabel) and label_columns and (
                missing := sorted(set(self.task.labels) - set(label_columns))):
            raise InputError(Option("label_columns"), " must have a column for each label of the model; missing: "
                             f"{', '.join(missing)}")
        self.task.check(opened, examples, out_of_scope_label)
        for line in self.task.describe_long({"nfd": self.task.count_nfd(examples, self.tokenizer)}, len(examples)):
            warnings.warn(InputWarning(line), stacklevel=2)
        encoded = self.task.encode(examples, self.tokenizer)
        self.task.check_encoded(opened, encoded)
        return encoded

    def iterate(self, path: Path | Rows, **columns: Any) -> Iterator:
        """Yields the examples of the task's `iterate`, with the columns of the training as defaults of `columns`."""
        try:
            yield from self.task.iterate(path, **self._with_remembered(columns))
        except (MissingColumn, UnknownSuffix) as error:
            data_format = self.columns.get("data_format")
            if data_format and "data_format" not in columns and not isinstance(path, Rows):
                raise type(error)(*error.parts, "; the model was trained with ", Option(f"data_format={data_format!r}"),
                                  ": pass it if this file has that format") from None
            remembered = {name: value if isinstance(value, str) else ",".join(value)
                          for name, value in self._with_remembered(columns).items() if name not in columns}
            if isinstance(error, UnknownSuffix) or not remembered:
                raise
            lists = ", or label_column for a file with lists" if "label_columns" in remembered else ""
            names = [part for name, value in remembered.items() for part in (" and ", Option(f"{name}={value!r}"))]
            raise MissingColumn(*error.parts, "; the model was trained with ", *names[1:],
                                f": pass the names in this file{lists}") from None

    def _with_remembered(self, columns: dict[str, Any]) -> dict[str, Any]:
        """Returns the columns of the training, replaced by `columns`; a data format has columns of its own."""
        if "data_format" in columns:
            return columns
        replaced = {"label_columns"} if columns.get("label_column") else (
            {"label_column", "label_delimiter"} if columns.get("label_columns") else set())
        return {name: value for name, value in self.columns.items() if name not in {"data_format", *replaced}} | columns

    def score(self, encoded: Encoded, choose_threshold: bool = False) -> tuple[dict, Self]:
        """Returns the scores of the model on the examples of `encode`, and the model with the threshold that was used:
        its own, or if `choose_threshold`, the best one for these examples."""
        outputs = self.outputs(encoded)
        task = self.task.calibrated(encoded, outputs) if choose_threshold else self.task
        return task.score(encoded, outputs), self.with_task(task)


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The score `metric` of the model, in percent if `percent`, before and after it was exported, the number of
    examples, and the share of those with equal answers, scores aside; None if answers are numbers."""

    metric: str
    original: float
    exported: float
    examples: int
    equal: float | None
    percent: bool = False

    @property
    def loss(self) -> float:
        """The loss in percentage points; negative if the exported model is better."""
        return round((1 if self.percent else 100) * (self.original - self.exported), 6)

    def __str__(self) -> str:
        equal = "" if self.equal is None else f"; {self.equal:.2%} of the answers are equal"
        return (f"{self.metric} {self.exported:.4f}, and {self.original:.4f} before the export, on {self.examples:,} "
                f"examples{equal}")


def compare(original: TaskModel, exported: TaskModel, encoded: Encoded) -> Comparison:
    """Compares two models of the same task, perhaps with other tokens, on labelled examples that the first encoded."""
    task, metric = original.task, original.task.main_score(encoded.examples)
    both = (original, encoded), (exported, task.encode(encoded.examples, exported.tokenizer))
    parts = [(each, model.outputs(each)) for model, each in both]
    before, after = (task.score(*part)[metric] for part in parts)
    return Comparison(metric, before, after, len(encoded.examples),
                      equal_answers(*(task.answers(*part) for part in parts)), task.percent)


def equal_answers(one: list | np.ndarray, other: list | np.ndarray) -> float | None:
    """Returns the share of equal answers in two lists, scores aside; None if they are numbers or there are none."""
    first, second = (list(map(_without_scores, answers)) for answers in (one, other))
    return None if not first or first[0] is None else sum(map(operator.eq, first, second)) / len(first)


def _without_scores(answer: Any) -> Any:
    """Returns an answer of a task, with None in place of its numbers that are not positions."""
    if isinstance(answer, float | np.ndarray):
        return None
    if dataclasses.is_dataclass(answer):
        answer = list(vars(answer).values())
    return [_without_scores(part) for part in answer] if isinstance(answer, list | tuple) else answer
