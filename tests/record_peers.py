"""Records what PyTorch's transformers, the TensorFlow Model Garden and KerasHub compute from tiny weights.

Run in an environment with these libraries (`make peers`):

    python tests/record_peers.py

It replaces tests/data/peers, which tests/test_recorded_peers.py compares with our results:

    versions.json            this command and the versions of the libraries
    <architecture>/          a folder of transformers: config.json, model.safetensors, vocab.txt; and
    <architecture>/reference.safetensors   its inputs, labels, outputs, losses, gradients and trained weights
    garden.safetensors       outputs of the Model Garden's BertEncoder
    kerashub.safetensors     outputs of KerasHub's BertBackbone
    tokens.json              ids of the Model Garden's FullTokenizer

The encoders of the Garden and of KerasHub have the weights and inputs of BertForSequenceClassification.
"""

import importlib.metadata
import json
import pathlib
import platform
import shutil
import tempfile
import unicodedata

import numpy as np
from safetensors.numpy import save_file

FOLDER = pathlib.Path(__file__).parent / "data/peers"
LIBRARIES = ["numpy", "torch", "transformers", "tensorflow", "tf-models-official", "keras", "keras-hub"]
SIZES = {"vocab_size": 60, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32,
         "max_position_embeddings": 32, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
# The Garden and KerasHub have no other GELU than the approximation by tanh.
SETTINGS = {"BertForPreTraining": {}, "BertForSequenceClassification": {"hidden_act": "gelu_new", "num_labels": 3},
            "BertForTokenClassification": {"num_labels": 4}, "BertForQuestionAnswering": {"layer_norm_eps": 1e-3}}
LENGTHS = [12, 7, 3, 9]
IGNORED = -100  # the label that PyTorch's losses leave out
LEARNING_RATE, STEPS, WARMUP_STEPS, TOTAL_STEPS, WEIGHT_DECAY, CLIP_NORM = 0.01, 4, 2, 10, 0.1, 1.0
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
TEXTS = [
    "", " \t\n ", "Play some music, please!", "It's 3.5°C (38.3°F) in O'Hare -- isn't it?",
    "user@example.com: $9.99/mo.", "[CLS] not [MASK] special [SEP]", "supercalifragilistic UNBELIEVABLE playing",
    "Crème brûlée à la façon d'Élodie", "Ångström, Čapek, Łódź, İstanbul, ﬁancé, STRASSE, straße",
    "ΟΔΥΣΣΕΥΣ και Σ", "e\u0301te\u0301 n\u0303 \u0301",
    "서울 날씨 알려 줘.", "한국어를 배우고 있어요!", "\u1112\u1161\u11ab\u1100\u1173\u11af",
    "東京で音楽を聴きます。", "ﾊﾛｰ、ワールド！ ガギグ", "北京今天天气怎么样？",
    "مرحبا بالعالم، كيف الحال؟", "السَّلَامُ عَلَيْكُم",
    "turn\u0000 off\u0007 the\u200b li\u00adght\ufffd", "no\u00a0break\u3000space\u2028line\r\nend",
    "I ♥ 🎵🎶 and 👩\u200d👩\u200d👧!", "①②③ ½ x² ＡＢＣ！",
]
WORDS = [
    "play", "##ing", "some", "music", "please", "the", "light", "turn", "off", "un", "##believ", "##able",
    "Play", "UN", "##BELIEV", "crème", "Crème", "à", "façon", "straße", "strasse", "STRASSE", "##era", "και", "Σ",
    "서울", "날씨", "한국", "##어", "##를", "있어", "##요", "음악", "ガ", "ール", "##ール",
    "مرحبا", "##الم", "السلام", "عليكم",
]


def make_batch(seed):
    """Token ids, attention mask and segment ids of four texts padded to 12 tokens, int64 [4, 12] each.

    Only padding has the id of [PAD], because PyTorch does not train its embedding.
    """
    rng, shape = np.random.default_rng(seed), (len(LENGTHS), max(LENGTHS))
    mask = (np.arange(shape[1]) < np.array(LENGTHS)[:, None]).astype("int64")
    return {"input_ids": rng.integers(1, SIZES["vocab_size"], shape) * mask, "attention_mask": mask,
            "token_type_ids": rng.integers(0, 2, shape) * mask}


def make_labels(architecture, batch, seed):
    """The labels of a batch by the names of transformers, int64 each; none for question answering."""
    rng, is_real = np.random.default_rng(seed), batch["attention_mask"] == 1
    if architecture == "BertForPreTraining":
        is_masked = is_real & (rng.random(is_real.shape) < 0.4)
        return {"labels": np.where(is_masked, rng.integers(0, SIZES["vocab_size"], is_real.shape), IGNORED),
                "next_sentence_label": rng.integers(0, 2, len(is_real))}
    if architecture == "BertForSequenceClassification":
        return {"labels": rng.integers(0, 3, len(is_real))}
    if architecture == "BertForTokenClassification":
        return {"labels": np.where(is_real, rng.integers(0, 4, is_real.shape), IGNORED)}
    return {}  # PyTorch's loss of spans counts padding, ours does not


def make_model(architecture, seed):
    """A model of transformers, all its weights random."""
    import torch
    import transformers

    config = transformers.BertConfig(**SIZES, **SETTINGS[architecture], classifier_dropout=0.0)
    model = getattr(transformers, architecture)._from_config(config, attn_implementation="eager").eval()
    rng = np.random.default_rng(seed)
    for name, parameter in model.named_parameters():
        center = 1.0 if name.endswith("LayerNorm.weight") else 0.0
        parameter.data = torch.tensor(rng.normal(center, 0.2, parameter.shape), dtype=torch.float32)
    return model


def tensors_of(arrays):
    import torch

    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def record_outputs(architecture, model, batch, labels):
    """A dict of arrays: the batch and the labels, and the outputs, the losses and the gradients by weight."""
    outputs = model(**tensors_of(batch | labels), output_hidden_states=True, output_attentions=True)
    recorded = {name: value for name, value in outputs.items() if name not in ("hidden_states", "attentions")}
    recorded |= {f"hidden_states.{layer}": states for layer, states in enumerate(outputs.hidden_states)}
    recorded |= {f"attentions.{layer}": states for layer, states in enumerate(outputs.attentions)}
    if architecture == "BertForPreTraining":
        from torch.nn.functional import cross_entropy

        target = tensors_of(labels)
        recorded["pooler_output"] = model.bert(**tensors_of(batch)).pooler_output
        recorded["mlm_loss"] = cross_entropy(outputs.prediction_logits.flatten(0, 1), target["labels"].flatten())
        recorded["next_sentence_loss"] = cross_entropy(outputs.seq_relationship_logits, target["next_sentence_label"])
        outputs.loss.backward()
        recorded |= {f"gradients.{name}": parameter.grad for name, parameter in model.named_parameters()}
    return {name: value.detach().numpy() for name, value in recorded.items()}


def record_training(model):
    """A dict of arrays: the batches and labels of a few steps of AdamW, and the weights after the last."""
    import torch
    import transformers

    def is_decayed(name):
        return not name.endswith("bias") and "LayerNorm" not in name

    parameters = dict(model.named_parameters())
    optimizer = torch.optim.AdamW([
        {"params": [parameters[name] for name in parameters if is_decayed(name)], "weight_decay": WEIGHT_DECAY},
        {"params": [parameters[name] for name in parameters if not is_decayed(name)], "weight_decay": 0.0}],
        lr=LEARNING_RATE, eps=1e-6)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, WARMUP_STEPS, TOTAL_STEPS)
    recorded = {}
    for step in range(STEPS):
        batch = make_batch(seed=100 + step)
        batch |= make_labels("BertForSequenceClassification", batch, seed=200 + step)
        recorded |= {f"steps.{step}.{name}": array for name, array in batch.items()}
        optimizer.zero_grad()
        model(**tensors_of(batch)).loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
        assert norm > CLIP_NORM, f"the gradients of step {step} have norm {norm}: nothing is clipped"
        optimizer.step()
        schedule.step()
    return recorded | {f"trained.{name}": parameter.detach().numpy() for name, parameter in parameters.items()}


