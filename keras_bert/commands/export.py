"""`keras-bert export`."""

from typing import Literal

from keras_bert.files.atomic import check_free

EXAMPLE = "keras-bert export --model=minilm --output=encoder"


def run(model: str, output: str, config: str | None = None, next_sentence_pooler: bool = False,
        dtype: Literal["float32", "bfloat16"] = "float32", jit_compile: bool = False, with_mlm: bool = False,
        overwrite: bool = False) -> None:
    """Export an encoder as a Hub-style SavedModel.

    Args:
        model: Weights in any format that convert reads: a folder, a checkpoint or a name.
        output: SavedModel folder to write.
        config: bert_config.json, for weights without one.
        next_sentence_pooler: Use the dense layer of the next-sentence head as the pooler: for pretraining checkpoints
            of the Model Garden, whose own pooler is not trained.
        dtype: bfloat16 takes half the space; it is for serving, and not trainable.
        jit_compile: Compile with XLA, for GPU and TPU; each input shape is compiled once.
        with_mlm: Also export the masked LM head, as .mlm; the weights must have one.
        overwrite: Replace the output.
    """
    from keras_bert.export import export_encoder
    from keras_bert.models import BertPretrainer
    from keras_bert.weights import load_pretrained, open_weights

    check_free(output, overwrite, (model, config))
    source = open_weights(model, config, next_sentence_pooler, takes_texts=True)
    if with_mlm:
        source.check_masked_lm("--with_mlm")
    encoder = load_pretrained(source, BertPretrainer, next_sentence=False) if with_mlm else load_pretrained(source)
    export_encoder(encoder, output, source.needed_tokenizer(), dtype=dtype, jit_compile=jit_compile,
                   overwrite=overwrite)
    print(output)
