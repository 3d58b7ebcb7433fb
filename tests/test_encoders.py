"""Models of PyTorch's transformers with and without a head, BERT's and those of its shape under other names, RoBERTa,
ELECTRA and DistilBERT: beside transformers, through files and back again."""

import dataclasses
import functools
import json
import sys
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_hub as hub
from keras import ops
from safetensors.numpy import load_file, save_file
from test_unigram import model_file

from keras_bert import models
from keras_bert.config import BertConfig
from keras_bert.convert import convert, load_pretrained, open_source
from keras_bert.data.batches import PackedBatches
from keras_bert.errors import InputError, InputWarning
from keras_bert.export import export_encoder, export_preprocessor, export_text_model
from keras_bert.export.text_model import TextModel
from keras_bert.layers import BertLayer
from keras_bert.tasks import Span, run_model
from keras_bert.tasks.squad import QuestionExample
from keras_bert.text import BertTokenizer, load_vocabulary
from keras_bert.weights import huggingface, native, tf1
from keras_bert.weights.format import Weights
from keras_bert.weights.kinds import POOLER, initial, shapes, variable

from conftest import (
    REAL,
    SMALL,
    TINY,
    TINY_VOCABULARY,
    Peer,
    change_json,
    convert_proven,
    few_objects,
    random_inputs,
    randomize,
    write_huggingface,
)

torch, transformers = Peer("torch"), Peer("transformers")
LENGTH = 64  # positions
BERT = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32}
ELECTRA = BERT | {"max_position_embeddings": LENGTH}
# For each case, transformers' class of configs and its arguments, and the ids of the special tokens.
PAD_FIRST = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PAD_SECOND = ["[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]"]  # as KLUE's
CASES = {
    "bert": ("Bert", ELECTRA, PAD_FIRST),
    "roberta": ("Roberta", BERT | {"max_position_embeddings": LENGTH + 2, "type_vocab_size": 1, "pad_token_id": 1,
                                   "layer_norm_eps": 1e-5}, PAD_SECOND),
    "roberta, [PAD] 0": ("Roberta", BERT | {"max_position_embeddings": LENGTH + 1, "type_vocab_size": 2,
                                            "pad_token_id": 0}, PAD_FIRST),
    "electra": ("Electra", ELECTRA | {"embedding_size": 16}, PAD_FIRST),
    "electra, narrow": ("Electra", ELECTRA | {"embedding_size": 8}, PAD_FIRST),
    "electra, wide, [PAD] 1": ("Electra", ELECTRA | {"embedding_size": 24, "pad_token_id": 1}, PAD_SECOND),
    "distilbert": ("DistilBert", {"dim": 16, "n_layers": 2, "n_heads": 4, "hidden_dim": 32,
                                  "max_position_embeddings": LENGTH}, PAD_FIRST),
}
HEADS = {
    "Model": BertLayer, "ForPreTraining": models.BertPretrainer, "ForMaskedLM": models.BertPretrainer,
    "ForSequenceClassification": models.BertClassifier, "ForTokenClassification": models.BertTokenClassifier,
    "ForQuestionAnswering": models.BertSpanLabeler, "ForMultipleChoice": models.BertMultipleChoice,
}
LABELS = {"id2label": {0: "음악", 1: "light", 2: "$|"}, "label2id": {"음악": 0, "light": 1, "$|": 2}}
POOLED = ("ForSequenceClassification", "ForMultipleChoice")
CONFIGS = {  # what the cases are here
    "roberta": BertConfig(60, **ELECTRA, type_vocab_size=1, pad_token_id=1),
    "electra": BertConfig(60, **ELECTRA, pooler_activation="gelu"),
    "electra, narrow": BertConfig(60, **ELECTRA, embedding_size=8, pooler_activation="gelu"),
    "distilbert": BertConfig(60, **ELECTRA, type_vocab_size=1, pooler_activation="relu"),
}


@functools.cache
def words():
    """So many that most words are known, and so few that the logits of the masked LM heads are small."""
    return load_vocabulary(REAL / "vocab/koelectra35000/vocab.txt")[:6000]


