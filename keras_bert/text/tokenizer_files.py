"""`load_tokenizer`, and `read_tokenizer_files`, the one reader of what the files of a folder say about its tokenizer.

transformers 4 writes `vocab.txt`, `tokenizer.json` and `tokenizer_config.json`, transformers 5 only the last two;
sentence-transformers adds `sentence_bert_config.json`; this package writes `vocab.txt` and `tokenizer_config.json`, and
for both libraries `tokenizer.json`. If files contradict one another, those count that they follow (docs/convert.md).
"""

import dataclasses
import os
import re
import warnings
from collections.abc import Collection
from typing import Any, Literal

from keras_bert.arguments import Path, plural
from keras_bert.config import as_bert
from keras_bert.errors import InputError, InputWarning
from keras_bert.files.digests import check_files
from keras_bert.files.json_files import Record, all_differences, check_followed, read_json, read_object
from keras_bert.files.paths import naming_damage
from keras_bert.text import unigram_files, vocabulary
from keras_bert.text.rules import CJK, Rules, any_of
from keras_bert.text.sentencepiece_model import OtherModel, read_model
from keras_bert.text.tokenizer import Tokenizer
from keras_bert.text.unigram_files import BACKENDS
from keras_bert.text.vocabulary import CONTINUES, INSTEAD, MAX_WORD_LENGTH

TOKENIZER, CONFIG = "tokenizer.json", "tokenizer_config.json"
_CONTROLS = "(?![\\t\\n\\r])[\\p{Cc}\\p{Cf}\ufffd]"  # which `own_steps` delete
# Of sentence-transformers: the modules, and the settings of the first one, whose file had other names once.
MODULES, TRANSFORMER = "modules.json", "sentence_bert_config.json"
_TRANSFORMERS = (TRANSFORMER, *(f"sentence_{model}_config.json" for model in ("roberta", "distilbert", "camembert")))
KERAS_HUB_VOCABULARY = os.path.join("assets", "tokenizer", "vocabulary.txt")
# The dict in KerasHub's tokenizer.json with the rules that it has no field for, and the values with which others are
# left out.
KERAS_HUB_RULES = "keras_bert"
KERAS_HUB_DEFAULTS = {"has_segments": True, "max_word_length": MAX_WORD_LENGTH}
# The classes of transformers with BERT's rules, which are arguments in `tokenizer_config.json`; and those that follow
# `tokenizer.json` alone.
_BERT = [f"{model}Tokenizer{suffix}" for model in ("Bert", "DistilBert", "Electra", "MobileBert")
         for suffix in ("", "Fast")]
# Those that return no types unless model_input_names says so.
_WITHOUT_TYPES = ["TokenizersBackend", *(f"{model}Tokenizer{suffix}" for model in ("DistilBert", "XLMRoberta")
                                         for suffix in ("", "Fast"))]
_MORE_SPECIAL = ("additional_special_tokens", "extra_special_tokens", "bos_token", "eos_token")
# The files of other vocabularies, and the types of other tokenizers in `tokenizer.json`.
_OTHER_FILES = {"merges.txt": "byte-level BPE"}
_OTHER_TYPES = {"BPE": ", which is that of byte-level BPE"}
_RULES = {"do_lower_case": "lower_case", "strip_accents": "strip_accents", "tokenize_chinese_chars": "split_cjk",
          "normalization": "normalization"}
SPECIAL = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]",
            "mask_token": "[MASK]"}
_UNLIMITED = 10**6  # transformers writes 1e30 if no length is known
_MAX_WORD_LENGTH = 100  # of transformers
_MOST_TOKENS = 2**24  # without a config, which has the number of tokens
# The names of the modules' classes in `modules.json` begin with the library's module, which differs between versions.
_LIBRARY_MODULE = re.compile(r"^sentence_transformers\.(.*\.)?")


