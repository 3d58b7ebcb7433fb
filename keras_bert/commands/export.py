"""`keras-bert export`: writes an encoder as a Hub-style SavedModel."""

from absl import flags

from keras_bert.commands import weights
from keras_bert.errors import InputError

REQUIRED = ("model", "output")


def define(values):
    flags.DEFINE_string("model", None, "Weights in any format that `convert` reads: a folder, a checkpoint or a name.",
                        flag_values=values)
    weights.define(values)
    flags.DEFINE_string("output", None, "SavedModel folder to write.", flag_values=values)
    flags.DEFINE_enum("dtype", "float32", ["float32", "bfloat16"],
                      "bfloat16: half the size, for serving; nothing is trainable.", flag_values=values)
    flags.DEFINE_bool("jit_compile", False, "Compile with XLA, once a shape: for GPU and TPU.", flag_values=values)
    flags.DEFINE_bool("with_mlm", False, "Write the masked LM head too, as .mlm; the weights must have one.",
                      flag_values=values)
    flags.DEFINE_bool("overwrite", False, "Replace output.", flag_values=values)


def run(values, _):
    from keras_bert.convert import load_pretrained, open_source
    from keras_bert.export import export_encoder
    from keras_bert.models import BertPretrainer

    source = open_source(values.model, values.config, values.next_sentence_pooler)
    if values.with_mlm and source.kind not in ("masked_lm", "pretraining"):
        raise InputError(f"{source.path}: --with_mlm needs weights with a masked LM head; these are {source.kind}")
    model = load_pretrained(source, BertPretrainer, next_sentence=False) if values.with_mlm else load_pretrained(source)
    export_encoder(model, values.output, source.needed_tokenizer(), dtype=values.dtype,
                   jit_compile=values.jit_compile, overwrite=values.overwrite)
    print(values.output)
