import hypothesis
import hypothesis.strategies as st
import numpy as np
import pandas
import pytest

from keras_bert.errors import InputError
from keras_bert.text import BertTokenizer, load_vocabulary, pack, pad, truncate_pair


def full_tokenizer(vocabulary, lower_case):
    """The Model Garden's, with the word limit of Google's original, which its checkpoints were trained with (200; the
    Garden's is 400)."""
    from official.nlp.tools import tokenization

    reference = tokenization.FullTokenizer(str(vocabulary), do_lower_case=lower_case)
    reference.wordpiece_tokenizer.max_input_chars_per_word = 200
    return reference


def test_casing_and_accents_are_apart():
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "É", "é", "e", "E"]
    for lower_case, strip_accents, token in [(True, True, "e"), (True, False, "é"), (False, True, "E"),
                                             (False, False, "É"), (True, None, "e"), (False, None, "É")]:
        assert BertTokenizer(vocabulary, lower_case, strip_accents).tokenize("É") == [token]


def test_words_of_200_characters_are_the_longest():
    tokenizer = BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "##a"])
    assert len(tokenizer.tokenize("a" * 200)) == 200
    assert tokenizer.tokenize("a" * 201) == ["[UNK]"]


def test_special_tokens_in_a_text_are_text():
    tokenizer = BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[", "]", "mask"])
    assert tokenizer.tokenize("[MASK]") == ["[", "mask", "]"]


def test_pair():
    tokenizer = BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "b", "c"])
    inputs = tokenizer(["a b", "c"], ["c", "a b c"], max_length=6)
    np.testing.assert_array_equal(inputs["input_word_ids"], [[2, 4, 5, 3, 6, 3], [2, 6, 3, 4, 5, 3]])
    np.testing.assert_array_equal(inputs["segment_ids"], [[0, 0, 0, 0, 1, 1], [0, 0, 0, 1, 1, 1]])
    np.testing.assert_array_equal(inputs["input_mask"], np.ones((2, 6)))


def test_padding_is_segment_0_and_masked():
    inputs = pad([pack([7, 8], [9], 2, 3, 10), pack([7], None, 2, 3, 10)], 0)
    np.testing.assert_array_equal(inputs["input_word_ids"][1], [2, 7, 3, 0, 0, 0])
    np.testing.assert_array_equal(inputs["input_mask"][1], [1, 1, 1, 0, 0, 0])
    np.testing.assert_array_equal(inputs["segment_ids"], [[0, 0, 0, 0, 1, 1], [0] * 6])


def test_a_single_text_is_cut_to_the_longest_input():
    assert pack(list(range(10, 20)), None, 2, 3, 6) == ([2, 10, 11, 12, 13, 3], 6)


@hypothesis.given(st.integers(0, 30), st.integers(0, 30), st.integers(0, 40))
def test_truncation_takes_one_token_at_a_time_from_the_longer(first, second, limit):
    expected_first, expected_second = first, second
    while expected_first + expected_second > limit:  # run_classifier.py of google-research/bert
        if expected_first > expected_second:
            expected_first -= 1
        else:
            expected_second -= 1
    cut = truncate_pair(list(range(first)), list(range(second)), limit)
    assert cut == (list(range(expected_first)), list(range(expected_second)))


def test_cased_vocabulary_is_not_lower_cased(tmp_path):
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\nHello\n")
    assert BertTokenizer.from_folder(tmp_path).tokenize("Hello") == ["Hello"]


@pytest.mark.parametrize("content", ["\ufeff[PAD]\n[UNK]\n[CLS]\n[SEP]\n가\n",
                                     "\ufeff[PAD]\r\n[UNK]\r\n[CLS]\r\n[SEP]\r\n가\r\n"])
def test_vocabularies_as_editors_on_windows_write_them(tmp_path, content):
    (tmp_path / "vocab.txt").write_bytes(content.encode())
    (tmp_path / "tokenizer_config.json").write_bytes('\ufeff{"do_lower_case": true}'.encode())
    tokenizer = BertTokenizer.from_folder(tmp_path)
    assert tokenizer.vocabulary == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "가"] and tokenizer.rules.lower_case


@pytest.mark.parametrize("content,word", [(b"a\nb\n", "[CLS]"), (b"", "[PAD]"), (b"\xff\n", "UTF-8")])
def test_bad_vocabularies_name_the_file(tmp_path, content, word):
    path = tmp_path / "vocab.txt"
    path.write_bytes(content)
    with pytest.raises(InputError) as error:
        load_vocabulary(path)
    assert "vocab.txt" in str(error.value) and word in str(error.value)


def test_texts_and_pairs_must_be_as_many(tokenizer):
    with pytest.raises(InputError, match="2 and 1"):
        tokenizer(["a", "b"], ["c"])


def test_texts_of_every_kind_of_iterable(tokenizer):
    texts, pairs = ["play music", "a lamp, please"], ["", "light"]
    wanted = tokenizer(texts, pairs)
    for kind in (tuple, iter, np.array, pandas.Series, lambda texts: dict.fromkeys(texts).keys()):
        for name, array in tokenizer(kind(texts), kind(pairs)).items():
            np.testing.assert_array_equal(array, wanted[name])
        assert tokenizer.ids(kind(texts)) == tokenizer.ids(texts)
        np.testing.assert_array_equal(tokenizer.flat_ids(kind(texts))[0], sum(tokenizer.ids(texts), []))
        assert tokenizer.unknown_rate(kind(texts)) == 0
    assert tokenizer.tokenize(np.str_("a lamp")) == ["a", "lamp"]


@pytest.mark.parametrize("texts, message", [
    ("hello world", "texts must be a list of texts; got 'hello world'; pass ['hello world']"),
    (b"hello", "texts must be a list of texts; got b'hello'; pass [b'hello']"),
    (pandas.DataFrame({"text": ["a"]}),
     "texts must be a list of texts; got a DataFrame; pass one of its columns: table['text']"),
    ({"text": ["a"]}, "texts must be a list of texts; got a dict; pass one of its columns: table['text']"),
    (None, "texts must be a list of texts; got None"), ({"a"}, "texts must be a list of texts; got {'a'}"),
    (["a", None], "texts: row 2: must be a text; got None"),
    (["a", "b", float("nan")], "texts: row 3: must be a text; got nan"),
    ([b"a"], "texts: row 1: must be a text; got b'a'"), ([["a", "b"]], "texts: row 1: must be a text; got ['a', 'b']"),
])
def test_what_is_no_list_of_texts(tokenizer, texts, message):
    for method in (tokenizer, tokenizer.pack, tokenizer.ids, tokenizer.flat_ids, tokenizer.unknown_rate):
        with pytest.raises(InputError) as error:
            method(texts)
        assert str(error.value) == message
    if texts is not None:
        for method in (tokenizer, tokenizer.pack):
            with pytest.raises(InputError) as error:
                method(["a"], texts)
            assert str(error.value) == message.replace("texts", "text_pairs", 1)


def test_one_text_at_a_time(tokenizer):
    with pytest.raises(InputError) as error:
        tokenizer.tokenize(["a", "b"])
    assert str(error.value) == ("text must be one text; got ['a', 'b']; for several texts, call tokenizer.ids(texts)")
