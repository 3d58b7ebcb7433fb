"""A model handler of Apache Beam for SavedModels of texts: `texts | RunInference(SavedModelHandler("answers"))`."""

import itertools
from collections.abc import Iterable, Sequence

import numpy as np
from apache_beam.ml.inference.base import ModelHandler, PredictionResult

from keras_bert.arguments import replace_surrogates
from keras_bert.errors import InputError, Option
from keras_bert.inference.saved_model import SavedModel
from keras_bert.inference.served_model import DEFAULT, STRING, Arrays, RowMismatch


class SavedModelHandler(ModelHandler[str | dict, PredictionResult, SavedModel]):
    """Answers texts with a SavedModel in `RunInference`. Each worker process loads the model once.

    Elements are str or, for models with several inputs, dicts from the names of the inputs to values: str, or lists of
    str. Beam joins them to batches by their total length. The result of an element is a `PredictionResult` whose
    `inference` is a dict from the names of the outputs to NumPy arrays, those of a call with this element alone.

    Args:
        path: folder of the SavedModel, which all workers can read.
        row_wise: True if each row of the outputs depends on the same row of the inputs alone. SavedModels of this
            package say so themselves; otherwise, the elements of a batch run one by one.
        max_batch_tokens: estimated tokens per batch, at four bytes each. A longer element is a batch of its own.
        threads: number of TensorFlow's threads in a process. If 0, one per core, for runners that start one process per
            machine.
    """

    def __init__(self, path: str, row_wise: bool = False, max_batch_tokens: int = 2048, threads: int = 1) -> None:
        if max_batch_tokens < 1:
            raise InputError(Option("max_batch_tokens"), f" must be at least 1; got {max_batch_tokens}")
        # With equal limits Beam does not search for a size by measuring durations.
        super().__init__(min_batch_size=max_batch_tokens, max_batch_size=max_batch_tokens, element_size_fn=self._size)
        self._path = path
        self._row_wise = (DEFAULT,) if row_wise else ()
        self._max_batch_tokens = max_batch_tokens
        self._threads = threads

    def load_model(self) -> SavedModel:
        return SavedModel(self._path, self._threads, self._row_wise)

    def run_inference(self, batch: Sequence[str | dict], model: SavedModel,
                      inference_args: dict | None = None) -> Iterable[PredictionResult]:
        names = list(model.signatures[DEFAULT].inputs)
        requests = [_request(element, names) for element in batch]
        outputs = []
        for _, joined in itertools.groupby(requests, lambda request: model.batch_key(DEFAULT, request)):
            group = list(joined)
            try:
                outputs += model.run(DEFAULT, group)
            except RowMismatch:
                outputs += [model.run(DEFAULT, [request])[0] for request in group]
        return [PredictionResult(element, output, self._path) for element, output in zip(batch, outputs)]

    def get_num_bytes(self, batch: Sequence[str | dict]) -> int:
        return sum(_count_bytes(element) for element in batch)

    def get_metrics_namespace(self) -> str:
        return "keras_bert"

    def _size(self, element: str | dict) -> int:
        # Beam would emit an empty batch before an element of more than the maximum.
        return min(_count_bytes(element) // 4 + 2, self._max_batch_tokens)


def _request(element: str | dict, names: list[str]) -> Arrays:
    values = element if isinstance(element, dict) else {names[0]: element}
    if missing := [name for name in names if name not in values]:
        raise InputError(f"an element must have values of {', '.join(names)}; {missing[0]} is missing in "
                         f"{element!r:.60}")
    return {name: np.vectorize(_encode, [STRING])(np.array([values[name]], STRING)) for name in names}


def _count_bytes(element: str | dict | list[str]) -> int:
    if isinstance(element, str):
        return len(_encode(element))
    return sum(map(_count_bytes, element.values() if isinstance(element, dict) else element))


def _encode(text: str) -> bytes:
    return replace_surrogates(text).encode()
