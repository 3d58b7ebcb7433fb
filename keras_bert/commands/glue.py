"""The files of predictions that GLUE's server takes (gluebenchmark.com/faq): a header, then an index and a label or a
number per line."""

import warnings
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from keras_bert.arguments import check_rules
from keras_bert.errors import InputError, InputWarning

if TYPE_CHECKING:
    from keras_bert.tasks import Prediction, Task

HEADER = "index\tprediction"
_BINARY, _ENTAILMENT = ("0", "1"), ("entailment", "not_entailment")
_INFERENCE = ("contradiction", "entailment", "neutral")
# The labels of each data format; the server takes numbers from 0 to 5 for stsb.
_LABELS = {"cola": _BINARY, "sst2": _BINARY, "mrpc": _BINARY, "qqp": _BINARY, "stsb": (), "mnli": _INFERENCE,
           "qnli": _ENTAILMENT, "rte": _ENTAILMENT, "wnli": _BINARY, "ax": _INFERENCE}


def check(data_format: str | None, task: "Task", top_k: int) -> None:
    """Raises an InputError if the server would not take the answers of a task to files of a data format."""
    from keras_bert.tasks import Classify

    if data_format not in _LABELS:
        raise InputError(f"--data_format must be one of {', '.join(_LABELS)} with --output_format=glue; "
                         f"got {data_format}")
    check_rules(("top_k", top_k, "1 with --output_format=glue", top_k <= 1))
    needed = "task regress" if data_format == "stsb" else f"labels {', '.join(_LABELS[data_format])}"
    found = f"labels {', '.join(sorted(task.labels))}" if isinstance(task, Classify) else f"task {task.name}"
    if found != needed:
        raise InputError(f"the model must have the {needed} for --data_format={data_format}; "
                         f"got one with the {found}")


def complete(chunks: Iterable[list]) -> Iterator[list]:
    """Yields lists of examples; raises an InputError if rows of their file are skipped."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", InputWarning)
        try:
            yield from chunks
        except InputWarning as warning:
            raise InputError(f"{warning}; GLUE's server takes an answer for each row: repair these rows") from None


def line(number: int, example: Any, answer: "float | Prediction") -> str:
    """Returns the line of an answer. Its index is that of the file; in files without one, `number`."""
    prediction = f"{min(max(answer, 0.0), 5.0):.3f}" if isinstance(answer, float) else answer.label
    return f"{number if example.index is None else example.index}\t{prediction}"
