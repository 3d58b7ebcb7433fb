"""`FineTuned`: the model folder that `finetune` writes and `predict` reads."""

import dataclasses
import os
from collections.abc import Sequence
from typing import Self

from keras_bert.arguments import Path
from keras_bert.errors import InputError
from keras_bert.files import read_json, write_json
from keras_bert.models import load_model
from keras_bert.models.base import BertTask
from keras_bert.tasks import TASKS, Encoded, Task, run
from keras_bert.text import BertTokenizer, save_vocabulary
from keras_bert.training.loop import prefers_few_shapes


@dataclasses.dataclass(frozen=True)
class FineTuned:
    """A fine-tuned model with everything that prediction needs.

    Example: `FineTuned.load(folder).predict(["a text"])[0]`

    Args:
        model: a head of `keras_bert.models`.
        tokenizer: the model's `BertTokenizer`.
        task: the task that the model was trained for, see `keras_bert.tasks`.
    """

    model: BertTask
    tokenizer: BertTokenizer
    task: Task

    def save(self, folder: Path) -> None:
        """Writes the files into an existing folder. The model is saved in a form that runs and trains anywhere: in the
        padded layout, with LoRA's updates added to the weights, and without frozen layers."""
        self.model.rebuild(layout="padded", lora_rank=None, frozen=()).save(os.path.join(folder, "model.keras"))
        self.model.bert.config.to_json(os.path.join(folder, "bert_config.json"))
        save_vocabulary(self.tokenizer.vocabulary, os.path.join(folder, "vocab.txt"))
        self.tokenizer.save_settings(folder)
        self.save_settings(folder)

    def save_settings(self, folder: Path) -> None:
        """Writes the task's labels and settings, which change when a threshold is chosen."""
        settings = self.task.settings()
        if "labels" in settings:
            write_json(os.path.join(folder, "labels.json"), settings.pop("labels"))
        write_json(os.path.join(folder, "settings.json"), settings)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Reads the folder that `save` wrote.

        Raises:
            InputError: the folder was not written by `save`.
        """
        model = load_model(folder, layout="padded" if prefers_few_shapes() else "unpadded")
        settings = read_json(os.path.join(folder, "settings.json"))
        if os.path.exists(path := os.path.join(folder, "labels.json")):
            settings["labels"] = read_json(path)
        task = settings.pop("task")
        if task not in TASKS:
            raise InputError(f"{folder}/settings.json: task must be one of {', '.join(TASKS)}; got {task!r}")
        return cls(model, BertTokenizer.from_folder(folder), TASKS[task](**settings))

    def predict(self, *texts, batch_size: int | None = None, **options) -> list:
        """Returns the answers to inputs, in the order of the inputs.

        Args:
            texts: lists of the same length, one list for each text of an input: `texts` or `texts, text_pairs`;
                `questions, contexts` for the task span; `prompts, choices` for the task choice, where each element of
                `choices` is a list of texts.
            batch_size: rows of the encoder's input per batch. If None, batches have about 2,048 tokens, or 32 rows if
                XLA compiles each shape.
            options: for classifiers and the task span `top_k`, the number of answers per input.

        Returns:
            a list of the task's answers: `Prediction`s of a classifier, floats of a regression, lists of `Entity`s of
            a tagger, `Answer`s of the task span, `Choice`s of the task choice.
        """
        return self.answer(self.task.arguments(*texts), batch_size, **options)

    def answer(self, examples: Sequence, batch_size: int | None = None, **options) -> list:
        """Returns the answers to examples that the task's `read` returned; see `predict`."""
        encoded = self.task.encode(examples, self.tokenizer)
        return self.task.answers(encoded, self.outputs(encoded, batch_size), **options)

    def outputs(self, encoded: Encoded, batch_size: int | None = None) -> list:
        """Returns the model's output for each row of `Encoded` examples, see `keras_bert.tasks.run`."""
        if batch_size is None and prefers_few_shapes():
            batch_size = 32
        return run(self.model, encoded.batched(self.tokenizer), batch_size)

    def evaluate(self, examples: Sequence, choose_threshold: bool = False) -> tuple[dict, Self]:
        """Scores the model on labelled examples: `scores, _ = model.evaluate(model.task.read("test.tsv"))`.

        Args:
            examples: examples that the task's `read` returned.
            choose_threshold: if True, chooses the task's threshold on these examples instead of using the model's.

        Returns:
            (scores, model): a dict, and the `FineTuned` with the threshold that was used.
        """
        return self.score(self.task.encode(examples, self.tokenizer), choose_threshold)

    def score(self, encoded: Encoded, choose_threshold: bool = False) -> tuple[dict, Self]:
        """Does the same as `evaluate` for `Encoded` examples."""
        outputs = self.outputs(encoded)
        task = self.task.calibrated(encoded, outputs) if choose_threshold else self.task
        return task.score(encoded, outputs), dataclasses.replace(self, task=task)
