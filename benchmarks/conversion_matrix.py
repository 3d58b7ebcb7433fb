"""Converts a tiny model of every kind to every format, and compares its answers with those of the format's own library.

    .venv-peers/bin/python benchmarks/conversion_matrix.py

needs the libraries of `make peers`; sentence-transformers is not one of them, so its format is left out. The inputs are
a text, a pair of texts and a Korean pair, each longer than the model's maximum length, and a short text. Each library
tokenizes them itself, by the files that it was given. Takes one or two minutes.
"""

import functools
import json
import os
import pathlib
import tempfile

import numpy as np
from peer_models import garden_encoder

from keras_bert.config import BertConfig
from keras_bert.convert import FORMATS, convert
from keras_bert.errors import InputError
from keras_bert.layers import BertLayer
from keras_bert.models import load_model
from keras_bert.text import BertTokenizer, pack, pad
from keras_bert.weights import native
from keras_bert.weights.format import Weights
from keras_bert.weights.huggingface_models import TYPES
from keras_bert.weights.kinds import KINDS

_WORDS = "the a play Play some music light , . ? Seoul 서울 날씨 ##는 ##를 알려 줘 음악 틀어 오늘 ##ing ##s".split()
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *_WORDS]
TOKENIZER = BertTokenizer(VOCABULARY, lower_case=False)
# What every format can express. Korean keeps its syllables, because the vocabulary is cased.
CONFIG = BertConfig(vocab_size=len(VOCABULARY), hidden_size=16, num_hidden_layers=2, num_attention_heads=4,
                    intermediate_size=32, max_position_embeddings=65, hidden_act="gelu_tanh", hidden_dropout_prob=0.2,
                    attention_probs_dropout_prob=0.2)
# The `max_length` of the tasks; models without a task use all positions. Two texts can share both numbers of tokens
# equally: transformers gives an odd token to the longer text, google-research/bert to the first.
LENGTH = 49
ENGLISH, KOREAN = "Play some music , playing the lights . " * 9, "오늘 서울 날씨는 ? 음악을 틀어 줘 . " * 9
TEXTS, PAIRS = [ENGLISH + KOREAN, KOREAN, "play music", KOREAN + ENGLISH], [KOREAN, ENGLISH, "서울 날씨", "the light"]
_MLM = {"next_sentence": False, "mlm_activation": "gelu", "mlm_layer_norm_eps": 1e-5}
LABELS = ["음악", "날씨", "light"]
_CLASSES, _LENGTH = {"num_classes": 3, "dropout": 0.3}, {"max_length": LENGTH}
# The name of each row: (kind of model, arguments of its class, labels, settings of its task).
HEADS = {
    "encoder": ("encoder", {}, None, None),
    "pretraining": ("pretraining", {}, None, None),
    "masked LM": ("masked_lm", {"next_sentence": False}, None, None),
    "masked LM, KerasHub's": ("masked_lm", _MLM, None, None),
    "classify": ("classification", _CLASSES, LABELS, {"task": "classify", **_LENGTH, "pairs": True, "threshold": None}),
    "intent": ("classification", _CLASSES, LABELS, {"task": "intent", **_LENGTH, "pairs": True, "threshold": 0.7}),
    "multilabel": ("classification", _CLASSES, LABELS, {
        "task": "multilabel", **_LENGTH, "pairs": True, "thresholds": [0.5, 0.4, 0.6]}),
    "regress": ("regression", {"dropout": 0.3}, None, {"task": "regress", **_LENGTH, "pairs": True}),
    "tag": ("token_classification", _CLASSES, ["O", "B-곳", "I-곳"], {"task": "tag", **_LENGTH, "unit": "character"}),
    "span": ("span", {}, None, {"task": "span", **_LENGTH, "doc_stride": 16, "null_threshold": -1.5}),
    "choice": ("multiple_choice", {"dropout": 0.3}, None, {"task": "choice", **_LENGTH}),
}