@functools.cache
def pairs():
    """20 pairs of Korean questions."""
    rows = [line.split("\t") for line in (REAL / "ko/question_pair/dev.tsv").read_text().splitlines()[1:21]]
    return [row[1] for row in rows], [row[2] for row in rows]


def write(folder, case, head):
    """A folder that transformers writes, all weights random, and the model."""
    name, values, special = CASES[case]
    vocabulary = [*special, *(word for word in words() if word not in PAD_FIRST)]
    settings = LABELS if head in ("ForSequenceClassification", "ForTokenClassification") else {}
    config = getattr(transformers, f"{name}Config")(
        vocab_size=len(vocabulary), tokenizer_class="BertTokenizer", **values, **settings)
    torch.manual_seed(0)
    peer = getattr(transformers, name + head)._from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in peer.parameters():
            parameter.add_(torch.randn(parameter.shape), alpha=0.1)
    peer.save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
    names = {"model_input_names": ["input_ids", "attention_mask"]} if values.get("type_vocab_size") == 1 else {}
    change_json(folder / "tokenizer_config.json", do_lower_case=False, **names)
    return peer


def outputs_of(peer, inputs):
    """The outputs of transformers' model, without its pooled output: that of a model without a head is not compared."""
    names = {"input_ids": "input_word_ids", "attention_mask": "input_mask", "token_type_ids": "segment_ids"}
    if "DistilBert" in type(peer).__name__:
        del names["token_type_ids"]
    with torch.inference_mode():
        outputs = peer(**{name: torch.from_numpy(inputs[ours]).long() for name, ours in names.items()})
    return [output.numpy() for name, output in outputs.items() if name != "pooler_output"]


def outputs_of_ours(model, inputs):
    outputs = model(inputs)
    if isinstance(model, BertLayer):
        outputs = outputs[1:]
    return [ops.convert_to_numpy(output) for output in
            (outputs.values() if isinstance(outputs, dict) else outputs if isinstance(outputs, tuple) else [outputs])]


def assert_close(got, wanted, mask, atol=1e-5):
    """Compares the values of real tokens."""
    for one, other in zip(got, wanted, strict=True):
        real = mask.astype(bool) if one.shape[:mask.ndim] == mask.shape else ...
        np.testing.assert_allclose(one[real], other[real], rtol=0, atol=atol)


def inputs_for(folder, head):
    inputs = BertTokenizer.from_folder(folder)(*pairs(), max_length=LENGTH)
    shape = (10, 2, -1) if head == "ForMultipleChoice" else (20, -1)
    return {name: array.reshape(shape) for name, array in inputs.items()}


def load(folder, head, **options):
    kinds = {"next_sentence": False} if head == "ForMaskedLM" else {}
    return load_pretrained(folder, HEADS[head], **kinds, **options)