@dataclasses.dataclass(frozen=True)
class TokenizerFiles:
    """What the files of a folder say about its tokenizer."""

    kind: Literal["WordPiece", "unigram"]
    vocabulary: list[str]  # in the order of the ids; the special tokens of WordPiece have BERT's names
    arguments: dict[str, Any]  # the others of the tokenizer's class; `max_length` is None if no file says one
    notes: tuple[str, ...] = ()  # how something ambiguous was read
    guesses: tuple[str, ...] = ()  # what no file says, or files contradict
    differences: tuple[str, ...] = ()  # what transformers does and `BertTokenizer` does not

    def tokenizer(self) -> Tokenizer:
        """Makes the tokenizer, of the kind that these files are of."""
        from keras_bert.text.unigram import UnigramTokenizer
        from keras_bert.text.wordpiece import BertTokenizer

        kinds = {"WordPiece": BertTokenizer, "unigram": UnigramTokenizer}
        return kinds[self.kind](self.vocabulary, **self.arguments)

    @property
    def remarks(self) -> tuple[str, ...]:
        """The guesses, and how many tokens are repeated."""
        repeated = len(self.vocabulary) - len(set(self.vocabulary))
        return self.guesses + (f"repeated tokens: {repeated}; texts get the last id of each",) * (repeated > 0)

    def warn(self, folder: Path) -> None:
        """Prints the remarks as warnings, one line each."""
        for line in self.remarks:
            warnings.warn(f"{os.fspath(folder)}: {line}", InputWarning, stacklevel=3)


def load_tokenizer(folder: Path) -> Tokenizer:
    """Reads a folder that this package, transformers, sentence-transformers, KerasHub or Google wrote, see
    `read_tokenizer_files`. What no file says is guessed, with a warning.

    Raises:
        InputError: the folder has no vocabulary, or its tokenizer is not BERT's, or does what this package does not.
    """
    files = read_tokenizer_files(folder)
    if files is None:
        found = "it has none of them" if os.path.isdir(folder) else "there is no such folder"
        raise InputError(other_vocabulary(folder) or f"{os.fspath(folder)}: must be a folder with a "
                         f"vocabulary: vocab.txt, tokenizer.json or a .model file of SentencePiece; {found}")
    check_followed(folder, files.differences)
    files.warn(folder)
    with naming_damage(folder):
        return files.tokenizer()


def read_tokenizer_files(folder: Path, config: dict | None = None) -> TokenizerFiles | None:
    """Reads the tokenizer of a folder of this package, Google's, transformers', sentence-transformers' or KerasHub's.

    An id without a token, or whose token `vocab.txt` cannot hold, for example a line break, gets one that no text
    contains, because it has brackets: `[hole 7]`.

    Args:
        folder: path of the folder.
        config: values of the model's config, of any type that `BertConfig` reads. If None, those of `config.json` or
            `bert_config.json` in the folder.

    Returns:
        `TokenizerFiles`, or None if the folder has no vocabulary that can be used, see `other_vocabulary`.

    Raises:
        InputError: the tokenizer has other rules than BERT's, the vocabulary in `vocab.txt` or `tokenizer.json` is not
            one of WordPiece, or a file is invalid or differs from its digest.
    """
    folder = os.fspath(folder)
    with naming_damage(folder):
        folder = _transformer_folder(folder)
        check_files(folder, [name for name in ("vocab.txt", TOKENIZER) if os.path.exists(os.path.join(folder, name))])
        stored = read_object(os.path.join(folder, TOKENIZER))
        return _read_keras_hub(folder, stored) if "class_name" in stored else _read(folder, stored, config)


def other_vocabulary(folder: Path) -> str | None:
    """Returns why the vocabulary of a folder without WordPiece's files cannot be used, or None if there is none."""
    folder = _transformer_folder(os.fspath(folder))
    for file, kind in _OTHER_FILES.items():
        if os.path.exists(path := os.path.join(folder, file)):
            return f"{path}: the vocabulary must be one of WordPiece; this is one of {kind}; {INSTEAD}"
    if model := unigram_files.find_model(folder):
        try:
            read_model(model)
        except OtherModel as error:
            return f"{error}; {INSTEAD}"
    return None


