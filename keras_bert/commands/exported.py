"""A raw-text SavedModel, asked as a fine-tuned folder is."""

import itertools
import os

import numpy as np

from keras_bert.errors import InputError
from keras_bert.files import read_json
from keras_bert.serving.answers import kind_of, read_answers
from keras_bert.serving.artifact import Artifact
from keras_bert.serving.tensors import DEFAULT, STRING
from keras_bert.tasks import TASKS, Answer, Choice, Entity, Prediction

_AT_ONCE = 32  # texts


class Exported:
    """What `keras-bert export text-model` wrote, with `task` and `answer` as `FineTuned` has them.

    Args:
        path: its folder.

    Raises:
        InputError: it is not one, or one that gives embeddings.
    """

    def __init__(self, path):
        self._path = path
        self._artifact = Artifact(path, threads=0)
        signature = self._artifact.signatures.get(DEFAULT)
        kind = signature and kind_of(signature.outputs)
        if not kind:
            raise InputError(f"{path}: must be a SavedModel of export text-model that answers; this one gives "
                             + ", ".join(signature.outputs if signature else ["nothing"]))
        task = TASKS[kind]
        self._labels = read_json(os.path.join(path, "assets", "labels.json")) if kind in ("classify", "tag") else None
        given = {"labels": self._labels, "pairs": "text_pair" in signature.inputs}
        self.task = task(max_length=self._artifact.longest,
                         **{name: value for name, value in given.items() if name in task.__dataclass_fields__})

    def answer(self, examples, top_k=1):
        """Answers examples; of spans only the best answer is known."""
        if top_k > 1 and self.task.name == "span":
            raise InputError(f"{self._path}: a SavedModel gives one answer to a question; "
                             "--top_k takes the folder that finetune wrote")
        answers = []
        for _, alike in itertools.groupby(examples, lambda example: len(getattr(example, "choices", ()))):
            alike = list(alike)
            for begin in range(0, len(alike), _AT_ONCE):
                inputs = self._inputs(alike[begin:begin + _AT_ONCE])
                outputs, = self._artifact.run(DEFAULT, [inputs])
                answers += read_answers(outputs, self._labels if top_k > 1 else None)
        return [self._of_task(answer, top_k) for answer in answers]

    def _inputs(self, examples):
        columns = {name: [getattr(example, name) for example in examples] for name in self.task.columns[1:]}
        columns[self.task.columns[0]] = [self.task.text(example) for example in examples]
        return {name: np.vectorize(_encoded, [STRING])(np.array(column, STRING)) for name, column in columns.items()}

    def _of_task(self, answer, top_k):
        """An answer as the task has it."""
        match self.task.name:
            case "classify":
                return Prediction(answer["labels"][:top_k], answer["scores"][:top_k], answer["in_scope"])
            case "regress":
                return answer
            case "tag":
                return [Entity(**entity) for entity in answer]
            case "span":
                return Answer(**answer)
            case "choice":
                return Choice(**answer)


def _encoded(text):
    return text.encode("utf-8", "ignore")  # a surrogate of a broken argument is no character