@pytest.mark.peers
@pytest.mark.filterwarnings("ignore:.*no pooler in these weights")
@pytest.mark.parametrize(("case", "head"), [  # each type with and without a pooled head, and each head
    *(("bert", head) for head in HEADS),
    ("roberta", "Model"), ("roberta", "ForSequenceClassification"), ("roberta, [PAD] 0", "ForMaskedLM"),
    ("electra", "ForSequenceClassification"), ("electra", "ForQuestionAnswering"),
    ("electra, narrow", "ForMaskedLM"), ("electra, narrow", "ForMultipleChoice"),
    ("electra, wide, [PAD] 1", "Model"), ("electra, wide, [PAD] 1", "ForTokenClassification"),
    ("distilbert", "ForMultipleChoice"), ("distilbert", "ForMaskedLM"), ("distilbert", "ForQuestionAnswering"),
    ("distilbert", "ForSequenceClassification"),
])
def test_there_and_back_again(tmp_path, case, head):
    peer = write(tmp_path / "peer", case, head)
    inputs = inputs_for(tmp_path / "peer", head)
    wanted = outputs_of(peer, inputs)
    ours = load(tmp_path / "peer", head)
    assert_close(outputs_of_ours(ours, inputs), wanted, inputs["input_mask"])
    assert_close(outputs_of_ours(load(tmp_path / "peer", head, layout="unpadded"), inputs), wanted,
                 inputs["input_mask"])

    convert_proven(tmp_path / "peer", tmp_path / "ours")
    convert(tmp_path / "ours", tmp_path / "back", "huggingface")
    if peer.config.id2label == LABELS["id2label"]:
        assert open_source(tmp_path / "ours").labels == open_source(tmp_path / "back").labels == [*LABELS["label2id"]]
    name, narrow = CASES[case][0], case in ("electra, narrow", "electra, wide, [PAD] 1")
    kept = narrow or name != "Roberta" and head in ("Model", *POOLED)  # others are BERT, too
    again, report = getattr(transformers, (name if kept else "Bert") + head).from_pretrained(
        tmp_path / "back", output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"] and not report["mismatched_keys"]
    assert again.config.architectures == [type(again).__name__] and again.config.id2label == peer.config.id2label
    if case == "bert":
        for (name, weight), got in zip(peer.state_dict().items(), again.state_dict().values(), strict=True):
            assert torch.equal(got, weight), name
    assert_close(outputs_of(again.eval(), inputs), wanted, inputs["input_mask"])
    # Folders of transformers' tokenizer give the same ids, also of pairs.
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "back")(
        *pairs(), padding=True, truncation=True, max_length=LENGTH, return_tensors="np")
    np.testing.assert_array_equal(theirs["input_ids"], inputs["input_word_ids"].reshape(20, -1))
    if not inputs["segment_ids"].any():
        assert "token_type_ids" not in theirs


@pytest.mark.peers
def test_electras_pretraining(tmp_path):
    """The head that tells replaced tokens from others is left out."""
    peer = write(tmp_path / "peer", "electra, narrow", "ForPreTraining")
    inputs = inputs_for(tmp_path / "peer", "Model")
    with pytest.warns(InputWarning, match="no pooler in these weights; it is randomly initialised"):
        ours = load_pretrained(tmp_path / "peer")
    assert_close(outputs_of_ours(ours, inputs), outputs_of(peer.electra, inputs), inputs["input_mask"])
    convert_proven(tmp_path / "peer", tmp_path / "back", "huggingface")
    lines = []
    convert(tmp_path / "peer", tmp_path / "again", "huggingface", report=lines.append, no_check=True)
    assert any("skipped 4: discriminator_predictions.dense.bias" in line for line in lines)
    assert any("initialised classifier.dense.weight, classifier.dense.bias: not in the source" in line
               for line in lines)


@pytest.mark.peers
@pytest.mark.parametrize("case", ["roberta", "electra, wide, [PAD] 1", "distilbert"])
def test_packed_rows(tmp_path, case):
    peer = write(tmp_path / "peer", case, "ForSequenceClassification")
    ours = load_pretrained(tmp_path / "peer", models.BertClassifier, layout="packed")
    tokenizer = BertTokenizer.from_folder(tmp_path / "peer")
    batches = PackedBatches(tokenizer.pack(*pairs(), LENGTH), tokenizer.pad_id, None, LENGTH)
    (wanted,) = outputs_of(peer, tokenizer(*pairs(), max_length=LENGTH))
    got = ours(batches.inputs(np.arange(20)))
    np.testing.assert_allclose(ops.convert_to_numpy(got), wanted, rtol=0, atol=1e-5)


