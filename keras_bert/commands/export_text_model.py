"""`keras-bert export text-model`."""

from typing import Any, Literal

from keras_bert.arguments import Count, Normalization, Pooling, not_none
from keras_bert.errors import InputError
from keras_bert.files.atomic import check_free

EXAMPLE = "keras-bert export text-model --model=my_model --output=exported"


def run(model: str, output: str, pooling: Pooling | None = None, normalize: bool | None = None,
        normalization: Normalization | None = None, versioned: bool = False, name: str | None = None,
        max_length: Count | None = None, dtype: Literal["float32", "bfloat16"] | None = None, jit_compile: bool = False,
        overwrite: bool = False) -> None:
    """Export a model as a SavedModel that takes strings and returns answers or embeddings.

    Args:
        model: Folder that finetune wrote, for answers; or a pretrained encoder, a folder or a name, for vectors; a
            folder of sentence-transformers, with its pooling and prompts.
        output: SavedModel folder to write; with versioned, the folder of its versions.
        pooling: Export one embedding per text: mean, the mean of the tokens' vectors; cls, the vector of [CLS]; max,
            the maximum over the tokens in each dimension. Default: as the model says; a plain encoder returns
            pooled_output and mean_output.
        normalize: Divide embeddings by their L2 norm; --nonormalize: do not. Default: as the model says; a plain
            encoder does not.
        normalization: NFC composes texts in NFD, see predict. Default: as in training.
        versioned: Write the SavedModel as the next numbered version in output, for TensorFlow Serving or keras-bert
            serve, with the files to start TensorFlow Serving.
        name: With versioned: the name of the model in requests. Default: that of the folder.
        max_length: Maximum length in tokens; longer texts are truncated. Default: as in training; for a pretrained
            encoder, as its files say (max_seq_length of sentence-transformers, model_max_length), or all positions.
        dtype: bfloat16 takes half the space. Default: as the model computes, bfloat16 if it was trained in
            mixed_bfloat16, otherwise float32.
        jit_compile: Compile the model with XLA, for GPUs: texts are padded to a few lengths.
        overwrite: Replace the output.
    """
    if name is not None and not versioned:
        raise InputError(f"--name needs --versioned; got --name={name} without it")
    from keras_bert.export import export_text_model, export_version
    from keras_bert.inference.fine_tuned import load_tuned
    from keras_bert.weights import load_pretrained, open_weights
    from keras_bert.weights.native import has_settings

    if not versioned:
        check_free(output, overwrite, (model,))
    embedding = not_none(pooling=pooling, normalize=normalize)
    source = None if embedding or has_settings(model) else open_weights(model, takes_texts=True)
    if source is None or source.kind == "embedding":
        tuned = load_tuned(model, embedding)
        loaded, tokenizer, task = tuned.model, tuned.tokenizer, tuned.task
    else:
        loaded, tokenizer, task = load_pretrained(source), source.needed_tokenizer(), None
    tokenizer = tokenizer.with_normalization(normalization)
    options: dict[str, Any] = {"max_length": max_length, "dtype": dtype, "jit_compile": jit_compile}
    if versioned:
        print(export_version(loaded, tokenizer, output, name, task, **options))
    else:
        export_text_model(loaded, tokenizer, output, task, overwrite=overwrite, **options)
        print(output)
