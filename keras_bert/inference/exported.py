"""`Exported`, a raw-text SavedModel with the interface of `FineTuned`."""

import copy
import itertools
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Self

import numpy as np

from keras_bert.arguments import AggregationStrategy, Path
from keras_bert.data.tables import Rows
from keras_bert.errors import InputError, Option
from keras_bert.files.json_files import read_json
from keras_bert.inference.saved_model import SavedModel
from keras_bert.inference.served_model import DEFAULT, STRING
from keras_bert.tasks import TASKS, Span, restored

_BATCH = 32  # texts


class Exported:
    """A SavedModel of `keras-bert export text-model`, as an `AnsweringModel`.

    Args:
        threads: number of TensorFlow's threads; 0 for its default.

    Raises:
        InputError: the folder is not such a SavedModel, or the model is an encoder without a head.
    """

    def __init__(self, path: str, threads: int = 0) -> None:
        self._path, self._signature = path, DEFAULT
        self._saved_model = SavedModel(path, threads)
        signature = self._saved_model.signatures.get(DEFAULT)
        settings = self._saved_model.task
        if settings is None:  # of version 0.3 or older
            task = next((task for task in TASKS.values() if signature and task.output in signature.outputs), None)
            if not (signature and task):
                found = f"returns {', '.join(signature.outputs)}" if signature else f"has no signature {DEFAULT}"
                raise InputError(f"{path}: must be a SavedModel of export text-model with a task; this one {found}")
            settings = {"task": task.name, "max_length": self._saved_model.max_length} | (
                {"pairs": "text_pair" in signature.inputs} if "pairs" in task.__dataclass_fields__ else {})
        if os.path.exists(labels := os.path.join(path, "assets", "labels.json")):
            settings = settings | {"labels": read_json(labels)}
        self.task, _ = restored(settings, path)

    def with_prompt(self, prompt_name: str | None) -> Self:
        """Returns a copy that runs the signature of a prompt, or itself if `prompt_name` is None."""
        if prompt_name is None:
            return self
        prompts = [name for name, signature in sorted(self._saved_model.signatures.items())
                   if name not in (DEFAULT, "encode") and "embedding" in signature.outputs]
        if prompt_name not in prompts:
            raise InputError(Option("prompt_name"), " must be ", f"one of {', '.join(prompts)}" if prompts else
                             f"left out for {self._path}, which has no prompts", f"; got {prompt_name!r}")
        prompted = copy.copy(self)
        prompted._signature = prompt_name
        return prompted

    def iterate(self, path: Path | Rows, **columns: Any) -> Iterator:
        return self.task.iterate(path, **columns)

    def answer_with_cuts(self, examples: Sequence, top_k: int = 1,
                         aggregation_strategy: AggregationStrategy | None = None) -> tuple[list, Counter]:
        """Returns the answers to examples, and no numbers: the SavedModel does not say how many it has cut or split.
        For questions, only the best answer is known; entities are aggregated by the strategy of the export."""
        if aggregation_strategy:
            raise InputError(f"{self._path}: a SavedModel has one aggregation strategy; ",
                             Option("aggregation_strategy"), " needs the folder that finetune wrote")
        if top_k > 1 and isinstance(self.task, Span):
            raise InputError(f"{self._path}: a SavedModel gives one answer to a question; ", Option("top_k"),
                             " needs the folder that finetune wrote")
        answers = []
        for _, examples_alike in itertools.groupby(examples, lambda example: len(getattr(example, "choices", ()))):
            group = list(examples_alike)
            for begin in range(0, len(group), _BATCH):
                outputs, = self._saved_model.run(self._signature, [self._inputs(group[begin:begin + _BATCH])])
                rows = zip(*(_to_lists(array) for array in outputs.values()))
                answers += [self.task.answer_of(dict(zip(outputs, row)), top_k) for row in rows]
        return answers, Counter()

    def _inputs(self, examples: Sequence) -> dict[str, np.ndarray]:
        columns = {name: [getattr(example, name) for example in examples] for name in self.task.inputs[1:]}
        columns[self.task.inputs[0]] = [self.task.text(example) for example in examples]
        return {name: np.vectorize(str.encode, [STRING])(np.array(column, STRING)) for name, column in columns.items()}


def _to_lists(array: np.ndarray) -> Any:
    """Returns an array as nested lists, bytes decoded."""
    def decode(value: Any) -> Any:
        return [decode(item) for item in value] if isinstance(value, list) else value.decode(errors="replace")

    return decode(array.tolist()) if array.dtype == STRING else array.tolist()