@pytest.mark.peers
def test_exported_texts(tmp_path):
    """SavedModels of texts and of ids, of an encoder with one segment."""
    peer = write(tmp_path / "peer", "roberta", "ForSequenceClassification")
    tokenizer, (first, second) = BertTokenizer.from_folder(tmp_path / "peer"), pairs()
    inputs = tokenizer(first, second, max_length=LENGTH)
    wanted = torch.softmax(torch.from_numpy(outputs_of(peer, inputs)[0]), 1).numpy()
    ours = load_pretrained(tmp_path / "peer", models.BertClassifier)
    export_text_model(ours, tokenizer, tmp_path / "text", labels=["a", "b", "c"], pairs=True, max_length=LENGTH)
    signatures = tf.saved_model.load(tmp_path / "text").signatures
    got = signatures["serving_default"](text=tf.constant(first), text_pair=tf.constant(second))["probabilities"]
    np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-5)
    ids = {"input_word_ids": inputs["input_word_ids"], "input_mask": inputs["input_mask"],
           "input_type_ids": inputs["segment_ids"]}
    got = signatures["encode"](**{name: tf.constant(array) for name, array in ids.items()})["probabilities"]
    np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-5)
    export_preprocessor(tokenizer, tmp_path / "preprocessor", max_length=LENGTH)
    preprocessor = tf.saved_model.load(tmp_path / "preprocessor")
    packed = preprocessor.bert_pack_inputs([preprocessor.tokenize(tf.constant(part)) for part in (first, second)],
                                           tf.constant(LENGTH))
    for name, array in ids.items():
        np.testing.assert_array_equal(packed[name][:, :array.shape[1]], array)


def tokenizer_of(config):
    return BertTokenizer(TINY_VOCABULARY, has_segments=config.type_vocab_size > 1)


@pytest.mark.filterwarnings("ignore:Layer LayerNormalization does not have a `quantize` method")
def test_embedding_size_in_the_layer(tmp_path):
    """The projection is saved, frozen with the embeddings, quantized and left alone by LoRA."""
    config = dataclasses.replace(CONFIGS["electra, narrow"], num_hidden_layers=1)
    model = randomize(models.BertPretrainer(BertLayer(config, frozen=["embeddings"], lora_rank=2), False))
    assert not any("embeddings" in weight.path for weight in model.trainable_weights)
    inputs = random_inputs(3, 9, config)
    wanted = ops.convert_to_numpy(model(inputs)["mlm_logits"])
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(again(inputs)["mlm_logits"], wanted, rtol=0, atol=1e-6)
    plain = again.rebuild(lora_rank=None, frozen=[])
    with few_objects():
        plain.quantize("int8")
    assert plain.bert.embeddings.projection.quantization_mode == "int8"
    np.testing.assert_allclose(plain(inputs)["mlm_logits"], wanted, rtol=0, atol=0.2 * np.abs(wanted).max())


@pytest.mark.slow("gradients of a SavedModel compiled by XLA")
def test_embedding_size_in_hub_layers(tmp_path):
    """The exported projection answers and gets its gradients in `hub.KerasLayer` too, compiled by XLA."""
    bert = randomize(BertLayer(dataclasses.replace(CONFIGS["electra, narrow"], num_hidden_layers=1)))
    export_encoder(bert, tmp_path / "encoder", tokenizer_of(bert.config), jit_compile=True)
    layer = hub.KerasLayer(str(tmp_path / "encoder"), trainable=True)
    inputs = [tf.constant(array) for array in random_inputs(3, 9, bert.config).values()]
    results = []
    own = [weight.value for weight in bert.trainable_weights]
    for model, weights in ((bert, own), (layer, layer.trainable_weights)):
        with tf.GradientTape() as tape:
            pooled, sequence = model(inputs, training=False)
            loss = tf.reduce_sum(pooled**2) + tf.reduce_sum(sequence[:, 0] ** 3)
        results.append([pooled, sequence, *map(tf.convert_to_tensor, tape.gradient(loss, weights))])
    assert "embeddings/projection/kernel" in {weight.path.split("/", 1)[1] for weight in bert.trainable_weights}
    for wanted, got in zip(*results, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-5 * max(1, np.abs(wanted).max()))


