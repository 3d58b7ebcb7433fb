"""The tokenizer that a flag of a command names."""

import os
from typing import Any

from keras_bert.arguments import not_none
from keras_bert.errors import InputError


def find_tokenizer(vocab: str, **rules: Any) -> Any:
    """Returns the `Tokenizer` of a `vocab.txt`, with these rules where they are not None; or of a folder or a model's
    name, which has rules of its own."""
    from keras_bert.presets import find_vocabulary
    from keras_bert.text import BertTokenizer, load_tokenizer

    path, given = find_vocabulary(vocab), not_none(**rules)
    if not os.path.isdir(path):
        return BertTokenizer(path, **{"lower_case": None} | given)
    if given:
        flags = ", ".join(f"--{name.removeprefix('has_')}" for name in given)
        raise InputError(f"{flags}: only for a vocab.txt; the folder {path} has its own tokenizer settings")
    return load_tokenizer(path)
