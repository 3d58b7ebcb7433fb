import dataclasses
import functools
import json
import re
import shutil
import types
import unicodedata

import numpy as np
import pandas
import pytest
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, processors

from keras_bert.convert import convert, open_source
from keras_bert.convert.conversion import with_vocabulary
from keras_bert.errors import InputError, InputWarning
from keras_bert.export.litert import why_not
from keras_bert.layers import BertLayer
from keras_bert.tasks import Embed
from keras_bert.text import BertTokenizer, Tokenizer, load_vocabulary, pack, pad, save_vocabulary
from keras_bert.weights.loading import FORMATS

from conftest import SMALL, Peer, write_huggingface

transformers = Peer("transformers")
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
# More jamo than syllables, because transformers does not compose what it decomposes.
HARD_VOCABULARY = [*SPECIAL, *"a b c e f l p y A C P É é 서 날 日 . , cafe café Play play 서울 날씨 한".split(),
                   *"##a ##l ##y ##f ##e ##é ##c ##ing ##울".split(),
                   *(token for jamo in unicodedata.normalize("NFD", "서울날씨한국") for token in (jamo, f"##{jamo}"))]
HARD_VOCABULARY = list(dict.fromkeys(HARD_VOCABULARY))
HARD_TEXTS = ["Play Café CAFÉ cafe", "서울 날씨, 한국", "日本 playing.", unicodedata.normalize("NFD", "서울 Café 날씨"),
              "É, ab", ""]


def full_tokenizer(vocabulary, lower_case):
    """The Model Garden's, with the word limit of Google's original, which its checkpoints were trained with (200; the
    Garden's is 400)."""
    from official.nlp.tools import tokenization

    reference = tokenization.FullTokenizer(str(vocabulary), do_lower_case=lower_case)
    reference.wordpiece_tokenizer.max_input_chars_per_word = 200
    return reference


def test_texts_are_padded_to_a_length(tokenizer):
    texts, pairs = ["play some music", "lamp"], ["now", ""]
    for arguments in ((texts,), (texts, pairs)):
        inputs = tokenizer(*arguments, max_length=6, pad_to=9)
        wanted = pad(tokenizer.pack(*arguments, max_length=6), tokenizer.pad_id, 9)
        for name, values in wanted.items():
            assert values.shape == (2, 9)
            np.testing.assert_array_equal(inputs[name], values)
    assert tokenizer(texts, max_length=4, pad_to=4)["input_mask"].tolist() == [[1] * 4, [1] * 3 + [0]]
    with pytest.raises(InputError, match="^pad_to must be at least 5, the length of the longest text in tokens; got 4"):
        tokenizer(texts, pad_to=4)
    with pytest.raises(InputError, match="2 and 1"):
        tokenizer(texts, ["c"])


def test_pair():
    tokenizer = BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "b", "c"])
    inputs = tokenizer(["a b", "c"], ["c", "a b c"], max_length=6)
    np.testing.assert_array_equal(inputs["input_word_ids"], [[2, 4, 5, 3, 6, 3], [2, 6, 3, 4, 5, 3]])
    np.testing.assert_array_equal(inputs["segment_ids"], [[0, 0, 0, 0, 1, 1], [0, 0, 0, 1, 1, 1]])
    np.testing.assert_array_equal(inputs["input_mask"], np.ones((2, 6)))
    assert tokenizer.pack_with_cuts(["a b", "a b"], ["c", "a b"], max_length=6)[1] == [1]  # the second alone is cut
    assert tokenizer.pack_with_cuts(["a b c", "a b"], max_length=4)[1] == [0]


def test_padding_is_segment_0_and_masked():
    assert pack(list(range(10, 20)), None, 2, 3, 6) == ([2, 10, 11, 12, 13, 3], 6)  # cut
    inputs = pad([pack([7, 8], [9], 2, 3, 10), pack([7], None, 2, 3, 10)], 0)
    np.testing.assert_array_equal(inputs["input_word_ids"][1], [2, 7, 3, 0, 0, 0])
    np.testing.assert_array_equal(inputs["input_mask"][1], [1, 1, 1, 0, 0, 0])
    np.testing.assert_array_equal(inputs["segment_ids"], [[0, 0, 0, 0, 1, 1], [0] * 6])