def test_configs(tmp_path):
    """BERT's configs are written as before, and a width of its own is one that differs. Version 0.2 would compute tanh:
    it reads only the type `bert`."""
    for activation, model_type in (("tanh", "bert"), ("relu", "keras_bert"), ("gelu", "keras_bert")):
        own = BertConfig(pooler_activation=activation)
        assert own.to_dict()["model_type"] == model_type
        own.to_json(tmp_path / "config.json")
        assert BertConfig.from_json(tmp_path / "config.json") == own
    with pytest.raises(InputError, match="config.json: 'model_type' must be .*; got 'keras_bert', which is for"):
        open_source(tmp_path)
    assert {"embedding_size", "pooler_activation"}.isdisjoint(BertConfig(embedding_size=768).to_dict())
    assert BertConfig(embedding_size=768) == BertConfig()
    klue = {"model_type": "roberta", "vocab_size": 32000, "hidden_size": 768, "num_hidden_layers": 6,
            "num_attention_heads": 12, "intermediate_size": 3072, "max_position_embeddings": 514, "type_vocab_size": 1,
            "pad_token_id": 1, "layer_norm_eps": 1e-5}
    config = BertConfig.from_dict(klue)
    assert (config.max_position_embeddings, config.pad_token_id, config.pooler_activation) == (512, 1, "tanh")
    assert BertConfig.from_dict(klue | {"model_type": "electra"}).embedding_size == 128  # transformers' default
    config.to_json(tmp_path / "bert_config.json")
    assert BertConfig.from_json(tmp_path / "bert_config.json") == config
    with pytest.raises(InputError, match="a config of type distilbert must have the keys .* and hidden_dim; n_heads is "
                                         "missing"):
        BertConfig.from_dict({"model_type": "distilbert", "vocab_size": 60, "dim": 16, "n_layers": 2, "hidden_dim": 32})


@pytest.mark.parametrize("case,given,stored", [
    ("roberta", "roberta", "bert"), ("electra, narrow", "bert", "electra"), ("distilbert", "electra", "distilbert")])
def test_weights_of_another_type(tmp_path, case, given, stored):
    """One line says so, instead of a list of all missing and unexpected names."""
    huggingface.write(Weights.of(models.BertClassifier(BertLayer(CONFIGS[case]), 3)), str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS[case].to_dict() | {"model_type": given}))
    with pytest.raises(InputError, match=f"in the config must be that of the weights, {stored}; got '{given}'"):
        open_source(tmp_path)


def test_tensorflows_weights_of_other_types(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS["electra"].to_dict("electra")))
    (tmp_path / "tf_model.h5").touch()
    with pytest.raises(InputError, match="tf_model.h5: only BERT's weights are read from this file, not those of "
                                         "electra; get the model's model.safetensors or pytorch_model.bin"):
        open_source(tmp_path)


def write_one_segment(folder):
    """A folder with RoBERTa's one token type."""
    config = CONFIGS["roberta"]
    folder.mkdir()
    huggingface.write(Weights.of(randomize(models.BertSpanLabeler(BertLayer(config))), tokenizer_of(config)),
                      str(folder))
    return folder


@pytest.mark.slow("a segment that an encoder does not have")
def test_pairs_have_one_segment(tmp_path, eager):
    """Tokenizer, preprocessor and raw-text model; type id 1 is refused."""
    folder = write_one_segment(tmp_path / "model")
    tokenizer = BertTokenizer.from_folder(folder)
    inputs = tokenizer(["play some music"], ["turn off the light"])
    assert not inputs["segment_ids"].any()
    bert = load_pretrained(folder, frozen=["pooler"])
    with pytest.raises(ValueError, match="segment_ids must be from 0 to 0; got 1 to 1"):
        bert(inputs | {"segment_ids": np.ones_like(inputs["segment_ids"])})

    model, task = load_pretrained(folder, models.BertSpanLabeler), Span(24, doc_stride=4, max_query_length=8)
    rows = [("what time is it", "play some music now please , turn off the lamp and book a table for two"),
            ("what", "stop the song")]
    encoded = task.encode([QuestionExample(None, *row, [], False, None) for row in rows], tokenizer)
    answers = task.answers(encoded, run_model(model, encoded.batched(tokenizer)))
    got = TextModel(model, task, tokenizer, "float32").serve(*map(tf.constant, zip(*rows)))
    assert [answer.text for answer in answers] == [text.decode() for text in got["answer"].numpy()]
    np.testing.assert_allclose(got["score"], [answer.score for answer in answers], rtol=0, atol=1e-6)


