"""Prompts of embedders: in the files of sentence-transformers, in training, and in every form of a model."""

import json
import shutil

import numpy as np
import pytest
import tensorflow as tf
from test_convert_sentence_transformers import write

from keras_bert.commands import export_text_model
from keras_bert.convert import convert, open_source
from keras_bert.errors import InputError
from keras_bert.export.litert import why_not
from keras_bert.export.text_model import TextModel
from keras_bert.inference.features import write_features
from keras_bert.inference.lite_model import LiteModel, LiteRTModel
from keras_bert.inference.saved_model import Exported
from keras_bert.models import BertClassifier
from keras_bert.tasks import Classify, Embed
from keras_bert.training import FineTuned, finetune

import zoo
from conftest import Peer, convert_proven

pytestmark = pytest.mark.usefixtures("eager")

library = Peer("sentence_transformers")
PROMPTS = {"query": "play some: ", "passage": "the light, ", "other": "stop "}
TEXTS = ["turn off the lamp", "", "the music please " * 20]
# The prompt of each name; None for the default one.
OF_NAME = {None: "stop ", "document": PROMPTS["passage"], **PROMPTS}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write(tmp_path_factory.mktemp("prompts") / "folder", prompts=PROMPTS, default_prompt_name="other")


@pytest.fixture(scope="module")
def model(folder, tmp_path_factory):
    path = tmp_path_factory.mktemp("prompts") / "model"
    convert(folder, path, "keras_bert")
    return FineTuned.load(path)


@pytest.fixture(scope="module")
def exported():
    return Exported(str(zoo.saved_model("prompts")))


def embed(model, texts):
    """The vectors of texts without prompts."""
    return model.with_task(Embed(model.task.max_length)).predict(texts)


@pytest.mark.parametrize("prompts,wanted", [
    ({}, {}),
    ({"query": "a"}, {"query": "a", "document": ""}),
    ({"passage": "a", "corpus": "b"}, {"query": "", "document": "a", "passage": "a", "corpus": "b"}),
    ({"document": "", "passage": "a"}, {"query": "", "document": "", "passage": "a"}),
])
def test_names_that_can_be_asked_for(prompts, wanted):
    assert Embed(16, prompts=prompts).named_prompts == wanted


@pytest.mark.parametrize("settings,message", [
    ({"prompts": {"query": None}}, "prompts must be texts by name; got {'query': None}"),
    ({"default_prompt_name": "query"}, "default_prompt_name must be left out without prompts; got 'query'"),
    ({"prompts": {"a": "b"}, "default_prompt_name": "b"}, "default_prompt_name must be one of query, document, a; got"),
])
def test_settings_that_are_wrong(settings, message):
    with pytest.raises(InputError, match=message):
        Embed(16, **settings)


@pytest.mark.slow("a prompt that is dropped in silence")
def test_what_cannot_apply_a_prompt_says_so(model, exported, bert):
    with pytest.raises(InputError, match="prompt_name must be one of query, document, passage, other; got 'none'"):
        model.predict(TEXTS, prompt_name="none")
    with pytest.raises(InputError, match="prompt_name must be left out for this model, which has no prompts; got"):
        model.with_task(Embed(16)).predict(TEXTS, prompt_name="query")
    classifier = FineTuned(BertClassifier(bert, 2), model.tokenizer, Classify(16, labels=["a", "b"]))
    with pytest.raises(InputError, match="prompt_name must be left out for the task classify; it is for embed"):
        classifier.predict(TEXTS, prompt_name="query")
    with pytest.raises(InputError, match="prompt_name must be one of document, long, query; got 'encode'"):
        exported.with_prompt("encode")
    assert why_not(model.task, model.tokenizer) == "it does not put the default prompt, 'stop ', before texts"


# Forms of a model

@pytest.mark.filterwarnings("ignore:texts cut")
def test_texts_that_are_cut_have_the_prompt(model):
    assert model.task.max_length == 20
    graph = TextModel(model.model, model.task, model.tokenizer, "float32")
    for name, prompt in OF_NAME.items():
        wanted = embed(model, [prompt + text for text in TEXTS])
        np.testing.assert_array_equal(model.predict(TEXTS, prompt_name=name), wanted)
        outputs = graph.prompted[name](tf.constant(TEXTS)) if name else graph.serve(tf.constant(TEXTS))
        np.testing.assert_allclose(outputs["embedding"], wanted, rtol=0, atol=1e-6)
        assert outputs["tokens"].numpy().tolist() == [
            len(ids) for ids, _ in model.tokenizer.pack([prompt + text for text in TEXTS], None, 20)]
    np.testing.assert_array_equal(graph(tf.constant(TEXTS)), graph.serve(tf.constant(TEXTS))["embedding"])


