"""Flags that say how texts are read with a vocab.txt, which does not say so itself."""

from absl import flags

NAMES = ("lower_case", "strip_accents", "split_cjk", "normalization")


def define(values):
    flags.DEFINE_bool("lower_case", None, "Lower-case texts, for uncased models; where not given, if the vocabulary "
                      "holds no capital letters.", flag_values=values)
    flags.DEFINE_bool("strip_accents", None, "Decompose texts and drop accents; as lower_case where not given.",
                      flag_values=values)
    flags.DEFINE_bool("split_cjk", True, "Make each CJK ideograph a word.", flag_values=values)
    flags.DEFINE_enum("normalization", None, ["none", "NFC"], "NFC puts together the Hangul syllables that "
                      "strip_accents takes apart; where not given, if the vocabulary spells Korean in syllables.",
                      flag_values=values)


def tokenizer(values):
    """The `BertTokenizer` of the file `--vocab`."""
    from keras_bert.text import BertTokenizer

    return BertTokenizer(values.vocab, *(getattr(values, name) for name in NAMES))
