"""`make-vocab --extend`: which tokens are added, and what `convert --vocab` makes of them."""

import collections
import dataclasses
import itertools
import shutil
import unicodedata

import numpy as np
import pytest
import test_unigram
from keras import ops

from keras_bert import FineTuned
from keras_bert.convert import convert, open_source
from keras_bert.errors import InputError, InputWarning
from keras_bert.layers import BertLayer
from keras_bert.text import BertTokenizer, load_tokenizer, save_vocabulary
from keras_bert.text.charsmap import STAND_INS
from keras_bert.text.extension import extend_vocabulary
from keras_bert.weights import native
from keras_bert.weights.format import Weights

import zoo
from conftest import TINY, TINY_VOCABULARY

KINDS = ["WordPiece", "unigram"]
TEXT = "play playlist playlists\n오늘은 날씨가 좋다 오늘도 날씨는 좋다\nthe lichens, lichens of a lichen 뷁뷁 뷁\n"
OLD = ["play some music", "turn on the light"]  # without new tokens


@pytest.fixture
def path(tmp_path):
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")
    return tmp_path / "text.txt"


def tokenizer_of(kind):
    if kind == "unigram":
        return test_unigram.tokenizer_of("nfkc", False)
    letters = [prefix + letter for letter in "abcdefghijklmnopqrstuvwxyz" for prefix in ("", "##")]
    return BertTokenizer([*TINY_VOCABULARY, *(letter for letter in letters if letter not in TINY_VOCABULARY)])


def spelled(tokenizer, text):
    """The token of each character, from the first tokenizer's view: what the tokens of a text join."""
    return "".join(token.removeprefix(tokenizer.continues) for token in tokenizer.tokenize(text))


@pytest.mark.parametrize("kind", KINDS)
def test_the_new_tokens_join_the_most_frequent_pairs(kind, path):
    before = tokenizer_of(kind)
    own, words = len(before.vocabulary), " ".join(map(before.rules.normalize, TEXT.splitlines())).split()
    after, held_out = extend_vocabulary(before, path, own + 40, held_out=0)
    new = after.vocabulary[own:]
    assert held_out == [] and after.vocabulary[:own] == before.vocabulary and len(set(new)) == len(new) > 5
    characters = {piece for word in words for piece in word} - {piece.removeprefix("##") for piece in before.vocabulary}
    rare = {character for character in characters if TEXT.count(character) < 2}
    assert {piece.removeprefix("##") for piece in new} >= characters - rare  # and no word has [UNK] because of them
    merges = [token for token in new if len(token.removeprefix("##")) > 1 and token not in characters]
    pairs = collections.Counter()
    larger = before.extended({token: [] for token in new if token not in merges})
    for word in words:
        pieces = [larger.vocabulary[index] for index in larger.ids_of_words([word])[0]]
        pairs.update(a + b.removeprefix(before.continues) for a, b in itertools.pairwise(pieces))
    assert pairs[merges[0]] == max(pairs.values())
    for text in TEXT.splitlines():
        assert spelled(after, text) == spelled(larger, text)
    assert len(after.tokenize(TEXT)) < len(larger.tokenize(TEXT))
    for text in OLD if kind == "WordPiece" else ["the film"]:
        assert after.ids([text]) == before.ids([text])


@pytest.mark.slow("a row that is not its token's")
@pytest.mark.parametrize("kind", KINDS)
def test_convert_takes_the_folder(kind, path, run, tmp_path):
    """The vectors of texts without new tokens are the same to the bit; a new token's row is the mean of its parts'."""
    before, texts = tokenizer_of(kind), OLD if kind == "WordPiece" else ["the film"]
    layer = BertLayer(dataclasses.replace(TINY, vocab_size=len(before.vocabulary), pad_token_id=before.pad_id))
    (model := tmp_path / "model").mkdir()
    native.write(Weights.of(layer, before), model)
    folder = tmp_path / "vocabulary"
    status, lines, _ = run("make-vocab", f"--extend={model}", f"--input={path}", "--held_out=0.4",
                           f"--vocab_size={len(before.vocabulary) + 4}", f"--output={folder}")
    assert status == 0 and lines[0] == f"{folder}: {len(before.vocabulary) + 4} tokens, 4 of them new"
    assert lines[1].startswith("new tokens         ") and lines[2] == "lines held out     1"
    after, report = load_tokenizer(folder), []
    convert(model, tmp_path / "larger", "keras_bert", vocab=folder, report=report.append)
    found = BertLayer.from_pretrained(tmp_path / "larger")
    for first, second in zip(layer(before(texts)), found(load_tokenizer(tmp_path / "larger")(texts)), strict=True):
        np.testing.assert_array_equal(ops.convert_to_numpy(first), ops.convert_to_numpy(second))
    old, rows = (ops.convert_to_numpy(each.get_weights()[0]) for each in (layer, found))
    for token, row in zip(after.vocabulary[-4:], rows[-4:]):
        ids = before.spellings([token])[0]
        np.testing.assert_allclose(row, old[ids].mean(0) if ids else old.mean(0), rtol=1e-6, atol=1e-7)
    assert any(f"{len(before.vocabulary)} kept" in line for line in report)
    status, _, lines = run("make-pretraining-data", f"--input={path}", f"--vocab={folder}", "--nonext_sentence",
                           f"--output={tmp_path / 'data'}")
    assert status == 0, lines
    assert load_tokenizer(tmp_path / "data").vocabulary == after.vocabulary


