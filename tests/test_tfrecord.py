"""Examples as bytes: what TensorFlow writes, and files that the Model Garden reads and writes."""

import random

import numpy as np
import pytest
import tensorflow as tf

from keras_bert.pretraining.examples import PretrainingSettings, make_pretraining_data
from keras_bert.pretraining.input import PretrainingRecords
from keras_bert.pretraining.tfrecord import RecordFiles, checksums, frame, serialize
from keras_bert.text import BertTokenizer, save_vocabulary

from conftest import TINY_VOCABULARY

LENGTH, PREDICTIONS = 12, 3
TOKENIZER = BertTokenizer(TINY_VOCABULARY)


def test_tensorflow_reads_examples():
    """By both of its parsers. Where values are of one size, the bytes are those that TensorFlow writes."""
    rng = np.random.default_rng(0)
    features = {"ids": rng.integers(0, 2**31, (50, 40)) >> rng.integers(0, 32, (50, 40)),
                "long": np.full((50, 1), 2**62), "zeros": np.zeros((50, 300), np.int32),
                "alike": rng.integers(128, 2**14, (50, 30)), "weights": rng.random((50, 7)).astype(np.float32)}
    records = [record.tobytes() for record in serialize(features)]
    parsed = tf.io.parse_example(records, {name: tf.io.FixedLenFeature(
        [values.shape[1]], tf.float32 if name == "weights" else tf.int64) for name, values in features.items()})
    for name, values in features.items():
        np.testing.assert_array_equal(parsed[name], values)
    for row, record in enumerate(records):
        found = tf.train.Example.FromString(record).features.feature
        assert {name: list(feature.int64_list.value or feature.float_list.value) for name, feature in found.items()
                } == {name: values[row].tolist() for name, values in features.items()}
    for name in ("long", "zeros", "alike", "weights"):
        assert [record.tobytes() for record in serialize({name: features[name]})] == [
            tf.train.Example.FromString(record.tobytes()).SerializeToString()
            for record in serialize({name: features[name]})]


def write(path, records):
    """What TensorFlow writes."""
    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in records:
            writer.write(record)
    return path.read_bytes()


def test_files_are_what_tensorflow_writes(tmp_path):
    rng = np.random.default_rng(0)
    for size in (0, 1, 2, 3, 4, 5, 127, 128, 129, 130, 131, 4097):
        records = rng.integers(0, 256, (9, size), np.uint8)
        assert frame(records).tobytes() == write(tmp_path / "peer", map(bytes, records))
    records = [rng.bytes(size) for size in (0, 1, 2, 3, 4, 5, 63, 64, 65, 1000, 4097, 0)] + [b"\0" * 9, b"\xff" * 9]
    peer = write(tmp_path / "peer", records)
    assert all(record + checksum in peer for record, checksum in zip(records, checksums(records)))
    assert [checksums([record])[0] for record in records] == checksums(records) and checksums([]) == []
    files = RecordFiles([tmp_path / "peer"])
    assert len(files) == len(records) and files.read([9, 0, 13, 9]) == [records[i] for i in (9, 0, 13, 9)]


@pytest.mark.peers
def test_the_garden_reads_ours(tmp_path):
    from official.nlp.data import pretrain_dataloader as loader

    (tmp_path / "text.txt").write_text("the a i\nto my is it\n\nplay some music\nsong stop turn\n\non off\nlight lamp")
    make_pretraining_data([tmp_path / "text.txt"], TOKENIZER, tmp_path / "out",
                          PretrainingSettings(LENGTH, PREDICTIONS), processes=1, shards=2)
    config = loader.BertPretrainDataConfig(
        input_path=f"{tmp_path}/out/*.tfrecord", global_batch_size=2, seq_length=LENGTH, is_training=False,
        max_predictions_per_seq=PREDICTIONS, use_v2_feature_names=True, drop_remainder=False)
    peer = list(loader.BertPretrainDataLoader(config).load().unbatch().as_numpy_iterator())
    records = PretrainingRecords(sorted((tmp_path / "out").glob("*.tfrecord")))
    ours = list(records.dataset(1, seed=0).take(len(records)).as_numpy_iterator())
    assert sorted(ours[0].keys() - {"dropout_seed"}) == sorted(peer[0]) and len(ours) == len(peer) > 20
    assert sorted(tuple(np.concatenate([example[name] for name in sorted(example)])) for example in peer) == sorted(
        tuple(np.concatenate([batch[name].ravel() for name in sorted(peer[0])])) for batch in ours)


@pytest.mark.peers
@pytest.mark.parametrize("new_names", [False, True])
def test_we_read_the_gardens(tmp_path, new_names):
    from official.nlp.data import create_pretraining_data as garden
    from official.nlp.tools.tokenization import FullTokenizer

    save_vocabulary(TINY_VOCABULARY, tmp_path / "vocab.txt")
    tokenizer, rng = FullTokenizer(str(tmp_path / "vocab.txt"), True), random.Random(0)
    text = "\n".join(" ".join(rng.choices(TINY_VOCABULARY[5:36], k=6)) + "\n" * (i % 5 == 0) for i in range(200))
    (tmp_path / "text.txt").write_text(text)
    instances = garden.create_training_instances(
        [str(tmp_path / "text.txt")], tokenizer, lambda line: line.decode().strip(), LENGTH, 2, 0.1,
        0.15, PREDICTIONS, rng)
    path = str(tmp_path / "peer")
    garden.write_instance_to_example_files(instances, tokenizer, LENGTH, PREDICTIONS, [path], False, new_names)
    records = PretrainingRecords([path])
    assert len(records) == len(instances) > 100 and records.seq_length == LENGTH
    batch = next(records.dataset(len(instances), seed=0).as_numpy_iterator())
    for row, instance in enumerate(instances[number] for number in records.plan(0, 0)):
        count = len(instance.tokens)
        assert [TINY_VOCABULARY[i] for i in batch["input_word_ids"][row, :count]] == instance.tokens
        assert batch["input_mask"][row].tolist() == [1] * count + [0] * (LENGTH - count)
        assert batch["input_type_ids"][row, :count].tolist() == instance.segment_ids
        assert batch["next_sentence_labels"][row] == instance.is_random_next
        targets = batch["masked_lm_weights"][row] > 0
        assert [TINY_VOCABULARY[i] for i in batch["masked_lm_ids"][row, targets]] == instance.masked_lm_labels
        assert batch["masked_lm_positions"][row, targets].tolist() == instance.masked_lm_positions
