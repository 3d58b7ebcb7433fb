"""Where other libraries differ from the ids that BERT was trained with: why an export does not use them."""

import functools
import pathlib
import subprocess
import sys
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
ALL = {"BertTokenizer", "FastBertTokenizer", "KerasHub", "transformers"}
TENSORFLOW = ALL - {"transformers"}
SLOW = {"BertTokenizer", "KerasHub"}
PLAIN = "Don't play Café music, 中国! " + "a" * 100


@functools.cache
def libraries(name, lower_case):
    """Functions of a text that return its ids: the Model Garden's, and those of others by name."""
    import keras_hub
    import transformers

    path, tokenizer = REAL / "vocab" / name / "vocab.txt", real(name, lower_case)[0]
    with tempfile.TemporaryDirectory() as folder:
        save_vocabulary(tokenizer.vocabulary, f"{folder}/vocab.txt")
        tokenizer.save_settings(folder)
        pathlib.Path(folder, "config.json").write_text('{"model_type": "bert"}')
        auto = transformers.AutoTokenizer.from_pretrained(folder)
    hub = keras_hub.models.BertTokenizer(tokenizer.vocabulary, lowercase=lower_case, strip_accents=lower_case)
    slow = tf_text.BertTokenizer(str(path), lower_case=lower_case, token_out_type=tf.int32)
    fast = tf_text.FastBertTokenizer(tokenizer.vocabulary, lower_case_nfd_strip_accents=lower_case,
                                     token_out_type=tf.int32)
    garden = full_tokenizer(path, lower_case)
    return lambda text: garden.convert_tokens_to_ids(garden.tokenize(text)), {
        "BertTokenizer": lambda text: slow.tokenize([text]).merge_dims(1, 2).to_list()[0],
        "FastBertTokenizer": lambda text: fast.tokenize([text]).to_list()[0],
        "KerasHub": lambda text: list(hub(text)),
        "transformers": lambda text: auto(text, add_special_tokens=False)["input_ids"]}


@pytest.mark.parametrize("model,text,differing", [
    # The comparison is of like with like.
    (UNCASED, PLAIN, set()), (CASED, PLAIN, set()), (CASED, "서울 날씨", set()),
    # TensorFlow's fold case by NFKC, which BERT does not: full-width forms, a ligature, a trade mark sign, fractions
    # and powers, a sharp s, a final sigma.
    (UNCASED, "ＡＢＣ", TENSORFLOW), (UNCASED, "play！", TENSORFLOW), (UNCASED, "ﬁsh", TENSORFLOW),
    (UNCASED, "play™", TENSORFLOW), (UNCASED, "½ x²", TENSORFLOW), (UNCASED, "straße", TENSORFLOW),
    (UNCASED, "ΛΟΓΟΣ", ALL), (UNCASED, "서울 날씨", {"KerasHub"}),
    # They split at other white space, and where BERT deletes.
    (CASED, "play\u00a0music", SLOW), (CASED, "play\u3000music", SLOW), (CASED, "play\u2028music", SLOW),
    (CASED, "mu\u00adsic", TENSORFLOW), (CASED, "mu\u200bsic", TENSORFLOW), (UNCASED, "mu\0sic", TENSORFLOW),
    (UNCASED, "play\ufffd", TENSORFLOW), (CASED, "mu\ue000sic", {"transformers"}),
    # Their words end at 100 bytes or characters, BERT's at 200 characters.
    (UNCASED, "a" * 101, ALL), (CASED, "한국어" * 12, TENSORFLOW), (CASED, "play [SEP] music", {"transformers"}),
], ids=lambda value: ascii(sorted(value) if isinstance(value, set) else value))
def test_others_differ(model, text, differing):
    garden, others = libraries(*model)
    tokenizer, graph = real(*model)
    assert tokenizer.ids([text]) == run(graph, [text])[0] == [garden(text)]
    assert {name for name, ids in others.items() if ids(text) != garden(text)} == differing


def test_verify_registers_the_operations_of_tensorflow_text(tmp_path):
    module, tokenizer = tf.Module(), tf_text.WhitespaceTokenizer()
    module.split = tf.function(lambda texts: tokenizer.tokenize(texts).to_tensor(),
                               input_signature=[tf.TensorSpec([None], tf.string)])
    tf.saved_model.save(module, tmp_path)
    done = subprocess.run([sys.executable, "-m", "keras_bert.cli", "verify", tmp_path], capture_output=True, text=True)
    assert done.stderr.endswith("checks failed\n")  # it was loaded
