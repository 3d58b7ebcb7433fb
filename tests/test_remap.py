"""Models under another vocabulary, or with fewer positions."""

import dataclasses
import shutil

import numpy as np
import pytest
import test_unigram
from keras import ops

from keras_bert.convert import conversion, convert, load_pretrained, open_source, trimming
from keras_bert.errors import InputError, InputWarning
from keras_bert.layers import BertLayer
from keras_bert.models import BertPretrainer
from keras_bert.text import BertTokenizer, load_tokenizer, load_vocabulary, save_vocabulary
from keras_bert.weights import native
from keras_bert.weights.format import Weights
from keras_bert.weights.kinds import variable

from conftest import REAL, TINY, TINY_VOCABULARY, randomize, write_huggingface

# With pieces that spell a special token.
VOCABULARY = [*TINY_VOCABULARY[:-3], "[", "##play", "##]"]
TEXTS = ["play some music", "turn on the light, please.", "what time is it?"]


@pytest.fixture(scope="module")
def pretrainer():
    return randomize(BertPretrainer(BertLayer(TINY)))


@pytest.fixture(scope="module")
def source(pretrainer, tmp_path_factory):
    """A folder of a tiny encoder with both heads of pretraining."""
    return write_huggingface(tmp_path_factory.mktemp("remap") / "source", pretrainer, VOCABULARY)


@pytest.fixture
def unchecked(monkeypatch):
    """What is written is not run again: the test does it."""
    monkeypatch.setattr(conversion, "differences", lambda *arguments: {})


def remap(source, tmp_path, vocabulary, lines=None, **kwargs):
    """(folder of the weights under another vocabulary, what the report, `lines`, says of it)."""
    lines, path = [] if lines is None else lines, tmp_path / "vocabulary.txt"
    save_vocabulary(vocabulary, path)
    convert(source, tmp_path / "mapped", "huggingface", vocab=path, report=lines.append, **kwargs)
    (line,) = (line.removeprefix(f"vocabulary {path}: ") for line in lines if line.startswith("vocabulary"))
    return tmp_path / "mapped", line


def encode(folder, texts=TEXTS):
    """(pooled output, sequence output) of texts, by the folder's own tokenizer and encoder."""
    return [*map(ops.convert_to_numpy, load_pretrained(folder)(BertTokenizer.from_folder(folder)(texts)))]


def array(model, name):
    return ops.convert_to_numpy(variable(model, name))


def assert_refused(reason, *args, **kwargs):
    with pytest.raises(InputError) as error:
        convert(*args, **kwargs)
    assert reason in str(error.value) and "\n" not in str(error.value)


def test_a_permuted_vocabulary_changes_nothing(source, pretrainer, tmp_path):
    order = np.random.default_rng(0).permutation(len(VOCABULARY))
    mapped, report = remap(source, tmp_path, [VOCABULARY[i] for i in order])
    assert report == "60 tokens: 60 kept, 0 from the tokens that spell them, 0 from the mean of all"
    # The same rows meet the same weights, padding's too.
    for got, wanted in zip(encode(mapped), encode(source), strict=True):
        np.testing.assert_array_equal(got, wanted)
    model, tokenizer = BertPretrainer.from_pretrained(mapped), BertTokenizer.from_folder(mapped)
    assert model.bert.config.pad_token_id == tokenizer.pad_id == list(order).index(0) != 0
    got, wanted = model(tokenizer(TEXTS)), pretrainer(BertTokenizer(VOCABULARY)(TEXTS))
    # Columns in another order may be multiplied by other instructions.
    np.testing.assert_allclose(got["mlm_logits"], ops.convert_to_numpy(wanted["mlm_logits"])[..., order], atol=1e-6)
    np.testing.assert_array_equal(got["next_sentence_logits"], wanted["next_sentence_logits"])


