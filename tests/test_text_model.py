"""The raw-text SavedModel against the models that it was made from."""

import json
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_bert.export
from keras_bert.errors import InputError
from keras_bert.export import export_text_model
from keras_bert.export.checking import PASSED
from keras_bert.export.text_model import TextModel
from keras_bert.export.verify import verify
from keras_bert.inference.saved_model import SavedModel
from keras_bert.layers import BertLayer
from keras_bert.models import BertClassifier, BertEmbedder, BertPretrainer
from keras_bert.tasks import Classify
from keras_bert.text import BertTokenizer
from keras_bert.weights import sentence_transformers
from keras_bert.weights.format import Weights

import zoo
from conftest import TINY, TINY_VOCABULARY, change_json, randomize

TEXTS = ["play some music", "", "turn the lamp off please " * 40, "각각의 집 é!", " \t\n"]


@pytest.fixture(scope="module")
def tuned():
    return zoo.make("intent")


@pytest.fixture(scope="module")
def exported():
    return zoo.saved_model("intent")


@pytest.mark.usefixtures("eager")
def test_pairs_are_cut_as_in_training(tuned, tokenizer):
    task = Classify(20, ["a", "나", "c"], pairs=True)
    answer, others = TextModel(tuned.model, task, tokenizer, "float32").serve, TEXTS[::-1]
    wanted = keras.ops.softmax(tuned.model(tokenizer(TEXTS, others, max_length=20)))
    answers = answer(tf.constant(TEXTS), tf.constant(others))
    np.testing.assert_allclose(answers["probabilities"], wanted, atol=1e-6)
    assert answers["label"].numpy().tolist() == [["a", "나", "c"][i].encode() for i in np.argmax(wanted, axis=1)]
    assert "in_scope" not in answers
    with pytest.raises(tf.errors.InvalidArgumentError, match="text and text_pair must have the same batch size"):
        answer(tf.constant(["a"]), tf.constant(["b", "c"]))


@pytest.mark.slow("a default that the task has, too")
def test_none_as_an_option_leaves_out_what_the_task_has(tuned, tmp_path):
    tuned.export(tmp_path / "out", threshold=None)
    assert tuned.task.threshold and "in_scope" not in zoo.loaded(str(tmp_path / "out")).signatures[
        "serving_default"].structured_outputs


@pytest.mark.slow("a description that another program wrote")
def test_a_damaged_description_is_refused_or_left_out(exported, run, tmp_path):
    mark = zoo.copy(exported, tmp_path / "copy") / "assets.extra/keras_bert_row_wise.json"
    change_json(mark, display="constructor")
    assert SavedModel(str(tmp_path / "copy"), 1).display == "label"
    change_json(mark, task=[1])
    status, _, messages = run("predict", f"--model={tmp_path / 'copy'}", "a")
    assert status == 1 and len(messages) == 1 and "'task' must be an object; got [1]" in messages[0], messages
    mark.write_text("[1]")
    status, _, messages = run("predict", f"--model={tmp_path / 'copy'}", "a")
    assert status == 1 and len(messages) == 1 and "copy: cannot be loaded: " in messages[0], messages
    (tmp_path / "copy/assets/vocab.txt").write_text("[PAD]\n")
    with pytest.raises(InputError, match="copy: assets/vocab.txt must be as it was written; copy or write"):
        SavedModel(str(tmp_path / "copy"), 1)


def by_ids(loaded, tokenizer):
    inputs = tokenizer(TEXTS, max_length=30)
    inputs["input_type_ids"] = inputs.pop("segment_ids")
    return loaded.signatures["encode"](**{name: tf.constant(ids) for name, ids in inputs.items()})


