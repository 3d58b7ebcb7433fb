"""Every model of PyTorch's transformers with a head: in, out, and back again."""

import json

import numpy as np
import pytest
from keras import ops
from safetensors.numpy import load_file, save_file

from keras_bert import models
from keras_bert.convert import convert, load_pretrained, open_source
from keras_bert.errors import InputError, InputWarning
from keras_bert.layers import BertLayer

from conftest import TINY, TINY_VOCABULARY, Peer, random_inputs, randomize, write_huggingface

torch, transformers = Peer("torch"), Peer("transformers")
LABELS = {"id2label": {0: "음악", 1: "light", 2: "$|"}, "label2id": {"음악": 0, "light": 1, "$|": 2}}
ARCHITECTURES = {
    "BertModel": (BertLayer, {}),
    "BertForPreTraining": (models.BertPretrainer, {}),
    "BertForMaskedLM": (models.BertPretrainer, {}),
    "BertForSequenceClassification": (models.BertClassifier, LABELS),
    "BertForTokenClassification": (models.BertTokenClassifier, LABELS),
    "BertForQuestionAnswering": (models.BertSpanLabeler, {}),
    "BertForMultipleChoice": (models.BertMultipleChoice, {}),
}


def write(folder, architecture, **settings):
    """A folder that transformers writes, all weights random, and the model."""
    config = transformers.BertConfig(**TINY.to_dict(), **settings)
    peer = getattr(transformers, architecture)._from_config(config, attn_implementation="eager").eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in peer.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
    peer.save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(TINY_VOCABULARY) + "\n")
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    return peer


def outputs_of(peer, inputs):
    with torch.inference_mode():
        outputs = peer(*(torch.from_numpy(inputs[key]).long()
                           for key in ("input_word_ids", "input_mask", "segment_ids")))
    return [output.numpy() for output in outputs.to_tuple()]


def outputs_of_ours(model, inputs):
    outputs = model(inputs)
    if isinstance(model, BertLayer):
        outputs = outputs[::-1]
    return [ops.convert_to_numpy(output) for output in
            (outputs.values() if isinstance(outputs, dict) else outputs if isinstance(outputs, tuple) else [outputs])]


@pytest.mark.peers
@pytest.mark.parametrize(("architecture", "between"), [
    *((architecture, "huggingface") for architecture in ARCHITECTURES), ("BertForPreTraining", "keras_bert"),
    ("BertForTokenClassification", "keras_bert")])
