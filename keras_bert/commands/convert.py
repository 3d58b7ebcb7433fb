"""`keras-bert convert`: weights from any format to any other."""

from absl import flags

from keras_bert.commands import weights

REQUIRED = ("from", "to", "format")


def define(values):
    flags.DEFINE_string("from", None, "Weights to read, in any format: a folder, a TensorFlow checkpoint or a name.",
                        flag_values=values)
    flags.DEFINE_string("to", None, "Folder to write.", flag_values=values)
    flags.DEFINE_enum("format", None, ["huggingface", "tf1", "garden", "kerashub", "hub", "keras_bert"],
                      "What to write.", flag_values=values)
    weights.define(values)
    flags.DEFINE_string("vocab", None, "Another vocab.txt: rows are mapped to its pieces.", flag_values=values)
    flags.DEFINE_integer("max_position_embeddings", None, "Positions to keep.", flag_values=values)
    flags.DEFINE_list("allow_missing", [], "Names of weights that may be missing, with * for anything: they are "
                      "initialised.", flag_values=values)
    flags.DEFINE_list("ignore", [], "Names of weights to leave, with * for anything.", flag_values=values)
    flags.DEFINE_bool("allow_inexact", False, "Write what the format can hold where it cannot hold all.",
                      flag_values=values)
    flags.DEFINE_bool("overwrite", False, "Replace what stands at --to.", flag_values=values)


def run(values, _):
    from keras_bert.convert import convert

    options = values.flag_values_dict()
    source, path, form = (options.pop(name) for name in ("from", "to", "format"))
    convert(source, path, form, tell=print, **options)
    print(f"done: {path}")
