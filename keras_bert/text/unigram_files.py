"""Reads unigram models of SentencePiece: from a `tokenizer.json`; or from a `.model` file and, if there is one, the
`vocab.txt` with the ids of its pieces."""

import base64
import binascii
import glob
import os
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from keras_bert.errors import InputError
from keras_bert.files.json_files import Record, all_differences
from keras_bert.files.paths import MODELS
from keras_bert.text.charsmap import META, Charsmap
from keras_bert.text.sentencepiece_model import Kind, read_model
from keras_bert.text.vocabulary import count_prefixes, read_tokens

BACKENDS = "PreTrainedTokenizerFast", "TokenizersBackend"  # the classes that follow `tokenizer.json` alone
Added = tuple[str, int, bool]  # a token, its id, and if it is special

_TOKENIZER = "tokenizer.json"
# The special tokens of XLM-R; those of others must be said.
_SPECIAL = {"pad_token": "<pad>", "unk_token": "<unk>", "cls_token": "<s>", "sep_token": "</s>", "mask_token": "<mask>"}
SPACES = {" {2,}": " ", r"\A | \z": ""}  # what a `tokenizer.json` must replace, since `tokenizers` makes pieces of it
_SPACES = [{"type": "Replace", "pattern": {"Regex": pattern}, "content": space}
           for pattern, space in (*SPACES.items(), (" {2,}", META))]
_CLASSES = "XLMRobertaTokenizer", "XLNetTokenizer", "KoBERTTokenizer", "KoBertTokenizer"  # of transformers and SKT
_JSON_CLASSES = [*(f"{model}Tokenizer{suffix}" for model in ("XLMRoberta", "Camembert") for suffix in ("", "Fast")),
                 *BACKENDS]
_HIDDEN = "; here no text has them"
_STEPS = "Precompiled, which may be followed by steps that remove spaces, then perhaps WhitespaceSplit, and Metaspace"


def find_model(folder: str) -> str | None:
    """Returns the path of the `.model` file in a folder, or None if there is none."""
    paths = [path for name in (*MODELS, "tokenizer_*.model")  # as SKT and transformers name them
             for path in sorted(glob.glob(os.path.join(glob.escape(folder), name)))]
    if len(paths) > 1:
        raise InputError(f"{folder}: must have one .model file; got {', '.join(map(os.path.basename, paths))}; remove "
                         "those that are not the tokenizer's")
    return paths[0] if paths else None


def has_pieces(path: str) -> bool:
    """Returns True if a `vocab.txt` has pieces of SentencePiece rather than tokens of WordPiece."""
    pieces, continuing = count_prefixes(read_tokens(path))
    return pieces >= continuing


def read_json(folder: str, stored: dict, settings: dict, added: Sequence[Added],
              has_segments: bool) -> tuple[list[str], dict[str, Any], list[str]]:
    """Reads a `tokenizer.json`, `stored`. `settings` are those of `tokenizer_config.json`; `added` are the added tokens
    of all files; `has_segments` says if pairs may have two segment ids. Returns the pieces, the other arguments of
    `UnigramTokenizer`, and what transformers does differently."""
    path = os.path.join(folder, _TOKENIZER)
    Record(folder, "", settings).one_of("tokenizer_class", (None, *_JSON_CLASSES))
    model = Record(path, "model", stored["model"])
    model.one_of("byte_fallback", (None, False))
    vocabulary = model.get("vocab", list)
    if not all(isinstance(item, list) and [*map(type, item)] in ([str, float], [str, int]) for item in vocabulary):
        raise model.error("vocab", "a list of pieces with their scores")
    pieces, scores = [piece for piece, _ in vocabulary], [score for _, score in vocabulary]
    others = _add(path, pieces, scores, added)
    special = _special(settings, pieces, path)
    model.one_of("unk_id", [pieces.index(special[1])])
    holes = [index for index, piece in enumerate(pieces) if piece == f"[hole {index}]"]
    separators, second = _template(path, stored.get("post_processor"), {
        name: pieces.index(name) for name in special[2:4]})
    hidden = sorted({*(index for _, index, _ in added), *holes})
    _check_pieces(path, pieces, hidden)
    arguments = {"scores": scores, "special": special, "hidden": hidden, "separators": separators,
                 "rules": _rules(path, stored), "has_segments": second > 0 and has_segments}
    places = {f"{_TOKENIZER}: {name}": stored.get(name) or {} for name in ("truncation", "padding")}
    return pieces, arguments, found_in_texts(others, special, _HIDDEN) + all_differences(
        {_TOKENIZER: stored, f"{_TOKENIZER}: unigram": stored["model"]} | places)