def _transformer_folder(folder: str) -> str:
    """Returns the folder with the tokenizer, in some folders of sentence-transformers a subfolder."""
    if not os.path.exists(os.path.join(folder, MODULES)):
        return folder
    return os.path.join(folder, read_modules(folder).get("Transformer", ""))


def read_modules(folder: Path) -> dict[str, str]:
    """Returns the classes of the modules of a sentence-transformers folder, in order, and their subfolders."""
    file = os.path.join(folder, MODULES)
    modules = list(Record(file, "", {"modules": read_json(file)}).records("modules", "module"))
    paths = {_LIBRARY_MODULE.sub("", module.text("type")): module.text("path") for module in modules}
    if len(paths) < len(modules) or not all(path == os.path.basename(path) != ".." for path in paths.values()):
        raise InputError(f"{file}: must be a list of different modules, each with a path that is a folder in this one")
    return paths


def _read(folder: str, stored: dict, config: dict | None) -> TokenizerFiles | None:
    """Reads the tokenizer of a folder that is not KerasHub's; `stored` is its `tokenizer.json`."""
    has_list = os.path.exists(os.path.join(folder, "vocab.txt"))
    if not stored and not has_list and not unigram_files.find_model(folder):
        return None
    settings, listed, special = (read_object(os.path.join(folder, name)) for name in (
        CONFIG, "added_tokens.json", "special_tokens_map.json"))
    transformer, calls, differences = _transformer(folder)
    given = transformer.get("processor_kwargs") or transformer.get("tokenizer_args") or {}
    settings |= given
    is_ours = "normalization" in settings or not stored and not os.path.exists(os.path.join(folder, "config.json"))
    if config is None:
        config = read_object(os.path.join(folder, "config.json")) or read_object(
            os.path.join(folder, "bert_config.json"))
    config = as_bert(config)
    name = settings.get("tokenizer_class") or config.get("tokenizer_class")
    model = None if stored or name in _BERT and has_list else unigram_files.find_model(folder)
    if model and has_list and not unigram_files.has_pieces(os.path.join(folder, "vocab.txt")):
        model = None
    if "added_tokens_decoder" not in settings:
        settings = settings | special
    own, of_format = (read_object(os.path.join(folder, f"{name}settings.json")) for name in ("", "keras_bert_"))
    lengths = {  # in order of precedence
        f"{TRANSFORMER}: max_length": calls.get("max_length"),
        f"{TRANSFORMER}: model_max_length": given.get("model_max_length"),
        "settings.json: max_length": own.get("max_length"),  # of a folder that finetune wrote
        f"{TRANSFORMER}: max_seq_length": transformer.get("max_seq_length"),
        "config.json: max_length": (config.get("keras_bert") or {}).get("max_length"),
        "keras_bert_settings.json: max_length": of_format.get("max_length"),
        f"{CONFIG}: model_max_length": settings.get("model_max_length", settings.get("max_len"))}
    max_length = _max_length(folder, lengths, config.get("max_position_embeddings"))
    side = Record(os.path.join(folder, CONFIG), "", settings).one_of("truncation_side", (None, "left", "right"))
    truncation = Record(os.path.join(folder, TOKENIZER), "truncation", stored.get("truncation") or {})
    side = side or truncation.one_of("direction", ("Left", "Right"), "Right").lower()
    shared = {"max_length": max_length, "truncation_side": side}
    differences += all_differences({CONFIG: settings})
    has_segments = config.get("type_vocab_size") != 1 and "token_type_ids" in (
        settings.get("model_input_names") or ["token_type_ids"] * (name not in _WITHOUT_TYPES))
    added = [*((token["content"], token["id"], token.get("special")) for token in stored.get("added_tokens") or ()),
             *((token, id, False) for token, id in listed.items()),
             *((token["content"], int(id), token.get("special"))
               for id, token in (settings.get("added_tokens_decoder") or {}).items())]
    if model or (stored.get("model") or {}).get("type") == "Unigram":
        _by_id(folder, [token[:2] for token in added], config)
        try:
            pieces, arguments, more = (
                unigram_files.read_file(model, config | settings, added, has_segments) if model else
                unigram_files.read_json(folder, stored, settings, added, has_segments))
        except OtherModel:  # see `other_vocabulary`: weights can be used without
            return None
        if transformer.get("do_lower_case"):
            more.append(f"do_lower_case in {TRANSFORMER} must be false; it is true")
        guesses = []
        if model and has_list and not name:
            guesses.append(f"no file names the tokenizer's class: {os.path.basename(model)} is read as one of "
                           "SentencePiece, with the ids of vocab.txt; transformers reads vocab.txt as WordPiece")
        if str(name).startswith("XLNet"):
            guesses.append("texts are read as by SentencePiece, and packed as [CLS] A [SEP], as KoBERT was trained; "
                           f"{name} of transformers also removes accents, and puts [CLS] last")
        return TokenizerFiles("unigram", pieces, arguments | shared, guesses=(*guesses,),
                              differences=(*differences, *more))
    path, tokens, guesses = _tokens(folder, stored, config)
    name = _tokenizer_class(folder, settings, config)
    follows_steps = name in BACKENDS and bool(stored)
    notes: list[str] = []

    said = {name: settings[key] for key, name in _RULES.items() if key in settings}
    has_own_steps = "normalization" in said and own_steps(Rules(**said)).items() <= stored.items()
    if follows_steps and not has_own_steps and any(
            step.get("pattern") == {"Regex": _CONTROLS} for step in _normalizers(stored)):
        raise InputError(f"{folder}: {CONFIG} must have the rules of {TOKENIZER}, as convert wrote both; if the change "
                         "is right, convert the model again")
    rules = said if has_own_steps else _rules(stored)
    if follows_steps or rules:
        differences += _other_steps(folder, stored, has_own_steps)
    if not follows_steps:
        rules |= said
    if transformer.get("do_lower_case"):  # before the tokenizer's own steps
        if rules.get("lower_case") is False:
            rules["strip_accents"] = rules.get("strip_accents") or False
        rules["lower_case"] = True

    known = set(tokens.values())
    tokens = tokens | _by_id(folder, [(token, id) for token, id, _ in added if token not in known], config)
    names = _special_names(settings, stored.get("model", {}).get("unk_token") if follows_steps else None)
    special_ones = (token.get("content") if isinstance(token, dict) else token for key in _MORE_SPECIAL
                    for token in _listed(settings.get(key)))
    differences += unigram_files.found_in_texts(
        [*(token for token, *_ in added), *special_ones], {*names, *names.values()},
        " before it splits these into words; here they are tokens of the vocabulary like all others")
    if follows_steps:
        ids = {token: id for id, token in tokens.items()}
        second, problems = _second_segment(stored.get("post_processor"), *(
            (names[special], ids.get(names[special])) for special in ("[CLS]", "[SEP]")))
        has_segments, differences = has_segments and second > 0, differences + problems
    tokens = _with_names(tokens, names, notes)
    vocabulary.check_vocabulary(path, tokens.values())
    ordered = _in_order(tokens, notes)
    if rules.get("lower_case") is None:
        rules["lower_case"] = not vocabulary.has_capitals(ordered)
        guesses.append(f"no file says if texts are lower-cased: {describe_casing(rules['lower_case'])}; to decide, "
                       f"write do_lower_case into {CONFIG}")
    word_length = settings.get("max_input_chars_per_word") if is_ours else follows_steps and stored["model"].get(
        "max_input_chars_per_word")
    arguments = rules | shared | {"has_segments": has_segments, "max_word_length": word_length or (
        MAX_WORD_LENGTH if is_ours else _MAX_WORD_LENGTH)}
    return TokenizerFiles("WordPiece", ordered, arguments, tuple(notes), tuple(guesses), tuple(differences))


