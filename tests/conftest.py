"""What the tests share: a tiny encoder, MiniLM, and the folder of real data."""

import os
import pathlib

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import pytest

from keras_bert.config import BertConfig
from keras_bert.presets import find_pretrained
from keras_bert.text import BertTokenizer

TINY = BertConfig(vocab_size=60, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, intermediate_size=32,
                  max_position_embeddings=128)
TINY_VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]",
                   *"the a i to my is it play some music song stop turn on off light lamp book flight table for two "
                    "please now what time weather today ##s ##ing , . ?".split()]
TINY_VOCABULARY += [f"[unused{i}]" for i in range(TINY.vocab_size - len(TINY_VOCABULARY))]
# Real texts and vocabularies, not part of the repository.
DATA = pathlib.Path(os.environ.get("KERAS_BERT_DATA", pathlib.Path(__file__).parents[2] / "shared/data"))

needs_data = pytest.mark.skipif(not DATA.exists(), reason=f"needs the real data in {DATA} (KERAS_BERT_DATA)")


@pytest.fixture
def bert():
    """A tiny `BertLayer` whose biases and norms are random too, so that none of them can be lost unnoticed."""
    from keras_bert.layers import BertLayer

    return randomize(BertLayer(TINY))


@pytest.fixture
def tokenizer():
    return BertTokenizer(TINY_VOCABULARY)


@pytest.fixture(scope="session")
def minilm():
    return pathlib.Path(find_pretrained("minilm"))


@pytest.fixture(scope="session")
def minilm_bert():
    from keras_bert.layers import BertLayer

    return BertLayer.from_pretrained("minilm")


@pytest.fixture
def pretrained(tmp_path, bert):
    """A Hugging Face folder of the tiny encoder."""
    return write_huggingface(tmp_path / "pretrained", bert)


@pytest.fixture
def intents(tmp_path):
    """A training and a validation file of two intents."""
    rows = [("play some music", "music"), ("play a song please", "music"), ("turn on the light", "light"),
            ("turn the lamp off", "light")]
    for split in ("train", "valid"):
        lines = ["text\tlabel", *("\t".join(row) for row in rows)]
        (tmp_path / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    return tmp_path / "train.tsv", tmp_path / "valid.tsv"


@pytest.fixture
def run_cli():
    """`cli.run` in this process."""
    from keras_bert import cli

    return cli.run


@pytest.fixture
def run(capsys, run_cli):
    """Runs a command in this process: (exit status, lines of output, lines of messages)."""

    def call(*arguments):
        status = run_cli([str(argument) for argument in arguments])
        output, messages = capsys.readouterr()
        return status, output.splitlines(), messages.splitlines()

    return call


@pytest.fixture
def trained(run, intents, pretrained, tmp_path):
    """A folder that `finetune` wrote."""
    assert run(*finetune_command(intents, pretrained, tmp_path / "trained"))[0] == 0
    return tmp_path / "trained"


def finetune_command(intents, pretrained, output, *more):
    """A command that fine-tunes the tiny encoder for one epoch."""
    return ("finetune", f"--train={intents[0]}", f"--valid={intents[1]}", f"--init_from={pretrained}",
            f"--output_dir={output}", "--epochs=1", "--batch_size=2", *more)


def randomize(layer, seed=0):
    """Gives each variable of a layer random values of a size that keeps activations near 1."""
    rng = np.random.default_rng(seed)
    for variable in layer.weights:
        centre = 1.0 if variable.name == "gamma" else 0.0
        variable.assign(rng.normal(centre, 0.1, variable.shape))
    return layer


def random_inputs(batch, length, config=TINY, seed=0):
    """Inputs of real tokens alone."""
    rng = np.random.default_rng(seed)
    return {
        "input_word_ids": rng.integers(0, config.vocab_size, (batch, length)).astype("int32"),
        "input_mask": np.ones((batch, length), "int32"),
        "segment_ids": rng.integers(0, config.type_vocab_size, (batch, length)).astype("int32"),
    }


def write_huggingface(folder, bert, vocabulary=TINY_VOCABULARY):
    """Writes an encoder, or a model on one, as a Hugging Face folder."""
    from keras_bert.convert import huggingface
    from keras_bert.convert.weights import Weights

    folder.mkdir()
    huggingface.write(Weights.of(bert, BertTokenizer(vocabulary)), folder)
    return folder