def main():
    import ruler  # only here: it sets the environment

    ruler.parser(__doc__).parse_args()
    reports, forms = {}, [form for form in FORMATS if form in LIBRARIES]
    with tempfile.TemporaryDirectory() as folder:
        for head in HEADS:
            for form in forms:
                reports[head, form] = check(head, form, os.path.join(folder, f"{head}-{form}"))
    print(f"| Model | {' | '.join(f'`{form}`' for form in forms)} |\n|---{'|---' * len(forms)}|")
    for head in HEADS:
        print(f"| {head} | {' | '.join(describe(reports[head, form]) for form in forms)} |")
    print()
    for (head, _), report in reports.items():
        if report.get("ignored"):
            print(f"{head}: {report['ignored']}")
    print(json.dumps({"benchmark": "conversion_matrix",
                      "rows": [{"head": head, "format": form} | report for (head, form), report in reports.items()]}))


def describe(report):
    return f"{report['difference']:.0e}" if "difference" in report else "refused"


def check(head, form, folder):
    """Converts a model and has the library of the format answer.

    Returns:
        a dict of `difference`, the largest difference of its outputs from ours, and `ignored`, the line of the report
        about settings that the library does not apply; or of `refused`, the message.
    """
    lines = []
    try:
        convert(source(head), folder, form, report=lines.append)
    except InputError as error:
        return {"refused": str(error)}
    kind, _, labels, settings = HEADS[head]
    inputs = ours(kind, settings)
    wanted = outputs(kind, load_model(source(head)), inputs)
    found, ids = LIBRARIES[form](folder, kind, labels, settings, inputs)
    np.testing.assert_array_equal(ids, inputs["input_word_ids"])
    mask = inputs["input_mask"].astype(bool)
    differences = [np.abs(_of_tokens(found[name], mask) - _of_tokens(value, mask)).max()
                   for name, value in wanted.items()]
    ignored = next((line for line in lines if "does not apply" in line), None)
    return {"difference": float(max(differences)), "ignored": ignored}


@functools.cache
def source(head):
    """Returns a folder of this package with a model whose weights are all random."""
    kind, options, labels, settings = HEADS[head]
    bert, rng = BertLayer(CONFIG), np.random.default_rng(0)
    model = bert if kind == "encoder" else KINDS[kind].model(bert, **options)
    for variable in model.weights:
        variable.assign(rng.normal(float(variable.name == "gamma"), 0.1, variable.shape))
    folder = tempfile.mkdtemp()
    native.write(Weights.of(model, TOKENIZER, labels, settings), folder)
    return folder


def ours(kind, settings):
    """Returns our inputs: of pairs, or for models of single texts of single texts."""
    is_single = settings is not None and settings["task"] == "tag"
    length = settings["max_length"] if settings else CONFIG.max_position_embeddings
    inputs = pad(TOKENIZER.pack(TEXTS, None if is_single else PAIRS, length), TOKENIZER.pad_id, length)
    if kind in ("pretraining", "masked_lm"):
        inputs["masked_lm_positions"] = np.tile(np.int32([0, 3, 7]), (len(TEXTS), 1))
    return inputs


def outputs(kind, model, inputs):
    if kind == "encoder":
        return dict(zip(("pooled_output", "sequence_output"), model(inputs)))
    if kind == "multiple_choice":
        inputs = {name: array[:, None] for name, array in inputs.items()}
    found = model(inputs)
    return found if isinstance(found, dict) else {"logits": found}


def _of_tokens(output, mask):
    output = np.asarray(output)
    return output[mask] if output.shape[:2] == mask.shape else output


def pytorch_outputs(model, kind, inputs):
    """Returns the outputs of a model of transformers under our names."""
    import torch

    tensors = {name: torch.from_numpy(np.asarray(inputs[ours])).long() for name, ours in (
        ("input_ids", "input_word_ids"), ("attention_mask", "input_mask"), ("token_type_ids", "segment_ids"))}
    if kind == "multiple_choice":
        tensors = {name: tensor[:, None] for name, tensor in tensors.items()}
    with torch.inference_mode():
        found = {name: value.numpy() for name, value in model.eval()(**tensors).items()}
    names = {"pooler_output": "pooled_output", "last_hidden_state": "sequence_output",
             "prediction_logits": "mlm_logits", "seq_relationship_logits": "next_sentence_logits"}
    found = {names.get(name, name): value for name, value in found.items()}
    if kind == "masked_lm":
        found["mlm_logits"] = found["logits"]
    if "mlm_logits" in found:
        found["mlm_logits"] = np.take_along_axis(found["mlm_logits"], inputs["masked_lm_positions"][..., None], 1)
    return found


