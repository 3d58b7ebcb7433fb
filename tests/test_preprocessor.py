"""The preprocessor SavedModel: its golden values, its packing against tensorflow-text's, and `verify` on good and bad
ones."""

import shutil
import tempfile

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_text as text

from keras_bert.export import export_encoder, export_preprocessor
from keras_bert.export.checking import FAILED, PASSED, run_check
from keras_bert.export.preprocessor import Preprocessor
from keras_bert.export.preprocessor_checks import CHECKS
from keras_bert.export.verify import verify
from keras_bert.text import BertTokenizer, truncate_pair
from keras_bert.text.graph_packing import pack_segments, round_robin, waterfall

GOLDEN = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "d", "ef", "abc", "xy"]


@pytest.fixture(scope="module")
def golden(tmp_path_factory):
    folder = tmp_path_factory.mktemp("a-secret-place")
    (folder / "vocab.txt").write_text("\n".join(GOLDEN))
    export_preprocessor(BertTokenizer(folder / "vocab.txt"), folder / "preprocessor")
    return folder / "preprocessor"


def statuses(path):
    return [(result.line, result.status) for result in verify(path)]


def test_golden_values(golden):  # of export_tfhub_lib_test.py in the Model Garden
    loaded = tf.saved_model.load(str(golden))
    assert loaded(["abc d ef"])["input_word_ids"][0, :6].numpy().tolist() == [2, 6, 4, 5, 3, 0]
    tokens, starts, limits = loaded.tokenize_with_offsets(["abc d ef"])
    assert tokens.to_list() == [[[6], [4], [5]]]
    assert (starts.to_list(), limits.to_list()) == ([[[0], [4], [6]]], [[[3], [5], [8]]])
    assert loaded.tokenize(["DEF"]).to_list() == [[[1]]]
    special = {name: int(value) for name, value in loaded.tokenize.get_special_tokens_dict().items()}
    assert special == {"padding_id": 0, "start_of_sequence_id": 2, "end_of_segment_id": 3, "vocab_size": 8}


@pytest.mark.slow
def test_ours_passes(golden):
    results = verify(golden)
    assert {result.status for result in results} == {PASSED}
    assert [result.seen for result in results if result.line in (6, 7)] == ["round robin", "uncased"]


@pytest.mark.slow
def test_ours_of_another_kind_passes(tmp_path):
    module = Preprocessor(BertTokenizer(GOLDEN, lower_case=False), 16, "waterfall")
    (tmp_path / "assets").mkdir()
    (tmp_path / "assets/vocab.txt").write_text("\n".join(GOLDEN))
    results = [run_check(*check, module, tmp_path) for check in CHECKS[:-1]]  # the last one saves and loads
    assert {result.status for result in results} == {PASSED}
    assert [result.seen for result in results if result.line in (6, 7)] == ["waterfall", "cased"]


def export_the_gardens(folder, lower_case):
    from official.nlp.tools import export_tfhub_lib as exporter

    (folder / "vocab.txt").write_text("\n".join(GOLDEN))
    exporter.export_preprocessing(str(folder / "garden"), vocab_file=str(folder / "vocab.txt"),
                                  default_seq_length=128, do_lower_case=lower_case, tokenize_with_offsets=True)
    return folder / "garden"


@pytest.mark.peers
def test_the_gardens_passes(tmp_path):
    assert statuses(export_the_gardens(tmp_path, True)) == [(line, PASSED) for line, _ in CHECKS]


@pytest.mark.peers
def test_the_gardens_tells_its_case(tmp_path):
    """The one line in which it differs from an uncased one."""
    path = export_the_gardens(tmp_path, False)
    result = run_check(7, dict(CHECKS)[7], tf.saved_model.load(str(path)), path)
    assert (result.status, result.seen) == (PASSED, "cased")


def _with_another(part, function):
    """Puts a function of strings in the place of a part's."""
    part.__call__ = tf.function(function, input_signature=[tf.TensorSpec([None], tf.string)], autograph=False)


def _uncut(module, call):
    _with_another(module, lambda texts: tf.nest.map_structure(lambda ids: tf.pad(ids, [[0, 0], [0, 9]]), call(texts)))


