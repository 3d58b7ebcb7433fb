"""The folder that `finetune` writes and `predict` reads."""

import dataclasses
import os

from keras_bert.errors import InputError
from keras_bert.files import read_json, write_json
from keras_bert.models import load_model
from keras_bert.models.base import BertTask
from keras_bert.tasks import TASKS, Task, run
from keras_bert.text import BertTokenizer, save_vocabulary
from keras_bert.training.loop import compiles


@dataclasses.dataclass(frozen=True)
class FineTuned:
    """A fine-tuned model with all that it needs to answer texts.

    Args:
        model: a head of `keras_bert.models`.
        tokenizer: its `BertTokenizer`.
        task: what it was trained for, see `keras_bert.tasks`.
    """

    model: BertTask
    tokenizer: BertTokenizer
    task: Task

    def save(self, folder):
        """Writes the files into a folder that exists; the model as one that runs and trains anywhere: with LoRA's sums,
        and with no frozen part."""
        self.model.rebuild(layout="padded", lora_rank=None, frozen=()).save(os.path.join(folder, "model.keras"))
        self.model.bert.config.to_json(os.path.join(folder, "bert_config.json"))
        save_vocabulary(self.tokenizer.vocabulary, os.path.join(folder, "vocab.txt"))
        self.tokenizer.save_settings(folder)
        self.save_settings(folder)

    def save_settings(self, folder):
        """Writes the files that say what the task is; they change when a threshold is chosen."""
        settings = self.task.settings()
        if "labels" in settings:
            write_json(os.path.join(folder, "labels.json"), settings.pop("labels"))
        write_json(os.path.join(folder, "settings.json"), settings)

    @classmethod
    def load(cls, folder):
        """Reads the folder that `save` wrote.

        Raises:
            InputError: it is not one.
        """
        model = load_model(folder, layout="padded" if compiles() else "unpadded")
        settings = read_json(os.path.join(folder, "settings.json"))
        if os.path.exists(path := os.path.join(folder, "labels.json")):
            settings["labels"] = read_json(path)
        task = settings.pop("task")
        if task not in TASKS:
            raise InputError(f"{folder}/settings.json: task must be one of {', '.join(TASKS)}; got {task!r}")
        return cls(model, BertTokenizer.from_folder(folder), TASKS[task](**settings))

    def predict(self, *texts, batch_size=None, **options):
        """Answers inputs, in their order.

        Args:
            texts: lists, one for each text that an input consists of: `texts`, or `texts, text_pairs`; of spans
                `questions, contexts`; of choices `prompts, choices`, where each choices is a list of texts.
            batch_size: rows of the encoder's input a batch; where None, as many as have 2,048 tokens, or 32 where XLA
                compiles each shape.
            options: of classifiers and spans `top_k`, how many answers to give of each.

        Returns:
            a list of what the task answers: `Prediction`s of a classifier, floats of a regression, lists of `Entity`s
            of a tagger, `Answer`s of spans, `Choice`s.
        """
        return self.answer(self.task.arguments(*texts), batch_size, **options)

    def answer(self, examples, batch_size=None, **options):
        """Answers the examples that the task's `read` returned; see `predict`."""
        encoded = self.task.encode(examples, self.tokenizer)
        return self.task.answers(encoded, self.outputs(encoded, batch_size), **options)

    def outputs(self, encoded, batch_size=None):
        """What the model says to each row of `Encoded` examples, see `keras_bert.tasks.run`."""
        if batch_size is None and compiles():
            batch_size = 32
        return run(self.model, encoded.batched(self.tokenizer), batch_size)

    def evaluate(self, examples, choose_threshold=False):
        """Scores the model on labelled examples.

        Args:
            examples: what the task's `read` returned.
            choose_threshold: whether to choose the task's threshold on them instead of taking the model's.

        Returns:
            (scores, a dict; the model, with the threshold chosen).
        """
        return self.score(self.task.encode(examples, self.tokenizer), choose_threshold)

    def score(self, encoded, choose_threshold=False):
        """`evaluate` of `Encoded` examples."""
        outputs = self.outputs(encoded)
        task = self.task.tuned(encoded, outputs) if choose_threshold else self.task
        return task.score(encoded, outputs), dataclasses.replace(self, task=task)