# Functions of (folder, kind, labels, settings, our inputs) that return (outputs, ids) of the library. The segments and
# masks come from the library too, where it packs inputs.

def with_transformers(folder, kind, labels, settings, inputs):
    import transformers

    architecture = TYPES["bert"].architectures[kind]
    model, report = getattr(transformers, architecture).from_pretrained(folder, output_loading_info=True)
    unused = set() if KINDS[kind].is_pooled else {"bert.pooler.dense.weight", "bert.pooler.dense.bias"}
    assert not report["missing_keys"] | report["mismatched_keys"] | report["unexpected_keys"] - unused, report
    assert labels is None or list(model.config.id2label.values()) == labels
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    pairs = PAIRS if (inputs["segment_ids"] > 0).any() else None
    tokens = tokenizer(TEXTS, pairs, truncation=True, padding="max_length", return_tensors="np")
    packed = dict(zip(("input_word_ids", "input_mask", "segment_ids"), (
        tokens["input_ids"], tokens["attention_mask"], tokens["token_type_ids"])))
    return pytorch_outputs(model, kind, inputs | packed), packed["input_word_ids"]


def with_keras_hub(folder, kind, labels, settings, inputs):
    import keras_hub
    import tensorflow as tf

    name = {"encoder": "BertBackbone", "masked_lm": "BertMaskedLM", "classification": "BertTextClassifier"}[kind]
    model = getattr(keras_hub.models, name).from_preset(folder)
    if kind == "classification":
        preprocessor = model.preprocessor
        assert model.activation.__name__ == ("sigmoid" if settings["task"] == "multilabel" else "linear")
        model.output_dense.activation = None  # logits, not probabilities
    else:
        tokenizer = keras_hub.models.BertTokenizer.from_preset(folder)
        preprocessor = keras_hub.models.BertTextClassifierPreprocessor(tokenizer, CONFIG.max_position_embeddings)
    packed = preprocessor(x=(np.array(TEXTS), np.array(PAIRS)))
    if kind == "masked_lm":
        packed["mask_positions"] = tf.constant(inputs["masked_lm_positions"])
    found = model(packed)
    found = found if isinstance(found, dict) else {"mlm_logits" if kind == "masked_lm" else "logits": found}
    return found, packed["token_ids"]


def google_names(inputs):
    return {name.replace("segment", "input_type"): inputs[name]
            for name in ("input_word_ids", "input_mask", "segment_ids")}


def google_ids(vocabulary, lower_case, inputs):
    """Returns the ids of google-research/bert's tokenizer, which the Model Garden keeps, in our packing."""
    from official.nlp.tools import tokenization

    tokenizer = tokenization.FullTokenizer(vocabulary, lower_case)
    texts = [tokenizer.convert_tokens_to_ids(tokenizer.tokenize(text)) for text in TEXTS]
    pairs = [tokenizer.convert_tokens_to_ids(tokenizer.tokenize(text)) for text in PAIRS]
    length = inputs["input_mask"].shape[1]
    is_pair = (inputs["segment_ids"] > 0).any()
    packed = [pack(text, pair if is_pair else None, TOKENIZER.cls_id, TOKENIZER.sep_id, length)
              for text, pair in zip(texts, pairs)]
    return pad(packed, 0, length)["input_word_ids"]


