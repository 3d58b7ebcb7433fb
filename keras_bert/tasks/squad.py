"""Extractive question answering on SQuAD v1.1 and v2.0 and KorQuAD v1 (Devlin et al., 2018, sections 4.2 and 4.3;
google-research/bert `run_squad.py`)."""

import dataclasses
import itertools
import re
import string
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Self

import numpy as np

from keras_bert.arguments import Count, Path, check_rules, is_missing
from keras_bert.data.rows import json_values
from keras_bert.data.tables import Rows, at_least_one, choose_reader, read_table
from keras_bert.errors import InputError, Option
from keras_bert.files.json_files import Record
from keras_bert.tasks.base import Answers, Card, Encoded, Outputs, Reader, log_softmax
from keras_bert.tasks.windows import SplittingTask, needed_tokens, windows
from keras_bert.text import Tokenizer
from keras_bert.text.offsets import TokenOffsets, tokens_with_offsets
from keras_bert.types import Encoder, Head, Tensor

Golds = Sequence[Sequence[str]]  # the right answers to each question


@dataclasses.dataclass(frozen=True)
class QuestionExample:
    """A question about a context.

    Args:
        answers: texts and their starts in characters of the context; empty if the file does not contain
            answers, or if the question is `impossible` to answer.
        place: the position of the question in its file, for error messages.
    """

    id: str | None
    question: str
    context: str
    answers: list[tuple[str, int]]
    impossible: bool
    place: str | None


def read_questions(path: Path | Rows) -> Iterator[QuestionExample]:
    """Reads `.json` files, UTF-8, of SQuAD v1.1 and v2.0 (Rajpurkar et al., 2016 and 2018) or KorQuAD v1 (Lim et al.,
    2019), or the same questions in rows: `.jsonl` and `.parquet` files, or `Rows`, with the columns `id`, `question`,
    `context` and `answers`, an object with the lists `text` and `answer_start`. A row without an `id` has its number
    instead. If `is_impossible` is missing, a question with an empty list of answers is impossible.

    Raises:
        InputError: names the file and the position in it; also if the context does not contain an answer at its start.
    """
    questions = choose_reader(path, _READERS, "a file of questions")(path)
    return at_least_one(itertools.starmap(_example, questions), f"{path}: holds no questions")


_Question = tuple[Record, str]  # with answers in the form of SQuAD; the context


def _read_squad(path: Path) -> Iterator[_Question]:
    values = json_values(path)
    if len(values) != 1 or not isinstance(values[0], dict):
        found = ", ".join(map(repr, values)) or "an empty file"
        raise InputError(f"{path}: must hold one JSON object, as SQuAD's files do; got {found:.40}")
    for article in Record(path, "", values[0]).records("data", "article"):
        for paragraph in article.records("paragraphs", "paragraph"):
            context = paragraph.text("context")
            for question in paragraph.records("qas", "question"):
                yield question, context


def _read_rows(path: Path | Rows) -> Iterator[_Question]:
    for row in read_table(path, ("question", "context"))[1]:
        values, defaults = row.values, {"id": str(row.place), "answers": None, "is_impossible": None}
        values |= {name: default for name, default in defaults.items() if is_missing(values.get(name))}
        labelled = bool(values["answers"] or values["is_impossible"])
        row.text("question", labelled)
        if values["answers"] is not None:
            answers = Record(path, row.place, row.get("answers", dict))
            texts, starts = (answers.get(name, list) for name in ("text", "answer_start"))
            if len(texts) != len(starts):
                raise InputError(f"{row}: answers must have as many starts as texts, {len(texts)}; got {len(starts)}")
            values["answers"] = [{"text": text, "answer_start": start} for text, start in zip(texts, starts)]
        yield row, row.text("context", labelled)


def _example(question: Record, context: str) -> QuestionExample:
    id, listed = question.text("id"), question.values.get("answers") is not None
    question.place = f"{question.where} (id {id})"
    answers = [_answer(answer, context) for answer in question.records("answers", "answer")] if listed else []
    impossible = listed and not answers
    if question.values.get("is_impossible") is not None:
        impossible = question.get("is_impossible", bool)
    if impossible and answers:
        raise InputError(f"{question}: an impossible question must have no answers; got {len(answers)}")
    return QuestionExample(id, question.text("question"), context, answers, impossible, question.where)


def _answer(answer: Record, context: str) -> tuple[str, int]:
    text, start = answer.text("text"), answer.get("answer_start", int)
    found = context[start:start + len(text)]
    if not text or start < 0 or found != text:
        raise InputError(f"{answer}: context[start:start+{len(text)}] must be the answer, {text!r:.40}; "
                         f"got {found!r:.40} at {start}")
    return text, start


