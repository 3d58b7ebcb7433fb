"""`keras-bert export`: writes an encoder as a Hub-style SavedModel."""

from absl import flags

REQUIRED = ("model", "output")


def define(values):
    flags.DEFINE_string("model", None, "Folder that finetune wrote, or a pretrained encoder: a folder or a name.",
                        flag_values=values)
    flags.DEFINE_string("output", None, "SavedModel folder to write.", flag_values=values)
    flags.DEFINE_enum("dtype", "float32", ["float32", "bfloat16"],
                      "bfloat16: half the size, for serving; nothing is trainable.", flag_values=values)
    flags.DEFINE_bool("jit_compile", False, "Compile with XLA, once a shape: for GPU and TPU.", flag_values=values)
    flags.DEFINE_bool("overwrite", False, "Replace output.", flag_values=values)


def run(values, _):
    from keras_bert.convert import load_pretrained
    from keras_bert.export import export_encoder
    from keras_bert.presets import find_pretrained
    from keras_bert.text import BertTokenizer

    folder = find_pretrained(values.model)
    export_encoder(load_pretrained(folder), values.output, BertTokenizer.from_folder(folder), dtype=values.dtype,
                   jit_compile=values.jit_compile, overwrite=values.overwrite)
    print(values.output)
