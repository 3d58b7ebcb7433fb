"""`keras-bert make-vocab`."""

import os
import sys
from typing import Literal

from keras_bert.errors import InputError
from keras_bert.files import atomic_file, check_free, writing

EXAMPLE = "keras-bert make-vocab --input='texts/*.txt' --size=32000 --output=vocab.txt"


def run(input: list[str], size: int, output: str, lower_case: bool = False, strip_accents: bool | None = None,
        hangul: Literal["syllables", "jamo"] = "syllables", model: Literal["wordpiece", "bpe"] = "wordpiece",
        min_frequency: int = 2, held_out: float = 0.01, overwrite: bool = False):
    """Learn a vocabulary from text.

    Args:
        input: UTF-8 text files to learn from, globs allowed: a.txt,wiki/*.txt.
        size: Number of tokens in the vocabulary, the five special tokens included.
        output: File to write: a vocab.txt, or with --model=bpe a tokenizers JSON file.
        lower_case: Lower-case the text. Korean has no case and does not need it.
        strip_accents: Remove combining marks. Default: as lower_case.
        hangul: How Korean is spelled: in syllables, or in jamo, the letters of a syllable, which need --strip_accents.
        model: How words are split. Both models learn the same tokens, by merges; wordpiece, BERT's, then takes the
            longest token that matches, bpe merges in the order learned. bpe is for comparison only: it writes a
            tokenizers JSON file, which takes words that BERT's rules have split already.
        min_frequency: Minimum number of occurrences of a character, or of a pair that becomes a token.
        held_out: Share of the lines to hold out for the report.
        overwrite: Replace the output.
    """
    from keras_bert.text.learning import find_texts, format_report, learn_vocabulary, report_vocabulary
    from keras_bert.text.vocabulary import save_vocabulary

    paths = find_texts(input)
    _check_output(output, paths, overwrite)
    try:
        learned = learn_vocabulary(
            paths, size, lower_case, strip_accents, hangul, min_frequency, held_out, _show)
    finally:
        _show("")
    check_free(output, overwrite)  # it may have been written meanwhile
    with writing(output):
        os.makedirs(os.path.dirname(os.path.abspath(output)), exist_ok=True)
    with atomic_file(output) as part:
        if model == "bpe":
            with open(part, "w", encoding="utf-8") as file:
                file.write(learned.bpe_tokenizer().to_str(pretty=True))
        else:
            save_vocabulary(learned.pieces, part)
    if len(learned.pieces) < size:
        print(f"keras-bert: the texts give {len(learned.pieces)} pieces, not {size}; more text, or a lower "
              "--min_frequency, would give more", file=sys.stderr)
    rules = learned.rules
    print(f"{output}: {len(learned.pieces)} pieces; lower_case={rules.lower_case}, "
          f"strip_accents={rules.strip_accents}")
    print(format_report(report_vocabulary(learned, model)))


def _check_output(output, paths, overwrite):
    """Refuses what cannot be written before the texts are read."""
    check_free(output, overwrite)
    if os.path.isdir(output):
        raise InputError(f"{output}: must be a file; it is a folder")
    if os.path.realpath(output) in map(os.path.realpath, paths):
        raise InputError(f"{output}: must not be one of the texts to learn from")


def _show(line):
    """Redraws the line that tells what goes on, on a terminal only."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{line}")
        sys.stderr.flush()
