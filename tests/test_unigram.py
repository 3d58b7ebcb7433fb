"""The unigram tokenizer: its ids are sentencepiece's, the graph gives those of Python, and folders of all families are
read, written and refused by name. tests/record_sentencepiece.py made the models and what they are compared with."""

import contextlib
import dataclasses
import functools
import itertools
import json
import unicodedata

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import tokenizers
from e5_small import Unavailable, field, make
from test_graph_tokenizer import assert_same_ids, assert_same_offsets, run, with_graph
from test_rules import hard_texts
from tokenizers import normalizers, pre_tokenizers, processors

from keras_bert.data.batches import UNLABELLED
from keras_bert.data.tables import Rows
from keras_bert.errors import InputError, InputWarning
from keras_bert.inference.lite_model import LiteModel
from keras_bert.inference.saved_model import Exported
from keras_bert.layers import BertLayer
from keras_bert.models import BertEmbedder
from keras_bert.pretraining.masking import Masking
from keras_bert.tasks import Rerank, Span, Tag
from keras_bert.text import load_tokenizer
from keras_bert.text.charsmap import META, STAND_INS, Charsmap
from keras_bert.text.offsets import tokens_with_offsets
from keras_bert.text.sentencepiece_model import Kind, read_model
from keras_bert.text.unigram import UnigramTokenizer
from keras_bert.training import FineTuned, finetune
from keras_bert.weights import native

from conftest import GOLDEN, TINY, TINY_VOCABULARY, Peer, randomize
from zoo import numbers

transformers, sentence_transformers = Peer("transformers"), Peer("sentence_transformers")
FOLDER = GOLDEN.parent / "unigram"
RECORDED = json.loads((FOLDER / "texts.json").read_text(encoding="utf-8"))
TEXTS = RECORDED["texts"]
PLAIN = [*TEXTS[:200], "  날씨  알려줘 ", " ", "오늘 \n날씨"]  # in NFC
KOBERT, XLM_R = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], ["<pad>", "<unk>", "<s>", "</s>", "<mask>"]
SETTINGS = dict(zip(["pad_token", "unk_token", "cls_token", "sep_token", "mask_token"], XLM_R))
ORIGINAL = {ord(stand_in): space for space, stand_in in STAND_INS.items() if stand_in != "\ufdef"}
BOTH = [("nfkc", False), ("identity", True)]  # and, for every character, ("nfkc", True)


@functools.cache
def model_of(name):
    return read_model(FOLDER / f"{name}.model")


@functools.cache
def tokenizer_of(name, splits_white_space):
    """The tokenizer with the ids of sentencepiece."""
    model, special = model_of(name), KOBERT if name == "nfkc" else ["<s>", *XLM_R[1:]]
    hidden = [index for index, kind in enumerate(model.kinds) if kind != Kind.NORMAL]
    rules = Charsmap(model.charsmap, splits_white_space)
    return UnigramTokenizer(model.pieces, model.scores, special, hidden, rules)


both = functools.cache(lambda *model: with_graph(tokenizer_of(*model)))  # the tokenizer and its graph


@pytest.mark.parametrize("name", ["nfkc", "identity"])
def test_sentencepiece(name):
    tokenizer, recorded = tokenizer_of(name, False), RECORDED[name]
    found, total = tokenizer.ids(TEXTS), lambda ids: tokenizer.scores[ids].sum()
    others = [number for number, (ids, expected) in enumerate(zip(found, recorded["ids"], strict=True))
              if ids != expected]
    assert {*others} <= {*recorded["ties"]} and len(recorded["ties"]) < 20
    for number in others:
        assert total(found[number]) == pytest.approx(total(recorded["ids"][number]), abs=1e-4), TEXTS[number]
    for text, expected in zip(TEXTS, recorded["normalized"], strict=True):
        assert tokenizer.rules.normalize(text).replace(" ", "") == expected.translate(STAND_INS), ascii(text)


@pytest.mark.slow("a piece that the graph chooses differently")
@pytest.mark.parametrize("name,splits", BOTH)
def test_graph(name, splits):
    texts = TEXTS + [unicodedata.normalize("NFD", text) for text in PLAIN] + hard_texts(500, seed=8)
    assert_same_ids(*both(name, splits), texts)
    assert_same_offsets(*both(name, splits), texts)