@pytest.mark.slow("an encoder that embeds texts, and the flags of its command")
def test_an_encoder_embeds(run, pretrained_once, bert, tokenizer, tmp_path):
    assert run("export", "text-model", f"--model={pretrained_once}", f"--output={tmp_path / 'out'}",
               "--max_length=30")[0] == 0
    loaded = tf.saved_model.load(str(tmp_path / "out"))
    outputs = loaded(TEXTS)
    for text, pooled, mean in zip(TEXTS, outputs["pooled_output"], outputs["mean_output"]):
        wanted_pooled, sequence = bert(tokenizer([text], max_length=30))
        np.testing.assert_allclose(pooled, wanted_pooled[0], atol=2e-6)
        np.testing.assert_allclose(mean, np.mean(sequence[0], axis=0), atol=2e-6)  # alone, no text is padded
    for name, tensor in by_ids(loaded, tokenizer).items():
        np.testing.assert_allclose(tensor, outputs[name], atol=2e-6)
    status, _, messages = run("export", "text-model", f"--model={tmp_path / 'no'}", f"--output={tmp_path / 'out2'}")
    assert status == 1 and len(messages) == 1 and f"{tmp_path / 'no'}: must be" in messages[0]


@pytest.fixture(scope="module")
def embedder():
    return BertEmbedder(randomize(BertLayer(TINY)), "mean", normalize=True)


@pytest.mark.slow("what TensorFlow Hub does not take as a text embedding")
def test_an_embedder_is_a_text_embedding_of_tf_hub(embedder, tokenizer, tmp_path):
    import tensorflow_hub as hub

    export_text_model(embedder, tokenizer, tmp_path / "out", max_length=30)
    results = verify(tmp_path / "out")
    assert [(result.line, result.status) for result in results] == [(line, PASSED) for line in range(8)], results
    wanted = np.concatenate([embedder(tokenizer([text], max_length=30)) for text in TEXTS])
    layer = hub.KerasLayer(str(tmp_path / "out"))
    np.testing.assert_allclose(layer(tf.constant(TEXTS)), wanted, atol=1e-6)
    assert layer.trainable_weights == []
    loaded = layer.resolved_object
    outputs = loaded.signatures["serving_default"](text=tf.constant(TEXTS))
    assert outputs.keys() == {"embedding", "tokens"}
    np.testing.assert_array_equal(outputs["embedding"], loaded(TEXTS))
    assert outputs["tokens"].numpy().tolist() == [len(ids) for ids, _ in tokenizer.pack(TEXTS, None, 30)]
    for name, tensor in by_ids(loaded, tokenizer).items():
        np.testing.assert_allclose(tensor, outputs[name], atol=1e-6)


@pytest.mark.slow("a flag that replaces a setting of the model")
def test_flags_make_an_encoder_an_embedder(run, embedder, pretrained, tmp_path, monkeypatch):
    """What they leave out is the model's; a plain encoder has no pooling, and is not normalized."""
    (tmp_path / "weights").mkdir()
    weights = Weights.of(embedder, BertTokenizer(TINY_VOCABULARY), settings={"task": "embed", "max_length": 20})
    sentence_transformers.write(weights, tmp_path / "weights")
    assert run("convert", f"--model={tmp_path}/weights", f"--output={tmp_path}/ours", "--format=keras_bert")[0] == 0
    exported = []
    monkeypatch.setattr(keras_bert.export, "export_text_model", lambda model, tokenizer, path, task, **options:
                        exported.append((model, options["max_length"] or task and task.max_length,
                                         options["overwrite"])))

    def export(model, *flags):
        status, output, messages = run("export", "text-model", f"--model={model}", f"--output={tmp_path}/out", *flags)
        assert (status, output) == (0, [f"{tmp_path}/out"]), messages
        return exported.pop()

    for folder, flags, expected in [
            (tmp_path / "ours", [], ("mean", True, 20)),
            (tmp_path / "ours", ["--pooling=max", "--max_length=9", "--overwrite"], ("max", True, 9)),
            (tmp_path / "weights", [], ("mean", True, 20)),
            (tmp_path / "weights", ["--nonormalize"], ("mean", False, 20)),
            (pretrained, ["--pooling=cls"], ("cls", False, TINY.max_position_embeddings))]:
        model, max_length, overwrite = export(folder, *flags)
        assert (model.pooling, model.normalize, max_length, overwrite) == (*expected, "--overwrite" in flags)
        for got, wanted in zip(model.bert.get_weights(), embedder.bert.get_weights(), strict=True):
            np.testing.assert_array_equal(got, wanted)
    assert isinstance(export(pretrained)[0], BertLayer)
    status, _, messages = run("export", "text-model", "--normalize", f"--model={pretrained}", f"--output={tmp_path}/a")
    assert status == 1 and len(messages) == 1 and "pass --pooling, mean, cls or max" in messages[0]