def test_new_pieces_get_the_mean_of_what_spells_them(source, pretrainer, tmp_path):
    spelt = {"musics": ["music", "##s"], "playplaying": ["play", "##play", "##ing"], "##ssing": ["##s", "##s", "##ing"],
             "##playplay": ["##play", "##play"]}
    # Greedily: "it" leaves "##a", which there is not. Special tokens stand for themselves.
    unknown = ["xyz", "ita", "##xs", "##", "[play]", *(f"[unused{index}]" for index in range(90, 99))]
    carried = ["[MASK]", "##s", "[CLS]", "play", "[PAD]", "[unused3]", "[SEP]", "[", "[UNK]"]
    with pytest.warns(InputWarning, match="the model's tokens spell fewer than half of these"):
        mapped, report = remap(source, tmp_path, [*unknown, *carried, *spelt])
    assert report == "27 tokens: 9 kept, 4 from the tokens that spell them, 14 from the mean of all"
    model = BertPretrainer.from_pretrained(mapped)
    for got, wanted in zip(model.get_weights(), pretrainer.get_weights(), strict=True):
        if len(wanted) != 60:  # all else is carried
            np.testing.assert_array_equal(got, wanted)
    assert model.bert.config.vocab_size == 27 and model.bert.config.pad_token_id == 18
    ids = {piece: index for index, piece in enumerate(VOCABULARY)}
    for name in ("bert.embeddings.word_embeddings.embeddings", "mlm.bias"):
        old, new = array(pretrainer, name), array(model, name)
        np.testing.assert_array_equal(new[14:23], old[[ids[piece] for piece in carried]])
        means = [sum(old[ids[part]] for part in parts) / len(parts) for parts in spelt.values()]
        # Float32 sums of up to 60 values of 0.1.
        np.testing.assert_allclose(new[23:], means, rtol=0, atol=1e-7)
        np.testing.assert_allclose(new[:14], [sum(old) / 60] * 14, rtol=0, atol=1e-7)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("rules", [{"lower_case": False, "strip_accents": True}, {"strip_accents": False},
                                   {"split_cjk": False}, {"normalization": "NFC"}])
def test_the_rules_stand_where_the_vocabulary_suggests_no_others(tmp_path, rules):
    source = write_huggingface(tmp_path / "source", BertLayer(TINY), VOCABULARY)
    tokenizer = BertTokenizer(VOCABULARY, **rules)
    tokenizer.save_settings(source)
    mapped, _ = remap(source, tmp_path, VOCABULARY[::-1])
    assert open_source(mapped).tokenizer.rules == tokenizer.rules


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("old", "new"), [("Cafe", "cafe"), ("cafe", "Cafe")])
def test_the_case_is_that_of_the_new_vocabulary(tmp_path, old, new):
    source = write_huggingface(tmp_path / "source", BertLayer(TINY), [*VOCABULARY[:-1], old])
    BertTokenizer(source / "vocab.txt", lower_case=None).save_settings(source)
    lines = []
    mapped, _ = remap(source, tmp_path, [*VOCABULARY[:-1], new], lines)
    rules = open_source(mapped).tokenizer.rules
    assert rules.lower_case == rules.strip_accents == (new == "cafe")
    assert any(line.startswith(f"lower_case is {new == 'cafe'}, because ") for line in lines)


def test_a_source_needs_its_vocabulary(source, tmp_path):
    bare = shutil.copytree(source, tmp_path / "bare")
    for name in ("vocab.txt", "tokenizer.json"):
        (bare / name).unlink()
    assert_refused("add the vocab.txt of the weights to their folder", bare, tmp_path / "to", "huggingface",
                   vocab=source / "vocab.txt")
    assert_refused("missing [PAD]", source, tmp_path / "to", "huggingface", vocab=__file__)


def test_cut_positions(source, tmp_path):
    lines, short = [], tmp_path / "short"
    convert(source, short, "huggingface", max_position_embeddings=9, report=lines.append)
    assert "kept positions 0 to 8" in lines
    assert open_source(short).config.max_position_embeddings == 9
    for got, wanted in zip(encode(short), encode(source), strict=True):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("number", [0, -1, 129])
def test_positions_that_there_are_not(source, tmp_path, number):
    assert_refused(f"max_position_embeddings must be from 1 to 128, the number in the weights; got {number}",
                   source, tmp_path / "to", "huggingface", max_position_embeddings=number)