@pytest.fixture(scope="module")
def hard_folder(tmp_path_factory):
    config = dataclasses.replace(SMALL, vocab_size=len(HARD_VOCABULARY) + 1)
    return write_huggingface(tmp_path_factory.mktemp("hard") / "folder", BertLayer(config), HARD_VOCABULARY)


@pytest.fixture
def folder(hard_folder, tmp_path):
    """A Hugging Face folder of an encoder without the files of its tokenizer; its 128 positions are in config.json."""
    return shutil.copytree(hard_folder, tmp_path / "folder", ignore=shutil.ignore_patterns("vocab.txt", "tokenizer*"))


def write_json(path, **values):
    """Changes values of a JSON file; None removes one."""
    values = (json.loads(path.read_text()) if path.exists() else {}) | values
    path.write_text(json.dumps({name: value for name, value in values.items() if value is not None}))


def write_tokenizer_json(path, lower_case, strip_accents=None, first=()):
    """Writes `tokenizer.json` by the library that defines it; returns the ids that it gives."""
    fast = tokenizers.Tokenizer(models.WordPiece(
        {token: id for id, token in enumerate(HARD_VOCABULARY)}, unk_token="[UNK]"))
    bert = normalizers.BertNormalizer(lowercase=lower_case, strip_accents=strip_accents)
    fast.normalizer = normalizers.Sequence([*first, bert]) if first else bert
    fast.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    fast.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    fast.save(str(path))
    return [fast.encode(text, add_special_tokens=False).ids for text in HARD_TEXTS]


def assert_ids(folder, wanted):
    """Compares the ids that `from_folder` and `convert` give."""
    assert BertTokenizer.from_folder(folder).ids(HARD_TEXTS) == wanted
    assert open_source(folder).tokenizer.ids(HARD_TEXTS) == wanted


# Final sigmas, white space, private, deleted and new characters, long words.
ODD_TEXTS = ["ΟΔΟΣ Σ Ο'Σ ΑΣΒ ΆΣ. 中Σ", "a\xa0b\u3000c\u2028d\x85e", "pl\ue000ay \U0002b820y \u0378", "=<>`~^ ,.a",
             "pl\xada\u200by\0\ufffd", "a\u1dfae\u2e55y\U0001e8d0", "a" * 150, "a" * 250, "play cafe " * 9,
             "ﬁ ß İ Ⅷ ǅ e\u0316\u0301\u0327"]
ODD_PIECES = sorted({c for text in ODD_TEXTS for c in text + unicodedata.normalize("NFD", text.lower())
                     if unicodedata.category(c)[0] in "LMNP" or unicodedata.category(c) in ("Co", "Cn", "Sm", "Sk")})


def test_other_kinds_are_refused_where_only_wordpiece_fits():
    methods = dict.fromkeys(Tokenizer.__abstractmethods__)
    other = object.__new__(type("Other", (Tokenizer,), methods | {"files": ("tokenizer.json",)}))
    users = [FORMATS[name].rules for name in ("tf1", "garden", "hub", "kerashub")]
    for use in (*users, lambda other: with_vocabulary(types.SimpleNamespace(tokenizer=other), __file__)):
        with pytest.raises(InputError, match="^.*: the vocabulary must be one of WordPiece; this is tokenizer.json$"):
            use(other)
    assert why_not(Embed(16), other) == "it reads vocabularies of WordPiece only"


@pytest.mark.parametrize("library", ["tokenizers", pytest.param("transformers", marks=pytest.mark.peers)])
@pytest.mark.parametrize("options", [
    {}, {"lower_case": False}, {"strip_accents": False}, {"lower_case": False, "strip_accents": True},
    {"split_cjk": False}, {"normalization": "NFC"}, {"normalization": "NFC", "lower_case": False},
    {"truncation_side": "left"}, {"has_segments": False}, {"max_word_length": 5}], ids=str)