def test_joined_pieces_change_no_other(path):
    """Of unigram models: the pieces of any text, taken apart, are those of before."""
    before = tokenizer_of("unigram")
    after, _ = extend_vocabulary(before, path, len(before.vocabulary) + 30)
    parts = before.spellings(after.vocabulary)
    for text in (text for text in test_unigram.PLAIN if before.unknown_rate([text]) == 0):
        assert [part for index in after.ids([text])[0] for part in parts[index]] == before.ids([text])[0]


@pytest.mark.parametrize("kind", [*KINDS, "identity"])
def test_words_of_a_list_become_tokens(kind, tmp_path):
    """Whatever is at the line's end, and however long they are."""
    words = ["currencies", "thrombocytopenia", "메서드에서", "playlist"]
    (tmp_path / "text.txt").write_text("".join(f"{word}\r\n{word}\n" for word in words), encoding="utf-8")
    before = test_unigram.tokenizer_of("identity", False) if kind == "identity" else tokenizer_of(kind)
    after, _ = extend_vocabulary(before, tmp_path / "text.txt", len(before.vocabulary) + 99, held_out=0)
    assert [len(after.tokenize(word)) for word in words] == [1] * 4
    assert not {*after.vocabulary} & {*STAND_INS.values()}


def test_characters_take_the_rows_that_words_leave(tmp_path):
    (tmp_path / "text.txt").write_text(" ".join(3 * [chr(0x4e00 + number) for number in range(100)]), encoding="utf-8")
    before = tokenizer_of("WordPiece")
    after, _ = extend_vocabulary(before, tmp_path / "text.txt", len(before.vocabulary) + 90, held_out=0)
    assert len(after.vocabulary) == len(before.vocabulary) + 90


def test_the_weights_decide_how_texts_are_packed(tmp_path):
    """An encoder with one segment type takes the words of a folder whose tokenizer numbers two texts, and is cut at
    the same end as before."""
    before = BertTokenizer(TINY_VOCABULARY, has_segments=False, truncation_side="left", max_length=20)
    BertTokenizer([*TINY_VOCABULARY, "lichen"]).save(tmp_path)
    (model := tmp_path / "model").mkdir()
    native.write(Weights.of(BertLayer(dataclasses.replace(TINY, type_vocab_size=1)), before), model)
    convert(model, tmp_path / "larger", "keras_bert", vocab=tmp_path)
    found = load_tokenizer(tmp_path / "larger")
    assert (found.has_segments, found.truncation_side, found.max_length) == (False, "left", 20)


def test_texts_in_nfd_are_named(run, tmp_path):
    (tmp_path / "text.txt").write_text(unicodedata.normalize("NFD", "한국말로 한국말로\n"), encoding="utf-8")
    BertTokenizer(TINY_VOCABULARY, lower_case=False).save(tmp_path)
    status, _, messages = run("make-vocab", f"--extend={tmp_path}", f"--input={tmp_path}/text.txt",
                              f"--vocab_size={len(TINY_VOCABULARY) + 40}", f"--output={tmp_path}/out")
    assert status == 0 and any("the texts are in NFD, as on macOS" in line for line in messages)


@pytest.mark.parametrize("flags,message", [
    (("--vocab_size=60", "--lower_case"), "--lower_case, --strip_accents and --hangul must be left out with --extend: "
                                          "the rules are those of "),
    (("--vocab_size=3",), "vocab_size must be from "),
    (("--vocab_size=900", f"--min_frequency={10**30}"), "no pair of tokens in a word occurs at least --min_f")])
def test_refusals(flags, message, run, path, tmp_path):
    BertTokenizer(TINY_VOCABULARY).save(tmp_path)
    status, _, [line] = run("make-vocab", f"--extend={tmp_path}", f"--input={path}", f"--output={tmp_path}/out", *flags)
    assert status == 1 and message in line and not (tmp_path / "out").exists()


@pytest.mark.parametrize("line,found", [("the", "it is also in line "), ("two words", "it has white space")])
def test_a_token_twice_or_with_a_space(line, found, tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join([*TINY_VOCABULARY, line]))
    with pytest.raises(InputError, match=rf"vocab.txt: line \d+: a token must .*; got '{line}', {found}"):
        BertTokenizer(tmp_path / "vocab.txt")
    save_vocabulary([*TINY_VOCABULARY, "[hole 7]"], tmp_path / "vocab.txt")  # as this package names ids without a token
    assert BertTokenizer(tmp_path / "vocab.txt").vocabulary[-1] == "[hole 7]"


def test_a_token_twice_in_a_folder(tmp_path):
    """One more line moves the ids of all that follow."""
    folder = zoo.copy(zoo.finetuned(), tmp_path / "model")
    BertTokenizer([*TINY_VOCABULARY[:20], *TINY_VOCABULARY[19:]]).save(tmp_path)
    with (pytest.warns(InputWarning, match="repeated tokens: 1;"),
          pytest.raises(InputError, match=r"line 21: a token must .*, it is also in line 20; ")):
        convert(folder, tmp_path / "out", "keras_bert", vocab=tmp_path)
    shutil.copy(tmp_path / "vocab.txt", folder)
    for load in FineTuned.load, open_source:
        with pytest.raises(InputError, match="model: vocab.txt must be as it was written; copy or write"):
            load(folder)
    (folder / "sha256.json").unlink()  # as before version 0.4
    with (pytest.warns(InputWarning, match="repeated tokens: 1;"),
          pytest.raises(InputError, match=rf"at most the model's vocab_size .{TINY.vocab_size}. tokens; got ")):
        FineTuned.load(folder)
