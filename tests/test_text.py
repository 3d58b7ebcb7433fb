import hypothesis
import hypothesis.strategies as st
import numpy as np
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


def test_texts_are_padded_to_a_length(tokenizer):
    texts, pairs = ["play some music", "lamp"], ["now", ""]
    for arguments in ((texts,), (texts, pairs)):
        inputs = tokenizer(*arguments, max_length=6, pad_to=9)
        wanted = pad(tokenizer.pack(*arguments, max_length=6), tokenizer.pad_id, 9)
        for name, values in wanted.items():
            assert values.shape == (2, 9)
            np.testing.assert_array_equal(inputs[name], values)
    assert tokenizer(texts, max_length=4, pad_to=4)["input_mask"].tolist() == [[1] * 4, [1] * 3 + [0]]
    with pytest.raises(InputError, match="^pad_to must be at least 5, the length of the longest text in tokens, which "
                                         "max_length=128 limits; got 4$"):
        tokenizer(texts, pad_to=4)


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
