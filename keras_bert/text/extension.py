"""More tokens for a vocabulary: those that the words of some texts need."""

from collections.abc import Callable, Mapping

from keras_bert.arguments import Count, Path, Share, as_list, check
from keras_bert.errors import InputError, Option
from keras_bert.text.charsmap import STAND_INS
from keras_bert.text.tokenizer import Tokenizer
from keras_bert.text.vocabulary_training import MAX_SIZE, characters_of, count_words, merge

_FIRST = 0x10000  # the character that stands for token 0; from here on, none is white space
_SHOWN = 10  # new tokens


def extend_vocabulary(tokenizer: Tokenizer, paths: Path | list[str] | list[Path], vocab_size: int,
                      min_frequency: Count = 2, held_out: Share = 0.01,
                      progress: Callable[[str], object] | None = None) -> tuple[Tokenizer, list[str]]:
    """Returns a tokenizer with more tokens, and the lines of the texts that were held out.

    The new tokens follow the tokenizer's own. The first ones are the characters that it lacks, in at most half of the
    new rows, unless the words leave more. The others join neighbouring tokens of a word, always the most frequent pair,
    as in `train_vocabulary`; so they are words, their beginnings, and parts that continue words.

    Args:
        tokenizer: the tokenizer, of any kind.
        paths: UTF-8 text files, or one.
        vocab_size: number of tokens, the tokenizer's own included; it gets fewer if the texts do not contain enough.
        min_frequency: how often a character, or a pair that becomes a token, must occur.
        held_out: share of the lines to hold out, evenly spread, until there are 100,000.
        progress: called from time to time with a line of text about the progress.

    Raises:
        InputError: an argument is out of range; a file cannot be read, is empty or not UTF-8; or nothing is new.
    """
    own, files = len(tokenizer.vocabulary), as_list(paths)
    check(extend_vocabulary, locals(), (
        "vocab_size", vocab_size, f"from {own + 1} to {MAX_SIZE}, more than the {own} tokens of the vocabulary",
        own < vocab_size <= MAX_SIZE))
    counts, lines = count_words(files, tokenizer.rules, held_out, progress or (lambda line: None))
    known = {*tokenizer.vocabulary, *STAND_INS.values()}
    characters = [character for character in dict.fromkeys(
        characters_of(counts, tokenizer.rules, min_frequency, tokenizer.continues)) if character not in known]
    limit = (vocab_size - own + 1) // 2
    while True:
        larger = tokenizer.extended({character: [] for character in characters[:limit]})
        larger = larger.extended(_joined(larger, counts, vocab_size - len(larger.vocabulary), min_frequency))
        if (free := vocab_size - len(larger.vocabulary)) == 0 or limit >= len(characters):
            break
        limit += free
    if len(larger.vocabulary) == own:
        raise InputError(f"{files[0]}{' and the others' * (len(files) > 1)}: no pair of tokens in a word occurs at "
                         "least ", Option(f"min_frequency={min_frequency}"), " times")
    return larger, lines


def _joined(tokenizer: Tokenizer, counts: Mapping[str, int], number: int, min_frequency: int) -> dict[str, list[int]]:
    """Returns at most a `number` of new tokens, with the ids that each joins."""
    spelled = {"".join(chr(_FIRST + index) for index in ids): count
               for ids, count in zip(tokenizer.ids_of_words([*counts]), counts.values()) if tokenizer.unk_id not in ids}
    parts, known, joined = sorted({*"".join(spelled)}), {*tokenizer.vocabulary}, dict[str, list[int]]()
    for merged in merge(spelled, parts, len(parts) + 2 * number, min_frequency)[len(parts):]:  # some are spelled alike
        ids = [ord(part) - _FIRST for part in merged]
        first, *others = (tokenizer.vocabulary[index] for index in ids)
        token = "".join([first, *(other.removeprefix(tokenizer.continues) for other in others)])
        if token not in known and len(joined) < number:
            joined.setdefault(token, ids)
    return joined


def describe(before: Tokenizer, after: Tokenizer, lines: list[str]) -> str:
    """Returns what new tokens change for held-out lines, in several lines."""
    new = after.vocabulary[len(before.vocabulary):]
    rows = [("new tokens", " ".join(new[:_SHOWN]) + " …" * (len(new) > _SHOWN))]
    if words := " ".join(before.rules.normalize(line.rstrip("\r\n")) for line in lines).split():
        ids = [each.ids_of_words(words) for each in (before, after)]
        tokens = [sum(map(len, of_words)) / len(words) for of_words in ids]
        unknown = [sum(before.unk_id in word for word in of_words) / len(words) for of_words in ids]
        rows += [("lines held out", str(len(lines))), ("tokens per word", f"{tokens[1]:.4f}, before {tokens[0]:.4f}"),
                 ("[UNK]", f"{unknown[1]:.4f} of the words, before {unknown[0]:.4f}")]
    return "\n".join(f"{name:18} {value}" for name, value in rows)
