"""The section of a model card on the threshold, which is written again when that changes."""

import os
import re
from collections.abc import Sequence

from keras_bert.arguments import Path
from keras_bert.files.atomic import atomic_file
from keras_bert.tasks import Task

_TITLE, _NEXT = "## Threshold", "## Training"
_MEANING = ("An answer with a score below the threshold is not `in_scope`: it is not to be used. What holds of the "
            "threshold holds for texts like those that were measured. If the texts change, measure again.")


def threshold_section(lines: Sequence[str]) -> str:
    """Returns the section, without a line break at its end."""
    return "\n\n".join([_TITLE, "\n".join(f"- {line}" for line in lines), _MEANING])


def rewrite_card(folder: Path, task: Task) -> None:
    """Replaces the section in the model card of a folder, or adds it before the one on the training. Other sections
    stay as they are. A folder without a card, and a task without a threshold, have none."""
    path, lines = os.path.join(folder, "README.md"), task.describe_thresholds()
    if not lines or not os.path.exists(path):
        return
    with open(path, encoding="utf-8", newline="") as file:
        text = file.read()
    section = threshold_section(lines) + "\n\n"
    found = re.search(rf"^{_TITLE}$.*?(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    start, end = found.span() if found else [text.find(f"{_NEXT}\n")] * 2
    if start < 0:  # at the end
        text = text.rstrip("\n") + "\n\n"
        start = end = len(text)
    with atomic_file(path) as new, open(new, "w", encoding="utf-8", newline="") as file:
        file.write(text[:start] + section + text[end:])
