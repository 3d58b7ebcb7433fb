"""The files of examples/other_engines.py give the answers of the Keras model in the other engines."""

import other_engines
import pytest

from keras_bert import InputError, models
from keras_bert.layers import BertLayer
from keras_bert.text import BertTokenizer
from keras_bert.training import FineTuned
from keras_bert.weights import native
from keras_bert.weights.format import Weights

from conftest import TINY, TINY_VOCABULARY, randomize

HEADS = {"classifier": lambda bert: models.BertClassifier(bert, 3),
         "tagger": lambda bert: models.BertTokenClassifier(bert, 3), "span": models.BertSpanLabeler,
         "embedder": lambda bert: models.BertEmbedder(bert, "mean", normalize=True)}
# Keras reads np.object, and warns about it in NumPy 2.
pytestmark = pytest.mark.filterwarnings("ignore:In the future `np.object` will be defined:FutureWarning")
engines = pytest.mark.parametrize("package,suffix", [("tf2onnx", ".onnx"), ("openvino", ".xml")])


def needs(package):
    pytest.importorskip(package, reason=f"pip install {package}")


@pytest.mark.slow("another engine that answers otherwise")
@engines
def test_a_fine_tuned_classifier(trained, tmp_path, package, suffix, capsys):
    needs(package)
    output = str(tmp_path / f"model{suffix}")
    assert other_engines.main(str(trained), output) < 1e-5
    assert capsys.readouterr().out.startswith(f"{output}: largest difference from the Keras model ")


@pytest.mark.slow("another engine that answers otherwise")
@engines
@pytest.mark.parametrize("head", HEADS)
def test_heads(tmp_path, package, suffix, head):
    needs(package)
    model = randomize(HEADS[head](BertLayer(TINY)))
    (tmp_path / "model").mkdir()
    native.write(Weights.of(model, BertTokenizer(TINY_VOCABULARY)), tmp_path / "model")
    assert other_engines.main(str(tmp_path / "model"), str(tmp_path / f"out{suffix}")) < 1e-5


def test_another_suffix(trained, tmp_path):
    with pytest.raises(InputError, match="output must end in .onnx or .xml; got model.pb"):
        other_engines.main(str(trained), "model.pb")


def test_a_folder_without_a_model(tmp_path):
    with pytest.raises(InputError, match="must be a folder that finetune wrote; it has neither model.keras nor "):
        other_engines.main(str(tmp_path), str(tmp_path / "model.onnx"))


def test_a_model_without_a_vocabulary(trained, tmp_path):
    (trained / "vocab.txt").unlink()
    with pytest.raises(InputError, match="must be a folder with a vocabulary: vocab.txt, tokenizer.json or a .model"):
        other_engines.main(str(trained), str(tmp_path / "model.onnx"))
    with pytest.raises(InputError, match="must be a folder with a vocabulary: vocab.txt, tokenizer.json or a .model"):
        FineTuned.load(trained)