@pytest.mark.slow("texts without limit, and bytes that are no text")
def test_any_batch_and_any_content(exported):
    loaded = zoo.loaded(exported)
    assert loaded(tf.constant([], tf.string))["probabilities"].shape == (0, 3)
    odd = [b"", b"\0", b"\xff\xfe", b"pl\0ay\xf0\x9f some music\xe2\x82", b"play " * 200_000, b"x" * 1_000_000,
           "\u200b\ufeff\u0301".encode()]
    plain = ["", "", "", "play some music", "play " * 200, "x" * 300, ""]
    np.testing.assert_allclose(loaded(odd)["probabilities"], loaded(plain)["probabilities"], atol=1e-6)
    np.testing.assert_allclose(loaded(odd)["probabilities"], np.concatenate(
        [loaded([text])["probabilities"] for text in odd]), atol=1e-6)


@pytest.mark.slow("a table that saving again loses")
def test_it_can_be_saved_again_and_moved(exported, tmp_path):
    """And the first deleted. test_tasks.py loads models where nothing but TensorFlow is imported."""
    first = zoo.copy(exported, tmp_path / "first")
    loaded = tf.saved_model.load(str(first))
    assert json.loads(tf.io.read_file(loaded.label_file.asset_path).numpy()) == zoo.LABELS
    tf.saved_model.save(loaded, str(tmp_path / "second"), loaded.signatures)
    shutil.rmtree(first)
    (tmp_path / "second").rename(tmp_path / "moved")
    answer = tf.saved_model.load(str(tmp_path / "moved")).signatures["serving_default"]
    np.testing.assert_allclose(answer(text=tf.constant(TEXTS))["probabilities"],
                               zoo.loaded(exported)(TEXTS)["probabilities"], atol=1e-6)


@pytest.mark.slow("a dtype that the export does not take from the model")
def test_bfloat16_is_half_the_size_and_that_of_a_model_in_mixed_bfloat16(tuned, exported, tmp_path):
    mixed = tuned.model.rebuild(dtype="mixed_bfloat16", layout="unpadded")
    export_text_model(mixed, tuned.tokenizer, tmp_path / "out", labels=tuned.task.labels, max_length=16)
    sizes, rows = [], []
    for loaded in (zoo.loaded(exported), tf.saved_model.load(str(tmp_path / "out"))):
        sizes.append(sum(weight.dtype.size * weight.shape.num_elements() for weight in loaded.weights))
        rows.append(loaded(TEXTS)["probabilities"])
    assert sizes[1] < 0.55 * sizes[0]  # the head stays float32
    np.testing.assert_allclose(*rows, atol=0.02)  # bfloat16 has 8 bits: 0.4% a step
    logits = mixed.predict_on_batch(tuned.tokenizer(TEXTS, max_length=16))
    np.testing.assert_allclose(rows[1], tf.nn.softmax(logits), atol=0.002)  # some sums are rounded in another order


def test_what_it_refuses(bert, embedder, tokenizer, tmp_path):
    for model, options, message in (
            (BertPretrainer(bert), {}, "a raw-text model must be one of BertLayer, .*; got BertPretrainer"),
            (BertClassifier(bert, 2), {}, "the names of the 2 classes of this BertClassifier; got 0 names"),
            (bert, {"labels": ["a"]}, "a BertLayer takes only these options: pairs; got labels"),
            (embedder, {"pairs": True}, "a BertEmbedder takes only these options: doc_stride, .*; got pairs"),
            (bert, {"max_length": 129}, "at most 128, .*; got 129"), (bert, {"max_length": 3}, "got 3"),
            (bert, {"dtype": "float16"}, "dtype must be one of float32, bfloat16; got 'float16'")):
        with pytest.raises(InputError, match=message):
            export_text_model(model, tokenizer, tmp_path / "out", **options)
    assert not list(tmp_path.iterdir())
