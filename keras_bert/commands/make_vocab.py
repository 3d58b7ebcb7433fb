"""`keras-bert make-vocab`: learns a vocabulary of word pieces from texts."""

import os
import sys

from absl import flags

from keras_bert.errors import InputError
from keras_bert.files import check_free, replacing, writing

REQUIRED = ("input", "size", "output")


def define(values):
    flags.DEFINE_list("input", None, "UTF-8 text files to learn from, globs allowed: a.txt,wiki/*.txt.",
                      flag_values=values)
    flags.DEFINE_integer("size", None, "Pieces in the vocabulary, the five special tokens included.",
                         flag_values=values)
    flags.DEFINE_string("output", None, "File to write: a vocab.txt, or with --model=bpe a tokenizers JSON file.",
                        flag_values=values)
    flags.DEFINE_bool("lower_case", False, "Lower-case the text. Korean has no case: it needs none.",
                      flag_values=values)
    flags.DEFINE_bool("strip_accents", None, "Drop combining marks; as --lower_case if not given.", flag_values=values)
    flags.DEFINE_enum("hangul", "syllables", ["syllables", "jamo"], "What Korean is spelled in; jamo, the letters of a "
                      "syllable, need --strip_accents.", flag_values=values)
    flags.DEFINE_enum("model", "wordpiece", ["wordpiece", "bpe"], "How words are cut. Both learn the same pieces, by "
                      "merges; wordpiece, which is BERT's, then takes the longest piece that fits, bpe merges in the "
                      "order learned. bpe is for comparison only: it writes a tokenizers JSON file, which takes words "
                      "that BERT's rules have cut already.", flag_values=values)
    flags.DEFINE_integer("min_frequency", 2, "How often a character, or a pair that becomes a piece, must occur.",
                         flag_values=values)
    flags.DEFINE_float("held_out", 0.01, "Share of the lines to hold out for the report.", flag_values=values)
    flags.DEFINE_bool("overwrite", False, "Replace the output.", flag_values=values)


def run(values, _):
    from keras_bert.text.learning import find_texts, format_report, learn_vocabulary, report_vocabulary
    from keras_bert.text.vocabulary import save_vocabulary

    paths = find_texts(values.input)
    _check_output(values.output, paths, values.overwrite)
    try:
        learned = learn_vocabulary(paths, values.size, values.lower_case, values.strip_accents, values.hangul,
                                   values.min_frequency, values.held_out, _show)
    finally:
        _show("")
    check_free(values.output, values.overwrite)  # it may have been written meanwhile
    with writing(values.output):
        os.makedirs(os.path.dirname(os.path.abspath(values.output)), exist_ok=True)
    with replacing(values.output) as part:
        if values.model == "bpe":
            with open(part, "w", encoding="utf-8") as file:
                file.write(learned.bpe_tokenizer().to_str(pretty=True))
        else:
            save_vocabulary(learned.pieces, part)
    if len(learned.pieces) < values.size:
        print(f"keras-bert: the texts give {len(learned.pieces)} pieces, not {values.size}; more text, or a lower "
              "--min_frequency, would give more", file=sys.stderr)
    rules = learned.rules
    print(f"{values.output}: {len(learned.pieces)} pieces; lower_case={rules.lower_case}, "
          f"strip_accents={rules.strip_accents}")
    print(format_report(report_vocabulary(learned, values.model)))


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
