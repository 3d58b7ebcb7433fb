"""The tokenizer in the graph, and that `tokens_with_offsets` gives what it gives."""

import dataclasses
import functools
import itertools
import random
import unicodedata

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import tensorflow as tf
from test_rules import GOOGLES, OPTIONS, SPECIAL, hard_texts, words_of
from test_text import full_tokenizer

from keras_bert.data.tagged import read_tagged
from keras_bert.tasks.squad import read_questions
from keras_bert.text import BertTokenizer
from keras_bert.text.graph_tables import double_array
from keras_bert.text.offsets import tokens_with_offsets

from conftest import DATA

LOWER_CASE = {"bert-base-uncased": True, "bert-base-multilingual-cased": False, "bert-base-chinese": True,
              "koelectra35000": False}
LONG = pytest.mark.long


def with_graph(tokenizer):
    """A tokenizer and its graph; `traced` is the graph's function, as in an export."""
    graph = tokenizer.graph()
    graph.traced = tf.function(graph.tokenize_with_offsets, input_signature=[tf.TensorSpec([None], tf.string)])
    return tokenizer, graph


def run(graph, texts):
    """The ids of each text as `BertTokenizer` gives them, and the offsets of its words: lists of (start, limit)."""
    ids, starts, limits = graph.traced(tf.constant(texts, tf.string))
    words, pieces = (splits.numpy() for splits in ids.nested_row_splits)
    offsets = list(zip(starts.flat_values.numpy().tolist(), limits.flat_values.numpy().tolist(), strict=True))
    return cut(ids.flat_values.numpy().tolist(), pieces[words]), cut(cut(offsets, pieces), words)


def cut(values, splits):
    return [values[start:limit] for start, limit in itertools.pairwise(splits)]


def assert_same_ids(tokenizer, graph, texts):
    for text, got, expected in zip(texts, run(graph, texts)[0], tokenizer.ids(texts), strict=True):
        assert got == expected, ascii(text)


@functools.cache
def real(name, lower_case):
    return with_graph(BertTokenizer(DATA / "vocab" / name / "vocab.txt", lower_case))


@functools.cache
def letters():
    # "a" and "##b" are there twice, and U+1FAE8 is later than Unicode 14.
    pieces = ["a", "b", "##b", "", "##", "e", "=", "\u1112", "##\u1161", "##\u11ab", "中", "abcd", "##c", "##e", "[",
              "]", "unk", "[unk]", "\U0001fae8", "##\U0001fae8", "a", "##b"]
    return with_graph(BertTokenizer(SPECIAL + pieces))


@functools.cache
def lines():
    """Real lines, English and Korean."""
    folders = [DATA / "corpora", DATA / "ko", *sorted((DATA / "intent").glob("*_ko"))]
    return [line for folder in folders for path in sorted(folder.rglob("*")) if path.is_file()
            for line in path.read_text(encoding="utf-8").split("\n")]