@pytest.mark.slow("a form of a model without the prompt")
@pytest.mark.filterwarnings("ignore:texts cut")
def test_every_form_of_a_model_puts_the_prompt_before_texts_and_windows(exported):
    saved, model, texts = exported._saved_model, zoo.make("prompts"), ["turn off the lamp", "", "the light off " * 9]
    lite, served = LiteModel.load(zoo.litert("prompts")), LiteRTModel(str(zoo.litert("prompts")), threads=1)
    assert exported.answer_with_cuts([])[0].shape == lite.predict([]).shape == model.predict([]).shape == (0, 16)
    prompts = model.task.prompts | {"document": "", "serving_default": model.task.prompts["long"]}
    assert served.signatures.keys() == served.row_wise == prompts.keys() == saved.signatures.keys() - {"encode"}
    strings = np.array([text.encode() for text in texts], object)
    for name, prompt in prompts.items():
        tokens = len(model.tokenizer.ids([prompt])[0])
        for one in (served, saved):
            assert one.count_tokens(name, {"text": np.array([b"", b"a" * 4000], object)}).tolist() == [
                2 + tokens, 1000 + 2 + tokens]
        if name in ("query", "serving_default"):  # the others are made like these
            asked = name if name == "query" else None
            wanted = model.predict(texts, prompt_name=asked)
            np.testing.assert_allclose(wanted[:2], embed(model, [prompt + text for text in texts[:2]]), atol=1e-6)
            for found in (saved.run(name, [{"text": strings}])[0], served.run(name, [{"text": strings}])[0]):
                np.testing.assert_allclose(found["embedding"], wanted, rtol=0, atol=1e-5)
            np.testing.assert_allclose(lite.predict(texts, prompt_name=asked), wanted, rtol=0, atol=1e-5)


@pytest.mark.filterwarnings("ignore:texts cut")
def test_commands(model, folder, run, tmp_path, monkeypatch):
    model.save(tmp_path / "model")
    (tmp_path / "texts.jsonl").write_text('{"text": "a lamp"}\n')
    asked = "predict", f"--model={tmp_path / 'model'}", "--prompt_name=query"
    line, = run(*asked, "--output_format=jsonl", "a lamp")[1]
    run(*asked, f"--input={tmp_path / 'texts.jsonl'}", "--processes=1", f"--output={tmp_path / 'answers'}")
    wanted, = model.predict(["a lamp"], prompt_name="query")
    for text in (line, (tmp_path / "answers/texts.jsonl").read_text()):
        np.testing.assert_allclose(json.loads(text)["embedding"], wanted, rtol=0, atol=1e-6)
    monkeypatch.setattr("keras_bert.export.export_text_model", lambda *positional, **_: exported.append(positional[3]))
    exported = []
    export_text_model.run(str(folder), str(tmp_path / "exported"))
    assert (exported[0].prompts, exported[0].default_prompt_name) == (PROMPTS, "other")


@pytest.mark.filterwarnings("ignore:texts cut")
def test_features(model, folder, tmp_path):
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    for name in (None, "document"):
        write_features(folder, tmp_path / "texts.txt", tmp_path / f"{name}.npz", "last", "mean", True, prompt_name=name)
        np.testing.assert_allclose(np.load(tmp_path / f"{name}.npz")["vectors"],
                                   model.predict(TEXTS, prompt_name=name), rtol=0, atol=1e-6)
    (tmp_path / "pairs.tsv").write_text("text\ttext_pair\na\tb\n")
    with pytest.raises(InputError, match="prompt_name must be left out for pairs of texts; got 'query'"):
        write_features(folder, tmp_path / "pairs.tsv", tmp_path / "vectors.npz", prompt_name="query")


# Files

def test_prompts_are_kept_by_convert(folder, model, tmp_path):
    assert (model.task.prompts, model.task.default_prompt_name) == (PROMPTS, "other")
    model.save(tmp_path / "saved")
    convert(tmp_path / "saved", tmp_path / "back", "sentence_transformers")
    name = "config_sentence_transformers.json"
    assert (tmp_path / "back" / name).read_bytes() == (folder / name).read_bytes()
    with pytest.raises(InputError, match="not embedding: the encoder is written, without .* and without its prompts"):
        convert(folder, tmp_path / "tf1", "tf1")


