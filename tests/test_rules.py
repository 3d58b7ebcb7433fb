import functools
import hashlib
import itertools
import random
import string
import sys
import unicodedata

import pytest

from keras_bert.text import BertTokenizer, save_vocabulary
from keras_bert.text.rules import Rules
from keras_bert.text.unicode14 import ASSIGNED

from conftest import REAL

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
OPTIONS = list(itertools.product([True, False], [True, False], [True, False], ["none", "NFC"]))
GOOGLES = [(True, True, True, "none"), (False, False, True, "none")]  # uncased and cased


@functools.cache
def characters():
    """What Unicode 14 assigns and what no version does. Python after 3.11 knows what came between, and the references
    of these tests with it."""
    assigned = {code for first, last in ASSIGNED for code in range(first, last + 1)}
    return [chr(code) for code in range(sys.maxunicode + 1)
            if code in assigned or unicodedata.category(chr(code)) == "Cn"]


@functools.cache
def hard_characters():
    """Characters by what makes them hard."""
    known = characters()
    kinds = {kind: [c for c in known if unicodedata.category(c) in kind.split()]
             for kind in ("Mc", "Cc Cf", "Cn", "Lm Sk", "Lt Lu", "Zs Zl Zp", "Ps Po")}
    decomposed = [unicodedata.normalize("NFD", c) for c in known if not "\uac00" <= c <= "\ud7a3"]
    parts = sorted({part for whole in decomposed if len(whole) > 1 for part in whole})
    return [
        *kinds.values(),
        parts,
        [c for c in known if unicodedata.combining(c)],
        [c for c, whole in zip(known, decomposed) if c != whole],
        [chr(code) for code in (*range(0xf900, 0xfb00), *range(0x2f800, 0x2fa20))],  # with their unassigned ends
        [chr(code) for code in range(0x1100, 0x1200)], "ᄀ하ᅵᆨᇂ가힣각한글", "ㄱㅏᅟᅠﾡￂ\ua960\ud7b0\ud7cb",
        "aeioAEIO", "\u0300\u0301\u0307\u0316\u0323\u0327\u0338\u0345", "=<>≠≮;\u037e`\u1fef",
        "ΣσςΑᾳʰ'’.·:^\u00ad\u200b", "Σ", " ", "\u2028\u0085\x1c\u3000\xa0\t\n\0\ufffd",
        "中\u2b739\u3400\U0002b739\U0002cea2\ue000\u0378\ufdd0\U0010ffff",
        # A dropped mark that holds two others apart, a mark that composes over another, a syllable with a gap.
        ["\U0001d16d\u034f\u1bf3", "a\u0316\u0301", "\u1100\u200b\u1161\u11a8"],
        known,
    ]


def hard_texts(count, seed):
    """Random texts, the same for a seed."""
    random_ = random.Random(seed)
    groups = hard_characters()
    return ["".join(random_.choice(random_.choice(groups)) for _ in range(random_.randint(1, 12)))
            for _ in range(count)]


def words_of(text, lower_case, strip_accents, split_cjk, normalization):
    """google-research/bert's `BasicTokenizer` in short, with the options of `Rules`."""
    kept = [c for c in text if c in "\t\n\r" or c not in "\0\ufffd" and unicodedata.category(c) not in ("Cc", "Cf")]
    spaced = "".join(f" {c} " if split_cjk and is_ideograph(ord(c)) else c for c in kept)
    words = []
    for word in spaced.split():
        word = word.lower() if lower_case else word
        if strip_accents:
            word = "".join(c for c in unicodedata.normalize("NFD", word) if unicodedata.category(c) != "Mn")
        if normalization == "NFC":
            word = unicodedata.normalize("NFC", word)
        words += "".join(f" {c} " if c in string.punctuation or unicodedata.category(c)[0] == "P" else c
                         for c in word).split()
    return words


def is_ideograph(code):
    blocks = [(0x3400, 0x4dbf), (0x4e00, 0x9fff), (0xf900, 0xfaff), (0x20000, 0x2a6df), (0x2a700, 0x2ceaf),
              (0x2f800, 0x2fa1f)]
    return any(first <= code <= last for first, last in blocks)


@pytest.fixture(params=GOOGLES, ids=["uncased", "cased"])
def googles(request):
    """Google's rules and the Model Garden's words."""
    from official.nlp.tools import tokenization

    return Rules(*request.param), tokenization.BasicTokenizer(do_lower_case=request.param[0]).tokenize


@pytest.mark.peers
def test_each_character_becomes_what_the_reference_makes_of_it(googles):
    """All that are assigned, but one in 37 of ideographs, Korean syllables, private and unassigned characters, which
    the digests below keep as they are."""
    rules, reference = googles
    uniform = [c for c in characters() if unicodedata.category(c) in ("Cn", "Co") or is_ideograph(ord(c))
               or "\uac00" <= c <= "\ud7a3"]
    for character in sorted({*characters()} - {*uniform}) + uniform[::37]:
        text = f"B{character}e"
        assert rules.normalize(text).split() == reference(text), ascii(text)