def _int64(module, call):
    tokenize = module.tokenize.__call__
    _with_another(module.tokenize, lambda texts: tf.cast(tokenize(texts), tf.int64))


def _late_offsets(module, call):
    tokenize = module.tokenize_with_offsets.__call__
    _with_another(module.tokenize_with_offsets, lambda texts: [
        part + delta for part, delta in zip(tokenize(texts), (0, 1, 1))])


def _offsets_in_characters(module, call):
    tokenize = module.tokenize_with_offsets.__call__
    _with_another(module.tokenize_with_offsets,
                  lambda texts: tokenize(tf.strings.regex_replace(texts, "[^\\x00-\\x7f]", "x")))


def _no_padding_id(module, call):
    special = module.tokenize.get_special_tokens_dict
    special.__call__ = tf.function(lambda: {"vocab_size": tf.constant(8)}, input_signature=[])


def _one_segment(module, call):
    pack_two = module.bert_pack_inputs.__call__
    module.bert_pack_inputs.__call__ = tf.function(lambda inputs, seq_length=128: pack_two(inputs[:1], seq_length))
    for rank in (2, 3):
        for segments in (1, 2):
            module.bert_pack_inputs.__call__.get_concrete_function(
                [tf.RaggedTensorSpec([None] * rank, tf.int32)] * segments, seq_length=tf.TensorSpec([], tf.int32))


def _other_ids(module, call):
    shifted = {5: 6, 6: 5}
    tokenize = module.tokenize.__call__
    table = tf.constant([shifted.get(index, index) for index in range(8)])
    _with_another(module.tokenize, lambda texts: tokenize(texts).with_flat_values(
        tf.gather(table, tokenize(texts).flat_values)))


def _unknown_shapes(module, call):
    tokenize = module.tokenize.__call__
    _with_another(module.tokenize, lambda texts: tokenize(tf.raw_ops.PlaceholderWithDefault(
        input=texts, shape=tf.TensorShape(None))))


@pytest.mark.slow
@pytest.mark.parametrize("fault,lines", [
    (_uncut, {1}), (_int64, {2}), (_late_offsets, {3}), (_offsets_in_characters, {3}), (_no_padding_id, {1, 4, 5}),
    (_one_segment, {5, 6}), (_other_ids, {7}), (_unknown_shapes, {8})])
def test_a_fault_fails_its_line(tmp_path, fault, lines):
    (tmp_path / "assets").mkdir()
    (tmp_path / "assets/vocab.txt").write_text("\n".join(GOLDEN))
    module = Preprocessor(BertTokenizer(GOLDEN), 128, "round_robin")
    module(tf.constant([""]))  # traced before it is broken
    fault(module, module.__call__)
    results = [run_check(*check, module, tmp_path) for check in CHECKS[:-1]]
    assert {result.line for result in results if result.status == FAILED} == lines


@pytest.mark.slow
def test_it_can_be_saved_again_and_moved(golden, tmp_path):
    """And the first deleted. test_graph_tokenizer.py loads its operations where nothing but TensorFlow is imported."""
    shutil.copytree(golden, tmp_path / "first")
    tf.saved_model.save(tf.saved_model.load(str(tmp_path / "first")), str(tmp_path / "second"))
    shutil.rmtree(tmp_path / "first")
    (tmp_path / "second").rename(tmp_path / "moved")
    loaded = tf.saved_model.load(str(tmp_path / "moved"))
    assert loaded(["abc d ef"])["input_word_ids"][0, :6].numpy().tolist() == [2, 6, 4, 5, 3, 0]


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
    for _ in range(15):
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


def test_truncation_of_four():
    lengths = [tf.constant([length]) for length in (1, 9, 2, 9)]
    assert [int(kept[0]) for kept in round_robin(lengths, 10)] == [1, 4, 2, 3]
    assert [int(kept[0]) for kept in waterfall(lengths, 11)] == [1, 9, 1, 0]


