"""`keras-bert features`: writes an encoder's vectors of texts."""

from absl import flags

from keras_bert.terminal import StatusLine

REQUIRED = ("model", "input", "output")


def define(values):
    flags.DEFINE_string("model", None, "Pretrained encoder, a folder or a name; or a folder that finetune wrote.",
                        flag_values=values)
    flags.DEFINE_string("input", None, "File of texts: .txt with a text a line; .tsv, .csv, .jsonl by column names.",
                        flag_values=values)
    flags.DEFINE_string("output", None, ".npz or .parquet file to write.", flag_values=values)
    flags.DEFINE_string("features", "concat-last-4", "embeddings, last, second-to-last, sum-last-4, concat-last-4, "
                        "sum-all, or layer-N, 0 for the embeddings.", flag_values=values)
    flags.DEFINE_enum("pooling", "none", ["none", "cls", "mean"],
                      "A vector a token; or one a text, that of [CLS] or the mean.", flag_values=values)
    flags.DEFINE_string("text", "text", "Column of the text.", flag_values=values)
    flags.DEFINE_string("text_pair", None, "Column of the second text; text_pair if there is one.", flag_values=values)
    flags.DEFINE_integer("max_length", 128, "Longest input in tokens; longer texts are cut.", flag_values=values)
    flags.DEFINE_integer("batch_size", 32, "Texts a batch.", flag_values=values)
    flags.DEFINE_bool("overwrite", False, "Replace output.", flag_values=values)


def run(values, _):
    from keras_bert.training.feature_vectors import write_features

    line = StatusLine()

    def show(done, texts):
        if line.is_due():
            line.show(f"{done} of {texts} texts")

    try:
        texts, tokens = write_features(**values.flag_values_dict(), progress=show)
    finally:
        line.clear()
    print(f"{values.output}: {texts} texts, {tokens} tokens")