@pytest.mark.peers
def test_hard_texts_become_the_words_of_the_reference(googles):
    rules, reference = googles
    for text in hard_texts(10_000, seed=1):
        assert rules.normalize(text).split() == reference(text), ascii(text)


@pytest.mark.parametrize("count", [pytest.param(50_000, marks=pytest.mark.long), 500])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_every_option_does_what_it_says(options, count):
    """Without the fast path, too; and traced characters are those of the words."""
    rules = Rules(*options)
    for text in hard_texts(count, seed=2):
        normalized, traced = rules.normalize_in_context(text), rules.trace(text)
        assert rules.normalize(text).split() == normalized.split() == words_of(text, *options), ascii(text)
        assert "".join(part.character for part in traced) == normalized, ascii(text)
        assert all(0 <= part.start < part.end <= len(text) for part in traced), ascii(text)


def test_lone_surrogates_are_deleted():
    assert Rules().normalize("a\ud800b\udfff") == "ab"


def test_syllables_stay_syllables_with_nfc():
    syllables = "".join(map(chr, range(0xac00, 0xd7a4)))
    decomposed = unicodedata.normalize("NFD", syllables)  # as file names of macOS are
    for text in (syllables, decomposed):
        assert Rules(normalization="NFC").normalize(text) == syllables
        assert Rules().normalize(text) == decomposed


@pytest.mark.parametrize("name,lower_case,normalization", [
    ("bert-base-chinese", True, "none"), ("bert-base-multilingual-cased", False, "none"),
    ("koelectra35000", True, "NFC")])
def test_real_vocabularies_choose_their_normalization(name, lower_case, normalization):
    assert BertTokenizer(REAL / "vocab" / name / "vocab.txt", lower_case).rules == Rules(
        lower_case, lower_case, True, normalization)


@pytest.mark.parametrize("pieces,lower_case,strip_accents,normalization", [
    (["가", "##나"], True, None, "NFC"), (["가", "##나"], False, True, "NFC"), (["가", "##나"], True, False, "none"),
    (["가", "##나"], False, None, "none"), (["ᄀ", "##ᅡ"], True, None, "none"), (["a", "##b"], True, None, "none")])
def test_an_uncased_vocabulary_of_syllables_chooses_nfc(pieces, lower_case, strip_accents, normalization):
    assert BertTokenizer(SPECIAL + pieces, lower_case, strip_accents).rules.normalization == normalization


def test_settings_come_back(tmp_path):
    save_vocabulary([*SPECIAL, "a", "가"], tmp_path / "vocab.txt")
    for options in OPTIONS:
        BertTokenizer(tmp_path / "vocab.txt", *options).save_settings(tmp_path)
        assert BertTokenizer.from_folder(tmp_path).rules == Rules(*options)


@pytest.mark.skipif(unicodedata.unidata_version != "14.0.0", reason="Python 3.11 alone knows exactly Unicode 14")
def test_the_table_is_unicode_14():
    assigned = {code for first, last in ASSIGNED for code in range(first, last + 1)}
    assert assigned == {code for code in range(sys.maxunicode + 1)
                        if unicodedata.category(chr(code)) not in ("Cn", "Cs")}


# Ideographs, syllables and private characters.
UNIFORM = [(0x3400, 0x9fff), (0xac00, 0xd7a3), (0xe000, 0xf8ff), (0x17000, 0x1afff), (0x20000, 0x10ffff)]


@pytest.mark.slow("a character of which another Python makes something else")
@pytest.mark.parametrize("text,left_out,digest", [
    ("{}", [], "76ebcd6a7c9eec56bc24569f91bcc1bb102e5287eab7f01ee0380d4bc58c3fdf"),
    # A character within a final sigma's context, and among marks that change places around it.
    ("A{0}Σ e\u0316{0}\u0327", UNIFORM, "ddc2152a023d0305b4a055ef954b7977a9ed5bb23141b8ffc5d9dbce01d3f4d2"),
], ids=["alone", "context"])
def test_every_python_makes_the_same_of_every_character(text, left_out, digest):
    # Characters that Unicode 14 lacks and a later one has are among them.
    codes = sorted({*range(0x32400), *(code for first, last in ASSIGNED for code in range(first, last + 1))})
    texts = [text.format(chr(code)) for code in codes if not any(first <= code <= last for first, last in left_out)]
    sha256 = hashlib.sha256()
    for rules in Rules(), Rules(strip_accents=False, normalization="NFC"):
        for at in range(0, len(texts), 32):
            for word in rules.normalize(" ".join(texts[at:at + 32])).split():
                sha256.update(word.encode() + b"\n")
    assert sha256.hexdigest() == digest