@pytest.mark.parametrize("name,splits", BOTH)
@hypothesis.settings(deadline=None)
@hypothesis.given(st.lists(st.text(), max_size=5))
def test_graph_of_any_texts(name, splits, texts):
    assert_same_offsets(*both(name, splits), texts)


@pytest.mark.parametrize("splits", [False, True])
@pytest.mark.slow("one character of which the graph has other rules")
def test_graph_of_every_character(splits):
    characters = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    texts = ["".join(characters[at:at + 64]) for at in range(0, len(characters), 64)]
    texts += [f"a{character}b" for character in characters[:0x10000]]
    assert_same_offsets(*both("nfkc", splits), texts)


@pytest.mark.parametrize("texts", [[], ["", "a", ""], 64 * [""], TEXTS[:1], TEXTS[-63:], TEXTS[200:265]], ids=len)
def test_batches(texts):
    tokenizer, graph = both("nfkc", False)
    assert run(graph, texts)[0] == tokenizer.ids(texts)


@pytest.mark.slow("time that grows with the square of a word")
def test_words_of_20000_characters():
    for unit in "ㅋ", "a", "가나다", "\U0001fae8":
        assert_same_offsets(*both("nfkc", False), [unit * 20_000, "a b"])


def test_unknown_characters_score_10_less_than_the_worst_piece_of_texts():
    pieces = {"▁": -1, "ab": -9, "c": -9, "bc": -1, "de": -9, "fg": -9, "hi": -9, "efghi": -1}
    tokenizer, graph = with_graph(UnigramTokenizer([*XLM_R, *pieces], [-50.0] * 5 + [*pieces.values()], XLM_R))
    assert tokenizer.tokenize("abc defghi aad") == ["▁", "ab", "c", "▁", "d", "efghi", "▁", "aad"]
    assert_same_offsets(tokenizer, graph, ["abc defghi aad", "xabc", "x x\u0301x a"])


def test_surrogates_become_the_replacement_character():
    for tokenizer in itertools.starmap(tokenizer_of, BOTH):
        assert tokenizer.ids(["a\ud800b", "\udfff"]) == tokenizer.ids(["a\ufffdb", "\ufffd"])


@pytest.mark.parametrize("name,splits", BOTH)
def test_offsets(name, splits):
    """They are in order; and a token's part of the text is its piece, where no rule joins characters."""
    tokenizer = tokenizer_of(name, splits)
    for text, tokens in zip(TEXTS, tokens_with_offsets(TEXTS, tokenizer), strict=True):
        spans = [*zip(tokens.starts.tolist(), tokens.ends.tolist())]
        assert sorted(spans) == spans and all(0 <= start <= end <= len(text) for start, end in spans), ascii(text)
        assert sorted(end for _, end in spans) == [end for _, end in spans], ascii(text)
        if not tokenizer.rules.later.intersection(text):
            for index, (start, end) in zip(tokens.ids, spans):
                part = tokenizer.rules.normalize(text[start:end]).replace(META, "").translate(ORIGINAL)
                piece = tokenizer.vocabulary[index].replace(META, "")
                is_of_one = piece in part and len(part) > end - start  # of a character that becomes several
                is_space = tokenizer.vocabulary[index] == META and end - start == 1
                assert index == tokenizer.unk_id or piece == part or is_of_one or is_space, ascii(text)


# Folders

def model_file(name="nfkc", at=10, piece=None, kind=None, trainer=(3, 1), normalizer=(3, 1), charsmap=None):
    """A `.model` file with another piece, kind, field of the trainer or the normalizer, or charsmap."""
    model = model_of(name)
    pieces = [[piece.encode(), score, int(kind)] for piece, score, kind in zip(model.pieces, model.scores, model.kinds)]
    pieces[at] = [piece.encode() if piece else pieces[at][0], pieces[at][1], kind or pieces[at][2]]
    rules = field(2, model.charsmap if charsmap is None else charsmap) + field(*normalizer)
    return b"".join(field(1, b"".join(itertools.starmap(field, enumerate(piece, 1)))) for piece in pieces) + field(
        2, field(*trainer)) + field(3, rules)