def with_garden(folder, kind, labels, settings, inputs):
    import tensorflow as tf
    from official.modeling import tf_utils
    from official.nlp.modeling import layers
    from official.nlp.modeling import models as garden_models

    gelu = tf_utils.get_activation(_config(folder)["hidden_act"])
    encoder = garden_encoder("BertEncoderV2", CONFIG, "float32", type_vocab_size=CONFIG.type_vocab_size,
                             inner_activation=gelu)
    named, ids = google_names(inputs), google_ids(os.path.join(folder, "vocab.txt"), False, inputs)
    prefix = tf.train.latest_checkpoint(folder)
    if kind == "encoder":
        encoder(named)
        tf.train.Checkpoint(encoder=encoder).restore(prefix).assert_existing_objects_matched()
        return encoder(named), ids
    heads = [layers.ClassificationHead(CONFIG.hidden_size, 2, name="next_sentence")] if kind == "pretraining" else None
    model = garden_models.BertPretrainerV2(encoder, mlm_activation=gelu, classification_heads=heads)
    named["masked_lm_positions"] = inputs["masked_lm_positions"]
    model(named)
    tf.train.Checkpoint(**model.checkpoint_items).restore(prefix).assert_existing_objects_matched()
    if heads:  # whose last layer is not among the items
        tf.train.Checkpoint(model=model).restore(prefix).assert_existing_objects_matched()
    found = model(named)
    return found | {"next_sentence_logits": found.get("next_sentence")}, ids


def with_tf1(folder, kind, labels, settings, inputs):
    """Reads the checkpoint as TensorFlow 1 does, and runs its arrays in PyTorch's model."""
    import tensorflow as tf
    import torch
    import transformers

    reader = tf.compat.v1.train.NewCheckpointReader(os.path.join(folder, "bert_model.ckpt"))
    heads = {"output_weights": "classifier.weight", "output_bias": "classifier.bias",
             "cls/squad/output_weights": "qa_outputs.weight", "cls/squad/output_bias": "qa_outputs.bias",
             "cls/seq_relationship/output_weights": "cls.seq_relationship.weight",
             "cls/seq_relationship/output_bias": "cls.seq_relationship.bias",
             "cls/predictions/output_bias": "cls.predictions.bias"}
    tensors = {}
    for name in reader.get_variable_to_shape_map():
        array = reader.get_tensor(name)
        new = heads.get(name) or name.replace("/layer_", "/layer.").replace("/", ".").replace(
            ".gamma", ".weight").replace(".beta", ".bias").replace(".kernel", ".weight")
        new += ".weight" if new.endswith("_embeddings") else ""
        tensors[new] = torch.tensor(np.array(array.T if name.endswith("/kernel") else array))
    if kind == "encoder":
        tensors = {name.removeprefix("bert."): tensor for name, tensor in tensors.items()}
    # modeling.py computes the tanh form.
    config = transformers.BertConfig(**_config(folder) | {"hidden_act": "gelu_new"}, num_labels=len(labels or [0, 1]))
    model = getattr(transformers, TYPES["bert"].architectures[kind])(config)
    loaded = model.load_state_dict(tensors, strict=False)
    pooler = {name for name in loaded.unexpected_keys if ".pooler." in name}
    assert {*loaded.unexpected_keys} == pooler and all(".decoder." in name for name in loaded.missing_keys), loaded
    model.tie_weights()
    return pytorch_outputs(model, kind, inputs), google_ids(os.path.join(folder, "vocab.txt"), False, inputs)


def with_tensorflow_hub(folder, kind, labels, settings, inputs):
    import tensorflow as tf
    import tensorflow_hub

    loaded = tensorflow_hub.load(folder)
    named = google_names(inputs)
    if kind == "masked_lm":
        named["masked_lm_positions"] = inputs["masked_lm_positions"]
    run = loaded.mlm if kind == "masked_lm" else loaded
    path = loaded.vocab_file.asset_path.numpy().decode()
    ids = google_ids(path, bool(loaded.do_lower_case.numpy()), inputs)
    return run({name: tf.constant(array) for name, array in named.items()}), ids


def with_keras_bert(folder, kind, labels, settings, inputs):
    tokenizer = BertTokenizer.from_folder(folder)
    pairs = PAIRS if (inputs["segment_ids"] > 0).any() else None
    length = inputs["input_mask"].shape[1]
    ids = pad(tokenizer.pack(TEXTS, pairs, length), tokenizer.pad_id, length)["input_word_ids"]
    return outputs(kind, load_model(folder), inputs), ids


def _config(folder):
    return json.loads(pathlib.Path(folder, "bert_config.json").read_text())


LIBRARIES = {"huggingface": with_transformers, "kerashub": with_keras_hub, "garden": with_garden, "tf1": with_tf1,
             "hub": with_tensorflow_hub, "keras_bert": with_keras_bert}


if __name__ == "__main__":
    main()