def test_tokenizer_json_gives_the_same_ids(options, library, tmp_path):
    """Raw text of a special token aside, which transformers finds in texts."""
    vocabulary = list(dict.fromkeys([*HARD_VOCABULARY, *ODD_PIECES, *(f"##{c}" for c in ODD_PIECES)]))
    tokenizer = BertTokenizer(vocabulary, **{"normalization": "none"} | options)
    tokenizer.save_for_transformers(tmp_path, 16)
    again = BertTokenizer.from_folder(tmp_path)
    assert {**vars(again), "subwords": 0} == {**vars(tokenizer), "subwords": 0, "max_length": 16}
    texts = [*HARD_TEXTS, *ODD_TEXTS, *["[SEP] a"] * (library == "tokenizers")]
    for rows in ([texts], [texts, ["play"] * len(texts)]):
        wanted = tokenizer(*rows, max_length=16)
        if library == "tokenizers":
            found = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json")).encode_batch(
                [*zip(*rows)] if rows[1:] else texts)
            ids, types = ([getattr(one, name) for one in found] for name in ("ids", "type_ids"))
        else:
            found = transformers.AutoTokenizer.from_pretrained(tmp_path)(*rows, truncation=True, padding=True)
            ids, types = found["input_ids"], found.get("token_type_ids", wanted["segment_ids"])
        np.testing.assert_array_equal(ids, wanted["input_word_ids"])
        np.testing.assert_array_equal(types, wanted["segment_ids"])


@pytest.mark.parametrize("strip_accents", [None, True, False])
@pytest.mark.parametrize("lower_case", [False, True])
@pytest.mark.parametrize("tokenizer_class", [None, "PreTrainedTokenizerFast", "TokenizersBackend"])
def test_tokenizer_json_is_enough(folder, tokenizer_class, lower_case, strip_accents):
    """It counts before the capitals of the vocabulary, and for two classes before `tokenizer_config.json`."""
    if tokenizer_class:
        write_json(folder / "tokenizer_config.json", tokenizer_class=tokenizer_class, do_lower_case=not lower_case)
    assert_ids(folder, write_tokenizer_json(folder / "tokenizer.json", lower_case, strip_accents))


@pytest.mark.parametrize("lower_case", [False, True])
def test_the_config_of_a_bert_tokenizer_counts_before_tokenizer_json(folder, tmp_path, lower_case):
    write_tokenizer_json(folder / "tokenizer.json", not lower_case)
    write_json(folder / "tokenizer_config.json", tokenizer_class="BertTokenizerFast", do_lower_case=lower_case)
    assert_ids(folder, write_tokenizer_json(tmp_path / "wanted.json", lower_case))


def test_tokenizer_json_counts_before_vocab_txt(folder):
    save_vocabulary([*SPECIAL, *reversed(HARD_VOCABULARY[5:])], folder / "vocab.txt")
    with pytest.warns(InputWarning, match="vocab.txt and tokenizer.json have other tokens: those of tokenizer.json"):
        assert_ids(folder, write_tokenizer_json(folder / "tokenizer.json", True))
    assert any(note.startswith("vocab.txt and tokenizer.json have other tokens") for note in open_source(folder).notes)


@pytest.mark.parametrize("place", ["tokenizer.json", "sentence_bert_config.json"])
def test_texts_are_lower_cased_before_the_steps_of_bert(folder, tmp_path, place):
    """sentence-transformers puts this step before those of the tokenizer, which keeps accents then."""
    write_json(folder / "tokenizer_config.json", tokenizer_class="TokenizersBackend")
    first = [normalizers.Lowercase()]
    write_tokenizer_json(folder / "tokenizer.json", False, first=first if place == "tokenizer.json" else ())
    if place == "sentence_bert_config.json":
        write_json(folder / place, do_lower_case=True)
    assert_ids(folder, write_tokenizer_json(tmp_path / "wanted.json", False, first=first))


NAMES = dict(zip(SPECIAL, ["<pad>", "<unk>", "<s>", "</s>", "<mask>"]))
NAMED = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), NAMES.values()))


@pytest.mark.parametrize("file", ["tokenizer_config.json", "special_tokens_map.json"])
@pytest.mark.parametrize("taken", [False, True])
def test_special_tokens_of_other_names(folder, file, taken):
    vocabulary = [NAMES.get(token, token) for token in HARD_VOCABULARY]
    if taken:  # BERT's names are those of other tokens
        vocabulary[-5:] = SPECIAL
    save_vocabulary(vocabulary, folder / "vocab.txt")
    write_json(folder / "tokenizer_config.json", do_lower_case=False)
    write_json(folder / file, **NAMED | {"cls_token": {"content": "<s>", "lstrip": False}})
    for tokenizer in (BertTokenizer.from_folder(folder), open_source(folder).tokenizer):
        assert tokenizer(["play xyz", ""])["input_word_ids"].tolist() == [
            [2, vocabulary.index("play"), 1, 3], [2, 3, 0, 0]]
        assert tokenizer.mask_id == 4
    assert any(note.startswith("the special tokens <pad>, <unk>, <s>, </s>, <mask> are named [PAD], ")
               for note in open_source(folder).notes)