def _transformer(folder: str) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    """Returns the settings of sentence-transformers' first module, those of its tokenizer calls, and what both lose."""
    file = next((name for name in _TRANSFORMERS if os.path.exists(os.path.join(folder, name))), TRANSFORMER)
    transformer = read_object(os.path.join(folder, file))
    by_input = transformer.get("processing_kwargs") or {}
    calls = (by_input.get("text") or {}) | (by_input.get("common") or {})
    place = f"{TRANSFORMER}: processing_kwargs"
    return transformer, calls, all_differences({TRANSFORMER: transformer, place: by_input, f"{place}: text": calls})


def _listed(tokens: Any) -> list:
    """Returns the tokens of a setting, which has one, several, or several by name."""
    values = tokens.values() if isinstance(tokens, dict) and "content" not in tokens else tokens
    return [values] if isinstance(values, str | dict) else list(values or ())


def describe_casing(lower_case: bool) -> str:
    """Returns what the casing is and why, if the vocabulary decided."""
    return (f"lower_case is {lower_case}, because {'no token' if lower_case else 'a token'} of the vocabulary has a "
            "capital letter")


def _tokenizer_class(folder: str, settings: dict, config: dict) -> str | None:
    """Returns the name of the tokenizer's class, or None; raises an InputError if its rules are not BERT's."""
    file, values = (CONFIG, settings) if settings.get("tokenizer_class") else ("config.json", config)
    return Record(os.path.join(folder, file), "", values).one_of(
        "tokenizer_class", (None, *_BERT, *BACKENDS), cure=f", which splits texts in another way; {INSTEAD}")