def test_prompts_that_no_file_says(tmp_path, pretrained):
    folder = write(tmp_path / "folder", prompts={"query": "", "document": ""})
    assert "prompts" not in open_source(folder).settings
    convert(folder, tmp_path / "out", "sentence_transformers", query_prompt="query: ", document_prompt="passage: ")
    assert open_source(tmp_path / "out").settings["prompts"] == {"query": "query: ", "document": "passage: "}
    named = write(tmp_path / "named", prompts={"query": "play ", "document": ""}, default_prompt_name="query")
    convert(named, tmp_path / "none", "keras_bert", query_prompt="")
    assert not open_source(tmp_path / "none").settings.keys() & {"prompts", "default_prompt_name"}
    with pytest.raises(InputError, match="prompts are for models for embeddings; this one is for encoder"):
        convert(pretrained, tmp_path / "encoder", "tf1", query_prompt="a")


# Training

@pytest.mark.parametrize("row,prompts", [
    ({"text": "a", "text_pair": "i"}, "query document"),
    ({"text": "a", "text_pair": "i", "negative": "to"}, "query document document"),
    ({"text": "a", "text_pair": "i", "label": 1}, "other other"),
    ({"text": "a", "label": "x"}, "other"),
])
def test_each_column_gets_its_prompt(tokenizer, row, prompts):
    task = Embed(20, prompts=PROMPTS, default_prompt_name="other")
    texts = [value for name, value in row.items() if name != "label"]
    assert task.encode(Embed.read(Embed.open([row], "rows")), tokenizer).rows[0] == tokenizer.pack(
        [OF_NAME[name] + text for name, text in zip(prompts.split(), texts, strict=True)], None, 20)


def test_a_text_that_is_query_and_document_has_two_vectors(tokenizer):
    rows = [("play", "stop"), ("stop", "play")]
    encoded = Embed(20, prompts=PROMPTS).encode(Embed.read(Embed.open(rows, "rows")), tokenizer)
    vectors = np.float32([[[1, 0], [1, 0]], [[0, 1], [0, 1]]])  # of queries, and of their positives
    assert encoded.targets.tolist() == [[0, 1], [1, 0]]
    assert Embed(20).score(encoded, vectors)["mrr_at_10"] == 1


@pytest.mark.slow("a prompt that training does not see")
def test_finetune_keeps_prompts_and_normalizes(folder, pretrained_once, tmp_path):
    rows = [("play music", "some song"), ("turn the light off", "the lamp"), ("book a flight", "two")] * 2
    options = {"task": "embed", "epochs": 1, "batch_size": 3, "learning_rate": 0.01}
    tuned = finetune(rows, rows, model=folder, output=tmp_path / "more", query_prompt="what ", **options)
    assert tuned.task.prompts == PROMPTS | {"query": "what "} and tuned.task.default_prompt_name == "other"
    assert FineTuned.load(tmp_path / "more").task == Embed(20, prompts=tuned.task.prompts, default_prompt_name="other")
    new = finetune(rows, rows, model=pretrained_once, output=tmp_path / "new", document_prompt="it ", **options)
    assert new.model.normalize and new.task.prompts == {"document": "it "}
    np.testing.assert_allclose(np.linalg.norm(new.predict(["a lamp"]), axis=1), 1, rtol=1e-5)
    np.testing.assert_array_equal(new.predict(["a lamp"], prompt_name="document"), embed(new, ["it a lamp"]))


# The library itself

@pytest.mark.peers
@pytest.mark.slow("prompts of real embeddings")
@pytest.mark.parametrize("prompts,default", [
    ({"query": "Represent this sentence for searching relevant passages: "}, None),
    ({"query": "query: ", "document": "passage: "}, "query"),
    ({"query": "query: ", "passage": "passage: ", "document": ""}, None),
])
def test_vectors_are_those_of_sentence_transformers(minilm, tmp_path, prompts, default):
    shutil.copytree(minilm, tmp_path / "prompts")
    path = tmp_path / "prompts/config_sentence_transformers.json"
    path.write_text(json.dumps({"prompts": prompts, "default_prompt_name": default}))
    texts = ["How do I reset my password?", "ok", "a long text " * 200, "오늘 서울 날씨가 어때요?"]
    theirs = library.SentenceTransformer(str(tmp_path / "prompts"), device="cpu")
    convert_proven(tmp_path / "prompts", tmp_path / "ours")
    ours = FineTuned.load(tmp_path / "ours")
    for name, encode in ((None, theirs.encode), ("query", theirs.encode_query), ("document", theirs.encode_document)):
        found = ours.with_prompt(name).answer(ours.task.arguments(texts))
        np.testing.assert_allclose(found, encode(texts), rtol=0, atol=1e-6)