def test_a_guess_is_one_line(folder, run, tmp_path):
    save_vocabulary(HARD_VOCABULARY, folder / "vocab.txt")
    line = ("no file says if texts are lower-cased: lower_case is False, because a token of the vocabulary has a "
            "capital letter; to decide, write do_lower_case into tokenizer_config.json")
    for read in (BertTokenizer.from_folder, lambda folder: open_source(folder).needed_tokenizer()):
        with pytest.warns(InputWarning) as warned:
            assert read(folder).tokenize("Play") == ["Play"]
        assert [str(warning.message) for warning in warned] == [f"{folder}: {line}"]
    status, output, messages = run("convert", f"--model={folder}", f"--output={tmp_path}/out", "--format=keras_bert")
    assert (status, output.count(line), messages) == (0, 1, [])


def pieces(folder):
    save_vocabulary([*SPECIAL, "▁테스트", "▁반환", "하지", "▁play", "▁Play", "##s"], folder / "vocab.txt")


def of_class(name, file="tokenizer_config.json"):
    def write(folder):
        save_vocabulary(HARD_VOCABULARY, folder / "vocab.txt")
        write_json(folder / file, tokenizer_class=name)

    return write


def steps(**values):
    def write(folder):
        write_tokenizer_json(folder / "tokenizer.json", True)
        write_json(folder / "tokenizer.json", **values)
        write_json(folder / "tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast")

    return write


@pytest.mark.parametrize(("write", "words"), [
    (pieces, "vocab.txt: must be a WordPiece vocabulary, .* begin with ##; 4 of 11 .* with ▁.*, and 1 with ##"),
    (of_class("KoBertTokenizer"), "tokenizer_config.json: 'tokenizer_class' must be BertTokenizer or .*; got 'KoBert"),
    (of_class("BertJapaneseTokenizer", "config.json"), "config.json: 'tokenizer_class' must be BertTokenizer or "),
    (of_class("XLMRobertaTokenizer"), "got 'XLMRobertaTokenizer', which splits texts in another way"),
    (steps(model={"type": "BPE", "vocab": {"a": 0}}, normalizer=None),
     "tokenizer.json: model: 'type' must be WordPiece; got 'BPE'"),
    (steps(normalizer={"type": "NFC"}), "in tokenizer.json must be BertNormalizer, .*, not NFC, BertPreTokenizer"),
])
def test_another_tokenizer_is_refused(folder, run, tmp_path, write, words):
    write(folder)
    advice = "; use a model with a WordPiece or unigram vocabulary, for Korean klue-bert-base"
    with pytest.raises(InputError, match=f"{words}.*{advice}$") as error:
        BertTokenizer.from_folder(folder)
    status, _, messages = run("convert", f"--model={folder}", f"--output={tmp_path}/out", "--format=keras_bert")
    assert (status, messages) == (1, [f"keras-bert: {error.value}"])
    for name in ("vocab.txt", "tokenizer.json"):
        (folder / name).unlink(missing_ok=True)
    assert open_source(folder).tokenizer is None  # the weights alone can be read


@pytest.mark.parametrize("found", ["it has none of them", "there is no such folder"])
def test_a_folder_without_a_vocabulary(tmp_path, found):
    folder = tmp_path if found == "it has none of them" else tmp_path / "nowhere"
    with pytest.raises(InputError, match=f"{folder}: must be a folder with a vocabulary: vocab.txt, "
                                         f"tokenizer.json or a .model file of SentencePiece; {found}"):
        BertTokenizer.from_folder(folder)


