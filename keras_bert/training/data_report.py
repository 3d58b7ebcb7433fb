"""The report on the data that `finetune` prints before training: sizes, labels, lengths, and likely mistakes."""

import collections
import itertools
from collections.abc import Iterator, Sequence
from typing import TypedDict

import numpy as np

from keras_bert.arguments import plural
from keras_bert.data.tables import shown
from keras_bert.tasks import Task
from keras_bert.tasks.windows import WindowTask, default_stride
from keras_bert.text import Tokenizer
from keras_bert.text.coverage import MAX_UNKNOWN, Coverage, describe, shorten
from keras_bert.text.same import SameTexts

_CHUNK = 1024  # examples whose words are counted at once
_FEW = 5  # examples of a label
_LISTED = 20  # columns
_SHOWN = 6  # labels whose counts are printed
_MAX_CUT = 0.05  # share of the texts
_MIN_UNKNOWN = 1e-4  # of the tokens


class Found(TypedDict):
    """Examples whose texts occur before: their number, where the first of them is, and where its text occurs before."""

    texts: int
    places: list[str]


class DataReport(TypedDict):
    """The report, which is an entry of `metrics.json`. What does not name `valid` is about the training data."""

    train: int  # examples
    valid: int
    kind: str  # what the rows hold, see `Task.kind`
    valid_kind: str
    unread: list[str]  # columns that were left
    held_out: float | None  # the share of the training data that the validation examples are
    labels: dict[str, int]  # the number of each label, the most frequent first
    labels_per_text: float | None  # their mean number; None if they are not of whole texts
    unlabelled: int  # texts without a label
    tokens: dict[str, int]  # `median`, `percentile_95` and `longest` of the lengths with [CLS] and [SEP]
    max_length: int
    longer: int  # longer texts
    unknown: float  # share of [UNK] among the tokens
    unknown_name: str  # the name of [UNK] in the vocabulary
    unknown_words: dict[str, int]  # the most frequent ones with their counts
    tokens_per_word: float  # of the words with letters
    repeated: Found
    contradictory: Found  # the repeated examples with another label than the first of the equal texts
    leaked: Found  # the validation examples whose texts, for span the context, are in the training data
    windows: bool  # longer texts are split instead of cut
    doc_stride: int | None  # with which longer texts could be split; None if the task only cuts them
    cut: int  # training examples of which a part is left out though they are split
    long_texts: list[str]  # if longer texts are split: how many are, and how many are cut
    problems: list[str]  # of the vocabulary


def data_report(task: Task, tokenizer: Tokenizer, examples: list, valid_examples: list,
                held_out: float | None = None, cut: int = 0, split: int = 0, unread: Sequence[str] = (),
                same: SameTexts | None = None) -> DataReport:
    """Describes the data of a run. `held_out` is the share of the training data that the validation examples are; `cut`
    and `split` are those of the encoded training examples, see `Encoded`; `unread` are columns that were left; `same`
    are the task's `same_texts`, if they are already made."""
    coverage, lengths, same = Coverage(tokenizer), [], same or task.same_texts(tokenizer)
    for begin in range(0, len(examples), _CHUNK):
        lengths += _lengths([task.texts(example) for example in examples[begin:begin + _CHUNK]], coverage, tokenizer)
    classes = [task.classes(example) for example in examples]
    labels = collections.Counter(itertools.chain.from_iterable(classes))
    texts = same.keys(map(task.texts, examples))
    first = dict(zip(reversed(texts), reversed(examples)))  # of equal texts
    repeated = [(example, first[key]) for key, example in zip(texts, examples) if example is not first[key]]
    contradictory = [pair for pair in repeated if task.label(pair[0]) != task.label(pair[1])]
    groups = dict(zip(reversed(task.groups(examples, same)), reversed(examples)))
    leaked = [(example, groups[key]) for key, example in zip(task.groups(valid_examples, same), valid_examples)
              if key in groups]
    median, percentile, longest = map(int, np.percentile(lengths, (50, 95, 100), method="inverted_cdf"))
    share, words = coverage.unknown()
    in_nfd = task.count_nfd([*examples, *valid_examples], tokenizer)
    total = len(examples) + len(valid_examples)
    is_nfd = in_nfd > MAX_UNKNOWN * total  # then that is the vocabulary's problem, not the language
    return {
        "train": len(examples), "valid": len(valid_examples), "held_out": held_out,
        "kind": task.kind(examples), "valid_kind": task.kind(valid_examples or examples), "unread": list(unread),
        "labels": dict(sorted(labels.items(), key=lambda item: (-item[1], item[0]))),
        "labels_per_text": sum(labels.values()) / len(examples) if task.stratified else None,
        "unlabelled": sum(not of_text for of_text in classes), "max_length": task.max_length,
        "tokens": {"median": median, "percentile_95": percentile, "longest": longest},
        "longer": int((np.array(lengths) > task.max_length).sum()), "unknown": share, "unknown_words": words,
        "unknown_name": tokenizer.vocabulary[tokenizer.unk_id],
        "problems": task.describe_long({"nfd": in_nfd}, total) if is_nfd else coverage.problems(),
        "repeated": _found(repeated), "contradictory": _found(contradictory), "leaked": _found(leaked),
        "doc_stride": default_stride(task.max_length) if isinstance(task, WindowTask) else None,
        "windows": task.windows, "cut": cut if task.windows else 0, "tokens_per_word": coverage.tokens_per_word()[0],
        "long_texts": task.describe_long({"cut": cut, "split": split}, len(examples)) if task.windows else []}