def stored(splits=False, spaces=" ", processor=None, more=None):
    """A tokenizer.json of XLM-R's family, as transformers writes it, with the pieces of `nfkc`."""
    model = model_of("nfkc")
    names = ["<s>", "<pad>", "</s>", "<unk>", *model.pieces[5:], "<mask>"]
    pieces = [*zip(names, [*[0.0] * 4, *model.scores[5:], 0.0])]
    fast = tokenizers.Tokenizer(tokenizers.models.Unigram(pieces, 3, False))
    fast.normalizer = normalizers.Sequence([normalizers.Precompiled(model.charsmap), *([more] if more else []),
                                            normalizers.Replace(tokenizers.Regex(" {2,}"), spaces)])
    split = [pre_tokenizers.WhitespaceSplit()] * splits
    fast.pre_tokenizer = pre_tokenizers.Sequence([*split, pre_tokenizers.Metaspace()])
    fast.post_processor = processor or processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)])
    fast.add_special_tokens([tokenizers.AddedToken(name, normalized=False, special=True) for name in XLM_R])
    return json.loads(fast.to_str())


def write(folder, files):
    """Writes a folder of files by name: bytes, texts or values of JSON."""
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        content = content if isinstance(content, bytes | str) else json.dumps(content)
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


SPIECE = "spiece.model"
OF_XLM_R = {"tokenizer_config.json": {"tokenizer_class": "XLMRobertaTokenizer"} | SETTINGS}
OF_BACKEND = {"tokenizer_config.json": SETTINGS | {
    "tokenizer_class": "TokenizersBackend", "model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}}
OF_ROBERTA = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
OTHER_IDS = processors.TemplateProcessing(single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>",
                                          special_tokens=[("<s>", 7), ("</s>", 2)])
ONE_SEPARATOR = processors.TemplateProcessing(single="<s> $A </s>", pair="<s> $A </s> $B:1 </s>:1",
                                              special_tokens=[("<s>", 0), ("</s>", 2)])
# Files; the model; [PAD], [UNK], [CLS], [SEP] and [MASK]; the number of separators, and segments.
LAYOUTS = {
    "XLM-R": (lambda: {"sentencepiece.bpe.model": model_file("identity")} | OF_XLM_R, "identity", XLM_R, 2, False),
    "SKT": (lambda: {SPIECE: model_file()}, "nfkc", KOBERT, 1, True),
    "users of KoBERT": (lambda: {"tokenizer_78b3253a26.model": model_file(), "vocab.txt": "\n".join(
        sorted(model_of("nfkc").pieces))}, "nfkc", KOBERT, 1, True),
    "json": (lambda: {"tokenizer.json": stored()} | OF_XLM_R, "nfkc", XLM_R, 2, False),
    "json, split": (lambda: {"tokenizer.json": stored(True, META, OF_ROBERTA)} | OF_XLM_R, "nfkc", XLM_R, 2, False),
    "json, segments": (lambda: {"tokenizer.json": stored(False, META, ONE_SEPARATOR)} | OF_BACKEND, "nfkc", XLM_R, 1,
                       True),
    "json, no segments": (lambda: {"tokenizer.json": stored(False, META, ONE_SEPARATOR)} | OF_XLM_R, "nfkc", XLM_R, 1,
                          False),
    "unused pieces": (lambda: {SPIECE: model_file(at=234, kind=5)} | {"tokenizer_config.json": {"unk_id": 0}}, "nfkc",
                      KOBERT, 1, True),
    "control pieces": (lambda: {SPIECE: model_file(at=234, piece="<s>", kind=3)}, "nfkc", KOBERT, 1, True),
}


@pytest.fixture(params=LAYOUTS)
def layout(request, tmp_path):
    files, *expected = LAYOUTS[request.param]
    folder = write(tmp_path / "source", files())
    is_unnamed = request.param == "users of KoBERT"
    with pytest.warns(InputWarning, match="no file names the") if is_unnamed else contextlib.nullcontext():
        return load_tokenizer(folder), *expected


def test_layouts(layout, tmp_path):
    tokenizer, name, special, separators, has_segments = layout
    ids = {piece: index for index, piece in enumerate(tokenizer.vocabulary)}
    pieces = [special[1] if index == tokenizer_of(name, False).unk_id else piece
              for index, piece in enumerate(model_of(name).pieces)]
    expected = tokenizer_of(name, tokenizer.rules.splits_white_space).ids(TEXTS)
    for text, found, recorded in zip(TEXTS, tokenizer.ids(TEXTS), expected, strict=True):
        assert found == [ids[pieces[index]] for index in recorded], ascii(text)
    assert [tokenizer.pad_id, tokenizer.unk_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id] == [
        ids[name] for name in special]
    a, b = tokenizer.ids(["날씨 알려줘", "the weather"])
    packed = [tokenizer.cls_id, *a, *[tokenizer.sep_id] * separators, *b, tokenizer.sep_id]
    first = len(a) + 1 + separators if has_segments else len(packed)
    assert tokenizer.pack(["날씨 알려줘"], ["the weather"]) == [(packed, first)]

    tokenizer.save(write(tmp_path / "saved", {}))
    again = load_tokenizer(tmp_path / "saved")
    assert again.settings() == tokenizer.settings() and again.ids(TEXTS) == tokenizer.ids(TEXTS)
    assert again.vocabulary == tokenizer.vocabulary and again.hidden == tokenizer.hidden
    library = tokenizers.Tokenizer.from_file(str(tmp_path / "saved/tokenizer.json"))
    library.no_padding()
    for pairs in None, PLAIN[::-1]:
        rows = PLAIN if pairs is None else [*zip(PLAIN, pairs)]
        for row, found, (expected, first) in zip(rows, library.encode_batch(rows), again.pack(PLAIN, pairs, 256)):
            assert found.ids == expected, row
            assert found.type_ids == [int(at >= first) for at in range(len(expected))], row


@pytest.mark.parametrize("trainer", [(3, 1), (3, 2)], ids=["unigram", "BPE"])
@pytest.mark.filterwarnings("ignore:.*no file says if texts are lower-cased")
def test_a_vocabulary_of_wordpiece_is_read_beside_a_model(trainer, tmp_path):
    files = {SPIECE: model_file(trainer=trainer), "vocab.txt": "\n".join(TINY_VOCABULARY)}
    assert load_tokenizer(write(tmp_path / "folder", files)).vocabulary == TINY_VOCABULARY


@pytest.mark.peers
def test_transformers_reads_it(layout, tmp_path):
    layout[0].save_for_transformers(write(tmp_path / "saved", {}), 16)
    peer = transformers.AutoTokenizer.from_pretrained(tmp_path / "saved")
    for pairs, length in (None, 16), (PLAIN[::-1], 256):
        got = peer(PLAIN, pairs, truncation=True, max_length=length)["input_ids"]
        assert got == [ids for ids, _ in layout[0].pack(PLAIN, pairs, length)]
    peer.save_pretrained(tmp_path / "again")
    again = load_tokenizer(tmp_path / "again")
    np.testing.assert_allclose(again.scores, layout[0].scores, rtol=1e-15)  # `tokenizers` reads them without last bits
    again.scores = layout[0].scores
    assert again.settings() == layout[0].settings() and again.ids(TEXTS) == layout[0].ids(TEXTS)


@pytest.mark.peers
def test_multilingual_e5_small(tmp_path):
    """Real weights and pieces: the vectors are sentence-transformers', and a translation is near."""
    folder = tmp_path / "e5"
    try:
        make(folder)
    except Unavailable as error:
        pytest.skip(str(error))
    english = ["query: how is the weather today", "query: the film was boring", "query: book a table for two"]
    korean = ["query: 오늘 날씨 어때", "query: 영화가 지루했어요", "query: 두 명 자리 예약해 줘"]
    texts = [*english, *korean, *PLAIN[::10]]
    vectors = np.asarray(BertEmbedder.from_pretrained(folder, pooling="mean", normalize=True)(
        load_tokenizer(folder)(texts)))
    peer = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    np.testing.assert_allclose(vectors, peer.encode(texts), atol=1e-5)
    assert (vectors[:3] @ vectors[3:6].T).argmax(1).tolist() == [0, 1, 2]


def changed(**values):
    return {"tokenizer.json": stored() | values} | OF_XLM_R


@pytest.mark.parametrize("files,words", [
    (lambda: {SPIECE: model_file(trainer=(3, 2))}, "model_type must be unigram; got BPE"),
    (lambda: {SPIECE: model_file(trainer=(35, 1))}, "byte_fallback must be False; got True"),
    (lambda: {SPIECE: model_file(normalizer=(3, 0))}, "add_dummy_prefix must be True; got False"),
    (lambda: {SPIECE: model_file(kind=4)}, "spiece.model: must not have pieces that are user-defined; got "),
    (lambda: {SPIECE: model_file(kind=6)}, "spiece.model: must not have pieces that are byte; got "),
    (lambda: {SPIECE: model_file(piece="▁a▁b")}, "piece 10 must have U+2581 at its start alone; got "),
    (lambda: {SPIECE: model_file(at=2, piece="x")}, "the special tokens [CLS] are not among its pieces; name"),
    (lambda: {SPIECE: model_file()[:5000]}, "must be a model of SentencePiece; it is damaged"),
    (lambda: {SPIECE: b""}, "must be a model of SentencePiece; it is damaged or something else; copy the file again"),
    (lambda: {SPIECE: model_file(charsmap=b"abc" * 9)}, "spiece.model: precompiled_charsmap is damaged; copy the"),
    (lambda: {SPIECE: model_file(charsmap=model_of("nfkc").charsmap[:9999])}, "precompiled_charsmap is damaged"),
    (lambda: {SPIECE: model_file(), "tokenizer.model": b""}, "must have one .model file; got "),
    (lambda: {SPIECE: model_file(), "vocab.txt": "\n".join(KOBERT)}, "all pieces of spiece.model; '▁' is missing"),
    (lambda: {SPIECE: model_file(), "tokenizer_config.json": {"do_lower_case": True}}, "'do_lower_case' must be "),
    (lambda: {SPIECE: model_file(), "tokenizer_config.json": {"tokenizer_class": "AlbertTokenizer"}}, "'tokenizer_"),
    (lambda: changed(model={"type": "Unigram", "vocab": [["a", 0.0]], "byte_fallback": True}), "'byte_fallback' "),
    (lambda: changed(model={"type": "Unigram", "vocab": [["a", -1.0]]}, added_tokens=[]), "the special tokens <pad>, "),
    (lambda: {"tokenizer.json": stored(more=normalizers.Lowercase())} | OF_XLM_R, "the steps must be Precompiled, "),
    (lambda: changed(pre_tokenizer={"type": "ByteLevel"}), "got Precompiled, Replace, ByteLevel"),
    (lambda: changed(pre_tokenizer={"type": "Metaspace", "replacement": META, "prepend_scheme": "never"}),
     "'prepend_scheme' must be always or first; got 'never'"),
    (lambda: changed(pre_tokenizer={"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, {
        "type": "Metaspace", "replacement": META, "prepend_scheme": "first"}]}), "'prepend_scheme' must be always; "),
    (lambda: {"tokenizer.json": stored(), "tokenizer_config.json": {"tokenizer_class": "T5Tokenizer"}},
     "'tokenizer_class' must be "),
    (lambda: {"tokenizer.json": stored(False, META, OTHER_IDS)} | OF_XLM_R, "for a pair; got TemplateProcessing"),
    (lambda: changed(added_tokens=[{"id": 9, "content": stored()["model"]["vocab"][9][0], "special": True}]),
     "finds the added tokens "),
    (lambda: {"tokenizer.json": stored(spaces="")} | OF_XLM_R, "the steps must be Precompiled, "),
    (lambda: changed(model=stored()["model"] | {"unk_id": 20}), "'unk_id' must be 3; got 20"),
    (lambda: {SPIECE: model_file(), "added_tokens.json": {"<x>": 2000}}, "finds the added tokens '<x>' in texts; here"),
    (lambda: {SPIECE: model_file(), "tokenizer_config.json": {"added_tokens_decoder": {"9": {"content": "<x>"}}}},
     "token 9 must have one name; got "),
    (lambda: changed(added_tokens=[{"id": 10**12, "content": "<x>"}]), "ids of tokens must be from 0 to 16777215, "),
    (lambda: changed(normalizer={"type": "Precompiled", "precompiled_charsmap": "?"}), "must be base64"),
    (lambda: changed(post_processor=None), "post_processor must be <s> A </s> for a text, and <s> A </s> B </s> or"),
    (lambda: {"tokenizer.json": stored(processor=processors.RobertaProcessing(("<s>", 0), ("</s>", 2)))} | OF_XLM_R,
     "for a pair; got RobertaProcessing"),
])
def test_refused(tmp_path, files, words):
    with pytest.raises(InputError) as error:
        load_tokenizer(write(tmp_path / "folder", files()))
    assert words in str(error.value) and "\n" not in str(error.value) and str(tmp_path) in str(error.value)