def encoder_arrays(model):
    """The encoder's weights from embeddings to pooler, each dense kernel [inputs, outputs]."""
    return [parameter.detach().numpy().T if name.endswith("weight") and parameter.ndim == 2 and "embeddings" not in name
            else parameter.detach().numpy() for name, parameter in model.bert.named_parameters()]


def assign(variables, arrays):
    for variable, array in zip(variables, arrays, strict=True):
        variable.assign(array.reshape(variable.shape))


def record_garden(arrays, batch):
    """Outputs of the Model Garden's encoder: float32 [4, 16] and [4, 12, 16]."""
    from official.nlp.modeling import networks

    encoder = networks.BertEncoder(
        SIZES["vocab_size"], SIZES["hidden_size"], SIZES["num_hidden_layers"], SIZES["num_attention_heads"],
        SIZES["max_position_embeddings"], 2, SIZES["intermediate_size"], dict_outputs=True)
    names = ["word_embeddings/embeddings", "position_embedding/embeddings", "type_embeddings/embeddings",
             "embeddings/layer_norm/gamma", "embeddings/layer_norm/beta"]
    for layer in range(SIZES["num_hidden_layers"]):
        for part in ("self_attention/query", "self_attention/key", "self_attention/value",
                     "self_attention/attention_output", "self_attention_layer_norm", "intermediate", "output",
                     "output_layer_norm"):
            weights = ("gamma", "beta") if part.endswith("norm") else ("kernel", "bias")
            names += [f"transformer/layer_{layer}/{part}/{weight}" for weight in weights]
    names += ["pooler_transform/kernel", "pooler_transform/bias"]
    variables = {variable.name.removesuffix(":0"): variable for variable in encoder.variables}
    assert variables.keys() == set(names)
    assign([variables[name] for name in names], arrays)
    outputs = encoder([batch[name].astype("int32") for name in ("input_ids", "attention_mask", "token_type_ids")])
    return {name: outputs[name].numpy() for name in ("pooled_output", "sequence_output")}


