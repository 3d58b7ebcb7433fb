"""`keras-bert export text-model`."""

import os
import sys
from typing import TYPE_CHECKING, Literal

from keras_bert.arguments import Count, PositiveOrZero, check_rules, given
from keras_bert.errors import InputError, MissingColumn
from keras_bert.files.atomic import check_free
from keras_bert.files.paths import check_readable

if TYPE_CHECKING:
    from keras_bert.inference.fine_tuned import FineTuned

_MAX_LOSS = 0.5
EXAMPLE = "keras-bert export text-model --model=my_model --output=exported"


def run(model: str, output: str, pooling: Literal["mean", "cls", "max"] | None = None, normalize: bool | None = None,
        versioned: bool = False, name: str | None = None, max_length: Count | None = None,
        dtype: Literal["float32", "bfloat16", "int8"] | None = None, jit_compile: bool = False, data: str | None = None,
        out_of_scope_label: str | None = None, max_loss: PositiveOrZero = _MAX_LOSS, overwrite: bool = False) -> None:
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
        max_length: Maximum length in tokens; longer texts are truncated. Default: as in training; for a pretrained
            encoder, as its files say (max_seq_length of sentence-transformers, model_max_length), or all positions.
        dtype: bfloat16 takes half the space. With int8 (experimental), the weights take a quarter, and x86-64
            processors with VNNI or AMX are faster; it runs on no others than x86-64. Default: as the model computes,
            bfloat16 if it was trained in mixed_bfloat16, otherwise float32.
        jit_compile: Compile the model with XLA, for GPUs: texts are padded to a few lengths.
        data: With int8: labelled file of the model's task, to compare the scores of float32 and int8 before the export.
        out_of_scope_label: With data: label of the texts that are out of scope, which the score leaves out.
        max_loss: With data: largest loss of the score in percentage points; nothing is exported if int8 loses more.
        overwrite: Replace the output.
    """
    if name is not None and not versioned:
        raise InputError(f"--name needs --versioned; got --name={name} without it")
    check_rules(("data", data, "left out unless the dtype is int8", data is None or dtype == "int8"),
                ("out_of_scope_label", out_of_scope_label, "left out without data",
                 data is not None or out_of_scope_label is None),
                ("max_loss", max_loss, "left out without data", data is not None or max_loss == _MAX_LOSS))
    if data is not None:
        check_readable(data)
    from keras_bert.export import export_text_model, export_version, int8
    from keras_bert.inference.fine_tuned import FineTuned
    from keras_bert.models import BertEmbedder
    from keras_bert.weights import load_pretrained, open_weights

    if not versioned:
        check_free(output, overwrite, (model,))
    embedding = given(pooling=pooling, normalize=normalize)
    if not embedding and os.path.exists(os.path.join(model, "settings.json")):
        tuned = FineTuned.load(model)
        loaded, tokenizer, options = tuned.model, tuned.tokenizer, tuned.task.export_options()
        if data is not None:
            _compare(tuned, data, out_of_scope_label, max_loss)
    elif data is not None:
        raise InputError("--data needs a folder that finetune wrote as --model, without --pooling and --normalize; got "
                         f"--model={model}")
    else:
        source = open_weights(model)
        loaded = load_pretrained(source, BertEmbedder, **embedding) if embedding else load_pretrained(source)
        tokenizer, options = source.needed_tokenizer(), {}
    if dtype == "int8" and int8.is_slow_here():
        print("warning: int8 may be slower than float32 on this processor, which has neither VNNI nor AMX",
              file=sys.stderr)
    options |= {"dtype": dtype, "jit_compile": jit_compile} | given(max_length=max_length)
    if versioned:
        print(export_version(loaded, tokenizer, output, name, **options))
    else:
        export_text_model(loaded, tokenizer, output, overwrite=overwrite, **options)
        print(output)


def _compare(tuned: "FineTuned", data: str, out_of_scope_label: str | None, max_loss: float) -> None:
    """Prints the scores of a model in float32 and int8; raises an InputError if int8 loses more than `max_loss`."""
    try:
        comparison = tuned.compare_int8(data, out_of_scope_label=out_of_scope_label)
    except MissingColumn as error:
        problem = str(error).partition("; pass ")[0]
        raise InputError(f"{problem}; name the columns as in the training file") from None
    if not comparison.loss <= max_loss:  # also if it is not a number
        raise InputError(f"int8 must lose at most --max_loss={max_loss:g} points; it loses {comparison.loss:.2f}: "
                         f"{comparison}; export in float32 or bfloat16, or allow more")
    print(comparison)
