"""Examples from TFRecord files: batches that follow from seed and step alone, and broken files."""

import struct

import numpy as np
import pytest
import tensorflow as tf

from keras_bert.errors import InputError
from keras_bert.pretraining.input import PretrainingRecords
from keras_bert.pretraining.masking import Masking
from keras_bert.pretraining.tfrecord import frame, serialize
from keras_bert.text import BertTokenizer

from conftest import TINY_VOCABULARY

LENGTH, PREDICTIONS, COUNTS = 12, 3, (7, 1, 15)
COUNT = sum(COUNTS)
TOKENIZER = BertTokenizer(TINY_VOCABULARY)
SKIPPED = "; pass skip_corrupt=True to skip what cannot be read"


def features_of(count, first=0):
    """Unmasked examples; an example's number is its label."""
    rng = np.random.default_rng(first)
    ids = rng.integers(5, 40, (count, LENGTH)).astype(np.int32)
    ids[:, 0], ids[:, -1] = TOKENIZER.cls_id, TOKENIZER.sep_id
    return {"input_word_ids": ids, "input_mask": np.ones_like(ids), "input_type_ids": np.zeros_like(ids),
            "next_sentence_labels": first + np.arange(count, dtype=np.int32)[:, None]}


def write_masked(path, features, rng):
    masking, ids = Masking(TOKENIZER, PREDICTIONS), features["input_word_ids"]
    path.write_bytes(frame(serialize(features | masking(ids, masking.noise(rng, *ids.shape)))).tobytes())


@pytest.fixture
def paths(tmp_path):
    """Files of 7, 1 and 15 examples, masked."""
    rng = np.random.default_rng(0)
    for file, count in enumerate(COUNTS):
        write_masked(tmp_path / f"{file}.tfrecord", features_of(count, sum(COUNTS[:file])), rng)
    return [tmp_path / f"{file}.tfrecord" for file in range(len(COUNTS))]


def batches(records, count, *arguments, **options):
    """The first batches of a dataset: a list of {name: array}."""
    with records.naming_errors():
        return list(records.dataset(*arguments, **options).take(count).as_numpy_iterator())


def labels(found):
    return [label for batch in found for label in batch["next_sentence_labels"].tolist()]


def same(first, second):
    return len(first) == len(second) and all(
        a.keys() == b.keys() and all((a[name] == b[name]).all() for name in a) for a, b in zip(first, second))


# Batches.

def test_an_epoch_covers_each_example_once(paths):
    records = PretrainingRecords(paths)
    assert (len(records), records.seq_length, records.corrupt) == (COUNT, LENGTH, 0)
    found = labels(batches(records, COUNT, 5, seed=1))
    epochs = [found[i:i + COUNT] for i in range(0, len(found), COUNT)]
    assert len(epochs) == 5 and all(sorted(epoch) == list(range(COUNT)) for epoch in epochs)
    assert len(set(map(tuple, epochs))) == 5 and epochs[0] != sorted(epochs[0])
    assert [records.plan(1, epoch).tolist() for epoch in range(5)] == epochs
    assert labels(batches(records, 5, COUNT, seed=2)) != found


