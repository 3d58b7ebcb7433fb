"""Beam's pipeline makes the examples that the processes of one machine make."""

import collections

import numpy as np
import pytest
import tensorflow as tf

from keras_bert.errors import InputError
from keras_bert.pretraining import corpus
from keras_bert.pretraining.examples import PretrainingSettings, make_pretraining_data
from keras_bert.text import BertTokenizer

from conftest import TINY_VOCABULARY

pytestmark = pytest.mark.peers
TOKENIZER = BertTokenizer(TINY_VOCABULARY)
SETTINGS = PretrainingSettings(24, 4, dupe_factor=2)
ONE = ["--runner=DirectRunner", "--direct_num_workers=1"]
TWO = ["--runner=DirectRunner", "--direct_num_workers=2", "--direct_running_mode=multi_processing"]
WORDS = [piece for piece in TINY_VOCABULARY if piece[0] not in "[#"]


@pytest.fixture
def texts(tmp_path, monkeypatch):
    """Two files, of some thirty sections together."""
    monkeypatch.setattr(corpus, "SECTION", 1000)
    rng = np.random.default_rng(0)
    for name, count in (("a.txt", 15), ("b.txt", 5)):
        with open(tmp_path / name, "w") as file:
            for _ in range(count):
                file.writelines(" ".join(rng.choice(WORDS, 12)) + "\n" for _ in range(100))
                file.write("\n")
    return [tmp_path / "a.txt", tmp_path / "b.txt"]


def make(texts, name, beam_args=None):
    folder = texts[0].parent / name
    made = make_pretraining_data(texts, TOKENIZER, folder, SETTINGS, shards=3, processes=2, beam_args=beam_args)
    return folder, made


def records(folder):
    """How often each record is there."""
    return collections.Counter(tf.data.TFRecordDataset(sorted(map(str, folder.glob("*.tfrecord")))).as_numpy_iterator())


def test_a_pipeline_makes_what_processes_make(texts):
    (expected, made), (folder, by_beam) = make(texts, "processes"), make(texts, "beam", TWO)
    assert by_beam == made and made["counts"]["examples"] > 1000
    assert records(folder) == records(expected)
    assert len(records(folder)) > 0.99 * made["counts"]["examples"]
    assert sorted(path.name for path in folder.iterdir()) == sorted(path.name for path in expected.iterdir())


@pytest.mark.parametrize("arguments", [ONE, TWO])
def test_bad_input_is_one_line_and_leaves_nothing(texts, arguments):
    texts[1].write_bytes(b"the a\n\n\xff\n")
    before = sorted(texts[0].parent.iterdir())
    with pytest.raises(InputError) as caught:
        make(texts, "out", arguments)
    assert str(caught.value).startswith(f"{texts[1]}: row 3: must be UTF-8 text: invalid start byte at byte 1")
    assert sorted(texts[0].parent.iterdir()) == before


def test_a_runner_that_is_none(texts):
    with pytest.raises(InputError, match="^beam_args: .*Nobody"):
        make(texts, "out", ["--runner=Nobody"])