def test_full_circle(tmp_path, architecture, between):
    model, settings = ARCHITECTURES[architecture]
    peer = write(tmp_path / "peer", architecture, **settings)
    shape = (2, 2, 9) if architecture == "BertForMultipleChoice" else (4, 9)
    inputs = {name: array.reshape(shape) for name, array in random_inputs(4, 9).items()}
    ours = load_pretrained(tmp_path / "peer", model)
    for got, wanted in zip(outputs_of_ours(ours, inputs), outputs_of(peer, inputs), strict=True):
        np.testing.assert_allclose(got, wanted, atol=2e-5)

    convert(tmp_path / "peer", tmp_path / "ours", between)
    convert(tmp_path / "ours", tmp_path / "back", "huggingface")
    again, report = getattr(transformers, architecture).from_pretrained(tmp_path / "back", output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"] and not report["mismatched_keys"]
    for (name, wanted), got in zip(peer.state_dict().items(), again.state_dict().values(), strict=True):
        assert torch.equal(got, wanted), name
    if settings:
        assert again.config.id2label == LABELS["id2label"]
        assert open_source(tmp_path / "ours").labels == list(LABELS["label2id"])


@pytest.mark.peers
def test_shards(tmp_path):
    peer = write(tmp_path / "whole", "BertForPreTraining")
    peer.save_pretrained(tmp_path / "shards", max_shard_size="20KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) == 2
    for one, other in zip(*(models.BertPretrainer.from_pretrained(tmp_path / name).get_weights()
                            for name in ("whole", "shards")), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.peers
def test_bfloat16_files(tmp_path):
    peer = write(tmp_path / "peer", "BertModel").to(torch.bfloat16)
    peer.save_pretrained(tmp_path / "peer")
    got = load_pretrained(tmp_path / "peer").pooler.kernel
    np.testing.assert_array_equal(got, peer.pooler.dense.weight.float().detach().numpy().T)


@pytest.mark.peers
def test_an_output_layer_of_its_own_is_refused(tmp_path):
    write(tmp_path / "peer", "BertForMaskedLM")
    tensors = load_file(tmp_path / "peer/model.safetensors")
    decoder = tensors["bert.embeddings.word_embeddings.weight"].copy()
    path = tmp_path / "peer/model.safetensors"
    save_file(tensors | {"cls.predictions.decoder.weight": decoder}, path)
    lines = []
    convert(tmp_path / "peer", tmp_path / "out", "tf1", report=lines.append)
    assert any("cls.predictions.decoder.weight: copy of embeddings.word_embeddings.weight" in line for line in lines)
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


@pytest.mark.peers
def test_a_head_for_other_classes_is_new(tmp_path):
    write(tmp_path / "peer", "BertForSequenceClassification", **LABELS)
    assert models.BertClassifier.from_pretrained(tmp_path / "peer").num_classes == 3
    with pytest.warns(InputWarning, match="head in these weights"):
        assert models.BertClassifier.from_pretrained(tmp_path / "peer", num_classes=5).num_classes == 5


@pytest.mark.peers
def test_a_part_of_the_heads(tmp_path):
    write(tmp_path / "peer", "BertForPreTraining")
    whole = models.BertPretrainer.from_pretrained(tmp_path / "peer")
    part = models.BertPretrainer.from_pretrained(tmp_path / "peer", next_sentence=False)
    assert part.next_sentence is None
    np.testing.assert_array_equal(part.mlm.dense.kernel, whole.mlm.dense.kernel)
    with pytest.warns(InputWarning, match="head in these weights"):
        write(tmp_path / "masked", "BertForMaskedLM")
        models.BertPretrainer.from_pretrained(tmp_path / "masked", next_sentence=True)


@pytest.mark.peers
def test_fill_mask(tmp_path, run):
    peer = write(tmp_path / "peer", "BertForMaskedLM")
    text = "play some [MASK] in the [MASK]"
    status, output, _ = run("fill-mask", f"--model={tmp_path / 'peer'}", "--top_k=3", "--output_format=jsonl", text)
    masks = json.loads(output[0])["masks"]
    tokenizer = transformers.BertTokenizer(str(tmp_path / "peer/vocab.txt"))
    inputs = tokenizer(text, return_tensors="pt")
    with torch.inference_mode():
        probabilities = peer(**inputs).logits[inputs["input_ids"] == tokenizer.mask_token_id].softmax(-1)
    for mask, wanted in zip(masks, probabilities, strict=True):
        scores, ids = wanted.topk(3)
        assert [guess["token"] for guess in mask] == tokenizer.convert_ids_to_tokens(ids.tolist())
        np.testing.assert_allclose([guess["score"] for guess in mask], scores, atol=1e-5)
    assert status == 0


@pytest.fixture(scope="module")
def masked_lm(tmp_path_factory):
    return write_huggingface(tmp_path_factory.mktemp("lm") / "model", models.BertPretrainer(BertLayer(TINY)))


@pytest.mark.parametrize("text,words", [("play", "text 1: must have [MASK]"), ("[MASK] " * 200, "at most 128 tokens")])
def test_texts_that_fill_mask_refuses(masked_lm, run, text, words):
    status, output, messages = run("fill-mask", f"--model={masked_lm}", text)
    assert status == 1 and output == [] and len(messages) == 1 and words in messages[0]


def test_invalid_bytes_of_arguments_become_one_character_each(masked_lm, run):
    command = "fill-mask", f"--model={masked_lm}", "--top_k=1", "play \udcff\udcfe[MASK]"
    status, lines, _ = run(*command)
    assert status == 0 and lines[0].endswith("\tplay \ufffd\ufffd[MASK]")
    assert json.loads(run(*command, "--output_format=jsonl")[1][0])["text"] == "play \ufffd\ufffd[MASK]"


@pytest.mark.peers
def test_export_with_the_masked_lm_head(tmp_path, run):
    import tensorflow as tf

    peer = write(tmp_path / "peer", "BertForPreTraining")
    assert run("export", f"--model={tmp_path / 'peer'}", f"--output={tmp_path / 'hub'}", "--with_mlm")[0] == 0
    inputs = random_inputs(2, 7)
    logits = tf.saved_model.load(str(tmp_path / "hub")).mlm(
        {"input_word_ids": inputs["input_word_ids"], "input_mask": inputs["input_mask"],
         "input_type_ids": inputs["segment_ids"], "masked_lm_positions": np.array([[6, 1], [2, 0]], np.int32)})
    wanted = outputs_of(peer, inputs)[0][[[0], [1]], [[6, 1], [2, 0]]]
    np.testing.assert_allclose(logits["mlm_logits"], wanted, atol=2e-5)


def test_export_with_mlm_needs_that_head(pretrained_once, tmp_path, run):
    status, output, messages = run(
        "export", f"--model={pretrained_once}", f"--output={tmp_path / 'hub'}", "--with_mlm")
    assert status == 1 and output == [] and len(messages) == 1
    assert "--with_mlm needs weights with a masked LM head, as pretrain writes; these have no head" in messages[0]


@pytest.mark.peers
def test_both_heads_are_taken_whatever_the_config_calls_them(tmp_path):
    """bert-base-uncased is published as BertForMaskedLM, with the next-sentence head in its file."""
    peer = write(tmp_path / "peer", "BertForPreTraining")
    config = json.loads((tmp_path / "peer/config.json").read_text()) | {"architectures": ["BertForMaskedLM"]}
    (tmp_path / "peer/config.json").write_text(json.dumps(config))
    inputs = random_inputs(2, 7)
    model = models.BertPretrainer.from_pretrained(tmp_path / "peer")
    for got, wanted in zip(outputs_of_ours(model, inputs), outputs_of(peer, inputs), strict=True):
        np.testing.assert_allclose(got, wanted, atol=2e-5)


@pytest.mark.peers
def test_a_trained_pooler_is_kept_where_their_model_needs_none(tmp_path):
    pretrainer = randomize(models.BertPretrainer(BertLayer(TINY), next_sentence=False))
    write_huggingface(tmp_path / "ours", pretrainer)
    np.testing.assert_array_equal(load_pretrained(tmp_path / "ours").pooler.kernel, pretrainer.bert.pooler.kernel)
    again = transformers.BertForMaskedLM.from_pretrained(tmp_path / "ours")
    np.testing.assert_array_equal(again.cls.predictions.bias.detach(), pretrainer.mlm.bias)
