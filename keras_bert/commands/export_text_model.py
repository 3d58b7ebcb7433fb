"""`keras-bert export text-model`: writes a model as a SavedModel that takes strings and answers them."""

import os

from absl import flags

REQUIRED = ("model", "output")


def define(values):
    flags.DEFINE_string("model", None, "Folder that finetune wrote, for answers; or a pretrained encoder, a folder or "
                        "a name, for embeddings.", flag_values=values)
    flags.DEFINE_string("output", None, "SavedModel folder to write.", flag_values=values)
    flags.DEFINE_integer("max_length", None, "Longest input in tokens; longer texts are cut. Where not given, what "
                         "the model was trained with, or 128 for embeddings.", flag_values=values)
    flags.DEFINE_enum("dtype", "float32", ["float32", "bfloat16"], "bfloat16: half the size.", flag_values=values)
    flags.DEFINE_bool("overwrite", False, "Replace output.", flag_values=values)


def run(values, _):
    from keras_bert.convert import load_pretrained, open_source
    from keras_bert.export import export_text_model
    from keras_bert.training import FineTuned

    options = {"dtype": values.dtype, "overwrite": values.overwrite}
    if os.path.exists(os.path.join(values.model, "settings.json")):
        tuned = FineTuned.load(values.model)
        if values.max_length is not None:
            options["max_length"] = values.max_length
        export_text_model(tuned.model, tuned.tokenizer, values.output, **tuned.task.answering() | options)
    else:
        source = open_source(values.model)
        max_length = 128 if values.max_length is None else values.max_length
        export_text_model(load_pretrained(source), source.needed_tokenizer(), values.output, max_length=max_length,
                          **options)
    print(values.output)
