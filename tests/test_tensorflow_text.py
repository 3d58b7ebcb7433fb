"""Where TensorFlow Text differs from the ids that BERT was trained with: why an export does not use it."""

import functools
import pathlib
import tempfile

import pytest
import tensorflow as tf
import tensorflow_text as tf_text
from test_graph_tokenizer import real, run
from test_text import full_tokenizer

from keras_bert.text import save_vocabulary

from conftest import REAL

pytestmark = pytest.mark.peers
UNCASED, CASED = ("bert-base-uncased", True), ("bert-base-multilingual-cased", False)


@functools.cache
def references(name, lower_case):
    """The Model Garden's tokenizer and TensorFlow Text's two."""
    path = REAL / "vocab" / name / "vocab.txt"
    slow = tf_text.BertTokenizer(str(path), lower_case=lower_case, token_out_type=tf.int32)
    fast = tf_text.FastBertTokenizer(real(name, lower_case)[0].vocabulary, lower_case_nfd_strip_accents=lower_case,
                                     token_out_type=tf.int32)
    return full_tokenizer(path, lower_case), slow, fast


@pytest.mark.parametrize("model,text,fast_differs", [
    # It folds case by NFKC, which BERT does not.
    pytest.param(UNCASED, "ＡＢＣ", True, id="full-width letters"),
    pytest.param(UNCASED, "play！", True, id="full-width punctuation"),
    pytest.param(UNCASED, "ﬁsh", True, id="ligature"),
    pytest.param(UNCASED, "play™", True, id="trade mark sign"),
    pytest.param(UNCASED, "½ x²", True, id="fractions and powers"),
    pytest.param(UNCASED, "straße", True, id="sharp s"),
    pytest.param(UNCASED, "ΛΟΓΟΣ", True, id="final sigma"),
    # It splits at other white space, and where BERT deletes.
    pytest.param(CASED, "play\u00a0music", False, id="no-break space"),
    pytest.param(CASED, "play\u3000music", False, id="ideographic space"),
    pytest.param(CASED, "play\u2028music", False, id="line separator"),
    pytest.param(CASED, "mu\u00adsic", True, id="soft hyphen"),
    pytest.param(CASED, "mu\u200bsic", True, id="zero-width space"),
    pytest.param(UNCASED, "mu\0sic", True, id="control character"),
    pytest.param(UNCASED, "play\ufffd", True, id="replacement character"),
    # Its words end at 100 bytes, not 200 characters.
    pytest.param(UNCASED, "a" * 101, True, id="word of 101 bytes"),
    pytest.param(CASED, "한국어" * 12, True, id="word of 108 bytes"),
])
def test_tensorflow_text_differs(model, text, fast_differs):
    garden, slow, fast = references(*model)
    tokenizer, graph = real(*model)
    expected = garden.convert_tokens_to_ids(garden.tokenize(text))
    assert tokenizer.ids([text]) == run(graph, [text])[0] == [expected]
    assert slow.tokenize([text]).merge_dims(1, 2).to_list() != [expected]
    assert (fast.tokenize([text]).to_list() != [expected]) == fast_differs


@pytest.mark.parametrize("model", [UNCASED, CASED], ids=["uncased", "cased"])
def test_tensorflow_text_is_right_on_plain_text(model):
    # The comparison above is of like with like.
    garden, slow, fast = references(*model)
    text = "Don't play Café music, 中国! " + "a" * 100
    expected = [garden.convert_tokens_to_ids(garden.tokenize(text))]
    assert slow.tokenize([text]).merge_dims(1, 2).to_list() == fast.tokenize([text]).to_list() == expected


@functools.cache
def libraries(name, lower_case):
    """Functions of a text that return the ids of KerasHub and of transformers."""
    import keras_hub
    import transformers

    tokenizer = real(name, lower_case)[0]
    with tempfile.TemporaryDirectory() as folder:
        save_vocabulary(tokenizer.vocabulary, f"{folder}/vocab.txt")
        tokenizer.save_settings(folder)
        pathlib.Path(folder, "config.json").write_text('{"model_type": "bert"}')
        auto = transformers.AutoTokenizer.from_pretrained(folder)
    hub = keras_hub.models.BertTokenizer(tokenizer.vocabulary, lowercase=lower_case, strip_accents=lower_case)
    return lambda text: list(hub(text)), lambda text: auto(text, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize("model,text,differing", [
    pytest.param(UNCASED, "play the music, café", "", id="plain text"),
    pytest.param(UNCASED, "ＡＢＣ", "KerasHub", id="full-width letters"),
    pytest.param(UNCASED, "straße", "KerasHub", id="sharp s"),
    pytest.param(UNCASED, "서울 날씨", "KerasHub", id="jamo"),
    pytest.param(CASED, "서울 날씨", "", id="Hangul syllables"),
    pytest.param(UNCASED, "ΛΟΓΟΣ", "KerasHub transformers", id="final sigma"),
    pytest.param(CASED, "play\u00a0music", "KerasHub", id="no-break space"),
    pytest.param(CASED, "play\u3000music", "KerasHub", id="ideographic space"),
    pytest.param(CASED, "mu\u00adsic", "KerasHub", id="soft hyphen"),
    pytest.param(CASED, "mu\u200bsic", "KerasHub", id="zero-width space"),
    pytest.param(CASED, "mu\ue000sic", "transformers", id="private-use character"),
    pytest.param(UNCASED, "a" * 101, "KerasHub transformers", id="word of 101 characters"),
    pytest.param(CASED, "한국어" * 12, "KerasHub", id="word of 108 bytes"),
    pytest.param(CASED, "play [SEP] music", "transformers", id="special token in the text"),
])
def test_keras_hub_and_transformers_differ(model, text, differing):
    expected, (hub, auto) = real(*model)[0].ids([text])[0], libraries(*model)
    assert {"KerasHub": hub(text) != expected, "transformers": auto(text) != expected} == {
        name: name in differing for name in ("KerasHub", "transformers")}
