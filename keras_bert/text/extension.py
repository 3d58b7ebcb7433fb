"""More tokens for a vocabulary: those that the words of some texts need."""

from collections.abc import Callable

from keras_bert.arguments import Count, Path, Share, as_list, check
from keras_bert.errors import InputError, Option
from keras_bert.text.tokenizer import Tokenizer
from keras_bert.text.vocabulary_training import MAX_SIZE, characters_of, count_words, merge

_FIRST = 0x10000  # the character that stands for token 0; from here on, none is white space
_SHOWN = 10  # new tokens


def extend_vocabulary(tokenizer: Tokenizer, paths: Path | list[str] | list[Path], vocab_size: int,
                      min_frequency: Count = 2, held_out: Share = 0.01,
                      progress: Callable[[str], object] | None = None) -> tuple[Tokenizer, list[str]]:
    """Returns a tokenizer with more tokens, and the lines of the texts that were held out.

    The new tokens follow the tokenizer's own. The first ones are the characters that it lacks, in at most half of the
    new rows. The others join neighbouring tokens of a word, always the most frequent pair, as in `train_vocabulary`; so
    they are words, their beginnings, and parts that continue words.

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
    known, files = {*tokenizer.vocabulary}, as_list(paths)
    own = len(tokenizer.vocabulary)
    check(extend_vocabulary, locals(), (
        "vocab_size", vocab_size, f"from {own + 1} to {MAX_SIZE}, more than the {own} tokens of the vocabulary",
        own < vocab_size <= MAX_SIZE))
    counts, lines = count_words(files, tokenizer.rules, held_out, progress or (lambda line: None))
    characters = characters_of(counts, tokenizer.rules, min_frequency, tokenizer.continues)
    new = [character for character in dict.fromkeys(characters) if character not in known]
    larger = tokenizer.extended({character: [] for character in new[:(vocab_size - own + 1) // 2]})
    spelled = {"".join(chr(_FIRST + index) for index in ids): count
               for ids, count in zip(larger.ids_of_words([*counts]), counts.values()) if larger.unk_id not in ids}
    parts, room = sorted({*"".join(spelled)}), vocab_size - len(larger.vocabulary)
    joined: dict[str, list[int]] = {}
    for merged in merge(spelled, parts, len(parts) + 2 * room, min_frequency)[len(parts):]:  # some are spelled alike
        ids = [ord(part) - _FIRST for part in merged]
        first, *others = (larger.vocabulary[index] for index in ids)
        joined.setdefault("".join([first, *(other.removeprefix(larger.continues) for other in others)]), ids)
    fitting = [token for token in joined if token not in known][:room]
    larger = larger.extended({token: joined[token] for token in fitting})
    if len(larger.vocabulary) == own:
        raise InputError(f"{files[0]}{' and the others' * (len(files) > 1)}: no pair of tokens in a word occurs at "
                         "least ", Option(f"min_frequency={min_frequency}"), " times")
    return larger, lines


def describe(before: Tokenizer, after: Tokenizer, lines: list[str]) -> str:
    """Returns what new tokens change for held-out lines, in two lines."""
    new = after.vocabulary[len(before.vocabulary):]
    words = " ".join(before.rules.normalize(line) for line in lines).split()
    shown = f"new tokens         {' '.join(new[:_SHOWN])}{' …' * (len(new) > _SHOWN)}"
    if not words:
        return shown
    rates = [sum(map(len, tokenizer.ids_of_words(words))) / len(words) for tokenizer in (before, after)]
    return f"tokens per word    {rates[0]:.4f}, now {rates[1]:.4f}; of {len(lines)} lines held out\n{shown}"