def read_file(path: str, settings: dict, added: Sequence[Added],
              has_segments: bool) -> tuple[list[str], dict[str, Any], list[str]]:
    """Reads a `.model` file; see `read_json`."""
    model = read_model(path)
    of_class = Record(path, "", settings)
    of_class.one_of("tokenizer_class", (None, *_CLASSES, *(f"{name}Fast" for name in _CLASSES)))
    of_class.one_of("do_lower_case", (None, False))
    scores, kinds = dict(zip(model.pieces, model.scores)), dict(zip(model.pieces, model.kinds))
    is_xlm = str(settings.get("tokenizer_class")).startswith(_CLASSES[0])
    if os.path.exists(listed := os.path.join(os.path.dirname(path), "vocab.txt")):
        pieces = read_tokens(listed)
        if missing := [piece for piece in model.pieces if kinds[piece] == Kind.NORMAL and piece not in {*pieces}]:
            raise InputError(f"{listed}: must have all pieces of {os.path.basename(path)}; {missing[0]!r} is missing")
    elif is_xlm:  # fairseq's ids: https://github.com/facebookresearch/fairseq, examples/xlmr
        pieces = ["<s>", "<pad>", "</s>", "<unk>", *model.pieces[3:], "<mask>"]
    else:
        pieces = model.pieces
    of_pieces = [scores.get(piece, 0.0) for piece in pieces]
    others = _add(path, pieces, of_pieces, added)
    special = _special(settings, pieces, path)
    hidden = [index for index, piece in enumerate(pieces) if kinds.get(piece) != Kind.NORMAL]
    _check_pieces(path, pieces, hidden)
    # `tokenizers` finds special tokens in texts, so that those for later use need names that no text has.
    pieces = [f"[hole {index}]" if kinds.get(piece) == Kind.UNUSED and piece not in special else piece
              for index, piece in enumerate(pieces)]
    return pieces, {"scores": of_pieces, "special": special, "hidden": hidden, "separators": 1 + is_xlm,
                    "rules": _charsmap(path, model.charsmap), "has_segments": not is_xlm and has_segments}, (
                        found_in_texts(others, special, _HIDDEN))


def _add(path: str, pieces: list[str], scores: list[float], added: Sequence[Added]) -> list[str]:
    """Appends the added tokens, and names for the ids between them, with the score 0. Returns those that transformers
    finds in texts and this package does not; that is, all but pieces of the model that sentencepiece finds in no text:
    they are special, and their score is 0."""
    names, size = {index: content for content, index, _ in added}, len(pieces)
    pieces += [names.get(index, f"[hole {index}]") for index in range(size, max(names, default=0) + 1)]
    scores += [0.0] * (len(pieces) - size)
    for content, index, _ in added:
        if pieces[index] != content:
            raise InputError(f"{path}: token {index} must have one name; got {pieces[index]!r} and {content!r}")
    return [content for content, index, is_special in added if not is_special or index >= size or scores[index]]


def found_in_texts(added: Iterable[str | None], known: Collection[str], here: str) -> list[str]:
    """Returns a line that names the added tokens that are not `known`, if there are any."""
    others = [content for content in dict.fromkeys(added) if content not in known]
    return [f"transformers finds the added tokens {', '.join(map(repr, others[:5]))}{', …' * (len(others) > 5)} "
            f"in texts{here}"] if others else []