def _tokens(folder: str, stored: dict, config: dict) -> tuple[str, dict[int, str], list[str]]:
    """Returns the path of the vocabulary, its tokens by id, and how files contradict each other."""
    path, model = os.path.join(folder, "vocab.txt"), stored.get("model")
    listed = dict(enumerate(vocabulary.read_tokens(path))) if os.path.exists(path) else None
    if listed and not model:
        return path, listed, []
    path, model = os.path.join(folder, TOKENIZER), model or {}
    wordpiece = Record(path, "model", model)
    wordpiece.one_of("type", ["WordPiece"], "WordPiece", f"{_OTHER_TYPES.get(str(model.get('type')), '')}; {INSTEAD}")
    wordpiece.one_of("continuing_subword_prefix", [CONTINUES], CONTINUES, f"; {INSTEAD}")
    tokens = _by_id(path, wordpiece.get("vocab", dict).items(), config)
    if listed is not None and _ids(listed) == _ids(tokens):
        return path, listed, []
    guess = "vocab.txt and tokenizer.json have other tokens: those of tokenizer.json, as in transformers"
    return path, tokens, [guess] * (listed is not None)


def _by_id(place: str, pairs: Collection[tuple[str, int]], config: dict) -> dict[int, str]:
    """Checks the ids."""
    size = config.get("vocab_size", _MOST_TOKENS)
    for token, id in pairs:
        if type(id) is not int or not 0 <= id < size or not isinstance(token, str):
            raise InputError(f"{place}: the ids of tokens must be from 0 to {size - 1}, below the config's vocab_size; "
                             f"got {id!r} for {token!r}")
    return {id: token for token, id in pairs}


def _ids(tokens: dict[int, str]) -> dict[str, int]:
    """Returns the ids of the tokens that both `vocab.txt` and `tokenizer.json` can hold."""
    return {token: id for id, token in tokens.items() if token and vocabulary.fits_a_line(token)}


def _normalizers(stored: dict) -> list[dict]:
    steps = stored.get("normalizer") or {"normalizers": []}
    return steps.get("normalizers", [steps])


def _rules(stored: dict) -> dict:
    """Returns the rules in a `tokenizer.json`, as arguments of `BertTokenizer`; empty if BERT's step is not in it."""
    steps = {step["type"]: step for step in _normalizers(stored)}
    if "BertNormalizer" not in steps:
        return {}
    bert, lowers_before = steps["BertNormalizer"], "Lowercase" in steps
    strip_accents = bert.get("strip_accents")
    if lowers_before and strip_accents is None:
        strip_accents = bert.get("lowercase", True)
    return {"lower_case": lowers_before or bert.get("lowercase", True), "strip_accents": strip_accents,
            "split_cjk": bert.get("handle_chinese_chars", True), "normalization": "NFC" if "NFC" in steps else "none"}