# Uses

QUESTION = {"text": ["날씨 알려줘"], "answer_start": [3]}
TASKS = {
    "classify": [("날씨 알려줘", "a"), ("the weather now", "b")],
    "tag": [(["서울", "날씨", "the"], ["B-x", "I-x", "O"]), (["weather", "now"], ["O", "B-x"])],
    "span": [("무엇", "서울 날씨 알려줘", QUESTION), ("the", "오늘 날씨 알려줘", QUESTION)],
    "embed": [("날씨", "오늘 날씨"), ("the weather", "weather now")],
    "rerank": [("날씨", "오늘 날씨", 1), ("날씨", "the weather", 0)],
}


@pytest.mark.slow("a task or an export in which names or words of WordPiece are left")
@pytest.mark.usefixtures("eager")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("layout,task", [*zip(["SKT", "json", "users of KoBERT", "json, segments", "XLM-R"], TASKS)],
                         indirect=["layout"])
def test_tasks(layout, task, tmp_path):
    config = dataclasses.replace(TINY, vocab_size=len(layout[0].vocabulary))
    native.write_model(randomize(BertLayer(config)), layout[0], write(tmp_path / "encoder", {}))
    model = finetune(TASKS[task], TASKS[task], model=tmp_path / "encoder", output=tmp_path / "model", task=task,
                     epochs=1, batch_size=2, max_length=80)
    assert model.tokenizer.settings() == layout[0].settings()
    again = FineTuned.load(tmp_path / "model")
    again.export(tmp_path / "text")
    again.export_litert(tmp_path / "lite")
    texts = [" 서울  날씨㈜ 알려줘\t!", "ㅋㅋㅋ the weather", unicodedata.normalize("NFD", "서울 날씨")]
    texts = [texts] * len(again.task.inputs)
    examples, (expected, scores) = again.task.arguments(*texts), numbers(model.predict(*texts))
    for other in again, LiteModel.load(tmp_path / "lite"), Exported(str(tmp_path / "text")):
        found, found_scores = numbers(other.answer_with_cuts(examples)[0])
        assert found == expected
        np.testing.assert_allclose(found_scores, scores, atol=1e-4)