@pytest.mark.parametrize(("files", "length"), [
    ({}, 128),
    ({"tokenizer_config.json": {"model_max_length": 10**30}}, 128),
    ({"tokenizer_config.json": {"model_max_length": 512}}, 128),
    ({"tokenizer_config.json": {"model_max_length": 90}}, 90),
    ({"tokenizer_config.json": {"max_len": 80}}, 80),
    ({"tokenizer_config.json": {"model_max_length": 90}, "sentence_bert_config.json": {"max_seq_length": 100}}, 100),
    ({"tokenizer_config.json": {"model_max_length": 90}, "sentence_bert_config.json": {"max_seq_length": None}}, 90),
    ({"settings.json": {"max_length": 20}, "tokenizer_config.json": {"model_max_length": 90}}, 20),
    ({"config.json": {"max_position_embeddings": None}, "tokenizer_config.json": {"model_max_length": 200}}, 200),
    ({"config.json": {"max_position_embeddings": None}}, 128),
])
def test_inputs_are_as_long_as_the_folder_says(folder, files, length):
    write_tokenizer_json(folder / "tokenizer.json", True)
    for name, values in files.items():
        write_json(folder / name, **values)
    tokenizer = BertTokenizer.from_folder(folder)
    assert tokenizer(["play " * 300])["input_word_ids"].shape == (1, length)
    assert tokenizer(["play " * 300], max_length=7)["input_word_ids"].shape == (1, 7)


@pytest.mark.parametrize("length", ["long", 2, 64.5, True, -1])
def test_a_maximum_length_is_a_number_of_tokens(folder, length):
    write_tokenizer_json(folder / "tokenizer.json", True)
    write_json(folder / "tokenizer_config.json", model_max_length=length)
    for read in (BertTokenizer.from_folder, open_source):
        with pytest.raises(InputError, match="tokenizer_config.json: model_max_length must be a number of tokens, at "
                                             f"least 3; got {length!r}"):
            read(folder)


def test_a_plain_encoder_keeps_its_maximum_length(folder, tmp_path):
    write_tokenizer_json(folder / "tokenizer.json", True)
    write_json(folder / "tokenizer_config.json", model_max_length=90)
    for name in ("keras_bert", "tf1", "huggingface"):
        convert(folder, tmp_path / name, name)
        assert BertTokenizer.from_folder(tmp_path / name).max_length == 90


def save_peer(folder, lower_case, vocabulary=HARD_VOCABULARY, **names):
    """Writes `tokenizer.json` and `tokenizer_config.json` as transformers 5 does, which writes no `vocab.txt`."""
    save_vocabulary(vocabulary, folder / "vocab.txt")
    peer = transformers.BertTokenizer(str(folder / "vocab.txt"), do_lower_case=lower_case, **names)
    (folder / "vocab.txt").unlink()
    peer.save_pretrained(folder)
    assert not (folder / "vocab.txt").exists()


def save_fast(folder, lower_case):
    write_tokenizer_json(folder / "tokenizer.json", lower_case)
    transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"),
                                         **dict(zip(NAMED, SPECIAL))).save_pretrained(folder)


def write_config(folder, lower_case, **values):
    write_json(folder / "tokenizer_config.json", tokenizer_class="BertTokenizer", do_lower_case=lower_case, **values)


OTHER_ORDER = [*SPECIAL, *reversed(HARD_VOCABULARY[5:])]
OTHER_NAMES = [NAMES.get(token, token) for token in HARD_VOCABULARY]
# Functions of a folder and lower_case; a folder is written by several.
FOLDERS = {
    "vocab.txt": [lambda folder, _: save_vocabulary(HARD_VOCABULARY, folder / "vocab.txt"),
                  lambda folder, lower_case: write_config(folder, lower_case, model_max_length=512)],
    "transformers 5": [save_peer],
    "transformers 4": [save_peer, lambda folder, _: save_vocabulary(HARD_VOCABULARY, folder / "vocab.txt")],
    "fast": [save_fast],
    "contradiction": [save_peer, lambda folder, lower_case: write_tokenizer_json(
        folder / "tokenizer.json", not lower_case)],
    "contradiction of steps": [
        lambda folder, lower_case: save_peer(folder, not lower_case),
        lambda folder, lower_case: write_tokenizer_json(folder / "tokenizer.json", lower_case),
        lambda folder, _: write_json(folder / "tokenizer_config.json", tokenizer_class="TokenizersBackend")],
    "other vocab.txt": [save_peer, lambda folder, _: save_vocabulary(OTHER_ORDER, folder / "vocab.txt")],
    "other names": [lambda folder, lower_case: save_peer(folder, lower_case, OTHER_NAMES, **NAMED)],
    "special tokens map": [write_config, lambda folder, _: save_vocabulary(OTHER_NAMES, folder / "vocab.txt"),
                           lambda folder, _: write_json(folder / "special_tokens_map.json", **NAMED)],
    # Without a config, transformers lower-cases, whatever tokenizer.json says.
    "tokenizer.json": [save_peer, lambda folder, _: (folder / "tokenizer_config.json").unlink()],
}