def own_steps(rules: Rules) -> dict[str, dict]:
    """Returns the steps of a `tokenizer.json` that make the words of the rules. BERT's own step has the characters of
    an older Unicode, deletes those for private use, and has no final sigma."""
    def replace(pattern: str, content: str) -> dict[str, Any]:
        return {"type": "Replace", "pattern": {"Regex": pattern}, "content": content}

    steps = [replace(_CONTROLS, "")]
    if rules.lower_case:
        cased, ignored = r"[\p{Lu}\p{Ll}\p{Lt}]", r"\p{Case_Ignorable}"
        before = f"{cased}|{cased}{ignored}|{cased}{ignored}{{2}}"  # most engines know only fixed lengths
        steps += [replace(f"(?<={before})Σ(?!{ignored}*{cased})", "ς"), {"type": "Lowercase"}]
    if rules.strip_accents:
        steps += [{"type": "NFD"}, replace(r"\p{Mn}", "")]
    if rules.normalization == "NFC":
        steps.append({"type": "NFC"})
    words = rf"[\p{{P}}$+<=>^`|~]{f'|{any_of(CJK)}' * rules.split_cjk}"
    split = {"type": "Split", "pattern": {"Regex": words}, "behavior": "Isolated", "invert": False}
    return {"normalizer": {"type": "Sequence", "normalizers": steps},
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, split]}}


def _other_steps(folder: str, stored: dict, has_own_steps: bool) -> list[str]:
    """Returns what is lost of the steps in a `tokenizer.json` that has `own_steps`, or BERT's step and others."""
    values = {TOKENIZER: stored} | {f"{TOKENIZER}: {name}": stored.get(name) or {}
                                    for name in ("model", "truncation", "padding")}
    if has_own_steps:
        return all_differences(values)
    normalizers = {step.get("type"): step for step in _normalizers(stored)}
    steps = [*normalizers, (stored.get("pre_tokenizer") or {}).get("type")]
    problem = (f"the steps in {TOKENIZER} must be BertNormalizer, perhaps NFC, and BertPreTokenizer, not "
               f"{', '.join(map(str, steps))}")
    if "BertNormalizer" not in steps:
        raise InputError(f"{folder}: {problem}; {INSTEAD}")
    expected = [*["Lowercase"] * (steps[0] == "Lowercase"), "BertNormalizer", *["NFC"] * ("NFC" in steps),
                "BertPreTokenizer"]
    return [problem] * (steps != expected) + all_differences(
        values | {f"{TOKENIZER}: BertNormalizer": normalizers["BertNormalizer"]})


def _second_segment(step: dict | None, cls: tuple[str, int | None],
                    sep: tuple[str, int | None]) -> tuple[int, list[str]]:
    """Returns the segment id of the second text of a pair by the `post_processor` of a `tokenizer.json`, and what is
    lost if it does not pack texts as BERT does. `cls` and `sep` are the names and ids of the tokens."""
    step = step or {}
    if step.get("type") == "BertProcessing" and (*step["cls"], *step["sep"]) == (*cls, *sep):
        return 1, []
    if step.get("type") == "TemplateProcessing":
        special = {"A": "A", "B": "B"} | {name: name for name, id in (cls, sep)
                                          if (step["special_tokens"].get(name) or {}).get("ids") == [id]}
        single, pair = ([(special.get(part["id"]), part["type_id"]) for piece in step[form] for part in piece.values()]
                        for form in ("single", "pair"))
        second = pair[-1][1]
        first = [(cls[0], 0), ("A", 0), (sep[0], 0)]
        if single == first and pair == [*first, ("B", second), (sep[0], second)] and second in (0, 1):
            return second, []
    return 1, [f"post_processor in {TOKENIZER} must be [CLS] A [SEP] for a text and [CLS] A [SEP] B [SEP] for a pair; "
               f"got {step.get('type')}{' with another template' * (step.get('type') == 'TemplateProcessing')}"]