@pytest.mark.parametrize("batch_size", [4, 23, 60])
def test_an_epoch_that_is_scored_once_counts_each_example_once(paths, batch_size):
    """The last batch is filled up with examples that do not count."""
    records = PretrainingRecords(paths)
    whole = batches(records, -(-COUNT // batch_size), batch_size, seed=1, once=True)
    parts = [batches(records, len(whole), batch_size // 2 * 2, seed=1, once=True, shard=shard, shards=2)
             for shard in range(2)] if batch_size % 2 == 0 else [whole]
    for found in (whole, [batch for step in zip(*parts) for batch in step]):
        weights = np.concatenate([batch["example_weights"] for batch in found])
        assert sorted(np.array(labels(found))[weights == 1]) == list(range(COUNT)) and weights.sum() == COUNT
        assert len(labels(found)) == len(whole) * batch_size
        for batch in found:
            assert (batch["masked_lm_weights"].max(1) == batch["example_weights"]).all()


def test_the_digest_knows_each_record(paths):
    """Whose names and sizes are the same."""
    before = PretrainingRecords(paths).digest
    assert PretrainingRecords(paths).digest == before
    features = features_of(1, COUNTS[0])
    for changed in (features, features | {"next_sentence_labels": features["next_sentence_labels"] + 1}):
        digests = []
        for _ in range(2):
            write_masked(paths[1], changed, np.random.default_rng(5))
            digests.append(PretrainingRecords(paths).digest)
        assert digests[0] == digests[1] != before
        before = digests[0]


def test_batches_hold_the_examples_as_they_are(paths):
    records = PretrainingRecords(paths)
    parsed = [tf.train.Example.FromString(record).features.feature
              for record in tf.data.TFRecordDataset(list(map(str, paths))).as_numpy_iterator()]
    for step, batch in enumerate(batches(records, 10, 4, seed=9)):
        assert batch.pop("dropout_seed").tolist() == [[9, step]] * 4
        for row in range(4):
            expected = parsed[batch["next_sentence_labels"][row]]
            assert batch.keys() == expected.keys()
            for name, values in batch.items():
                feature = expected[name]
                assert np.atleast_1d(values[row]).tolist() == list(feature.int64_list.value or feature.float_list.value)
    assert {name: (values.dtype.name, values.shape) for name, values in batch.items()} == {
        "input_word_ids": ("int32", (4, 12)), "input_mask": ("int32", (4, 12)), "input_type_ids": ("int32", (4, 12)),
        "masked_lm_positions": ("int32", (4, 3)), "masked_lm_ids": ("int32", (4, 3)),
        "masked_lm_weights": ("float32", (4, 3)), "next_sentence_labels": ("int32", (4,))}


@pytest.mark.parametrize("masking", [None, Masking(TOKENIZER, 2)])
def test_a_batch_is_a_function_of_seed_and_step(paths, masking):
    whole = batches(PretrainingRecords(paths), 20, 6, seed=3, masking=masking)
    assert same(whole, batches(PretrainingRecords(paths), 20, 6, seed=3, masking=masking))
    for step in (7, 19):
        assert same(whole[step:], batches(PretrainingRecords(paths), 20 - step, 6, seed=3, step=step, masking=masking))
    for shards in (2, 6):
        parts = [batches(PretrainingRecords(paths), 20, 6, seed=3, shard=shard, shards=shards, masking=masking)
                 for shard in range(shards)]
        joined = [{name: np.concatenate([part[name] for part in step]) for name in step[0]} for step in zip(*parts)]
        assert same(whole, joined)


def test_dynamic_masks_are_new_in_each_epoch_and_return(paths):
    masking = Masking(TOKENIZER, 2)
    originals = np.concatenate([features_of(count, sum(COUNTS[:file]))["input_word_ids"]
                                for file, count in enumerate(COUNTS)])
    first, second = ({label: (ids.tolist(), places.tolist()) for label, ids, places in zip(
        batch["next_sentence_labels"], batch["input_word_ids"], batch["masked_lm_positions"])}
                     for batch in batches(PretrainingRecords(paths), 2, COUNT, seed=0, masking=masking))
    assert sum(first[label] != second[label] for label in range(COUNT)) > COUNT * 0.8
    for batch in batches(PretrainingRecords(paths), 20, 5, seed=0, masking=masking):  # their old masks are gone
        ids, rows = batch["input_word_ids"].copy(), np.arange(5)[:, None]
        real = batch["masked_lm_weights"] > 0
        ids[(rows + 0 * batch["masked_lm_positions"])[real], batch["masked_lm_positions"][real]] = (
            batch["masked_lm_ids"][real])
        assert (ids == originals[batch["next_sentence_labels"]]).all()
        assert batch["masked_lm_ids"].shape == (5, 2) and real[:, 0].all()


def test_unmasked_examples_need_masking(tmp_path):
    features = features_of(6)
    del features["next_sentence_labels"]
    (tmp_path / "a").write_bytes(frame(serialize(features)).tobytes())
    records = PretrainingRecords([tmp_path / "a"])
    with pytest.raises(InputError, match="a: the examples are not masked; pass masking=dynamic"):
        records.dataset(2, seed=0)
    batch, = batches(records, 1, 2, seed=0, masking=Masking(TOKENIZER, 2))
    assert "next_sentence_labels" not in batch and batch["masked_lm_weights"].shape == (2, 2)


@pytest.mark.parametrize("batch_size, shard, shards", [(5, 0, 2), (4, 2, 2), (4, -1, 2), (0, 0, 1)])
def test_batches_that_cannot_be_shared_out(paths, batch_size, shard, shards):
    given = f"batch_size={batch_size}, shards={shards}, shard={shard}"
    with pytest.raises(InputError, match=f"multiple of shards.* got {given}$"):
        PretrainingRecords(paths).dataset(batch_size, 0, shard=shard, shards=shards)


# Broken files.

def bounds(path):
    """Where each record begins and the last one ends, read from the lengths alone."""
    data, found = path.read_bytes(), [0]
    while found[-1] < len(data):
        found.append(found[-1] + 16 + struct.unpack("<Q", data[found[-1]:found[-1] + 8])[0])
    return found


def flip(data, place):
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1:]


@pytest.mark.parametrize("record, damage, problem, lost", [
    (4, lambda data, place: flip(data, place + 40), "the record is corrupt", 1),
    (4, flip, "no TFRecord begins here, or its length is corrupt", 11),
    (4, lambda data, place: flip(data, place + 9), "no TFRecord begins here, or its length is corrupt", 11),
    (14, lambda data, place: data[:place + 100], "the file ends within the record", 1),
    (14, lambda data, place: data[:place + 5], "the file ends within the record", 1),
    (0, lambda *_: b"\0" * 99, "no TFRecord begins here, or its length is corrupt", 15),
    (0, lambda *_: frame(np.full((1, 1), ord("x"), np.uint8)).tobytes().replace(b"x", b"y"), "the record is corrupt",
     15)])
def test_a_broken_place_is_named_or_left_out(paths, record, damage, problem, lost):
    healthy = labels(batches(PretrainingRecords(paths), COUNT, 1, seed=0))
    place = bounds(paths[2])[record]
    paths[2].write_bytes(damage(paths[2].read_bytes(), place))
    with pytest.raises(InputError) as caught:
        batches(PretrainingRecords(paths), 20, 4, seed=0)
    assert str(caught.value) == f"{paths[2]}: byte {place}: {problem}{SKIPPED}"
    records = PretrainingRecords(paths, skip_corrupt=True)
    found = batches(records, 30, 4, seed=0)
    assert records.corrupt == 1 and all(len(batch["input_mask"]) == 4 for batch in found)
    left = set(labels(found))
    assert len(left) == COUNT - lost and left < set(healthy)
    assert same(found[11:], batches(PretrainingRecords(paths, skip_corrupt=True), 19, 4, seed=0, step=11))


def test_files_that_are_no_examples(paths, tmp_path):
    def write(name, records):
        with tf.io.TFRecordWriter(str(tmp_path / name)) as writer:
            for record in records:
                writer.write(bytes(record))
        return tmp_path / name

    def error(*paths, **options):
        with pytest.raises(InputError) as caught:
            PretrainingRecords(paths, **options)
        return str(caught.value)

    assert error() == "paths: must contain examples; there are none"
    assert error(write("empty", [])) == f"{tmp_path}/empty: must contain examples; there are none"
    assert error(tmp_path / "no") == f"{tmp_path}/no: cannot be read: No such file or directory"
    assert error(write("text", [b"\xff\xff text"])) == f"{tmp_path}/text: must contain tf.train.Examples"
    other = write("other", serialize({"label": np.zeros((1, 1), int)}))
    assert error(other) == (f"{other}: must contain pretraining examples; these lack input_word_ids, input_mask, "
                            "input_type_ids")
    shorter = write("shorter", serialize({name: values[:, :9] for name, values in features_of(1).items()}))
    assert error(*paths, shorter).startswith(f"{shorter}: the examples must have the features of {paths[0]}, ")
    huge = write("huge", [bytes(200_000)])
    assert error(huge).startswith(f"{huge}: byte 0: a record of 200000 bytes is too long for an example; pass")
    write("broken", [b"x"]).write_bytes((tmp_path / "broken").read_bytes().replace(b"x", b"y"))
    assert error(tmp_path / "broken", skip_corrupt=True) == f"{tmp_path}/broken: every example is corrupt"