def test_tags_of_characters():
    """Each character has one tag, also where U+2581 before a word is a token of its own, whatever follows it has."""
    tokenizer = tokenizer_of("nfkc", False)
    entities = [{"start": 0, "end": 2, "label": "x"}, {"start": 3, "end": 5, "label": "y"}]
    rows = Rows("data", [{"text": "서울 뷁뷁 가", "entities": entities}, {"text": "the ab", "entities": []}])
    assert META in tokenizer.tokenize("서울 뷁뷁 가")
    examples = [*Tag.iterate(rows)]
    task = Tag.from_examples(rows, examples, max_length=40)
    encoded = task.encode(examples, tokenizer)
    for other in range(len(task.labels)):
        outputs = [9 * np.eye(len(task.labels))[np.where(target == UNLABELLED, other, target)]
                   for target in encoded.targets]
        assert task.score(encoded, outputs)["f1"] == 1
        assert [(entity.start, entity.end) for entity in task.answers(encoded, outputs)[0]] == [(0, 2), (3, 5)]


def test_windows_and_questions_need_room_for_two_separators():
    tokenizer = tokenizer_of("identity", False)
    assert tokenizer.separators == 2
    for task in Rerank(max_length=6, doc_stride=1), Span(max_length=6):
        task.check_tokenizer(tokenizer)
        rows = task.encode(task.arguments(["날씨"], ["the weather now"]), tokenizer).rows
        assert len(rows) > 1 and all(len(ids) == 6 for ids, _ in rows)
    for task in Rerank(max_length=5, doc_stride=1), Span(max_length=5):
        with pytest.raises(InputError, match="max_length must be at least 6, for 4 special tokens and a token of each"):
            task.check_tokenizer(tokenizer)


def test_words_are_masked_whole():
    tokenizer = tokenizer_of("nfkc", False)
    ids = np.array([[tokenizer.cls_id, *tokenizer.ids([" ".join(PLAIN)])[0][:400], tokenizer.sep_id]], np.int32)
    special = ids[0] < len(KOBERT)
    starts = np.char.startswith(np.array(tokenizer.vocabulary)[ids[0]], META) | special
    word = np.cumsum(starts)
    masking = Masking(tokenizer, 80, whole_word=True)
    masked = masking(ids, masking.noise(np.random.default_rng(0), *ids.shape))
    chosen = masked["masked_lm_positions"][masked["masked_lm_weights"] > 0]
    assert chosen.size > 30 and (~starts[chosen]).any() and not special[chosen].any()
    assert sorted(chosen) == np.flatnonzero(np.isin(word, word[chosen]) & ~special).tolist()
