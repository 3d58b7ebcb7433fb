"""Run by `make wheel` in an environment that holds the built wheel alone: what it installs, and that it works.

    python smoke.py WHEEL
"""

import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile
import zipfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

names = zipfile.ZipFile(sys.argv[1]).namelist()
top_level = {name.split("/")[0] for name in names if ".dist-info/" not in name}
assert top_level == {"keras_bert"}, top_level
assert {f"keras_bert/{name}" for name in ("export/encoder.py", "serving/openapi.json", "serving/page/index.html")
        } <= set(names)

import numpy as np
import tensorflow as tf

import keras_bert
import keras_bert.tasks

assert "site-packages" in keras_bert.__file__, keras_bert.__file__
assert importlib.util.find_spec("export") is None
for library in ("tensorflow_text", "tensorflow_hub", "torch"):
    assert importlib.util.find_spec(library) is None, f"the core does not need {library}"

with tempfile.TemporaryDirectory() as folder:
    folder = pathlib.Path(folder)
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", "film"]
    config = keras_bert.BertConfig(vocab_size=8, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
                                   intermediate_size=16)
    bert = keras_bert.BertLayer(config)
    tokenizer = keras_bert.BertTokenizer(vocabulary)
    keras_bert.export_encoder(bert, folder / "encoder", tokenizer)
    inputs = tokenizer(["good film", "bad"])
    served = keras_bert.HubLayer(folder / "encoder")(list(inputs.values()))
    for got, wanted in zip(served, bert(inputs)):
        np.testing.assert_allclose(got, wanted, atol=2e-6)

    # The core alone fine-tunes, too: without matplotlib there are no pictures.
    rows = "text\tlabel\ngood film\tgood\nbad film\tbad\n"
    (folder / "data.tsv").write_text(rows)
    model = keras_bert.BertClassifier(bert, 2)
    keras_bert.FineTuned(model, tokenizer, keras_bert.tasks.Intent(16, ["bad", "good"])).save(folder / "start")
    keras_bert.finetune(folder / "data.tsv", folder / "data.tsv", model=folder / "start", output=folder / "model",
                        epochs=2, max_length=16)
    assert "## Scores" in (folder / "model/README.md").read_text()
    tuned = keras_bert.FineTuned.load(folder / "model")
    texts = ["Good film", "bad", "각각 é"]
    tuned.export(folder / "answers")
    answers = tf.saved_model.load(str(folder / "answers"))(texts)
    np.testing.assert_allclose(answers["score"], [answer.score for answer in tuned.predict(texts)], atol=1e-6)
    keras_bert.export_preprocessor(tokenizer, folder / "preprocessor", max_length=6)
    word_ids = tf.saved_model.load(str(folder / "preprocessor"))(texts)["input_word_ids"]
    np.testing.assert_array_equal(word_ids[:, :4], tokenizer(texts)["input_word_ids"][:, :4])

commands = pathlib.Path(sys.executable).with_name("keras-bert")
version = subprocess.run([commands, "--version"], capture_output=True, text=True, check=True).stdout.strip()
print(f"{version} on TensorFlow {tf.__version__}: the wheel works")
