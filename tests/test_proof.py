"""`convert` compares a result with what the source's own library answers, on folders that these libraries saved."""

import logging
import re

import pytest

from keras_bert.convert import convert
from keras_bert.errors import InputError
from keras_bert.text.samples import TEXTS
from keras_bert.weights.format import TRANSPOSED, Entry

from conftest import Peer, change_json, randomize

pytestmark = pytest.mark.peers
torch, transformers, keras_hub = Peer("torch"), Peer("transformers"), Peer("keras_hub")
sentence_transformers = Peer("sentence_transformers")
# All characters of the texts, so that few words are unknown.
CHARACTERS = sorted({*"".join([*TEXTS, *(text.lower() for text in TEXTS)])} - {" "})
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *CHARACTERS, *(f"##{c}" for c in CHARACTERS)]
BERT = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32,
        "max_position_embeddings": 40}
DISTIL = {"dim": 16, "n_layers": 1, "n_heads": 4, "hidden_dim": 32, "max_position_embeddings": 40}


def save(folder, name, lower_case=True, values=BERT, kind="Bert"):
    """A model of transformers with random weights; it returns the folder."""
    config = getattr(transformers, f"{kind}Config")(vocab_size=len(VOCABULARY), pad_token_id=0, **values)
    torch.manual_seed(0)
    model = getattr(transformers, kind + name)(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape), alpha=0.1)
    model.save_pretrained(folder)
    tokenizer = getattr(transformers, "DistilBertTokenizer" if kind == "DistilBert" else "BertTokenizer")(
        vocab={token: id for id, token in enumerate(VOCABULARY)}, do_lower_case=lower_case, model_max_length=39)
    tokenizer.save_pretrained(folder)
    return folder


def save_embedder(folder, mode, **options):
    transformer = sentence_transformers.base.modules.Transformer(str(save(folder / "encoder", "Model")))
    modules = [transformer, sentence_transformers.sentence_transformer.modules.Pooling(16, mode)]
    sentence_transformers.SentenceTransformer(modules=modules, **options).save(str(folder / "folder"))
    return folder / "folder"


def save_cross_encoder(folder):
    values = BERT | {"num_labels": 1}
    save(folder / "model", "ForSequenceClassification", values=values)
    model = sentence_transformers.CrossEncoder(str(folder / "model"), device="cpu")
    model.save(str(folder / "folder"))
    return folder / "folder"


def save_preset(folder, kind, lower_case=True):
    models = keras_hub.models
    model = models.BertBackbone(len(VOCABULARY), 2, 4, 16, 32, max_sequence_length=40)
    tokenizer = models.BertTokenizer(VOCABULARY, lowercase=lower_case)
    if kind == "classification":
        model = models.BertTextClassifier(model, 3, models.BertTextClassifierPreprocessor(tokenizer, 32))
    if kind == "masked_lm":
        model = models.BertMaskedLM(model, models.BertMaskedLMPreprocessor(tokenizer, 32))
    randomize(model).save_to_preset(str(folder))
    if kind == "encoder":
        tokenizer.save_to_preset(str(folder))
    return folder


ROBERTA = BERT | {"max_position_embeddings": 41, "type_vocab_size": 2}
FOLDERS = {
    "encoder": lambda folder: save(folder, "Model"),
    "classifier, cased": lambda folder: save(folder, "ForSequenceClassification", False),
    "tagger": lambda folder: save(folder, "ForTokenClassification"),
    "answers": lambda folder: save(folder, "ForQuestionAnswering"),
    "masked LM, cased": lambda folder: save(folder, "ForMaskedLM", False),
    "pretraining": lambda folder: save(folder, "ForPreTraining"),
    "choices": lambda folder: save(folder, "ForMultipleChoice"),
    "RoBERTa": lambda folder: save(folder, "ForMaskedLM", values=ROBERTA, kind="Roberta"),
    "ELECTRA": lambda folder: save(folder, "ForPreTraining", kind="Electra"),
    "DistilBERT": lambda folder: save(folder, "ForSequenceClassification", values=DISTIL, kind="DistilBert"),
    "mean": lambda folder: save_embedder(folder, "mean"),
    "cls": lambda folder: save_embedder(folder, "cls", prompts={"query": "play: "}, default_prompt_name="query"),
    "cross-encoder": save_cross_encoder,
    "KerasHub": lambda folder: save_preset(folder, "encoder"),
    "KerasHub, classifier": lambda folder: save_preset(folder, "classification"),
    "KerasHub, masked LM, cased": lambda folder: save_preset(folder, "masked_lm", False),
}


@pytest.mark.parametrize("name", FOLDERS)
def test_results_answer_as_the_library_that_saved_the_source(name, tmp_path):
    lines = []
    convert(FOLDERS[name](tmp_path / "source"), tmp_path / "out", "keras_bert", report=lines.append)
    assert lines[-1].startswith("compared with answers of ") and " to " in lines[-1]
    assert float(lines[-1].split()[-1]) < 1e-5


STALE = {"keras_bert": {"task": "classify", "max_length": 9, "pairs": False}}  # trained again after a conversion


@pytest.mark.parametrize(("name", "edit", "line"), [
    ("classifier, cased", lambda folder: (folder / "tokenizer_config.json").write_text("{}"),
     "ids of .* differ from token .*pass no_check=True"),  # transformers lower-cases, whatever tokenizer.json says
    ("classifier, cased", lambda folder: change_json(folder / "config.json", **STALE), "ids of .* from token 8 on"),
], ids=["casing", "length"])
def test_what_is_read_differently_is_not_kept(name, edit, line, tmp_path):
    edit(folder := FOLDERS[name](tmp_path / "source"))
    with pytest.raises(InputError, match=f"the result must give the answers of .*; {line}"):
        convert(folder, tmp_path / "out", "keras_bert")
    assert not (tmp_path / "out").exists()
    convert(folder, tmp_path / "out", "keras_bert", no_check=True)


def test_weights_that_are_read_wrongly_are_not_kept(tmp_path, monkeypatch):
    """The arrays are then written and reloaded as they were read."""
    def read(entry, array, shape, right=Entry.from_stored):
        return right(entry, array.T if entry.form == TRANSPOSED and "query" in entry.name else array, shape)

    monkeypatch.setattr(Entry, "from_stored", read)
    with pytest.raises(InputError, match="the result must give .*; sequence_output of 'The bank .*' differ by "):
        convert(save(tmp_path / "source", "ForMaskedLM"), tmp_path / "out", "keras_bert")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("edit", "options", "line"), [
    (lambda folder: change_json(folder / "config.json", dtype="no type"), {}, "transformers .* failed: "),
    (lambda folder: None, {"max_position_embeddings": 20}, "max_position_embeddings may change answers"),
], ids=["damage", "option"])
def test_what_is_not_compared_is_said(edit, options, line, tmp_path, monkeypatch):
    monkeypatch.setattr(logging.root.manager, "disable", logging.DEBUG)
    lines = []
    edit(folder := save(tmp_path / "source", "Model"))
    convert(folder, tmp_path / "out", "keras_bert", **options, report=lines.append)
    assert re.match(f"not compared with another library's answers, only with what was read: .*{line}", lines[-1])
    assert logging.root.manager.disable == logging.DEBUG
