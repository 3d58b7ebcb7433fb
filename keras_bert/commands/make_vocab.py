"""`keras-bert make-vocab`."""

import os
from typing import Literal
from unicodedata import is_normalized

from keras_bert.errors import InputError
from keras_bert.files.atomic import atomic_file, atomic_folder, check_free
from keras_bert.files.paths import find_texts, writing
from keras_bert.terminal import StatusLine, print_error

EXAMPLE = "keras-bert make-vocab --input='texts/*.txt' --vocab_size=32000 --output=vocab.txt"


def run(input: list[str], vocab_size: int, output: str, extend: str | None = None, lower_case: bool = False,
        strip_accents: bool | None = None, hangul: Literal["syllables", "jamo"] = "syllables", min_frequency: int = 2,
        held_out: float = 0.01, overwrite: bool = False) -> None:
    """Train a vocabulary on text.

    Args:
        input: UTF-8 text files to train on, globs allowed: a.txt,wiki/*.txt.
        vocab_size: Number of tokens in the vocabulary: the five special tokens and, with --extend, those of the model
            included.
        output: File to write, a vocab.txt. With --extend, a folder for --vocab of convert and make-pretraining-data.
        extend: Model, or folder with a tokenizer, to add tokens to. Its own tokens keep their ids, and its rules apply.
        lower_case: Lower-case the text. Korean has no case and does not need it.
        strip_accents: Remove combining marks. Default: as lower_case.
        hangul: How Korean is spelled: in syllables, or in jamo, the letters of a syllable, which need --strip_accents.
        min_frequency: Minimum number of occurrences of a character, or of a pair that becomes a token.
        held_out: Share of the lines to hold out for the report.
        overwrite: Replace the output.
    """
    from keras_bert.text import vocabulary_training
    from keras_bert.text.vocabulary import save_vocabulary

    paths = find_texts(input)
    if extend is not None:
        if lower_case or strip_accents is not None or hangul != "syllables":
            raise InputError("--lower_case, --strip_accents and --hangul must be left out with --extend: the rules are "
                             f"those of {extend}")
        return _extend(extend, paths, vocab_size, min_frequency, held_out, output, overwrite)
    check_free(output, overwrite)
    if os.path.isdir(output):
        raise InputError(f"{output}: must be a file; it is a folder")
    if os.path.realpath(output) in map(os.path.realpath, paths):
        raise InputError(f"{output}: must not be one of the input files")
    with StatusLine() as line:
        vocabulary = vocabulary_training.train_vocabulary(
            paths, vocab_size, lower_case, strip_accents, hangul, min_frequency, held_out,
            line.show if line.interactive else None)
    check_free(output, overwrite)  # it may have been written meanwhile
    with writing(output):
        os.makedirs(os.path.dirname(os.path.abspath(output)), exist_ok=True)
    with atomic_file(output) as path:
        save_vocabulary(vocabulary.tokens, path)
    count, rules = len(vocabulary.tokens), vocabulary.rules
    if count < vocab_size:
        print_error(f"the texts give only {count} of {vocab_size} tokens; use more text or a lower --min_frequency")
    if not rules.strip_accents:
        _warn_of_nfd(vocabulary.tokens)
    print(f"{output}: {count} tokens; lower_case={rules.lower_case}, strip_accents={rules.strip_accents}")
    print(vocabulary_training.format_report(vocabulary_training.report_vocabulary(vocabulary)))


def _warn_of_nfd(tokens: list[str]) -> None:
    if sum(not is_normalized("NFC", token) for token in tokens) > len(tokens) // 100:
        print_error("the texts are in NFD, as on macOS, so the vocabulary fits only such texts; convert them to NFC")


def _extend(model: str, paths: list[str], vocab_size: int, min_frequency: int, held_out: float, output: str,
            overwrite: bool) -> None:
    from keras_bert.presets import find_pretrained
    from keras_bert.text import load_tokenizer
    from keras_bert.text.extension import describe, extend_vocabulary

    check_free(output, overwrite, (model, *paths))
    before = load_tokenizer(find_pretrained(model))
    with StatusLine() as line:
        after, lines = extend_vocabulary(before, paths, vocab_size, min_frequency, held_out,
                                         line.show if line.interactive else None)
    with atomic_folder(output, overwrite) as folder:
        after.save(folder)
    if (count := len(after.vocabulary)) < vocab_size:
        print_error(f"these are {count} tokens of the {vocab_size} that are allowed: the texts give no more; if a word "
                    "is missing, use more text or a lower --min_frequency")
    if not getattr(after.rules, "strip_accents", False):
        _warn_of_nfd(after.vocabulary[len(before.vocabulary):])
    print(f"{output}: {count} tokens, {count - len(before.vocabulary)} of them new")
    print(describe(before, after, lines))
