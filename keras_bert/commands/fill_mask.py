"""`keras-bert fill-mask`."""

import itertools
from typing import Literal

from keras_bert.arguments import Count, replace_surrogates
from keras_bert.errors import InputError
from keras_bert.files.json_files import json_text

EXAMPLE = 'keras-bert fill-mask --model=my_pretrained "The capital of France is [MASK]."'


def run(*text: str, model: str, config: str | None = None, next_sentence_pooler: bool = False,
        output_format: Literal["text", "jsonl"] = "text", top_k: Count = 5) -> None:
    """Predict the [MASK] tokens of texts.

    Args:
        text: Texts with [MASK].
        model: Weights with a masked LM head, in any format that convert reads: a folder, a checkpoint or a name.
        config: bert_config.json, for weights without one.
        next_sentence_pooler: Use the dense layer of the next-sentence head as the pooler, see export.
        output_format: Lines of token, probability and text; or one JSON object per text.
        top_k: Predictions per [MASK].
    """
    if not text:
        raise InputError("fill-mask needs texts with [MASK] as arguments; got none")
    texts = list(map(replace_surrogates, text))
    from keras_bert.inference.fill_mask import fill_mask
    from keras_bert.models import BertPretrainer
    from keras_bert.weights import load_pretrained, open_weights

    source = open_weights(model, config, next_sentence_pooler, takes_texts=True)
    source.check_masked_lm("fill-mask")
    pretrainer = load_pretrained(source, BertPretrainer)
    for masked, masks in zip(texts, fill_mask(pretrainer, source.needed_tokenizer(), texts, top_k)):
        if output_format == "jsonl":
            found = [[{"token": token, "score": score} for token, score in guesses] for guesses in masks]
            print(json_text({"text": masked, "masks": found}))
        else:
            for token, score in itertools.chain(*masks):
                print(f"{token}\t{score:.4f}\t{masked}")
