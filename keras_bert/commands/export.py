"""`keras-bert export`: writes an encoder as a Hub-style SavedModel."""

from absl import flags

REQUIRED = ("model", "output")


def define(values):
    flags.DEFINE_string("model", None, "Folder that finetune wrote, or a Hugging Face folder.", flag_values=values)
    flags.DEFINE_string("output", None, "SavedModel folder to write.", flag_values=values)
    flags.DEFINE_enum("dtype", "float32", ["float32", "bfloat16"],
                      "bfloat16: half the size, for serving; nothing is trainable.", flag_values=values)
    flags.DEFINE_bool("jit_compile", False, "Compile with XLA, once a shape: for GPU and TPU.", flag_values=values)
    flags.DEFINE_bool("overwrite", False, "Replace output.", flag_values=values)


def run(values, _):
    from keras_bert.convert import load_pretrained
    from keras_bert.export import export_encoder
    from keras_bert.text import BertTokenizer

    export_encoder(load_pretrained(values.model), values.output, BertTokenizer.from_folder(values.model),
                   dtype=values.dtype, jit_compile=values.jit_compile, overwrite=values.overwrite)
    print(values.output)
