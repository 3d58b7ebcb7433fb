"""`Exported`, a raw-text SavedModel with the interface of `FineTuned`."""

import itertools
import os

import numpy as np

from keras_bert.errors import InputError
from keras_bert.files import read_json
from keras_bert.serving.saved_model import SavedModel
from keras_bert.serving.tensors import DEFAULT, STRING
from keras_bert.tasks import TASKS, Answer, Choice, Entity, Prediction

_BATCH = 32  # texts
# For each task, an output that no other task's model has.
_OUTPUTS = {"classify": "label", "multilabel": "holds", "regress": "value", "tag": "entity_label", "span": "answer",
            "choice": "choice", "embed": "embedding"}


class Exported:
    """A SavedModel of `keras-bert export text-model`, with the `task`, `iterate` and `answer` of `FineTuned`.

    Args:
        path: folder of the SavedModel.
        threads: number of TensorFlow's threads; 0 for TensorFlow's default.

    Raises:
        InputError: the folder is not such a SavedModel, or the model is an encoder without a head.
    """

    def __init__(self, path, threads=0):
        self._path = path
        self._saved_model = SavedModel(path, threads)
        signature = self._saved_model.signatures.get(DEFAULT)
        kind = next((task for task, output in _OUTPUTS.items() if signature and output in signature.outputs), None)
        if not kind:
            found = f"returns {', '.join(signature.outputs)}" if signature else f"has no signature {DEFAULT}"
            raise InputError(f"{path}: must be a SavedModel of export text-model with a task; this one {found}")
        task = TASKS[kind]
        has_labels = "labels" in task.__dataclass_fields__
        self._labels = read_json(os.path.join(path, "assets", "labels.json")) if has_labels else None
        arguments = {"labels": self._labels, "pairs": "text_pair" in signature.inputs}
        self.task = task(max_length=self._saved_model.max_length,
                         **{name: value for name, value in arguments.items() if name in task.__dataclass_fields__})

    def iterate(self, path, **columns):
        """Yields the examples of the task's `iterate`."""
        return self.task.iterate(path, **columns)

    def answer_with_cuts(self, examples, top_k=1, aggregation_strategy=None):
        """Returns the answers to examples, and 0: the SavedModel does not say how many it has cut. For questions, only
        the best answer is known; entities are aggregated by the strategy of the export."""
        if aggregation_strategy:
            raise InputError(f"{self._path}: a SavedModel has one aggregation strategy; "
                             "--aggregation_strategy needs the folder that finetune wrote")
        if top_k > 1 and self.task.name == "span":
            raise InputError(f"{self._path}: a SavedModel gives one answer to a question; "
                             "--top_k needs the folder that finetune wrote")
        answers = []
        for _, group in itertools.groupby(examples, lambda example: len(getattr(example, "choices", ()))):
            group = list(group)
            for begin in range(0, len(group), _BATCH):
                outputs, = self._saved_model.run(DEFAULT, [self._inputs(group[begin:begin + _BATCH])])
                rows = zip(*(_to_lists(array) for array in outputs.values()))
                answers += [self._read(dict(zip(outputs, row)), top_k) for row in rows]
        return answers, 0

    def _inputs(self, examples):
        columns = {name: [getattr(example, name) for example in examples] for name in self.task.columns[1:]}
        columns[self.task.columns[0]] = [self.task.text(example) for example in examples]
        return {name: np.vectorize(str.encode, [STRING])(np.array(column, STRING)) for name, column in columns.items()}

    def _read(self, row, top_k):
        """Returns the answer in a row of the outputs, a dict of names to Python values."""
        match self.task.name:
            case "classify":
                best = [(row["label"], row["score"])]
                if top_k > 1:
                    best = sorted(zip(self._labels, row["probabilities"]), key=lambda pair: -pair[1])[:top_k]
                return Prediction([label for label, _ in best], [score for _, score in best], row.get("in_scope"))
            case "multilabel":
                return self.task.label_set(np.array(row["probabilities"]), row["holds"], top_k)
            case "regress":
                return row["value"]
            case "tag":
                fields = ("label", "text", "start", "end", "score")
                entities = [Entity(**dict(zip(fields, values)))
                            for values in zip(*(row[f"entity_{field}"] for field in fields))]
                return [entity for entity in entities if entity.start >= 0]  # -1 pads the shorter lists of a batch
            case "span":
                return Answer(row["answer"], row["start"], row["end"], row["score"])
            case "choice":
                return Choice(row["choice"], row["probabilities"])
            case "embed":
                return np.array(row["embedding"])


def _to_lists(array):
    """Returns an array as nested lists of Python values, bytes decoded."""
    def decode(value):
        return [decode(item) for item in value] if isinstance(value, list) else value.decode(errors="replace")

    return decode(array.tolist()) if array.dtype == STRING else array.tolist()