_READERS = {None: _read_rows, ".json": _read_squad, ".jsonl": _read_rows, ".parquet": _read_rows}


def target(window: tuple[int, int], answer: tuple[int, int] | None) -> tuple[int, int] | None:
    """Returns the positions, from the window's begin, of the first and the last token of an answer; None if the window,
    (begin, end) in tokens of the context, does not contain the whole answer: then the training target is [CLS]."""
    begin, end = window
    if answer and begin <= answer[0] and answer[1] < end:
        return answer[0] - begin, answer[1] - begin
    return None


def tokens_of(starts: np.ndarray, ends: np.ndarray, begin: int, end: int) -> tuple[int, int] | None:
    """Returns the first and the last token that overlap the characters [begin, end), None if there is none. `starts`
    and `ends`, int [tokens], are the ranges of characters that the tokens came from, which may overlap."""
    overlapping = np.flatnonzero(np.maximum(starts, begin) < np.minimum(ends, end))
    return (int(overlapping[0]), int(overlapping[-1])) if overlapping.size else None


def best_spans(start_logits: Sequence[np.ndarray], end_logits: Sequence[np.ndarray], windows: Sequence[tuple[int, int]],
               n: int = 20, max_answer_length: int = 30) -> tuple[list[tuple[int, int]], np.ndarray]:
    """Finds the n best spans of tokens (i, j), i <= j < i + max_answer_length, that are entirely in a window. The score
    of a span is the logit of start i plus that of end j, in the window where this sum is highest. Of equal scores, the
    smaller i comes first, then the smaller j. span_graph.py has the same search for the best span as TensorFlow
    operations; tests/test_decoding.py compares the two.

    Args:
        start_logits, end_logits: float [tokens] for each window; index k is token begin + k. Values after the window's
            end are ignored.
        windows: their begins and ends in tokens; the last one reaches the context's end.

    Returns:
        (spans, scores): pairs (i, j), fewer than n if there are no more; float [spans] with the dtype of the logits.
    """
    scores = np.full((windows[-1][1], max_answer_length), -np.inf, start_logits[0].dtype)  # [i, j - i]
    for (begin, end), starts, ends in zip(windows, start_logits, end_logits):
        ends = np.pad(ends[:end - begin], (0, max_answer_length), constant_values=-np.inf)
        ends = np.lib.stride_tricks.sliding_window_view(ends, max_answer_length)[:end - begin]
        np.maximum(scores[begin:end], starts[:end - begin, None] + ends, out=scores[begin:end])
    scores = scores.ravel()
    best = np.flatnonzero(scores > -np.inf)
    if len(best) > n:  # sorting them all would take ten times as long
        best = best[scores[best] >= np.partition(scores[best], -n)[-n]]
    best = best[np.argsort(-scores[best], kind="stable")][:n]
    first, more = np.divmod(best, max_answer_length)
    return list(zip(first.tolist(), (first + more).tolist())), scores[best]


_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_KORQUAD_SPACES = str.maketrans(dict.fromkeys("'\"《》<>〈〉()‘’", " "))


def squad_words(text: str) -> list[str]:
    """Returns the words that SQuAD's metrics compare: lower-cased, without ASCII punctuation and articles."""
    return _ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split()


def exact_match(golds: Sequence[str], prediction: str, units: Callable[[str], Sequence[str]] = squad_words) -> float:
    """Returns 1.0 if the prediction has the same `units`, which are compared, as one of the right answers `golds`, or
    none if there is no right answer; otherwise 0.0."""
    return float(units(prediction) in map(units, golds or [""]))


def f1(golds: Sequence[str], prediction: str, units: Callable[[str], Sequence[str]] = squad_words) -> float:
    """Computes the F1, from 0 to 1, of the `units` of a prediction, in any order, and those of the right answer that
    matches best; if there is no right answer, the `exact_match`."""
    if not golds:
        return exact_match(golds, prediction, units)
    predicted = units(prediction)
    return max(2 * (Counter(predicted) & Counter(gold)).total() / max(len(predicted) + len(gold), 1)
               for gold in map(units, golds))


def squad_scores(golds: Golds, predictions: Sequence[str]) -> dict[str, float]:
    """Computes the scores of SQuAD v2.0, in percent, if any question is unanswerable, else those of v1.1: `exact_match`
    and `f1`; for v2.0 also `NoAns_exact` and `NoAns_f1` of the unanswerable questions, and `HasAns_exact` and
    `HasAns_f1` of the others if there are any. The two differ if a right answer has no words, only articles, say."""
    answerable = np.array([bool(answers) for answers in golds])
    if answerable.all():
        return _means(_scores(golds, predictions))
    scores = _scores(_with_words(golds), predictions)
    means = _means(scores) | _means(scores[~answerable], "NoAns_exact", "NoAns_f1")
    return means | _means(scores[answerable], "HasAns_exact", "HasAns_f1") if answerable.any() else means