def _check_pieces(path: str, pieces: list[str], hidden: list[int]) -> None:
    for index in {*range(len(pieces))}.difference(hidden):
        if META in pieces[index][1:]:
            raise InputError(f"{path}: piece {index} must have U+2581 at its start alone; got {pieces[index]!r}")


def _charsmap(path: str, data: bytes, splits_white_space: bool = False) -> Charsmap:
    try:
        return Charsmap(data, splits_white_space)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _special(settings: dict, pieces: list[str], path: str) -> list[str]:
    """Returns the names of the special tokens, see `UnigramTokenizer`."""
    defaults = _SPECIAL if "<pad>" in pieces else {name: f"[{name[:-6].upper()}]" for name in _SPECIAL}
    given = {name: settings.get(name) or default for name, default in defaults.items()}
    names = [name["content"] if isinstance(name, dict) else name for name in given.values()]
    if missing := [name for name in names[:4] if name not in pieces]:
        raise InputError(f"{path}: the special tokens {', '.join(missing)} are not among its pieces; name those for "
                         "pad_token, unk_token, cls_token and sep_token in tokenizer_config.json")
    return names


def _template(path: str, step: dict | None, ids: dict[str, int]) -> tuple[int, int]:
    """Returns the number of separators between the texts of a pair, and the segment id of the second text. `ids` are
    those of [CLS] and [SEP]."""
    step = step or {}
    cls, sep = ids
    if step.get("type") == "RobertaProcessing" and [step["cls"], step["sep"]] == [*map(list, ids.items())]:
        return 2, 0
    if step.get("type") == "TemplateProcessing":
        single, pair = ([(part["id"], part["type_id"]) for piece in step[form] for part in piece.values()]
                        for form in ("single", "pair"))
        second, first = pair[-1][1], [(cls, 0), ("A", 0), (sep, 0)]
        has_ids = all((step["special_tokens"].get(name) or {}).get("ids") == [index] for name, index in ids.items())
        for separators in (1, 2):
            if has_ids and second in (0, 1) and single == first and pair == [
                    *first, *[(sep, 0)] * (separators - 1), ("B", second), (sep, second)]:
                return separators, second
    raise InputError(f"{path}: post_processor must be {cls} A {sep} for a text, and {cls} A {sep} B {sep} or "
                     f"{cls} A {sep}{sep} B {sep} for a pair; got {step.get('type')}")


def _rules(path: str, stored: dict) -> Charsmap:
    before, after = (stored.get(name) or {} for name in ("normalizer", "pre_tokenizer"))
    steps = before.get("normalizers", [before] if before else [])
    splits = after.get("pretokenizers", [after])
    precompiled = [step["precompiled_charsmap"] for step in steps if step["type"] == "Precompiled"]
    others = [step for step in steps
              if step["type"] not in ("Precompiled", "Strip") and step not in _SPACES]  # as sentencepiece's own rules
    names = [step.get("type") for step in splits]
    metaspace = Record(path, "Metaspace", splits[-1] if splits else {})
    if others or len(precompiled) > 1 or names not in (["Metaspace"], ["WhitespaceSplit", "Metaspace"]):
        found = [step.get("type") for step in [*steps, *splits]]
        raise InputError(f"{path}: the steps must be {_STEPS}; got {', '.join(map(str, found))}")
    metaspace.one_of("replacement", [META], META)
    metaspace.one_of("add_prefix_space", [True], True)
    metaspace.one_of("prepend_scheme", ["always", *["first"] * (len(names) == 1)], "always")  # of the words
    metaspace.one_of("split", [True], True)
    try:
        data = base64.b64decode(precompiled[0], validate=True) if precompiled and precompiled[0] else b""
    except (TypeError, binascii.Error):
        raise InputError(f"{path}: precompiled_charsmap must be base64; copy the file again") from None
    return _charsmap(path, data, len(names) > 1)
