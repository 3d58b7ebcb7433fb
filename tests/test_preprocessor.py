"""The preprocessor SavedModel: its golden values, its packing against tensorflow-text's, and `verify` on good and bad
ones."""

import operator
import tempfile

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_text as text

from keras_bert.export import export_preprocessor
from keras_bert.export.checking import FAILED, PASSED, run_check
from keras_bert.export.preprocessor import Preprocessor
from keras_bert.export.verify import PREPROCESSOR, verify
from keras_bert.text import BertTokenizer, truncate_pair
from keras_bert.text.graph_packing import pack_segments, round_robin

import zoo

GOLDEN = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "d", "ef", "abc", "xy"]


@pytest.fixture(scope="module")
def golden(tmp_path_factory):
    folder = tmp_path_factory.mktemp("a-secret-place")
    (folder / "vocab.txt").write_text("\n".join(GOLDEN))
    export_preprocessor(BertTokenizer(folder / "vocab.txt"), folder / "preprocessor")
    return folder / "preprocessor"


def test_golden_values(golden):  # of export_tfhub_lib_test.py in the Model Garden
    loaded = tf.saved_model.load(str(golden))
    assert loaded(["abc d ef"])["input_word_ids"][0, :6].numpy().tolist() == [2, 6, 4, 5, 3, 0]
    tokens, starts, limits = loaded.tokenize_with_offsets(["abc d ef"])
    assert tokens.to_list() == [[[6], [4], [5]]]
    assert (starts.to_list(), limits.to_list()) == ([[[0], [4], [6]]], [[[3], [5], [8]]])
    assert loaded.tokenize(["DEF"]).to_list() == [[[1]]]
    special = {name: int(value) for name, value in loaded.tokenize.get_special_tokens_dict().items()}
    assert special == {"padding_id": 0, "start_of_sequence_id": 2, "end_of_segment_id": 3, "vocab_size": 8}


@pytest.mark.slow("a check that fails on what is right")
def test_ours_passes(golden):
    results = verify(golden)
    assert {result.status for result in results} == {PASSED}
    assert [result.seen for result in results if result.line in (6, 7)] == ["round robin", "uncased"]


@pytest.mark.slow("a truncator or a case that is exported as the other one")
def test_ours_of_another_kind_passes(golden):
    module = Preprocessor(BertTokenizer(GOLDEN, lower_case=False), 16, "waterfall")
    results = [run_check(*check, module, golden) for check in PREPROCESSOR if check[0] in (6, 7)]
    assert [(result.status, result.seen) for result in results] == [(PASSED, "waterfall"), (PASSED, "cased")]


@pytest.mark.peers
def test_the_gardens_passes(tmp_path):
    from official.nlp.tools import export_tfhub_lib as exporter

    (tmp_path / "vocab.txt").write_text("\n".join(GOLDEN))
    exporter.export_preprocessing(str(tmp_path / "garden"), vocab_file=str(tmp_path / "vocab.txt"),
                                  default_seq_length=128, do_lower_case=False, tokenize_with_offsets=True)
    results = verify(tmp_path / "garden")
    assert [(result.line, result.status) for result in results[1:]] == [(line, PASSED) for line, _ in PREPROCESSOR]
    assert [result.seen for result in results if result.line == 7] == ["cased"]


def no_padding_id(_):
    return tf.function(lambda: {"vocab_size": tf.constant(8)}, input_signature=[])


def one_segment(pack_two):
    pack = tf.function(lambda inputs, seq_length=128: pack_two(inputs[:1], seq_length))
    for rank in (2, 3):
        for segments in (1, 2):
            pack.get_concrete_function([tf.RaggedTensorSpec([None] * rank, tf.int32)] * segments,
                                       seq_length=tf.TensorSpec([], tf.int32))
    return pack


def of_strings(function):
    """A fault from a function of what is called and of texts."""
    return lambda call: tf.function(lambda texts: function(call, texts), autograph=False,
                                    input_signature=[tf.TensorSpec([None], tf.string)])


OTHER_IDS = tf.constant([0, 1, 2, 3, 4, 6, 5, 7])
# A part of the preprocessor, what is called instead of it, and the lines that fail.
FAULTS = [
    ("", of_strings(lambda call, texts: tf.nest.map_structure(lambda ids: tf.pad(ids, [[0, 0], [0, 9]]), call(texts))),
     {1}),
    ("tokenize", of_strings(lambda call, texts: tf.cast(call(texts), tf.int64)), {2}),
    ("tokenize_with_offsets", of_strings(lambda call, texts: [part + by for part, by in zip(call(texts), (0, 1, 1))]),
     {3}),
    ("tokenize_with_offsets",
     of_strings(lambda call, texts: call(tf.strings.regex_replace(texts, "[^\\x00-\\x7f]", "x"))), {3}),
    ("tokenize.get_special_tokens_dict", no_padding_id, {1, 4, 5}),
    ("bert_pack_inputs", one_segment, {5, 6}),
    ("tokenize", of_strings(lambda call, texts: call(texts).with_flat_values(
        tf.gather(OTHER_IDS, call(texts).flat_values))), {7}),
    ("tokenize", of_strings(lambda call, texts: call(tf.raw_ops.PlaceholderWithDefault(
        input=texts, shape=tf.TensorShape(None)))), {8}),
]