@pytest.mark.slow("real vocabularies and weights")
@pytest.mark.usefixtures("unchecked")
def test_minilm_under_a_multilingual_vocabulary(minilm, tmp_path):
    known = set(load_vocabulary(minilm / "vocab.txt"))
    pieces = load_vocabulary(REAL / "vocab/bert-base-multilingual-cased/vocab.txt")
    pieces = [piece for index, piece in enumerate(pieces) if piece in known or index % 20 == 0]
    # The pooling of its folder has no place in the format.
    mapped, report = remap(minilm, tmp_path, pieces, max_position_embeddings=64, allow_inexact=True)
    carried = sum(piece in known for piece in pieces)
    assert report.startswith(f"{len(pieces)} tokens: {carried} kept, ")
    texts = ["the river runs from the north to the old town.", "where is the next station, and when does it open?"]
    tokens = [BertTokenizer.from_folder(folder).tokenize(" ".join(texts)) for folder in (mapped, minilm)]
    assert tokens[0] == tokens[1] and known.issuperset(tokens[0])
    for got, wanted in zip(encode(mapped, texts), encode(minilm, texts), strict=True):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.slow("a row that is not its token's")
@pytest.mark.parametrize("kind", ["WordPiece", "unigram"])
def test_the_tokens_of_texts_are_kept(kind, tmp_path, monkeypatch):
    """Their vectors are the same to the bit. Characters are kept, too, but letters only of the texts' scripts."""
    hangul, foreign = ({*map(chr, range(start, start + 32))} for start in (ord("가"), ord("а")))
    words = ["[unused9]", *TINY_VOCABULARY, *hangul, *foreign, "##é", "♥", "##ー", "µ", ""]
    tokenizer = BertTokenizer(words) if kind == "WordPiece" else test_unigram.tokenizer_of("nfkc", False).extended(
        dict.fromkeys(foreign, []))
    texts = TEXTS if kind == "WordPiece" else ["오늘은 날씨가 좋다", "the film", "ㅋㅋㅋ 123"]
    texts = [*texts, "stop my 가 song" if kind == "WordPiece" else "전혀 다른 이야기를 하는 영화입니다"]
    config = dataclasses.replace(TINY, vocab_size=len(tokenizer.vocabulary) + 1, pad_token_id=tokenizer.pad_id)
    before = BertLayer(config)
    native.write(Weights.of(before, tokenizer), tmp_path)
    (tmp_path / "texts.txt").write_text("\n".join([*39 * texts[:1], *texts[::-1]]), encoding="utf-8")
    lines = []
    convert(tmp_path, tmp_path / "out", "keras_bert", keep_tokens_of=[f"{tmp_path}/texts.txt"], report=lines.append)
    kept = load_tokenizer(tmp_path / "out")
    vectors = [[ops.convert_to_numpy(output) for output in layer(of(texts))] for layer, of in (
        (before, tokenizer), (BertLayer.from_pretrained(tmp_path / "out"), kept))]
    for first, second in zip(*vectors, strict=True):
        np.testing.assert_array_equal(first, second)
    assert [*map(kept.tokenize, texts)] == [*map(tokenizer.tokenize, texts)]
    expected = {token for token, is_one in zip(tokenizer.vocabulary, tokenizer.is_special | tokenizer.is_character)
                if is_one and "[unused" not in token} - foreign
    assert expected <= set(kept.vocabulary) < set(tokenizer.vocabulary) - foreign
    size, count = len(tokenizer.vocabulary) + 1, len(kept.vocabulary)
    assert any(line.startswith(f"kept {count:,} of {size:,} rows of the word embeddings: ") for line in lines)
    assert any(line.startswith("50.0% of 2 held-out lines use tokens that the others lack; without") for line in lines)
    if kind == "unigram":  # what follows does not depend on the tokenizer
        return
    (tmp_path / "line.txt").write_text(texts[0], encoding="utf-8")
    monkeypatch.setattr(trimming, "_COMMON", 0.5)  # of the tokens, one is in Hangul
    for most, name, line in (1, "texts", "0.0% of 1 held-out lines use tokens"), (9, "line", "fewer than 20 lines"):
        monkeypatch.setattr(trimming, "_MOST", most)
        convert(tmp_path, tmp_path / name, "keras_bert", keep_tokens_of=[f"{tmp_path}/{name}.txt"], report=lines.append)
        assert any(found.startswith(line) for found in lines)
    assert {*kept.vocabulary} - {*load_tokenizer(tmp_path / "texts").vocabulary} == hangul - {"가"}
    (tmp_path / "texts.csv").write_text("word,label")
    with pytest.raises(InputError, match="must have one text per line, as .txt and .tsv; got .csv: write its texts"):
        convert(tmp_path, tmp_path / "new", "keras_bert", keep_tokens_of=[f"{tmp_path}/texts.csv"])
