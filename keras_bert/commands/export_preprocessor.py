"""`keras-bert export preprocessor`: writes a tokenizer as a SavedModel that takes strings."""

from absl import flags

REQUIRED = ("vocab", "output")


def define(values):
    flags.DEFINE_string("vocab", None, "vocab.txt: one word piece a line.", flag_values=values)
    flags.DEFINE_string("output", None, "SavedModel folder to write.", flag_values=values)
    flags.DEFINE_bool("lower_case", None, "Lower-case texts, for uncased models; where not given, if the "
                      "vocabulary holds no capital letters.", flag_values=values)
    flags.DEFINE_bool("strip_accents", None, "Decompose texts and drop accents; as lower_case where not given.",
                      flag_values=values)
    flags.DEFINE_bool("split_cjk", True, "Make each CJK ideograph a word.", flag_values=values)
    flags.DEFINE_enum("normalization", None, ["none", "NFC"], "NFC puts together the Hangul syllables that "
                      "strip_accents takes apart; where not given, if the vocabulary spells Korean in syllables.",
                      flag_values=values)
    flags.DEFINE_integer("seq_length", 128, "Tokens that the root pads and cuts to.", flag_values=values)
    flags.DEFINE_enum("truncator", "round_robin", ["round_robin", "waterfall"],
                      "How several texts share the length: token by token in turn, or the first ones first.",
                      flag_values=values)
    flags.DEFINE_string("sample", None, "Texts, one a line: a warning says if the vocabulary cannot spell most of "
                        "their words.", flag_values=values)
    flags.DEFINE_bool("overwrite", False, "Replace output.", flag_values=values)


def run(values, _):
    from keras_bert.export import export_preprocessor
    from keras_bert.text import BertTokenizer

    tokenizer = BertTokenizer(values.vocab, values.lower_case, values.strip_accents, values.split_cjk,
                              values.normalization)
    if values.sample is not None:
        with open(values.sample, encoding="utf-8", errors="replace") as file:
            tokenizer.warn_if_unknown(file, values.sample)
    export_preprocessor(tokenizer, values.output, seq_length=values.seq_length, truncator=values.truncator,
                        overwrite=values.overwrite)
    print(values.output)