def _special_names(settings: dict, unknown: str | None) -> dict[str, str]:
    """Returns the names of the special tokens in the files by BERT's names; `unknown`, if any, is that of [UNK]."""
    given = settings | ({"unk_token": unknown} if unknown else {})
    names = {name: given.get(key) or name for key, name in SPECIAL.items()}
    return {name: other["content"] if isinstance(other, dict) else other for name, other in names.items()}


def _with_names(tokens: dict[int, str], names: dict[str, str], notes: list[str]) -> dict[int, str]:
    """Returns tokens by id with BERT's names of the special ones; one that has such a name already gets the other."""
    known = set(tokens.values())
    if renamed := {other: name for name, other in names.items() if other not in names and other in known}:
        notes.append(f"the special tokens {', '.join(renamed)} are named {', '.join(renamed.values())}")
    renamed |= {name: other for other, name in renamed.items()}
    return {id: renamed.get(token, token) for id, token in tokens.items()}


def _in_order(tokens: dict[int, str], notes: list[str]) -> list[str]:
    """Returns the tokens in the order of their ids, with a name for each id without one."""
    if holes := [id for id in range(max(tokens) + 1) if id not in tokens or not vocabulary.fits_a_line(tokens[id])]:
        notes.append(f"named {len(holes)} {plural('id', len(holes))} without a token that vocab.txt can hold: "
                     f"[hole {holes[0]}]{', …' * (len(holes) > 1)}")
    tokens = tokens | {id: f"[hole {id}]" for id in holes}
    return [tokens[id] for id in range(len(tokens))]


def _max_length(folder: str, lengths: dict[str, Any], positions: int | None) -> int | None:
    """Returns the first length by its place in a file, at most the model's positions; otherwise these."""
    for place, length in lengths.items():
        if length is None or isinstance(length, (int, float)) and length >= _UNLIMITED:
            continue
        if type(length) is not int or length < 3:
            raise InputError(f"{folder}/{place} must be a number of tokens, at least 3; got {length!r:.100}")
        return length if positions is None else min(length, positions)
    return positions


def _read_keras_hub(folder: str, stored: dict) -> TokenizerFiles | None:
    """Reads the tokenizer of a KerasHub preset; `stored` is its `tokenizer.json`."""
    if not os.path.exists(path := os.path.join(folder, KERAS_HUB_VOCABULARY)):
        return None
    preset = Record(os.path.join(folder, TOKENIZER), "", stored)
    preset.one_of("class_name", ["BertTokenizer"], cure=f"; {INSTEAD}")
    values = preset.get("config", dict)
    # KerasHub's `strip_accents` is False by default, even for checkpoints that were trained without accents. So False
    # is ignored, and Google's rule applies: a tokenizer that lower-cases also strips accents.
    guessed = {"strip_accents": values.get("strip_accents") or None, "normalization": None}
    more = stored.get(KERAS_HUB_RULES, guessed)
    if not isinstance(more, dict) or more.keys() - KERAS_HUB_DEFAULTS.keys() != guessed.keys():
        raise InputError(f"{folder}: {KERAS_HUB_RULES} in {TOKENIZER} must have {' and '.join(guessed)}; "
                         f"got {more!r:.100}")
    tokens = vocabulary.load_vocabulary(path)
    backbone, preprocessor = (read_object(os.path.join(folder, file)).get("config") or {}
                              for file in ("config.json", "preprocessor.json"))
    lengths = {"preprocessor.json: sequence_length": preprocessor.get("sequence_length")}
    arguments = {"lower_case": values.get("lowercase", False), "split_cjk": values.get("split_on_cjk", True),
                 "max_length": _max_length(folder, lengths, backbone.get("max_sequence_length")),
                 "has_segments": backbone.get("num_segments") != 1}
    notes = ("KerasHub keeps accents in this preset, and composes Korean; here both follow Google's rules",) * (
        more is guessed and arguments["lower_case"] and not values.get("strip_accents"))
    return TokenizerFiles("WordPiece", tokens, arguments | more, notes,
                          differences=tuple(all_differences({f"{TOKENIZER}: config": values})))