@pytest.fixture(scope="module")
def module():
    module = Preprocessor(BertTokenizer(GOLDEN), 128, "round_robin")
    module(tf.constant([""]))  # traced before it is broken
    return module


@pytest.mark.slow("a check that does not see its fault")
@pytest.mark.parametrize("name,fault,lines", FAULTS)
def test_a_fault_fails_its_line(module, golden, monkeypatch, name, fault, lines):
    part = operator.attrgetter(name)(module) if name else module
    monkeypatch.setattr(part, "__call__", fault(part.__call__))
    results = [run_check(*check, module, golden) for check in PREPROCESSOR[:-1]]  # the last one saves and loads
    assert {result.line for result in results if result.status == FAILED} == lines


def test_the_path_of_the_vocabulary_is_not_in_it(golden):
    for file in (file for file in golden.rglob("*") if file.is_file()):
        content = file.read_bytes()
        assert b"a-secret-place" not in content and tempfile.gettempdir().encode() + b"/" not in content


def _random_segments(rng, count):
    batch = rng.integers(1, 5)
    return [tf.ragged.constant([rng.integers(4, 90, rng.integers(0, 12)).tolist() for _ in range(batch)], tf.int32,
                               ragged_rank=1) for _ in range(count)]


@pytest.mark.parametrize("truncator", ["round_robin", "waterfall"])
def test_packing_equals_tensorflow_texts(truncator):
    trimmer = {"round_robin": text.RoundRobinTrimmer, "waterfall": text.WaterfallTrimmer}[truncator]
    tokenizer = BertTokenizer(GOLDEN)
    rng = np.random.default_rng(0)
    for _ in range(8):
        segments = _random_segments(rng, rng.integers(1, 5))
        length = int(rng.integers(len(segments) + 1, 40))
        ids, types = text.combine_segments(trimmer(length - len(segments) - 1).trim(segments), 2, 3)
        got = pack_segments(segments, length, tokenizer, truncator)
        for name, wanted in (("input_word_ids", ids), ("input_type_ids", types), ("input_mask", tf.ones_like(ids))):
            np.testing.assert_array_equal(got[name], wanted.to_tensor(0, shape=[None, length]))


def test_round_robin_is_the_truncation_of_pairs_in_training():
    first, second = np.indices((9, 9), np.int32).reshape(2, -1)
    for limit in range(20):
        kept = round_robin([tf.constant(first), tf.constant(second)], limit)
        wanted = [[len(part) for part in truncate_pair([0] * one, [0] * other, limit)]
                  for one, other in zip(first, second)]
        assert np.transpose(kept).tolist() == wanted


@pytest.mark.slow("outputs that the encoder does not take")
def test_it_chains_with_encoders(exported, source, tokenizer, tmp_path):
    export_preprocessor(tokenizer, tmp_path / "preprocessor", max_length=12)
    preprocessor, encoder = tf.saved_model.load(str(tmp_path / "preprocessor")), zoo.loaded(exported())
    assert int(preprocessor.tokenize.get_special_tokens_dict()["mask_id"]) == tokenizer.mask_id
    texts = ["play some music!", "", "turn the lamp on please " * 9]
    wanted, _ = source(tokenizer(texts, max_length=12))
    np.testing.assert_allclose(encoder(preprocessor(texts))["pooled_output"], wanted, atol=2e-6)
    pair = [preprocessor.tokenize(part) for part in (texts, texts[::-1])]
    wanted, _ = source(tokenizer(texts, texts[::-1], max_length=9))
    got = encoder(preprocessor.bert_pack_inputs(pair, seq_length=9))["pooled_output"]
    np.testing.assert_allclose(got, wanted, atol=2e-6)


@pytest.mark.slow("a flag that the command loses")
def test_command_line(run, tmp_path):
    vocabulary, output = tmp_path / "vocab.txt", tmp_path / "out"
    vocabulary.write_text("\n".join(GOLDEN))
    (tmp_path / "sample.txt").write_text("abc\n세상 모든 말\n")
    command = ("export", "preprocessor", f"--vocab={vocabulary}", f"--output={output}")
    with pytest.warns(UserWarning, match=r"sample.txt: 75.0% of the tokens are \[UNK\], most often "):
        assert run(*command, "--lower_case=true", "--max_length=9", f"--sample={tmp_path / 'sample.txt'}") == (
            0, [str(output)], [])
    assert tf.saved_model.load(str(output))(["ABC"])["input_word_ids"].numpy().tolist() == [[2, 6, 3] + [0] * 6]
    for arguments, message in [((), f"{output}: exists already"), (["--overwrite", "--max_length=2"], "--max_length"),
                               (["--overwrite", f"--vocab={tmp_path / 'no'}"], f"{tmp_path / 'no'}: cannot be read")]:
        status, _, messages = run(*command, *arguments)
        assert status == 1 and len(messages) == 1 and messages[0].startswith(f"keras-bert: {message}")
    assert tf.saved_model.contains_saved_model(str(output))
