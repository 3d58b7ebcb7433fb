"""`keras-bert fill-mask`: guesses the [MASK] in texts."""

import json

from absl import flags

from keras_bert.commands import weights
from keras_bert.errors import InputError

REQUIRED = ("model",)


def define(values):
    flags.DEFINE_string("model", None, "Weights with a masked LM head, in any format that `convert` reads: a folder, a "
                        "checkpoint or a name.", flag_values=values)
    weights.define(values)
    flags.DEFINE_enum("format", "text", ["text", "jsonl"],
                      "Lines of piece, probability, text; or one JSON object a text.", flag_values=values)
    flags.DEFINE_integer("top_k", 5, "Guesses a [MASK].", flag_values=values, lower_bound=1)


def run(values, texts):
    if not texts:
        raise InputError("fill-mask takes texts with [MASK] as arguments; got none")
    from keras_bert.convert import load_pretrained, open_source
    from keras_bert.models import BertPretrainer
    from keras_bert.training import fill_mask

    source = open_source(values.model, values.config, values.next_sentence_pooler)
    if source.kind not in ("masked_lm", "pretraining"):
        raise InputError(f"{source.path}: fill-mask needs weights with a masked LM head; these are {source.kind}")
    model = load_pretrained(source, BertPretrainer)
    for text, masks in zip(texts, fill_mask(model, source.needed_tokenizer(), texts, values.top_k)):
        if values.format == "jsonl":
            guesses = [[{"piece": piece, "score": score} for piece, score in guesses] for guesses in masks]
            print(json.dumps({"text": text, "masks": guesses}, ensure_ascii=False))
            continue
        for guesses in masks:
            for piece, score in guesses:
                print(f"{piece}\t{score:.4f}\t{text}")