def some_lines(count):
    """About so many real lines from all files, or all where there are fewer."""
    return lines()[::max(len(lines()) // count, 1)]


def of_graph(graph, texts):
    """Yields the ids, starts, ends and firsts of each text, from a batch of the graph."""
    ragged = graph.traced(tf.constant([text.encode() for text in texts], tf.string))
    ids, starts, limits = (part.flat_values.numpy() for part in ragged)
    words, tokens = (splits.numpy() for splits in ragged[0].nested_row_splits)
    for text, (word, next_word) in zip(texts, itertools.pairwise(words), strict=True):
        byte = np.cumsum([0, *(len(character.encode()) for character in text)])
        of_text = slice(tokens[word], tokens[next_word])
        yield (ids[of_text], *(np.searchsorted(byte, part[of_text]) for part in (starts, limits)),
               tokens[word:next_word] - tokens[word])


def assert_same_offsets(tokenizer, graph, texts):
    for at in range(0, len(texts), 1000):
        batch = texts[at:at + 1000]
        for text, got, expected in zip(batch, tokens_with_offsets(batch, tokenizer), of_graph(graph, batch),
                                       strict=True):
            for field, want in zip(dataclasses.fields(got), expected, strict=True):
                values = getattr(got, field.name)
                assert values.dtype == want.dtype and values.tolist() == want.tolist(), (field.name, ascii(text))


@functools.cache
def real_texts():
    """The longest of all real texts, and, from the longest on, those with a character that none before has."""
    contexts = {question.context for path in sorted((DATA / "qa").rglob("*.json")) for question in read_questions(path)}
    sentences = {example.text for path in sorted((DATA / "ner").rglob("*.conll"))
                 for example in read_tagged(path, "conll")}
    texts = sorted({*contexts, *sentences, *lines()}, key=lambda text: (-len(text), text))
    chosen, seen = texts[:200], set()
    for text in texts:
        if not seen.issuperset(text):
            chosen.append(text)
            seen.update(text)
    return chosen


@pytest.mark.peers
@pytest.mark.parametrize("name", LOWER_CASE)
def test_ids_equal_the_references_on_real_and_random_text(name):
    tokenizer, graph = real(name, LOWER_CASE[name])
    reference = full_tokenizer(DATA / "vocab" / name / "vocab.txt", LOWER_CASE[name])
    sample = some_lines(8000) + hard_texts(8000, seed=5)
    for at in range(0, len(sample), 2000):
        texts = sample[at:at + 2000]
        assert_same_ids(tokenizer, graph, texts)
        for text, ids in zip(texts, tokenizer.ids(texts)):
            assert ids == reference.convert_tokens_to_ids(reference.tokenize(text)), text


def expected_offsets(tokenizer, parts):
    """The offsets of the words of a text in parts that do not act on each other: each character of a piece came from
    one part; a piece covers the parts from its first character's to its last one's, [UNK] those of its word."""
    spans, byte = [], 0
    for part in parts:
        limit = byte + len(part.encode())
        spans += [(byte, limit)] * sum(map(len, tokenizer.rules.normalize(part).split()))
        byte = limit
    pieces = iter(tokenizer.tokenize("".join(parts)))
    words, at = [], 0
    for word in tokenizer.rules.normalize("".join(parts)).split():
        end, offsets = at + len(word), []
        while at < end:
            piece = next(pieces)
            after = end if piece == "[UNK]" else at + len(piece.removeprefix("##"))
            offsets.append((spans[at][0], spans[after - 1][1]))
            at = after
        words.append(offsets)
    assert at == len(spans)
    return words


def pieces_of(texts, options):
    """Half of the words are pieces, the others are spelt by characters, or [UNK] where one of them is unassigned."""
    words = sorted({word for text in texts for word in words_of(text, *options)})
    known = sorted({c for word in words for c in word if unicodedata.category(c) != "Cn"})
    return [*SPECIAL, *known, *("##" + c for c in known), *words[::2]]


# The quick ones have each option both ways.
@pytest.mark.slow("a character that the graph reads differently")
@pytest.mark.parametrize("options,count", [
    *((options, 150) for options in [(True, False, True, "NFC"), (False, True, False, "none"), GOOGLES[0]]),
    *(pytest.param(options, 100_000, marks=LONG) for options in OPTIONS)])
def test_hard_texts(options, count):
    texts = hard_texts(count, seed=4)
    texts += ["".join(texts[at:at + 3]) + " ".join(texts[at + 3:at + 6]) for at in range(0, len(texts), 3)]
    pieces = pieces_of(texts, options)
    tokenizer, graph = with_graph(BertTokenizer(pieces, *options))
    assert_same_ids(tokenizer, graph, texts)
    assert_same_offsets(tokenizer, graph, texts)

    # The bytes of a word become words with it among them, those of a piece a text that contains it: characters that
    # change places or compose bring their neighbours along. A sigma that ends the bytes may be inside its word.
    def normalize(part):
        return [word.replace("ς", "σ") for word in tokenizer.rules.normalize(part.decode()).split()]

    for text, ids, offsets in zip(texts, *run(graph, texts)):
        raw, ids = text.encode(), iter(ids)
        starts = [start for word in offsets for start, _ in word]
        assert starts == sorted(starts), ascii(text)
        if not any(map(tokenizer.rules.is_contextual, text)):
            assert offsets == expected_offsets(tokenizer, text), ascii(text)
        for word, spans in zip(normalize(raw), offsets, strict=True):
            assert word in normalize(raw[spans[0][0]:max(limit for _, limit in spans)]), ascii(text)
            for (start, limit), index in zip(spans, ids):
                piece = word if index == tokenizer.unk_id else pieces[index].removeprefix("##").replace("ς", "σ")
                assert 0 <= start < limit <= len(raw) and piece in "".join(normalize(raw[start:limit])), ascii(text)


@pytest.mark.parametrize("name,lower_case", [
    ("bert-base-uncased", True), ("koelectra35000", True),
    pytest.param("bert-base-multilingual-cased", False, marks=pytest.mark.slow("a vocabulary of 120,000 pieces"))])
def test_offsets_of_real_texts(name, lower_case):
    decomposed = [unicodedata.normalize("NFD", line) for line in some_lines(150)]
    assert_same_offsets(*real(name, lower_case), real_texts() + decomposed)


def test_offsets_of_texts_that_are_repeated_empty_and_long():
    words = ["a" + "b" * 199, "a" + "b" * 200, "a" * 10_000, "ab"]
    assert_same_offsets(*letters(), ["", "ab", " ".join(words), "", "\u200b", "ab", "[UNK]", *words])
    assert tokens_with_offsets([], letters()[0]) == []


def test_surrogates_are_deleted_characters():
    tokenizer, _ = letters()
    for text in "a\ud800b c", "\udfffa\ud800 e\udc00", "\ud800":
        [got], [expected] = (tokens_with_offsets([one], tokenizer) for one in (
            text, text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")))
        for field in dataclasses.fields(got):
            assert getattr(got, field.name).tolist() == getattr(expected, field.name).tolist()


@pytest.mark.parametrize("text,offsets", [
    ("a\u200bb", [[(0, 1), (4, 5)]]), ("a\u00adb", [[(0, 1), (3, 4)]]), ("a\0b", [[(0, 1), (2, 3)]]),
    (b"a\xffb", [[(0, 1), (2, 3)]]), (b"a\xe2b", [[(0, 1), (2, 3)]]), (b"\xf0\x9f\x98a \xffb", [[(3, 4)], [(6, 7)]]),
    (b"a\xed\xa0\x80b", [[(0, 1), (4, 5)]]), ("a\ufffdb", [[(0, 1), (4, 5)]]), ("\ufeffa", [[(3, 4)]]),
    ("zz\u200bz", [[(0, 6)]]), ("zz\u200b", [[(0, 2)]]), (b"zz\xff a", [[(0, 2)], [(4, 5)]]), (" \n", []),
    ("é", [[(0, 2)]]), ("e\u0301b", [[(0, 1), (3, 4)]]), ("한", [[(0, 3)] * 3]), ("中a", [[(0, 3)], [(3, 4)]]),
    ("a\u3000b", [[(0, 1)], [(4, 5)]]), ("≠a", [[(0, 3)], [(3, 4)]])], ids=ascii)
def test_offsets_count_bytes_of_the_original(text, offsets):
    assert run(letters()[1], [text, "a b", text])[1] == [offsets, [[(0, 1)], [(2, 3)]], offsets]


def test_offsets_cover_what_composed():
    # A piece and [UNK] whose second mark composes over the first, syllables, and one with a deleted character inside.
    pieces = [*SPECIAL, "á\u0316", "나라", "가", "\u0323", "##\u0301", "a"]
    _, graph = with_graph(BertTokenizer(pieces, strip_accents=False, normalization="NFC"))
    texts = ["a\u0316\u0301", "o\u0316\u0301", unicodedata.normalize("NFD", "나라 가"), "\u1100\u200b\u1161"]
    assert run(graph, texts) == ([[4], [1], [5, 6], [6]],
                                 [[[(0, 5)]], [[(0, 5)]], [[(0, 12)], [(13, 19)]], [[(0, 9)]]])
    # Offsets of marks before all letters end with the marks: in canonical order the second one comes first.
    assert run(graph, ["\u0301\u0323", "a a"]) == ([[7, 8], [9, 9]], [[[(0, 4), (0, 4)]], [[(0, 1)], [(2, 3)]]])


@pytest.mark.parametrize("texts", [[], [""], [" \t"], ["\u200b", ""], ["", "a", ""], 64 * [""]], ids=ascii)
def test_empty_texts(texts):
    assert_same_ids(*letters(), texts)


@pytest.mark.parametrize("count", [pytest.param(1_000_000, marks=LONG), 20_000])
def test_invalid_utf8_is_left_out_as_python_does(count):
    alphabet = [*(bytes([byte]) for byte in b"a \0\x7f\x80\x8f\x90\x9f\xa0\xbf\xc0\xc1\xc2\xc3\xdf\xe0\xe1\xe2\xed\xee"
                  b"\xef\xf0\xf1\xf4\xf5\xf8\xfc\xfe\xff"), *(c.encode() for c in "b中한\U0001fae8\ufeff\uffff")]
    tokenizer, graph = letters()
    random_ = random.Random(0)
    texts = [b"".join(random_.choices(alphabet, k=random_.randint(1, 10))) for _ in range(count)]
    expected = tokenizer.ids([text.decode("utf-8", "ignore") for text in texts])
    for text, got, ids in zip(texts, run(graph, texts)[0], expected, strict=True):
        assert got == ids, text


@pytest.mark.slow("time or memory that grows with the square of a text")
def test_a_text_of_a_megabyte():
    text = ("\n".join(lines()) * 3)[:1_000_000]
    assert len(text) == 1_000_000
    assert_same_ids(*real("bert-base-uncased", True), [text])


@pytest.mark.parametrize("length", [
    200, 201, pytest.param(300_000, marks=pytest.mark.slow("time that grows with the square of a word"))])
def test_long_words(length):
    tokenizer, graph = letters()
    word = "a" + "b" * (length - 1)
    assert_same_ids(tokenizer, graph, [word, "b\u200b\u0301" * length, "b a", "a " * length])
    assert (run(graph, [word])[0] == [[tokenizer.unk_id]]) == (length > 200)


@pytest.mark.parametrize("text,tokens", [
    ("a b ab abb", "a b a ##b a ##b ##b"), ("b한 가", "[UNK] [UNK]"), ("[UNK] [unk]", "[ unk ] [ unk ]"),
    ("한 中中", "\u1112 ##\u1161 ##\u11ab 中 中"), ("a\U0002b739b\ufa6e", "a [UNK] b [UNK]"),
    ("abc abce abcx abcd abcdf a", "a ##b ##c a ##b ##c ##e [UNK] abcd [UNK] a"),
    ("\U0001fae8 a\U0001fae8 \U0001fae9", "\U0001fae8 a ##\U0001fae8 [UNK]")], ids=ascii)
def test_words(text, tokens):
    tokenizer, graph = letters()
    ids = {piece: index for index, piece in enumerate(tokenizer.vocabulary)}  # the last of a piece's ids
    assert run(graph, [text])[0] == [[ids[token] for token in tokens.split()]] == tokenizer.ids([text])


@hypothesis.given(st.dictionaries(st.lists(st.integers(0, 9), min_size=1, max_size=6).map(tuple), st.integers(0, 99),
                                  min_size=1))
def test_the_trie_holds_the_keys_and_nothing_else(keys):
    trie = double_array(keys, 10)
    nodes = {(): 0}
    prefixes = {key[:length] for key in keys for length in range(len(key) + 1)}
    for prefix in sorted(prefixes):
        node = nodes[prefix]
        for symbol in range(10):
            following = trie.base[node] + symbol
            nodes |= {(*prefix, symbol): following} if trie.parent[following] == node else {}
        longest = max((key for key in keys if prefix[:len(key)] == key), key=len, default=())
        assert (trie.depth[node], trie.match[node]) == (len(prefix), keys.get(longest, -1))
        assert trie.behind[node] == len(prefix) - len(longest)
    assert nodes.keys() == prefixes and len(set(nodes.values())) == len(nodes)