@pytest.mark.slow
def test_it_chains_with_encoders(tmp_path, source, exported, tokenizer):
    export_preprocessor(tokenizer, tmp_path / "preprocessor", max_length=12)
    preprocessor, encoder = (tf.saved_model.load(str(path)) for path in (tmp_path / "preprocessor", exported()))
    texts = ["play some music!", "", "turn the lamp on please " * 9]
    wanted, _ = source(tokenizer(texts, max_length=12))
    np.testing.assert_allclose(encoder(preprocessor(texts))["pooled_output"], wanted, atol=2e-6)
    pair = [preprocessor.tokenize(part) for part in (texts, texts[::-1])]
    wanted, _ = source(tokenizer(texts, texts[::-1], max_length=9))
    got = encoder(preprocessor.bert_pack_inputs(pair, seq_length=9))["pooled_output"]
    np.testing.assert_allclose(got, wanted, atol=2e-6)


@pytest.mark.slow
def test_line_10_from_text_to_masked_tokens(tmp_path, bert, tokenizer):
    """Tokenize, trim, combine, mask, pad with tensorflow-text, then the encoder's `.mlm`."""
    from keras_bert.models import BertPretrainer

    pretrainer = BertPretrainer(bert)
    export_preprocessor(tokenizer, tmp_path / "preprocessor")
    export_encoder(pretrainer, tmp_path / "encoder", tokenizer)
    preprocessor, encoder = (tf.saved_model.load(str(tmp_path / name)) for name in ("preprocessor", "encoder"))
    ids = preprocessor.tokenize.get_special_tokens_dict()
    segments = [preprocessor.tokenize(texts).merge_dims(1, 2)
                for texts in (["play some music please", "stop"], ["turn on the light in two", "what time is it now"])]
    segments = text.RoundRobinTrimmer(7).trim(segments)
    words, types = text.combine_segments(segments, ids["start_of_sequence_id"], ids["end_of_segment_id"])
    words, positions, masked = text.mask_language_model(
        words, text.RandomItemSelector(2, 0.5, [int(ids["start_of_sequence_id"]), int(ids["end_of_segment_id"])]),
        text.MaskValuesChooser(int(ids["vocab_size"]), int(ids["mask_id"]), mask_token_rate=1.0,
                               random_token_rate=0.0))
    words, mask = text.pad_model_inputs(words, 10)
    types, _ = text.pad_model_inputs(types, 10)
    positions, _ = text.pad_model_inputs(positions, 2)
    inputs = {"input_word_ids": words, "input_mask": mask, "input_type_ids": types,
              "masked_lm_positions": tf.cast(positions, tf.int32)}
    inputs = {name: tf.cast(tensor, tf.int32) for name, tensor in inputs.items()}
    assert bool(tf.reduce_all(tf.gather(inputs["input_word_ids"], inputs["masked_lm_positions"], batch_dims=1)
                              == int(ids["mask_id"])))
    logits = encoder.mlm(inputs)["mlm_logits"]
    np.testing.assert_allclose(logits, pretrainer(inputs)["mlm_logits"], atol=2e-6)  # another graph, other fusions


@pytest.mark.slow
def test_command_line(run, tmp_path):
    vocabulary, output = tmp_path / "vocab.txt", tmp_path / "out"
    vocabulary.write_text("\n".join(GOLDEN))
    (tmp_path / "sample.txt").write_text("abc\n세상 모든 말\n")
    command = ("export", "preprocessor", f"--vocab={vocabulary}", f"--output={output}")
    with pytest.warns(UserWarning, match=r"sample.txt: 75.0% of the tokens are \[UNK\], most often "):
        assert run(*command, "--lower_case=true", "--max_length=9", f"--sample={tmp_path / 'sample.txt'}") == (
            0, [str(output)], [])
    assert tf.saved_model.load(str(output))(["ABC"])["input_word_ids"].numpy().tolist() == [[2, 6, 3] + [0] * 6]
    for arguments, message in [((), f"{output}: exists already; pass another path or --overwrite"),
                               (("--overwrite", "--max_length=2"), "--max_length must be at least 3; got 2"),
                               (("--overwrite", f"--vocab={tmp_path / 'no'}"),
                                f"{tmp_path / 'no'}: cannot be read: No such file")]:
        status, _, messages = run(*command, *arguments)
        assert status == 1 and len(messages) == 1 and messages[0].startswith(f"keras-bert: {message}")
    assert tf.saved_model.contains_saved_model(str(output))