def kerashub_variables(backbone, blocks):
    """The variables of a KerasHub encoder in the order of ours."""
    parts = [backbone.token_embedding, backbone.get_layer("position_embedding"),
             backbone.get_layer("segment_embedding"), backbone.get_layer("embeddings_layer_norm")]
    variables = [parts[0].embeddings, parts[1].position_embeddings, parts[2].embeddings, parts[3].gamma, parts[3].beta]
    for i in range(blocks):
        block = backbone.get_layer(f"transformer_layer_{i}")
        attention = block._self_attention_layer
        for part in (attention._query_dense, attention._key_dense, attention._value_dense, attention._output_dense,
                     block._self_attention_layer_norm, block._feedforward_intermediate_dense,
                     block._feedforward_output_dense, block._feedforward_layer_norm):
            variables += part.weights
    variables += backbone.get_layer("pooled_dense").weights
    assert len(variables) == len(backbone.weights)
    return variables


def record_kerashub(arrays, batch):
    """Outputs of KerasHub's encoder: float32 [4, 16] and [4, 12, 16]."""
    import keras
    import keras_hub

    backbone = keras_hub.models.BertBackbone(
        SIZES["vocab_size"], SIZES["num_hidden_layers"], SIZES["num_attention_heads"], SIZES["hidden_size"],
        SIZES["intermediate_size"], max_sequence_length=SIZES["max_position_embeddings"])
    assign(kerashub_variables(backbone, SIZES["num_hidden_layers"]), arrays)
    outputs = backbone({"token_ids": batch["input_ids"], "padding_mask": batch["attention_mask"],
                        "segment_ids": batch["token_type_ids"]})
    return {name: keras.ops.convert_to_numpy(outputs[name]) for name in ("pooled_output", "sequence_output")}


def make_vocabulary(lower_case):
    """Some words, and every character of the texts but symbols and spaces, at the start of a word and within one."""
    def simplify(text):
        if not lower_case:
            return text
        return "".join(c for c in unicodedata.normalize("NFD", text.lower()) if unicodedata.category(c) != "Mn")

    characters = sorted({c for c in simplify("".join(TEXTS)) if unicodedata.category(c)[0] in "LMNP"})
    pieces = [*map(simplify, WORDS), *characters, *("##" + character for character in characters)]
    return [*SPECIAL, *dict.fromkeys(pieces)]


def record_tokens():
    """By casing, a vocabulary and the ids of each text."""
    from official.nlp.tools import tokenization

    recorded = {"texts": TEXTS}
    for casing in ("uncased", "cased"):
        vocabulary = make_vocabulary(lower_case=casing == "uncased")
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".txt") as file:
            file.write("\n".join(vocabulary) + "\n")
            file.flush()
            tokenizer = tokenization.FullTokenizer(file.name, do_lower_case=casing == "uncased")
        ids = [tokenizer.convert_tokens_to_ids(tokenizer.tokenize(text)) for text in TEXTS]
        recorded[casing] = {"vocabulary": vocabulary, "ids": ids}
    return recorded


def record(folder):
    """Writes everything into a new folder."""
    folder.mkdir(parents=True)
    vocabulary = [*SPECIAL, *(f"[unused{i}]" for i in range(SIZES["vocab_size"] - len(SPECIAL)))]
    for seed, architecture in enumerate(SETTINGS):
        model, batch = make_model(architecture, seed), make_batch(seed)
        model.save_pretrained(folder / architecture)
        (folder / architecture / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
        labels = make_labels(architecture, batch, seed)
        reference = batch | labels | record_outputs(architecture, model, batch, labels)
        if architecture == "BertForSequenceClassification":
            arrays = encoder_arrays(model)
            save_file(record_garden(arrays, batch), folder / "garden.safetensors")
            save_file(record_kerashub(arrays, batch), folder / "kerashub.safetensors")
            reference |= record_training(model)
        reference = {name: np.array(array, order="C") for name, array in reference.items()}
        save_file(reference, folder / architecture / "reference.safetensors")
    (folder / "tokens.json").write_text(json.dumps(record_tokens()) + "\n")
    versions = {"python": platform.python_version()} | {name: importlib.metadata.version(name) for name in LIBRARIES}
    made = {"command": "python tests/record_peers.py", "versions": versions}
    (folder / "versions.json").write_text(json.dumps(made, indent=2) + "\n")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=FOLDER.parents[1]) as parent:
        record(pathlib.Path(parent) / "peers")
        shutil.rmtree(FOLDER, ignore_errors=True)
        FOLDER.parent.mkdir(exist_ok=True)
        (pathlib.Path(parent) / "peers").rename(FOLDER)