def best_null_threshold(golds: Golds, answers: Sequence[str],
                        null_differences: Sequence[float] | np.ndarray) -> tuple[float, float]:
    """Finds the null threshold with the best F1 of SQuAD v2.0, like `find_best_thresh` of the official script, but none
    between questions with equal differences, which no threshold can separate. `answers` are the best spans, and
    `null_differences`, float [questions], the null scores minus those of the best spans.

    Returns (threshold, F1 in percent). A question is left unanswered if its difference is greater than the threshold.
    Of equally good thresholds, it is the lowest one (below all differences if no question should be answered).
    Answering an unanswerable question counts as wrong, even if the answer has only articles."""
    gains = [f1(with_words, answer) if gold else -bool(answer)
             for gold, with_words, answer in zip(golds, _with_words(golds), answers)]
    thresholds, index = np.unique(null_differences, return_inverse=True)
    totals = np.cumsum([sum(not gold for gold in golds), *np.bincount(index, gains)])
    best = totals.argmax()
    return float([thresholds[0] - 1, *thresholds][best]), float(100 * totals[best] / len(golds))


def korquad_scores(golds: Golds, predictions: Sequence[str]) -> dict[str, float]:
    """Computes the scores of KorQuAD 1.0 in percent: `exact_match` and `f1`. The F1 is over characters, and articles
    are not ignored. Each question must have a right answer."""
    return _means(_scores(golds, predictions, _korquad_words, lambda text: "".join(_korquad_words(text))))


def _scores(golds: Golds, predictions: Sequence[str], words: Callable[[str], list[str]] = squad_words,
            units: Callable[[str], Sequence[str]] = squad_words) -> np.ndarray:
    """Computes the exact match and F1 of each question: float [questions, 2]."""
    return np.array([(exact_match(answers, prediction, words), f1(answers, prediction, units))
                     for answers, prediction in zip(golds, predictions)])


def _means(scores: np.ndarray, exact: str = "exact_match", overlap: str = "f1") -> dict[str, float]:
    return dict(zip((exact, overlap), (100 * scores.mean(0)).tolist()))


def _with_words(golds: Golds) -> list[list[str]]:
    """Returns the right answers that SQuAD v2.0 counts: those that have words."""
    return [list(filter(squad_words, answers)) for answers in golds]


def _korquad_words(text: str) -> list[str]:
    return text.translate(_KORQUAD_SPACES).lower().translate(_PUNCTUATION).split()


N_BEST = 20  # spans; google-research/bert `run_squad.py`
_OF_SPANS = "max_query_length", "max_answer_length"  # fields that settings.json has if they are not the defaults
_LOGITS = "start_logits", "end_logits"
_HANGUL = re.compile("[가-힣]")


@dataclasses.dataclass(frozen=True)
class Answer:
    """An answer, `context[start:end]` in characters (code points), and its probability among the best spans. If the
    context does not answer the question, the text is "" and `start` and `end` are -1. `others` contains the next best
    answers if more than one was requested."""

    text: str
    start: int
    end: int
    score: float
    others: "tuple[Answer, ...]" = ()


class _Spans(NamedTuple):
    """The best spans of a context. `null` is the score of "no answer": the lowest sum of the logits of a [CLS]."""

    context: str
    tokens: TokenOffsets
    spans: list[tuple[int, int]]
    scores: np.ndarray
    null: float


