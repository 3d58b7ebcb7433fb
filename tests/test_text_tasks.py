"""Raw texts that SavedModels refuse, or read in part. test_decoding.py compares what they answer to all others."""

import pytest
import tensorflow as tf
from text_reference import LABELS, LENGTH, TOKENIZER, XLM_R
from tokenizers import Tokenizer, processors

from keras_bert.errors import InputError
from keras_bert.export import export_text_model
from keras_bert.layers import BertLayer
from keras_bert.models import BertSpanLabeler, BertTokenClassifier
from keras_bert.tasks import Span, Tag
from keras_bert.tasks.graph import Reader, check_same_batch
from keras_bert.text.graph_packing import pack_segments

from conftest import SMALL

BROKEN = [b"\xff\xfe", b"pl\0ay\xf0\x9f some music\xe2\x82", b"\x80turn off", b"\xed\xa0\x80"]  # not UTF-8


def test_what_is_not_utf_8_is_left_out(eager):
    texts = tf.constant(BROKEN)
    tagger = Reader(lambda ids, *_: tf.one_hot(ids % len(LABELS), len(LABELS)), TOKENIZER, LENGTH)
    answers = {name: tensor.numpy() for name, tensor in Tag(LENGTH, LABELS).answer_in_graph(tagger, texts).items()}
    assert (answers["word_start"] >= 0).sum(axis=1).tolist() == [0, 3, 2, 0]
    assert all(part in text for text, entities in zip(BROKEN, answers["entity_text"]) for part in entities)
    logits = ("start_logits", "end_logits")
    reader = Reader(lambda ids, *_: dict.fromkeys(logits, tf.cast(ids % 4, tf.float32)), TOKENIZER, LENGTH)
    found = Span(LENGTH, max_query_length=6).answer_in_graph(reader, texts[::-1], texts)["answer"].numpy()
    assert all(part in text for text, part in zip(BROKEN, found)) and found[1]


def test_arguments_must_be_of_one_batch():
    with pytest.raises(tf.errors.InvalidArgumentError, match="question and context must have the same batch"):
        check_same_batch(Span.inputs, [tf.constant(["a"]), tf.constant(["b", "c"])])


@pytest.mark.parametrize("make, options, message", [
    (lambda bert: BertTokenClassifier(bert, 5), {"labels": LABELS[:4]}, "the names of the 5 classes .*; got 4 names"),
    (lambda bert: BertTokenClassifier(bert, 5), {"labels": ["O", "", *LABELS[:3]]}, "labels must not be empty"),
    (BertSpanLabeler, {"max_length": 3}, "max_length must be at least 4; got 3"),
    (BertSpanLabeler, {"doc_stride": 0}, "doc_stride must be at least 1; got 0")])
def test_what_it_refuses(tmp_path, make, options, message):
    with pytest.raises(InputError, match=message):
        export_text_model(make(BertLayer(SMALL)), TOKENIZER, tmp_path / "out", **options)
    assert not list(tmp_path.iterdir())


def test_pairs_may_have_two_separators():
    """Compared with RoBERTa's packing in `tokenizers`."""
    reference = Tokenizer.from_str(XLM_R.subwords.to_str())
    reference.post_processor = processors.RobertaProcessing(("[SEP]", XLM_R.sep_id), ("[CLS]", XLM_R.cls_id))
    texts, pairs = ["play some music", "", "lamp " * 9, "the"], ["now", "", "a", "light " * 30]
    wanted = []
    for truncation, limit, pair in (("only_first", 12, pairs[:3]), ("only_second", 12, pairs[3:])):
        reference.enable_truncation(limit, strategy=truncation)
        wanted += [encoding.ids for encoding in reference.encode_batch(list(zip(texts[len(wanted):], pair)))]
    segments = [tf.ragged.constant(XLM_R.ids(part), tf.int32) for part in (texts, pairs)]
    assert [ids for ids, _ in XLM_R.pack(texts, pairs, 12)] == wanted
    packed = pack_segments(segments, 12, XLM_R, "round_robin")
    assert tf.ragged.boolean_mask(packed["input_word_ids"], packed["input_mask"] > 0).to_list() == wanted
    assert not packed["input_type_ids"].numpy().any()
    with pytest.raises(InputError, match="max_length must be at least 4; got 3"):
        XLM_R.pack(texts, pairs, 3)
