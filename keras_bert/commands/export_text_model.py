"""`keras-bert export text-model`."""

import os
import sys
from typing import Literal

from keras_bert.arguments import Count, PositiveOrZero, check_rules
from keras_bert.errors import InputError, MissingColumn
from keras_bert.files import check_free, check_readable, read_json

_MAX_LOSS = 0.5
EXAMPLE = "keras-bert export text-model --model=my_model --output=exported"


def run(model: str, output: str, pooling: Literal["mean", "cls", "max"] | None = None, normalize: bool | None = None,
        versioned: bool = False, name: str | None = None, max_length: Count | None = None,
        dtype: Literal["float32", "bfloat16", "int8"] = "float32", jit_compile: bool = False, data: str | None = None,
        max_loss: PositiveOrZero = _MAX_LOSS, overwrite: bool = False):
    """Export a model as a SavedModel that takes strings and returns answers or embeddings.

    Args:
        model: Folder that finetune wrote, for answers; or a pretrained encoder, a folder or a name, for vectors.
        output: SavedModel folder to write; with versioned, the folder of its versions.
        pooling: Export one embedding per text: mean, the mean of the tokens' vectors; cls, the vector of [CLS]; max,
            the maximum over the tokens in each dimension. Default: that of the model, if --normalize is given or it was
            written in the format keras_bert; a plain encoder returns pooled_output and mean_output.
        normalize: Divide embeddings by their L2 norm; --nonormalize: do not. Default: as the model says; a plain
            encoder does not.
        versioned: Write the SavedModel as the next numbered version in output, for TensorFlow Serving or keras-bert
            serve, with the files to start TensorFlow Serving.
        name: With versioned: the name of the model in requests. Default: that of the folder.
        max_length: Maximum length in tokens; longer texts are truncated. Default: as in training; for a plain encoder
            128, or the encoder's positions if there are fewer.
        dtype: bfloat16 takes half the space. With int8 (experimental), the weights take a quarter, and x86-64
            processors with VNNI or AMX are faster; it runs on no others than x86-64.
        jit_compile: Compile the model with XLA, for GPUs: texts are padded to a few lengths.
        data: With int8: labelled file of the model's task, to compare the scores of float32 and int8 before the export.
        max_loss: With data: largest loss of the score in points; nothing is exported if int8 loses more.
        overwrite: Replace the output.
    """
    if name is not None and not versioned:
        raise InputError(f"--name needs --versioned; got --name={name} without it")
    check_rules(("data", data, "left out unless the dtype is int8", data is None or dtype == "int8"),
                ("max_loss", max_loss, "left out without data", data is not None or max_loss == _MAX_LOSS))
    if data is not None:
        check_readable(data)
    from keras_bert.export import export_text_model, export_version

    if not versioned:
        check_free(output, overwrite, (model,))
    options = {"dtype": dtype, "jit_compile": jit_compile} | _given(max_length=max_length)
    loaded, tokenizer, task_options = _load(model, _given(pooling=pooling, normalize=normalize))
    if dtype == "int8":
        _check_int8(model, data, max_loss)
    if versioned:
        print(export_version(loaded, tokenizer, output, name, **task_options | options))
    else:
        export_text_model(loaded, tokenizer, output, overwrite=overwrite, **task_options | options)
        print(output)


def _given(**values):
    return {name: value for name, value in values.items() if value is not None}


def _load(path, embedding):
    """Returns the model, its tokenizer, and the options of the export that its task determines.

    Args:
        embedding: dict of the given arguments of `BertEmbedder`.
    """
    from keras_bert.convert import load_pretrained, open_source
    from keras_bert.models import BertEmbedder
    from keras_bert.training import FineTuned

    settings = read_json(file) if os.path.exists(file := os.path.join(path, "settings.json")) else {}
    if embedding or settings.get("task") == "embed":
        source = open_source(path)
        length = _given(max_length=(source.settings or {}).get("max_length"))
        return load_pretrained(source, BertEmbedder, **embedding), source.needed_tokenizer(), length
    if settings:
        tuned = FineTuned.load(path)
        return tuned.model, tuned.tokenizer, tuned.task.export_options()
    source = open_source(path)
    return load_pretrained(source), source.needed_tokenizer(), {}


def _check_int8(model, data, max_loss):
    """Warns if int8 is not expected to be faster here, and compares it with float32 on labelled data."""
    from keras_bert.export import int8
    from keras_bert.training import FineTuned

    if int8.is_slow_here():
        print("warning: int8 may be slower than float32 on this processor, which has neither VNNI nor AMX",
              file=sys.stderr)
    if data is not None:
        if not os.path.exists(os.path.join(model, "settings.json")):
            raise InputError(f"--data must be left out unless finetune wrote the model; got the pretrained {model}")
        try:
            comparison = FineTuned.load(model).compare_int8(data)
        except MissingColumn as error:
            problem = str(error).partition("; pass ")[0]
            raise InputError(f"{problem}; name the columns as in the training file") from None
        if not comparison.loss <= max_loss:  # also if it is not a number
            raise InputError(f"int8 must lose at most --max_loss={max_loss:g} points; it loses {comparison.loss:.2f}: "
                             f"{comparison}; export in float32 or bfloat16, or allow more")
        print(comparison)