@dataclasses.dataclass(frozen=True)
class Span(SplittingTask):
    """Extractive question answering: SQuAD v1.1, v2.0 with the null answer, KorQuAD (Devlin et al., 2018, sections 4.2
    and 4.3). A long context is split into windows, and the answer is the best span of all windows.

    Args:
        doc_stride, max_windows: see `SplittingTask`.
        null_threshold: the answer is "no answer" if the null score minus the score of the best span is greater than
            this; None if every question has an answer.
        max_query_length: maximum length of a question in tokens; longer questions are truncated.
        max_answer_length: maximum length of an answer in tokens.
    """

    doc_stride: Count = 128
    null_threshold: float | None = None
    max_query_length: Count = dataclasses.field(default=64, kw_only=True)  # the defaults of run_squad.py
    max_answer_length: Count = dataclasses.field(default=30, kw_only=True)

    name, main, inputs, length, supports_top_k, unused = "span", "f1", ("question", "context"), 384, True, ("pooler",)
    dropout, percent, windows, output = None, True, True, "answer"
    options = fields = SplittingTask.fields
    files, held_out = ("questions as in SQuAD", (".json",)), "contexts"
    heads, weights, lite_outputs, display = ("BertSpanLabeler",), "span", dict.fromkeys(_LOGITS, "BS"), "span"
    card = Card("question-answering", "answers in texts", "Answers a question with a part of a text.")
    tuples = (("question", "context", "answers"),)
    exported_outputs = {"answer": (str, "B"), "start": (np.int32, "B"), "end": (np.int32, "B"),
                        "score": (np.float32, "B")}

    def __post_init__(self) -> None:
        check_rules(("max_length", self.max_length, "at least 4 for questions, for [CLS], two [SEP] and a token of the "
                     "context", self.max_length >= 4))

    @classmethod
    def iterate(cls, path: Path | Rows, label_column: str | None = "label", **_: Any) -> Iterator[QuestionExample]:
        for example in read_questions(path):
            if label_column is not None and not example.answers and not example.impossible:
                raise InputError(f"{path}: {example.place}: there is no answer")
            yield example

    @classmethod
    def from_examples(cls, path: Path | Rows, examples: Sequence[QuestionExample], **settings: Any) -> Self:
        if settings["max_length"] < (shortest := cls.max_query_length + 4):
            raise InputError(Option("max_length"), f" must be at least {shortest}, for a question and one "
                             f"token of the context; got {settings['max_length']}")
        return cls(null_threshold=0.0 if any(example.impossible for example in examples) else None, **settings)

    def check(self, path: Path | Rows, examples: Sequence[QuestionExample], out_of_scope: str | None = None) -> None:
        if self.null_threshold is None and any(example.impossible for example in examples):
            raise InputError(f"{path}: every question must have an answer, as in the training file")

    def example(self, question: str, context: str) -> QuestionExample:
        return QuestionExample(None, question, context, [], False, None)

    def group(self, example: QuestionExample) -> tuple:
        return (example.context,)

    def label(self, example: QuestionExample) -> list[str]:
        return sorted({text for text, _ in example.answers})

    def encode(self, examples: Sequence[QuestionExample], tokenizer: Tokenizer) -> Encoded:
        questions = tokenizer.ids([example.question for example in examples])
        needed = () if any(example.answers for example in examples) else [
            needed_tokens(self.max_length, self.doc_stride, self.max_windows)]
        contexts = tokens_with_offsets([example.context for example in examples], tokenizer, *needed)
        rows, parts, targets, cut = [], [], [], 0
        for number, (example, question, context) in enumerate(zip(examples, questions, contexts)):
            question = question[:self.query_length(tokenizer)]
            head = len(question) + tokenizer.special_tokens(2) - 1  # number of tokens before the context
            text, start = example.answers[0] if example.answers else ("", 0)
            answer = tokens_of(context.starts, context.ends, start, start + len(text))
            of_context = windows(len(context.ids), self.max_length - head - 1, self.doc_stride, self.max_windows)
            cut += of_context[-1][1] < len(context.ids)
            for begin, end in of_context:
                rows.append(tokenizer.pack_ids(question, context.ids[begin:end].tolist(), self.max_length))
                parts.append((number, begin, end, head))
                positions = target((begin, end), answer)
                targets.append([head + position for position in positions] if positions else [0, 0])
        starts, ends = np.array(targets, np.int32).reshape(-1, 2).T
        counts = np.bincount([number for number, *_ in parts])
        return Encoded(examples, rows, {"start_logits": starts, "end_logits": ends}, decoding=(contexts, parts),
                       cut=cut, split=int((counts > 1).sum()))

    def query_length(self, tokenizer: Tokenizer) -> int:
        """Returns the maximum length of a question, with which a window has a token of the context."""
        return min(self.max_query_length, self.max_length - tokenizer.special_tokens(2) - 1)

    def settings(self) -> dict[str, Any]:
        return {name: value for name, value in super().settings().items()
                if name not in _OF_SPANS or value != getattr(Span, name)}

    def new_head(self, bert: Encoder, dropout: float) -> Head:
        from keras_bert.models import BertSpanLabeler

        return BertSpanLabeler(bert)

    def loss_arguments(self) -> dict[str, Any]:
        import keras

        return {"loss": {name: keras.losses.SparseCategoricalCrossentropy(from_logits=True) for name in _LOGITS},
                "loss_weights": dict.fromkeys(_LOGITS, 0.5)}

    def answer_in_graph(self, reader: Reader, *inputs: Tensor) -> Answers:
        from keras_bert.tasks import span_graph

        return span_graph.answer(self, reader, *inputs)

    def answers(self, encoded: Encoded, outputs: Outputs, top_k: int = 1) -> list[Answer]:
        """Returns one `Answer` per question: the best one, with the next best in `others`, `top_k` answers in total."""
        found = [self._answers(question, top_k) for question in _best(encoded, outputs, self.max_answer_length)]
        return [dataclasses.replace(best, others=tuple(others)) for best, *others in found]

    def _answers(self, question: _Spans, top_k: int) -> list[Answer]:
        text, tokens, spans, scores, null = question
        with_null = self.null_threshold is not None or not spans
        probabilities = np.exp(log_softmax([*scores, null] if with_null else scores)).tolist()
        answers = []
        for (first, last), probability in zip(spans, probabilities):
            start, end = int(tokens.starts[first]), int(tokens.ends[last])
            answers.append(Answer(text[start:end], start, end, probability))
        if with_null:
            is_null = not spans or null - scores[0] > self.null_threshold
            answers.insert(0 if is_null else 1, Answer("", -1, -1, probabilities[-1]))
        return answers[:top_k]

    def calibrated(self, encoded: Encoded, outputs: Outputs) -> Self:
        """Returns the task with the null threshold that is best for these examples."""
        if self.null_threshold is None:
            return self
        best = list(_best(encoded, outputs, self.max_answer_length))
        always = dataclasses.replace(self, null_threshold=np.inf)
        answers = [always._answers(question, 1)[0].text for question in best]
        differences = [question.null - question.scores[0] if question.spans else np.inf for question in best]
        threshold, _ = best_null_threshold(_golds(encoded), answers, differences)
        return dataclasses.replace(self, null_threshold=float(threshold))

    def score(self, encoded: Encoded, outputs: Outputs) -> dict[str, Any]:
        """Returns `f1` and `exact_match` in percent, and for SQuAD v2.0 these scores of the answerable and unanswerable
        questions; if a right answer contains Hangul, also `korquad_f1` and `korquad_exact_match`; `loss`, the mean
        cross-entropy of starts and ends over the windows."""
        golds, answers = _golds(encoded), [answer.text for answer in self.answers(encoded, outputs)]
        losses = [-log_softmax(output[name][:len(ids)])[targets[row]] for name, targets in encoded.targets.items()
                  for row, ((ids, _), output) in enumerate(zip(encoded.rows, outputs))]
        scores = squad_scores(golds, answers)
        if any(_HANGUL.search(gold) for some in golds for gold in some):
            scores |= {f"korquad_{name}": value for name, value in korquad_scores(golds, answers).items()}
        return scores | {"loss": float(np.mean(losses))}

    def answer_of(self, row: dict[str, Any], top_k: int = 1) -> Answer:
        return Answer(row["answer"], row["start"], row["end"], row["score"])

    def exported_rows(self, encoded: Encoded, outputs: Outputs) -> list[dict[str, Any]]:
        return [{"answer": answer.text, "start": answer.start, "end": answer.end, "score": answer.score}
                for answer in self.answers(encoded, outputs)]

    def record(self, example: QuestionExample, answer: Answer) -> dict[str, Any]:
        best, *others = ({name: getattr(one, name) for name in ("text", "start", "end", "score")}
                         for one in (answer, *answer.others))
        record = {"id": example.id, "question": example.question} | best
        return record | {"others": others} if others else record

    def cells(self, example: QuestionExample, answer: Answer) -> list[str]:
        answers = [cell for one in (answer, *answer.others) for cell in (one.text, f"{one.score:.4f}")]
        return [*answers, example.question]


def _best(encoded: Encoded, outputs: Outputs, max_answer_length: int) -> Iterator[_Spans]:
    contexts, parts = encoded.decoding
    by_question: list[list] = [[] for _ in contexts]
    for (number, begin, end, first), output in zip(parts, outputs):
        starts, ends = output["start_logits"], output["end_logits"]
        by_question[number].append(((begin, end), starts[first:], ends[first:], starts[0] + ends[0]))
    for example, tokens, rows in zip(encoded.examples, contexts, by_question):
        bounds, starts, ends, nulls = zip(*rows)
        spans, scores = best_spans(starts, ends, bounds, N_BEST, max_answer_length)
        yield _Spans(example.context, tokens, spans, scores, float(np.min(nulls)))


def _golds(encoded: Encoded) -> Golds:
    return [[text for text, _ in example.answers] for example in encoded.examples]
