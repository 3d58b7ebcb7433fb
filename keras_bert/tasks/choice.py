"""Multiple choice: a prompt with multiple endings, one of which is right."""

import dataclasses
import functools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from keras_bert.arguments import Path
from keras_bert.data.batches import ChoiceBatches
from keras_bert.data.examples import choose
from keras_bert.data.tables import PUBLISHED, TEST_FILE, Rows, Table, check_columns, read_table
from keras_bert.errors import InputError
from keras_bert.files.json_files import Record
from keras_bert.tasks.base import Answers, Card, Encoded, Outputs, Reader, Task, log_softmax
from keras_bert.text import Tokenizer
from keras_bert.types import Encoder, Head, Tensor


@dataclasses.dataclass(frozen=True)
class ChoiceExample:
    """A prompt and its choices. `label` is the index of the right choice, from 0, or None if it is unknown. `row` is
    the line or record of the file, from 1, the header included."""

    prompt: str
    choices: list[str]
    label: int | None
    row: int | None


def _read_swag(path: Path | Rows) -> Table:
    """Reads the .csv files of SWAG (Zellers et al., 2018), or rows with the same columns. The words that all endings of
    a prompt begin with are in a column of their own."""
    names, rows = read_table(path, ("sent1", "sent2"), other=PUBLISHED)
    columns, labels = _numbered(names, "ending"), ["label"] * ("label" in names)
    return ["prompt", "choices", *labels], (Record(path, row.place, {
        "prompt": row.text("sent1"), "choices": [f"{row.text('sent2')} {row.text(column)}" for column in columns],
        "label": row.values.get("label")}) for row in rows)


def _numbered(names: Iterable[str], start: str) -> list[str]:
    """Returns `start`0, `start`1, …, as many as there are such names."""
    return [f"{start}{i}" for i in range(sum(bool(re.fullmatch(rf"{start}\d+", name)) for name in names))]


FORMATS: dict[str, Callable[..., Table]] = {
    "swag": _read_swag,
    "codah": functools.partial(read_table, kind=".tsv", header=(  # Chen et al., 2019
        "category", "prompt", *(f"choice{i}" for i in range(4)), "label")),
}


def read_choices(path: Path | Rows, data_format: str | None = None, is_labelled: bool = False,
                 ) -> Iterator[ChoiceExample]:
    """Reads a table of `prompt`, `choice0`, `choice1`, … and `label`, the index of the right choice. In `.jsonl`,
    `.json` and `.parquet`, the choices can also be a list `choices`. All rows must have the same number of choices.

    Args:
        path: the file, UTF-8, or `Rows`, see `read_table`.
        data_format: name of a published dataset's format in `FORMATS`.
        is_labelled: if True, a file without labels is an error.

    Raises:
        InputError: names the file and the row.
    """
    read = choose(path, data_format, FORMATS) if data_format else functools.partial(
        read_table, required=["prompt"], other=PUBLISHED)
    names, rows = read(path)
    check_columns(path, names, ["label"] * is_labelled, TEST_FILE)
    labelled, count = "label" in names and not data_format, 0
    columns = [] if "choices" in names else _numbered(names, "choice")
    for row in rows:
        choices = [row.text(column, labelled) for column in columns] or row.texts("choices", labelled)
        count = count or len(choices)
        if len(choices) < 2 or len(choices) != count:
            rule = f"{count} choices as the first row" if count > 1 else "two choices or more"
            raise InputError(f"{row}: must have {rule}; got {len(choices)}")
        if "label" in names and str(row.values["label"]) not in map(str, range(count)):
            raise row.error("label", f"a number from 0 to {count - 1}")
        label = int(row.values["label"]) if "label" in names else None
        yield ChoiceExample(row.text("prompt", labelled), choices, label, row.place)


@dataclasses.dataclass(frozen=True)
class Choice:
    """The index of the best ending, counted from 0, and the probability of each ending."""

    index: int
    probabilities: list[float]


