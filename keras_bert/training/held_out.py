"""Validation data held out from the training data, for `finetune` without a validation file."""

import collections
import hashlib
from collections.abc import Iterable

from keras_bert.data.tables import Rows
from keras_bert.errors import InputError, Option
from keras_bert.tasks import Task
from keras_bert.text.same import SameTexts


def identity(texts: Iterable) -> tuple:
    """Returns texts with single spaces, which decide as in version 0.3 what is held out."""
    return tuple(" ".join(text.split()) if isinstance(text, str) else identity(text) for text in texts)


def hold_out(task: Task, path: str | Rows, examples: list, share: float, seed: int,
             same: SameTexts | None) -> tuple[list, list]:
    """Splits labelled examples into those for training and those held out, both in the order of the file.

    The `same` texts (if None, as in version 0.3, those that differ in white space alone), such pairs in either order,
    and for the task span all questions of a context, are in the same part (`Task.group`). All labels, of taggers the
    types of entities, are held out in proportion, and every label keeps examples for training; a text with several
    labels counts for the rarest of them (a simple form of Sechidis et al., 2011). The parts depend on the seed and the
    texts, but not on the order of the texts. Raises an InputError that names `path` if there are too few texts."""
    groups, labelled, strata = collections.defaultdict(list), {}, collections.defaultdict(list)
    keys = task.groups(examples, same) if same else [identity(task.group(example)) for example in examples]
    for key, example in zip(keys, examples):
        groups[key].append(example)
    for texts, group in groups.items():
        first, *others = (tuple(sorted(set(task.strata(example)))) for example in group)
        if all(labels == first for labels in others):  # texts with contradictory labels are not fit for validation
            labelled[texts] = first or ("",)
    left = collections.Counter(label for labels in labelled.values() for label in labels)
    for texts, labels in labelled.items():
        strata[min(labels, key=lambda label: (left[label], label))].append(texts)
    names = {texts: min(identity(task.group(example)) for example in groups[texts]) for texts in labelled}
    held_out, owed = set(), 0.0
    # From the most frequent label on: the shortfall of rare labels must not come from the next labels.
    for _, stratum in sorted(strata.items(), key=lambda item: (-len(item[1]), item[0])):
        owed += share * len(stratum)
        stratum.sort(key=lambda texts: hashlib.sha256(repr((seed, names[texts])).encode()).digest())
        count = round(owed)
        for texts in stratum:
            if count > 0 and all(left[label] > 1 for label in labelled[texts]):
                held_out.add(texts)
                left.subtract(labelled[texts])
                count, owed = count - 1, owed - 1
    parts: tuple[list, list] = [], []
    for key, example in zip(keys, examples):
        parts[key in held_out].append(example)
    if not parts[1]:
        unit, of_each = task.held_out, " of each label" if task.held_out == "texts" else ""
        more_helps = any(all(left[label] > 1 for label in labels) for labels in labelled.values())
        cure = (["a larger ", Option("valid_share=…")] if more_helps
                else [f"add {unit}: at least two different ones{of_each}"])
        raise InputError(f"{path}: has too few different {unit}{of_each} ({len(groups)} in all) to hold out "
                         f"{share:.0%} for validation; pass another file as ", Option("valid=…"), ", or ", *cure)
    return parts
