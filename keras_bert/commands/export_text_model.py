"""`keras-bert export text-model`."""

import os
from typing import Literal

from keras_bert.arguments import Count
from keras_bert.errors import InputError

EXAMPLE = "keras-bert export text-model --model=my_model --output=exported"


def run(model: str, output: str | None = None, serving_dir: str | None = None, name: str | None = None,
        max_length: Count | None = None, dtype: Literal["float32", "bfloat16"] = "float32", jit_compile: bool = False,
        overwrite: bool = False):
    """Export a model as a SavedModel that takes strings and answers them.

    Args:
        model: Folder that finetune wrote, for answers; or a pretrained encoder, a folder or a name, for embeddings.
        output: SavedModel folder to write.
        serving_dir: Instead of output: folder of model versions for TensorFlow Serving or keras-bert serve; adds the
            next version, and the files to start TensorFlow Serving with.
        name: With serving_dir: the name of the model in requests. Default: that of the folder.
        max_length: Longest input in tokens; longer texts are cut. Default: as in training; 128 for embeddings.
        dtype: bfloat16 takes half the space.
        jit_compile: Compile the model with XLA, for GPUs: texts are padded to a few lengths.
        overwrite: Replace the output.
    """
    if (output is None) == (serving_dir is None):
        raise InputError("export text-model writes either --output or --serving_dir; got "
                         + ("neither" if output is None else "both"))
    if serving_dir is None and name is not None:
        raise InputError(f"--name is for --serving_dir; got --name={name} with --output")
    from keras_bert.export import export_text_model, export_version

    options = {"dtype": dtype, "jit_compile": jit_compile} | ({} if max_length is None else {"max_length": max_length})
    loaded, tokenizer, answering = _load(model)
    if serving_dir is None:
        export_text_model(loaded, tokenizer, output, overwrite=overwrite, **answering | options)
        print(output)
    else:
        print(export_version(loaded, tokenizer, serving_dir, name, **answering | options))


def _load(path):
    """The model, its tokenizer, and what its answers need."""
    from keras_bert.convert import load_pretrained, open_source
    from keras_bert.training import FineTuned

    if os.path.exists(os.path.join(path, "settings.json")):
        tuned = FineTuned.load(path)
        return tuned.model, tuned.tokenizer, tuned.task.export_options()
    source = open_source(path)
    return load_pretrained(source), source.needed_tokenizer(), {}