def _lengths(examples: list[tuple], coverage: Coverage, tokenizer: Tokenizer) -> list[int]:
    """Returns the number of tokens of each example, [CLS] and [SEP] included: of its longest choice if it has several.
    An example is a tuple of texts, of which the last may be a list of choices."""
    choices = [texts[-1] if isinstance(texts[-1], list) else texts[-1:] for texts in examples]
    before = [texts[:-1] for texts in examples]
    lengths = iter(coverage.lengths([text for texts in zip(before, choices) for part in texts for text in part]))
    return [tokenizer.special_tokens(len(texts) + 1) + sum(next(lengths) for _ in texts) + max(
        next(lengths) for _ in ends) for texts, ends in zip(before, choices)]


def _found(pairs: list[tuple]) -> Found:
    places = [f"row {each.row}" if hasattr(each, "row") else f"id {each.id}" for each in (pairs[0] if pairs else ())]
    return {"texts": len(pairs), "places": places}


def report_lines(report: DataReport) -> list[str]:
    """Returns the report as lines of text; those that need attention begin with `warning: `."""
    return [*_facts(report), *(f"warning: {problem}" for problem in _problems(report))]


def _facts(report: DataReport) -> Iterator[str]:
    labels, tokens = report["labels"], report["tokens"]
    kind, valid_kind = report["kind"], report["valid_kind"]
    other_kind = "" if valid_kind == kind else f" {valid_kind}"
    sizes = [f"{report['train']:,} {kind} for training, {report['valid']:,}{other_kind} for validation"]
    if labels:
        sizes.append(f"{len(labels):,} {plural('label', len(labels))}{_counts(labels)}")
    yield ", ".join(sizes)
    if unread := report["unread"]:
        names = (shorten(shown(name)) for name in unread[:_LISTED])
        yield f"columns that are not read: {', '.join(names)}{', …' * (len(unread) > _LISTED)}"
    if report["labels_per_text"] and (report["labels_per_text"] != 1 or report["unlabelled"]):
        yield f"{report['labels_per_text']:.2f} labels per text; {report['unlabelled']:,} texts without a label"
    if report["held_out"]:
        yield f"no validation file: held out {report['held_out']:.0%} of the training file"
    yield (f"{tokens['median']:,} tokens at the median, {tokens['percentile_95']:,} at the 95th percentile, "
           f"{tokens['longest']:,} at most")
    if report["longer"] and not report["windows"] and not _cuts_many(report):
        yield _cut(report)
    yield from report["long_texts"]
    if _MIN_UNKNOWN <= report["unknown"] <= MAX_UNKNOWN:
        yield (f"{report['unknown']:.2%} of the tokens are {report['unknown_name']}, most often "
               f"{describe(report['unknown_words'])}")
    if report["repeated"]["texts"]:
        yield f"repeated texts: {_found_in(report['repeated'])}"


def _problems(report: DataReport) -> Iterator[str]:
    yield from report["problems"]
    if _cuts_many(report):
        stride = report["doc_stride"]
        cure = f"split them into windows by doc_stride={stride}" if stride else "shorter texts"
        yield f"{_cut(report)}: use a larger max_length, or {cure}"
    if report["cut"] > _MAX_CUT * report["train"]:
        yield "many texts are cut although they are split into windows: use a larger max_length or max_windows"
    if report["contradictory"]["texts"]:
        yield f"repeated texts with different labels: {_found_in(report['contradictory'])}: correct the labels"
    if report["leaked"]["texts"]:
        yield (f"validation texts that are also training texts: {_found_in(report['leaked'])} of the training data: "
               "scores on these are too high; remove them from one of the two")


def _cuts_many(report: DataReport) -> bool:
    return report["longer"] > _MAX_CUT * report["train"] and not report["windows"]


def _cut(report: DataReport) -> str:
    return f"texts cut at max_length {report['max_length']:,}: {report['longer']:,} of {report['train']:,}"


def _found_in(found: Found) -> str:
    return "{:,}, such as {} equal to {}".format(found["texts"], *found["places"])


def _counts(labels: dict[str, int]) -> str:
    if len(set(labels.values())) == 1:
        return f", {next(iter(labels.values())):,} each" + (
            f": {', '.join(map(shorten, labels))}" if len(labels) <= _SHOWN else "")
    if len(labels) <= _SHOWN:
        return f": {describe(labels)}"
    most, *_, least = ({label: count} for label, count in labels.items())
    few = sum(count < _FEW for count in labels.values())
    return f" from {describe(least)} to {describe(most)}" + (f"; {few:,} with fewer than {_FEW}" if few else "")
