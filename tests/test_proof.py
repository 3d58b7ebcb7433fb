"""`convert` refuses a result that does not answer as the source's own library. `convert_proven` is for right ones."""

import logging
import re

import pytest
from test_encoders import write

from keras_bert.convert import convert
from keras_bert.errors import InputError
from keras_bert.weights.format import TRANSPOSED, Entry

from conftest import Peer, change_json

pytestmark = pytest.mark.peers
transformers = Peer("transformers")


def lower_case(folder):
    """Without a config, transformers lower-cases, whatever tokenizer.json says."""
    transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(folder)
    (folder / "tokenizer_config.json").write_text("{}")


STALE = {"keras_bert": {"task": "classify", "max_length": 9, "pairs": False}}  # trained again after a conversion


@pytest.mark.parametrize(("edit", "line"), [
    (lower_case, "ids of .* differ from token .*pass no_check=True"),
    (lambda folder: change_json(folder / "config.json", **STALE), "ids of .* from token 8 on"),
], ids=["casing", "length"])
def test_what_is_read_differently_is_not_kept(edit, line, tmp_path):
    write(tmp_path / "source", "bert", "ForSequenceClassification")
    edit(tmp_path / "source")
    with pytest.raises(InputError, match=f"the result must give the answers of .*; {line}"):
        convert(tmp_path / "source", tmp_path / "out", "keras_bert")
    assert not (tmp_path / "out").exists()
    convert(tmp_path / "source", tmp_path / "out", "keras_bert", no_check=True)


def test_weights_that_are_read_wrongly_are_not_kept(tmp_path, monkeypatch):
    """The arrays are then written and reloaded as they were read."""
    def read(entry, array, shape, right=Entry.from_stored):
        return right(entry, array.T if entry.form == TRANSPOSED and "query" in entry.name else array, shape)

    monkeypatch.setattr(Entry, "from_stored", read)
    write(tmp_path / "source", "bert", "ForMaskedLM")
    with pytest.raises(InputError, match="the result must give .*; sequence_output of 'The bank .*' differ by "):
        convert(tmp_path / "source", tmp_path / "out", "keras_bert")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("edit", "options", "line"), [
    (lambda folder: change_json(folder / "config.json", dtype="no type"), {}, "transformers .* failed: "),
    (lambda folder: None, {"max_position_embeddings": 20}, "max_position_embeddings may change answers"),
], ids=["damage", "option"])
def test_what_is_not_compared_is_said(edit, options, line, tmp_path, monkeypatch):
    monkeypatch.setattr(logging.root.manager, "disable", logging.DEBUG)
    lines = []
    write(tmp_path / "source", "bert", "Model")
    edit(tmp_path / "source")
    convert(tmp_path / "source", tmp_path / "out", "keras_bert", **options, report=lines.append)
    assert re.match(f"not compared with another library's answers, only with what was read: .*{line}", lines[-1])
    assert logging.root.manager.disable == logging.DEBUG
