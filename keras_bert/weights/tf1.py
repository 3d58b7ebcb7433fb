"""Google's TensorFlow 1 checkpoints (https://github.com/google-research/bert): `bert_model.ckpt.index` and its data,
`bert_config.json`, `vocab.txt`; written by this package also `keras_bert_settings.json`, see `write`."""

import dataclasses
import os
import re

from keras_bert.tasks import write_settings
from keras_bert.weights.bundle import Bundle, find_checkpoint, has_checkpoint, write_bundle
from keras_bert.weights.format import KERAS_SUFFIXES, TRANSPOSED, Format, Source, Table, Weights, detect, google_rules
from keras_bert.weights.huggingface_models import TYPES
from keras_bert.weights.native import SETTINGS_FILE, read_assets, read_settings, write_assets

# transformers has named the encoder's weights after these: encoder.layer.0.output.dense is
# bert/encoder/layer_0/output/dense.
_ENCODER = {layer: f"bert/{name.replace('.{i}', '_{i}').replace('.', '/')}"
            for layer, name in TYPES["bert"].layers.items() if layer.startswith("bert.")}
TABLE = Table(_ENCODER | {
    # Heads of google-research/bert run_pretraining.py.
    "mlm.dense": "cls/predictions/transform/dense",
    "mlm.norm": "cls/predictions/transform/LayerNorm",
    "mlm.bias": "cls/predictions/output_bias",
    "next_sentence.kernel": "cls/seq_relationship/output_weights",
    "next_sentence.bias": "cls/seq_relationship/output_bias",
    # run_classifier.py, run_squad.py
    "classifier.kernel": "output_weights",
    "classifier.bias": "output_bias",
    "span.kernel": "cls/squad/output_weights",
    "span.bias": "cls/squad/output_bias",
}, KERAS_SUFFIXES | {"embeddings": ""},
    {"next_sentence.kernel": TRANSPOSED, "classifier.kernel": TRANSPOSED, "span.kernel": TRANSPOSED})
_HEADS = ("pretraining", "masked_lm", "classification", "span")
_AMBIGUOUS = ("hidden_act gelu is the erf form, as in transformers and in google-research/bert until 2019-02-07, when "
              "this began to compute the tanh form; --hidden_act=gelu_tanh for weights that were trained so")
# The moments of Adam and LAMB, and the beta powers, loss scales and step counters of optimizers.
_OPTIMIZER = re.compile(r".*/(adam_[mv]|Adam(_1)?|lamb_[mv])(_\d+)?$|beta[12]_power$|loss_scale|good_steps$")


def read(path: str, config: str | None = None) -> Source:
    bundle = Bundle(find_checkpoint(path) or path)
    folder = os.path.dirname(bundle.prefix)
    settings = read_settings(folder)
    dropout, activation = settings.pop("dropout", 0.1), settings.pop("hidden_act", None)  # 0.1: run_classifier.py
    assets = read_assets(folder, config)
    if is_stated := activation and config is None:  # the activation of another config takes precedence
        assets["config"] = dataclasses.replace(assets["config"], hidden_act=activation)
    notes = (_AMBIGUOUS,) if assets["config"].hidden_act == "gelu" and not is_stated else ()
    skipped = {name: "optimizer variable" for name in bundle.shapes if _OPTIMIZER.match(name)}
    skipped["global_step"] = "step counter"
    kind = detect(TABLE, bundle.shapes, _HEADS)
    head = bundle.shapes.get("output_bias") or bundle.shapes.get("output_weights") or [0]
    options = {"num_classes": head[0], "dropout": dropout} if kind == "classification" else {}
    return Source(bundle.prefix, FORMAT.name, kind=kind, table=TABLE, shapes=bundle.shapes, get=bundle.get,
                  skipped=skipped, options=options, settings=settings, notes=notes, **assets)


def write(weights: Weights, folder: str) -> None:
    """Writes the files from which google-research/bert's programs initialise a model, and `keras_bert_settings.json`
    for the rest: the settings of the task, the dropout rate of the classifier, and the form of the GELU."""
    settings = dict(weights.settings)
    if weights.config.hidden_act not in ("gelu", "relu"):  # the names in modeling.py
        settings["hidden_act"] = weights.config.hidden_act
        weights = weights.with_config(hidden_act="gelu")
    if "dropout" in weights.options:
        settings["dropout"] = weights.options["dropout"]
    write_settings(settings, folder, SETTINGS_FILE)
    write_bundle(os.path.join(folder, "bert_model.ckpt"),
                 ((entry.stored_name, array) for entry, array in weights.arrays(TABLE)))
    write_assets(weights, folder)


FORMAT = Format("tf1", lambda path: has_checkpoint(path, of_objects=False), read, write, ("encoder", *_HEADS),
                fixed={"hidden_act": ("gelu", "relu", "gelu_tanh", "gelu_new"), "layer_norm_eps": (1e-12,),
                       "directionality": ("bidi",), "embedding_size": (None,), "pooler_activation": ("tanh",)},
                rules=google_rules, settings_file=SETTINGS_FILE, applied=())
