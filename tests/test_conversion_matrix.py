"""Each format's own library loads what `convert` writes of each kind of model, and gives the same answers."""

import importlib
import pathlib

import pytest

pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("ignore")]  # of the other libraries

ENCODERS = {"encoder", "pretraining", "masked LM", "masked LM, KerasHub's"}
STORED = {
    "keras_bert": None, "huggingface": None,  # all models
    "tf1": {"encoder", "pretraining", "masked LM", "classify", "intent", "multilabel", "span"},
    "kerashub": {"encoder", "masked LM, KerasHub's", "classify", "intent", "multilabel"},
    "garden": {"encoder", "pretraining", "masked LM"}, "hub": {"encoder", "masked LM"},
}
HEADS = [*sorted(ENCODERS), "classify", "intent", "multilabel", "regress", "tag", "span", "choice"]


@pytest.fixture(scope="module")
def matrix():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(pathlib.Path(__file__).parents[1] / "benchmarks")
        yield importlib.import_module("conversion_matrix")


# Intents are classifiers with a threshold. test_formats.py has our own format and what each refuses.
CHECKED = [(form, head) for form, heads in STORED.items() for head in heads or HEADS
           if (form, head) != ("huggingface", "masked LM, KerasHub's")
           and (head != "intent" or form == "huggingface")
           and (form != "keras_bert" or head in ("masked LM, KerasHub's", "choice"))
           and (form, head) != ("hub", "encoder")]  # which the model with its head contains


@pytest.mark.parametrize(("form", "head"), sorted(CHECKED))
def test_the_library_gives_the_same_answers(matrix, tmp_path, head, form):
    assert {*matrix.HEADS} == {*HEADS} and {*matrix.LIBRARIES} == {*STORED}
    # test_convert_sentence_transformers.py has the last one.
    assert {*matrix.FORMATS} - {*STORED} == {"sentence_transformers"}
    report = matrix.check(head, form, str(tmp_path / "out"))
    assert report["difference"] <= 3e-6  # sums of float32 in another order, through two blocks


def test_settings_survive_transformers(matrix, tmp_path):
    """Loaded and saved there, with other files, they are still in config.json."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    from keras_bert.convert import convert, open_source

    convert(matrix.source("intent"), tmp_path / "peer", "huggingface")
    for part in (AutoModelForSequenceClassification, AutoTokenizer):
        part.from_pretrained(tmp_path / "peer").save_pretrained(tmp_path / "again")
    source, before = (open_source(path) for path in (tmp_path / "again", matrix.source("intent")))
    assert (source.settings, source.labels) == (before.settings, before.labels)
    assert source.tokenizer.vocabulary == before.tokenizer.vocabulary
    assert source.tokenizer.rules == before.tokenizer.rules