@dataclasses.dataclass(frozen=True)
class MultipleChoice(Task):
    """Multiple choice, as in SWAG (Devlin et al., 2018, section 4.4)."""

    name, main, inputs, output = "choice", "accuracy", ("prompt", "choices"), "choice"
    exported_outputs = {"choice": (np.int32, "B"), "probabilities": (np.float32, "BN")}
    heads, weights, lite_outputs, display = ("BertMultipleChoice",), "multiple_choice", {"logit": "B"}, "choice"
    card = Card("multiple-choice", "the best of several endings", "Chooses the best of several endings of a text.")
    tuples = (("prompt", "choices", "label"),)

    @classmethod
    def iterate(cls, path: Path | Rows, data_format: str | None = None, label_column: str | None = "label",
                **_: Any) -> Iterator[ChoiceExample]:
        return read_choices(path, data_format, is_labelled=label_column is not None)

    def example(self, prompt: str, choices: Iterable[str]) -> ChoiceExample:
        return ChoiceExample(prompt, list(choices), None, None)

    def split(self, line: str) -> tuple[str, list[str]] | None:
        prompt, *choices = line.split("\t")
        return (prompt, choices) if len(choices) > 1 else None

    def describe_input(self) -> str:
        return "a prompt and at least two choices"

    def encode(self, examples: Sequence[ChoiceExample], tokenizer: Tokenizer) -> Encoded:
        packed = [tokenizer.pack_with_cuts([example.prompt] * len(example.choices), example.choices, self.max_length)
                  for example in examples]
        labelled = bool(examples) and examples[0].label is not None
        targets = np.array([example.label for example in examples], np.int32) if labelled else None
        return Encoded(examples, [rows for rows, _ in packed], targets, ChoiceBatches,
                       cut=sum(bool(cut) for _, cut in packed))

    def new_head(self, bert: Encoder, dropout: float) -> Head:
        from keras_bert.models import BertMultipleChoice

        return BertMultipleChoice(bert, dropout)

    def loss_arguments(self) -> dict[str, Any]:
        import keras

        return {"loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True)}

    def outputs_in_graph(self, model: Head, inputs: Sequence[Tensor]) -> Answers:
        """Returns the logit of one choice per row."""
        return {"logit": model([part[:, None] for part in inputs])[:, 0]}

    def encode_in_graph(self, outputs: Tensor, mask: Tensor) -> Answers:
        import tensorflow as tf

        return {"choice": tf.argmax(outputs, axis=1, output_type=tf.int32), "probabilities": tf.nn.softmax(outputs)}

    def answer_in_graph(self, reader: Reader, *inputs: Tensor) -> Answers:
        import tensorflow as tf

        prompts, choices = inputs
        batch, count = tf.unstack(tf.shape(choices))
        prompts = tf.gather(reader.tokens(prompts), tf.repeat(tf.range(batch), count))
        packed = reader.pack(prompts, reader.tokens(tf.reshape(choices, [batch * count])))
        packed = [tf.reshape(part, [batch, count, tf.shape(part)[1]]) for part in packed]
        return self.encode_in_graph(reader.run(*packed), packed[1])

    def answers(self, encoded: Encoded, outputs: Outputs) -> list[Choice]:
        probabilities = [np.exp(log_softmax(output[:len(example.choices)]))
                         for example, output in zip(encoded.examples, outputs)]
        return [Choice(int(row.argmax()), row.tolist()) for row in probabilities]

    def score(self, encoded: Encoded, outputs: Outputs) -> dict[str, Any]:
        """Returns `accuracy` and `loss`, the mean cross-entropy."""
        pairs = list(zip(self.answers(encoded, outputs), encoded.targets))
        right = [answer.probabilities[target] for answer, target in pairs]
        return {"accuracy": float(np.mean([answer.index == target for answer, target in pairs])),
                "loss": float(-np.log(np.maximum(right, 1e-12)).mean())}

    def answer_of(self, row: dict[str, Any], top_k: int = 1) -> Choice:
        return Choice(row["choice"], row["probabilities"])

    def exported_rows(self, encoded: Encoded, outputs: Outputs) -> list[dict[str, Any]]:
        return [{"choice": answer.index, "probabilities": answer.probabilities}
                for answer in self.answers(encoded, outputs)]

    def record(self, example: ChoiceExample, answer: Choice) -> dict[str, Any]:
        return {"prompt": example.prompt, "choices": example.choices, "choice": answer.index,
                "text": example.choices[answer.index], "probabilities": answer.probabilities}

    def cells(self, example: ChoiceExample, answer: Choice) -> list[str]:
        return [str(answer.index), f"{max(answer.probabilities):.4f}", example.choices[answer.index], example.prompt]