@pytest.mark.peers
@pytest.mark.parametrize(("name", "lower_case"), [
    (name, lower_case) for name in FOLDERS for lower_case in (False, True) if lower_case or name != "tokenizer.json"])
@pytest.mark.filterwarnings("ignore:.* vocab.txt and tokenizer.json have other tokens")
def test_a_folder_gives_the_ids_of_transformers(folder, name, lower_case):
    for write in FOLDERS[name]:
        write(folder, lower_case)
    wanted = transformers.AutoTokenizer.from_pretrained(folder)(HARD_TEXTS)["input_ids"]
    for tokenizer in (BertTokenizer.from_folder(folder), open_source(folder).tokenizer):
        assert [ids for ids, _ in tokenizer.pack(HARD_TEXTS)] == wanted


@pytest.mark.peers
def test_added_tokens_have_the_ids_of_transformers(folder):
    save_vocabulary(HARD_VOCABULARY, folder / "vocab.txt")
    peer = transformers.BertTokenizer(str(folder / "vocab.txt"))
    peer.add_tokens(["covid"])
    (folder / "vocab.txt").unlink()
    peer.save_pretrained(folder)
    tokenizer, texts = open_source(folder, allow_inexact=True).tokenizer, [*HARD_TEXTS, "play covid"]
    assert [ids for ids, _ in tokenizer.pack(texts)] == peer(texts)["input_ids"]


def test_vocabularies_as_editors_on_windows_write_them(tmp_path):
    (tmp_path / "vocab.txt").write_bytes("\ufeff[PAD]\r\n[UNK]\r\n[CLS]\r\n[SEP]\r\n가\r\n".encode())
    (tmp_path / "tokenizer_config.json").write_bytes('\ufeff{"do_lower_case": true}'.encode())
    tokenizer = BertTokenizer.from_folder(tmp_path)
    assert tokenizer.vocabulary == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "가"] and tokenizer.rules.lower_case


@pytest.mark.parametrize("content,word", [(b"a\nb\n", "CLS"), (b"", "PAD"), (b"\xff\n", "UTF-8")])
def test_bad_vocabularies_name_the_file(tmp_path, content, word):
    path = tmp_path / "vocab.txt"
    path.write_bytes(content)
    with pytest.raises(InputError, match=rf"vocab.txt.*{word}"):
        load_vocabulary(path)


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
    ("hello world", " must be a list of texts; got 'hello world'; pass ['hello world']"),
    (pandas.DataFrame({"text": ["a"]}), " must be a list of texts; got a DataFrame; pass one of its columns"),
    (None, " must be a list of texts; got None"), ({"a"}, " must be a list of texts; got {'a'}"),
    (["a", None], ": row 2: must be a text; got None; leave out"),
    (["a", "b", float("nan")], ": row 3: must be a text; got nan; leave out"),
    ([["a", "b"]], ": row 1: must be a text; got ['a', 'b']; pass a str"),
])
def test_what_is_no_list_of_texts(tokenizer, texts, message):
    calls = [(method, "texts") for method in (tokenizer, tokenizer.pack, tokenizer.ids, tokenizer.flat_ids,
                                              tokenizer.unknown_rate)]
    if texts is not None:
        calls += [(functools.partial(method, ["a"]), "text_pairs") for method in (tokenizer, tokenizer.pack)]
    for call, name in calls:
        with pytest.raises(InputError, match=f"^{name}{re.escape(message)}"):
            call(texts)
    with pytest.raises(InputError, match="^text must be one text; .*; for several texts, call tokenizer.ids"):
        tokenizer.tokenize(["a", "b"])