def test_a_new_pooler_is_new_until_it_is_trained(tmp_path):
    """Not only before it is saved for the first time."""
    config = CONFIGS["roberta"]
    bert = randomize(BertLayer(config))
    for name in POOLER:
        variable(bert, name).assign(initial(name, shapes(config)[name], config))
    (tmp_path / "model").mkdir()
    huggingface.write(Weights.of(models.BertSpanLabeler(bert), tokenizer_of(config)), str(tmp_path / "model"))
    convert(tmp_path / "model", tmp_path / "saved", "keras_bert")
    with pytest.warns(InputWarning, match="no pooler in these weights; it is randomly initialised"):
        load_pretrained(tmp_path / "model")
    with pytest.warns(InputWarning, match="no trained pooler in these weights; it is randomly initialised"):
        bert = load_pretrained(tmp_path / "saved")
    with pytest.warns(InputWarning, match="no trained pooler and no BertClassifier head in these weights"):
        load_pretrained(tmp_path / "saved", models.BertClassifier, num_classes=2)
    bert.pooler.bias.assign(bert.pooler.bias + 1)
    (tmp_path / "trained").mkdir()
    native.write(Weights.of(bert, tokenizer_of(bert.config)), str(tmp_path / "trained"))
    with warnings.catch_warnings(action="error", category=InputWarning):
        load_pretrained(tmp_path / "trained")


def other_vocabulary(folder, name, content):
    """Replaces the vocabulary of a folder."""
    for file in ("vocab.txt", "tokenizer_config.json", "tokenizer.json"):
        (folder / file).unlink(missing_ok=True)
    content = content if isinstance(content, str | bytes) else json.dumps(content)
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


@pytest.mark.parametrize("model,words", [
    ({"type": "BPE", "vocab": {"a": 0}, "merges": []}, "got 'BPE', which is that of byte-level BPE"),
])
def test_other_vocabularies_are_refused(tmp_path, model, words):
    folder = write_one_segment(tmp_path / "model")
    other_vocabulary(folder, "tokenizer.json", {"model": model})
    with pytest.raises(InputError, match=f"tokenizer.json: model: 'type' must be WordPiece; {words}"):
        load_pretrained(folder)


@pytest.mark.parametrize("command", [
    ["finetune", "--train={0}/a.tsv"], ["convert", "--format=tf1"], ["features", "--input={0}/a.tsv"], ["export"],
    ["export", "text-model"], ["export", "litert"], ["fill-mask", "[MASK]"]], ids=" ".join)
def test_what_is_refused_needs_no_library(tmp_path, run, monkeypatch, command):
    """Not even for weights that PyTorch alone can read."""
    monkeypatch.setitem(sys.modules, "torch", None)
    (tmp_path / "a.tsv").write_text("text\tlabel\na\tx\nb\ty\n")
    folder = write_one_segment(tmp_path / "model")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    output = [f"--output={tmp_path}/out.npz"] * (command[0] != "fill-mask")
    torch = "pip install torch"  # for what converts without a vocabulary

    def check(words):
        status, _, messages = run(*(part.format(tmp_path) for part in command), f"--model={folder}", *output)
        assert status == 1 and len(messages) == 1 and words in messages[0], messages

    change_json(folder / "tokenizer_config.json", strange=1)
    check("does not know 'strange'")
    other_vocabulary(folder, "tokenizer.json", {"model": {"type": "BPE"}})
    check("got 'BPE'")
    (folder / "tokenizer.json").rename(folder / "merges.txt")
    check(torch if command[0] == "convert" else "merges.txt: the vocabulary must be one of WordPiece")
    (folder / "merges.txt").unlink()
    check(torch if command[0] == "convert" else "is missing next to the weights; copy the model's")


