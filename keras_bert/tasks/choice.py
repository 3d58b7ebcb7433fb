"""The best of several endings."""

import dataclasses

import numpy as np

from keras_bert.data import ChoiceBatches, ChoiceExample, read_choices
from keras_bert.errors import InputError
from keras_bert.models import BertMultipleChoice
from keras_bert.tasks.base import Encoded, Task, log_softmax


@dataclasses.dataclass(frozen=True)
class Choice:
    """The number of the best ending, counted from 0, and the probability of each."""

    index: int
    probabilities: list[float]


@dataclasses.dataclass(frozen=True)
class MultipleChoice(Task):
    """Multiple choice, as of SWAG (Devlin et al., 2018, section 4.4)."""

    name, main, columns = "choice", "accuracy", ("prompt", "choices")

    @classmethod
    def read(cls, path, format=None, label="label", **_):
        examples = list(read_choices(path, format))
        if label is not None and examples[0].label is None:
            raise InputError(f"{path}: there is no label")
        return examples

    def head(self, bert, dropout):
        return BertMultipleChoice(bert, dropout)

    def example(self, prompt, choices):
        return ChoiceExample(prompt, list(choices), None, None)

    def split(self, line):
        prompt, *choices = line.split("\t")
        return (prompt, choices) if len(choices) > 1 else None

    def takes(self):
        return "a prompt and at least two choices"

    def encode(self, examples, tokenizer):
        rows = [tokenizer.pack([example.prompt] * len(example.choices), example.choices, self.max_length)
                for example in examples]
        labelled = bool(examples) and examples[0].label is not None
        targets = np.array([example.label for example in examples], np.int32) if labelled else None
        return Encoded(examples, rows, targets, ChoiceBatches)

    def answers(self, encoded, outputs):
        probabilities = [np.exp(log_softmax(output[:len(example.choices)]))
                         for example, output in zip(encoded.examples, outputs)]
        return [Choice(int(row.argmax()), row.tolist()) for row in probabilities]

    def score(self, encoded, outputs):
        """`accuracy`; `loss`, the mean cross-entropy."""
        pairs = list(zip(self.answers(encoded, outputs), encoded.targets))
        right = [answer.probabilities[target] for answer, target in pairs]
        return {"accuracy": float(np.mean([answer.index == target for answer, target in pairs])),
                "loss": float(-np.log(np.maximum(right, 1e-12)).mean())}

    def record(self, example, answer):
        return {"prompt": example.prompt, "choices": example.choices, "choice": answer.index,
                "text": example.choices[answer.index], "probabilities": answer.probabilities}

    def line(self, example, answer):
        return "\t".join([str(answer.index), f"{max(answer.probabilities):.4f}", example.choices[answer.index],
                          example.prompt])
