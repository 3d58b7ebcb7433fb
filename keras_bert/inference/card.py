"""The section of a model card on the threshold, which is written again when that changes."""

import os
import re
import warnings
from collections.abc import Sequence

from keras_bert.arguments import Path
from keras_bert.errors import InputWarning
from keras_bert.files.atomic import atomic_file
from keras_bert.tasks import Task

# Comments mark what is replaced, so that users can edit the rest of the card.
_BEGIN, _END = "<!-- written by calibrate -->", "<!-- until here -->"
_MEANING = "\n\nAn answer with a score below the threshold is not `in_scope`: it is not to be used."


def threshold_section(lines: Sequence[str], of_answers: bool = True) -> str:
    """Returns the section, without a line break at its end. `of_answers` says whether an answer has one threshold."""
    listed = "\n".join(f"- {line}" for line in lines)
    return f"## Threshold\n\n{_BEGIN}\n{listed}{_MEANING if of_answers else ''}\n{_END}"


def rewrite_card(folder: Path, task: Task) -> None:
    """Replaces what this module has written into the model card of a folder, or adds the section at its end; everything
    else stays. A folder without a card, and a task without a threshold, have none. A card that is not UTF-8 stays, with
    a warning."""
    path, lines = os.path.join(folder, "README.md"), task.describe_thresholds()
    if not lines or not os.path.exists(path):
        return
    try:
        with open(path, encoding="utf-8", newline="") as file:
            text = file.read()
    except UnicodeDecodeError:
        return warnings.warn(InputWarning(f"{path}: is not UTF-8, so it does not get the threshold"), stacklevel=3)
    line_break = "\r\n" if "\r\n" in text else "\n"
    section = threshold_section(lines, hasattr(task, "threshold")).replace("\n", line_break)
    written = section[section.index(_BEGIN):]
    new, count = re.subn(f"{_BEGIN}.*?{_END}", lambda _: written, text, count=1, flags=re.DOTALL)
    if not count:
        new = line_break.join([text.rstrip("\r\n"), "", section, ""])
    with atomic_file(path) as target, open(target, "w", encoding="utf-8", newline="") as file:
        file.write(new)
