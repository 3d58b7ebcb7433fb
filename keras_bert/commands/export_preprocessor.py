"""`keras-bert export preprocessor`: writes a tokenizer as a SavedModel that takes strings."""

from absl import flags

from keras_bert.commands import casing

REQUIRED = ("vocab", "output")


def define(values):
    flags.DEFINE_string("vocab", None, "vocab.txt: one word piece a line.", flag_values=values)
    flags.DEFINE_string("output", None, "SavedModel folder to write.", flag_values=values)
    casing.define(values)
    flags.DEFINE_integer("seq_length", 128, "Tokens that the root pads and cuts to.", flag_values=values)
    flags.DEFINE_enum("truncator", "round_robin", ["round_robin", "waterfall"],
                      "How several texts share the length: token by token in turn, or the first ones first.",
                      flag_values=values)
    flags.DEFINE_string("sample", None, "Texts, one a line: a warning says if the vocabulary cannot spell most of "
                        "their words.", flag_values=values)
    flags.DEFINE_bool("overwrite", False, "Replace output.", flag_values=values)


def run(values, _):
    from keras_bert.export import export_preprocessor

    tokenizer = casing.tokenizer(values)
    if values.sample is not None:
        with open(values.sample, encoding="utf-8", errors="replace") as file:
            tokenizer.warn_if_unknown(file, values.sample)
    export_preprocessor(tokenizer, values.output, seq_length=values.seq_length, truncator=values.truncator,
                        overwrite=values.overwrite)
    print(values.output)
