"""`keras-bert export text-model`: writes a model as a SavedModel that takes strings and answers them."""

import os

from absl import flags

from keras_bert.errors import InputError

REQUIRED = ("model",)


def define(values):
    flags.DEFINE_string("model", None, "Folder that finetune wrote, for answers; or a pretrained encoder, a folder or "
                        "a name, for embeddings.", flag_values=values)
    flags.DEFINE_string("output", None, "SavedModel folder to write.", flag_values=values)
    flags.DEFINE_string("serving_dir", None, "In place of output: folder of versions for TensorFlow Serving, or serve; "
                        "the next one is written, and what the server is started with.", flag_values=values)
    flags.DEFINE_string("name", None, "With serving_dir: what requests call the model; the folder's name where not "
                        "given.", flag_values=values)
    flags.DEFINE_integer("max_length", None, "Longest input in tokens; longer texts are cut. Where not given, what "
                         "the model was trained with, or 128 for embeddings.", flag_values=values)
    flags.DEFINE_enum("dtype", "float32", ["float32", "bfloat16"], "bfloat16: half the size.", flag_values=values)
    flags.DEFINE_bool("jit_compile", False, "Compile the model with XLA, for GPUs: texts are padded to a few lengths.",
                      flag_values=values)
    flags.DEFINE_bool("overwrite", False, "Replace output.", flag_values=values)


def run(values, _):
    if (values.output is None) == (values.serving_dir is None):
        raise InputError("export text-model writes either --output or --serving_dir; got "
                         + ("neither" if values.output is None else "both"))
    if values.serving_dir is None and values.name is not None:
        raise InputError(f"--name is for --serving_dir; got --name={values.name} with --output")
    from keras_bert.export import export_text_model, export_version

    model, tokenizer, options = _load(values)
    if values.serving_dir is None:
        export_text_model(model, tokenizer, values.output, overwrite=values.overwrite, **options)
        print(values.output)
    else:
        print(export_version(model, tokenizer, values.serving_dir, values.name, **options))


def _load(values):
    """The model, its tokenizer, and what to say of both."""
    from keras_bert.convert import load_pretrained, open_source
    from keras_bert.training import FineTuned

    options = {"dtype": values.dtype, "jit_compile": values.jit_compile}
    if values.max_length is not None:
        options["max_length"] = values.max_length
    if os.path.exists(os.path.join(values.model, "settings.json")):
        tuned = FineTuned.load(values.model)
        return tuned.model, tuned.tokenizer, tuned.task.answering() | options
    source = open_source(values.model)
    return load_pretrained(source), source.needed_tokenizer(), options
