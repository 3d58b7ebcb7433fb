"""Google's TensorFlow 1 checkpoints (https://github.com/google-research/bert): `bert_model.ckpt.index` and its data,
`bert_config.json`, `vocab.txt`."""

import os
import re

from keras_bert.config import BertConfig
from keras_bert.convert.assets import find_config, read_labels, read_tokenizer, write_beside
from keras_bert.convert.bundle import Bundle, find_checkpoint, write_bundle
from keras_bert.convert.format import TRANSPOSED, Format, Name, Table, dense, norm
from keras_bert.convert.weights import Source, detect

_LAYER = "bert/encoder/layer_{i}"
TABLE = Table(
    Name("bert.embeddings.word_embeddings.embeddings", "bert/embeddings/word_embeddings"),
    Name("bert.embeddings.position_embeddings.embeddings", "bert/embeddings/position_embeddings"),
    Name("bert.embeddings.segment_embeddings.embeddings", "bert/embeddings/token_type_embeddings"),
    *norm("bert.embeddings.norm", "bert/embeddings/LayerNorm"),
    *dense("bert.blocks.{i}.attention.query", f"{_LAYER}/attention/self/query"),
    *dense("bert.blocks.{i}.attention.key", f"{_LAYER}/attention/self/key"),
    *dense("bert.blocks.{i}.attention.value", f"{_LAYER}/attention/self/value"),
    *dense("bert.blocks.{i}.attention.output_dense", f"{_LAYER}/attention/output/dense"),
    *norm("bert.blocks.{i}.attention_norm", f"{_LAYER}/attention/output/LayerNorm"),
    *dense("bert.blocks.{i}.intermediate", f"{_LAYER}/intermediate/dense"),
    *dense("bert.blocks.{i}.output_dense", f"{_LAYER}/output/dense"),
    *norm("bert.blocks.{i}.output_norm", f"{_LAYER}/output/LayerNorm"),
    *dense("bert.pooler", "bert/pooler/dense"),
    # run_pretraining.py
    *dense("mlm.dense", "cls/predictions/transform/dense"),
    *norm("mlm.norm", "cls/predictions/transform/LayerNorm"),
    Name("mlm.bias", "cls/predictions/output_bias"),
    Name("next_sentence.kernel", "cls/seq_relationship/output_weights", TRANSPOSED),
    Name("next_sentence.bias", "cls/seq_relationship/output_bias"),
    # run_classifier.py, run_squad.py
    Name("classifier.kernel", "output_weights", TRANSPOSED),
    Name("classifier.bias", "output_bias"),
    Name("span.kernel", "cls/squad/output_weights", TRANSPOSED),
    Name("span.bias", "cls/squad/output_bias"),
)
_HEADS = ("pretraining", "masked_lm", "classification", "span")
# The moments of Adam and LAMB, and the beta powers, loss scales and step counters of optimizers.
_OPTIMIZER = re.compile(r".*/(adam_[mv]|Adam(_1)?|lamb_[mv])(_\d+)?$|beta[12]_power$|loss_scale|good_steps$")


def recognise(path):
    return (prefix := find_checkpoint(path)) is not None and not Bundle(prefix).is_of_objects()


def read(path, config=None):
    """Returns the `Source` of a checkpoint, with `bert_config.json` and `vocab.txt` from the same folder."""
    bundle = Bundle(find_checkpoint(path))
    config = BertConfig.from_json(find_config(bundle.prefix, config))
    skipped = {name: "an optimizer's" for name in bundle.shapes if _OPTIMIZER.match(name)}
    skipped["global_step"] = "a counter"
    kind = detect(TABLE, bundle.shapes, _HEADS)
    folder = os.path.dirname(bundle.prefix)
    labels = read_labels(folder)
    options = {"num_classes": bundle.shapes["output_bias"][0]} if kind == "classification" else {}
    options |= {"next_sentence": False} if kind == "masked_lm" else {}
    return Source(bundle.prefix, FORMAT.name, config, kind, TABLE, bundle.shapes, bundle.get, skipped, options,
                  read_tokenizer(folder), labels)


def write(weights, folder):
    """Writes the files that google-research/bert's programs need to initialise a model."""
    write_bundle(os.path.join(folder, "bert_model.ckpt"),
                 ((name.theirs, array) for name, array in weights.arrays(TABLE)))
    write_beside(weights, folder)


FORMAT = Format("tf1", recognise, read, write, ("encoder", *_HEADS),
                fixed={"hidden_act": ("gelu", "relu"), "layer_norm_eps": (1e-12,), "directionality": ("bidi",)})