@pytest.mark.parametrize("name,content,words", [
    ("merges.txt", "#version: 0.2\n", "the vocabulary must be one of WordPiece; this is one of byte-level BPE; use a "),
    ("spiece.model", model_file(trainer=(3, 2)), "model_type must be unigram; got BPE; use a model with"),
])
def test_weights_with_another_vocabulary_are_read_for_ids(tmp_path, name, content, words):
    """Only what takes texts refuses them, and says why."""
    source = write_one_segment(tmp_path / "model")
    (tmp_path / "tf1").mkdir()
    tf1.write(Weights.of(BertLayer(TINY), BertTokenizer(TINY_VOCABULARY)), tmp_path / "tf1")
    (tmp_path / "tf1/tokenizer_config.json").touch()
    for folder in (source, tmp_path / "tf1"):
        other_vocabulary(folder, name, content)
        load_pretrained(folder, frozen=["pooler"])
        with pytest.raises(InputError, match=f"{name}: {words}"):
            open_source(folder).needed_tokenizer()
    with pytest.raises(InputError, match=words):
        BertTokenizer.from_folder(folder)
    lines = []
    convert(source, tmp_path / "out", "keras_bert", report=lines.append)
    assert any(line.startswith("no vocabulary: ") and words in line for line in lines)


@pytest.mark.peers
def test_shards(tmp_path):
    peer = write(tmp_path / "whole", "bert", "ForPreTraining")
    peer.save_pretrained(tmp_path / "shards", max_shard_size="300KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) == 2
    for one, other in zip(*(models.BertPretrainer.from_pretrained(tmp_path / name).get_weights()
                            for name in ("whole", "shards")), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.peers
def test_bfloat16_files(tmp_path):
    peer = write(tmp_path / "peer", "bert", "Model").to(torch.bfloat16)
    peer.save_pretrained(tmp_path / "peer")
    got = load_pretrained(tmp_path / "peer").pooler.kernel
    np.testing.assert_array_equal(got, peer.pooler.dense.weight.float().detach().numpy().T)


def test_an_output_layer_of_its_own_is_refused(tmp_path):
    path = write_huggingface(tmp_path / "peer", models.BertPretrainer(BertLayer(SMALL))) / "model.safetensors"
    tensors = load_file(path)
    decoder = tensors["bert.embeddings.word_embeddings.weight"].copy()
    save_file(tensors | {"cls.predictions.decoder.weight": decoder}, path)
    _, skipped, _ = open_source(tmp_path / "peer").load()
    assert skipped == {"cls.predictions.decoder.weight": "copy of embeddings.word_embeddings.weight"}
    save_file(tensors | {"cls.predictions.decoder.weight": decoder + 1}, path)
    with pytest.raises(InputError, match="BERT's output layer is tied"):
        open_source(tmp_path / "peer")


@pytest.mark.parametrize("model,options", [
    (models.BertClassifier, {"num_classes": 3}), (models.BertSpanLabeler, {}), (models.BertPretrainer, {}),
    (models.BertRegressor, {}), (models.BertMultipleChoice, {}), (models.BertTokenClassifier, {"num_classes": 2})])
def test_a_new_head_on_a_pretrained_encoder(pretrained_once, bert, model, options):
    with pytest.warns(InputWarning, match=f"no {model.__name__} head in these weights"):
        made = model.from_pretrained(pretrained_once, dtype="mixed_bfloat16", **options)
    assert made.bert.dtype_policy.name == "mixed_bfloat16"
    for one, other in zip(made.bert.get_weights(), bert.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_other_parts_of_the_heads(tmp_path):
    """Published are both heads under the name BertForMaskedLM, too, as bert-base-uncased."""
    write_huggingface(tmp_path / "classifier", models.BertClassifier(BertLayer(SMALL), 3))
    assert models.BertClassifier.from_pretrained(tmp_path / "classifier").num_classes == 3
    with pytest.warns(InputWarning, match="head in these weights"):
        assert models.BertClassifier.from_pretrained(tmp_path / "classifier", num_classes=5).num_classes == 5
    both = write_huggingface(tmp_path / "both", whole := randomize(models.BertPretrainer(BertLayer(SMALL))))
    config = json.loads((both / "config.json").read_text()) | {"architectures": ["BertForMaskedLM"]}
    (both / "config.json").write_text(json.dumps(config))
    for one, other in zip(models.BertPretrainer.from_pretrained(both).get_weights(), whole.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    part = models.BertPretrainer.from_pretrained(both, next_sentence=False)
    assert part.next_sentence is None
    np.testing.assert_array_equal(part.mlm.dense.kernel, whole.mlm.dense.kernel)
    write_huggingface(tmp_path / "part", part)
    with pytest.warns(InputWarning, match="head in these weights"):
        models.BertPretrainer.from_pretrained(tmp_path / "part", next_sentence=True)


@pytest.mark.peers
def test_a_trained_pooler_is_kept_where_their_model_needs_none(tmp_path):
    pretrainer = randomize(models.BertPretrainer(BertLayer(TINY), next_sentence=False))
    write_huggingface(tmp_path / "ours", pretrainer)
    np.testing.assert_array_equal(load_pretrained(tmp_path / "ours").pooler.kernel, pretrainer.bert.pooler.kernel)
    again = transformers.BertForMaskedLM.from_pretrained(tmp_path / "ours")
    np.testing.assert_array_equal(again.cls.predictions.bias.detach(), pretrainer.mlm.bias)


@pytest.mark.peers
def test_fill_mask_and_export(tmp_path, run):
    peer = write(tmp_path / "peer", "bert", "ForPreTraining")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "peer")(
        "play some [MASK] in the [MASK]", return_tensors="np")
    inputs = {ours: theirs[name].astype("int32") for name, ours in (
        ("input_ids", "input_word_ids"), ("attention_mask", "input_mask"), ("token_type_ids", "segment_ids"))}
    logits = outputs_of(peer, inputs)[0]
    masks = np.argwhere(inputs["input_word_ids"][0] == PAD_FIRST.index("[MASK]")).T
    status, output, _ = run("fill-mask", f"--model={tmp_path / 'peer'}", "--top_k=3", "--output_format=jsonl",
                            "play some [MASK] in the [MASK]")
    vocabulary = load_vocabulary(tmp_path / "peer/vocab.txt")
    for mask, wanted in zip(json.loads(output[0])["masks"], logits[0, masks[0]], strict=True):
        scores, ids = torch.from_numpy(wanted).softmax(-1).topk(3)
        assert [guess["token"] for guess in mask] == [vocabulary[i] for i in ids]
        np.testing.assert_allclose([guess["score"] for guess in mask], scores, atol=1e-5)
    assert status == 0
    assert run("export", f"--model={tmp_path / 'peer'}", f"--output={tmp_path / 'hub'}", "--with_mlm")[0] == 0
    found = tf.saved_model.load(str(tmp_path / "hub")).mlm(
        {"input_word_ids": inputs["input_word_ids"], "input_mask": inputs["input_mask"],
         "input_type_ids": inputs["segment_ids"], "masked_lm_positions": masks.astype("int32")})
    np.testing.assert_allclose(found["mlm_logits"], logits[:, masks[0]], atol=2e-5)


@pytest.fixture(scope="module")
def masked_lm(tmp_path_factory):
    return write_huggingface(tmp_path_factory.mktemp("lm") / "model", models.BertPretrainer(BertLayer(SMALL)))


@pytest.mark.parametrize("text,words", [("play", "text 1: must have [MASK]"), ("[MASK] " * 200, "at most 128 tokens")])
def test_texts_that_fill_mask_refuses(masked_lm, run, text, words):
    status, output, messages = run("fill-mask", f"--model={masked_lm}", text)
    assert status == 1 and output == [] and len(messages) == 1 and words in messages[0]


def test_invalid_bytes_of_arguments_become_one_character_each(masked_lm, run):
    command = "fill-mask", f"--model={masked_lm}", "--top_k=1", "play \udcff\udcfe[MASK]"
    status, lines, _ = run(*command)
    assert status == 0 and lines[0].endswith("\tplay \ufffd\ufffd[MASK]")
    assert json.loads(run(*command, "--output_format=jsonl")[1][0])["text"] == "play \ufffd\ufffd[MASK]"


def test_export_with_mlm_needs_that_head(pretrained_once, tmp_path, run):
    status, output, messages = run(
        "export", f"--model={pretrained_once}", f"--output={tmp_path / 'hub'}", "--with_mlm")
    assert status == 1 and output == [] and len(messages) == 1
    assert "--with_mlm needs weights with a masked LM head, as pretrain writes; these have no head" in messages[0]
