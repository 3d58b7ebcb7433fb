"""Answers to questions, each a span of a context."""

import dataclasses
import re

import keras
import numpy as np

from keras_bert.data import QuestionExample, read_questions
from keras_bert.errors import InputError
from keras_bert.models import BertSpanLabeler
from keras_bert.tasks.base import Encoded, Task, log_softmax
from keras_bert.tasks.pieces import pieces_of
from keras_bert.tasks.spans import best_spans, null_score, probabilities
from keras_bert.tasks.squad import best_null_threshold, korquad_scores, squad_scores
from keras_bert.tasks.windows import target, tokens_of, windows

MAX_QUERY_LENGTH, MAX_ANSWER_LENGTH, N_BEST = 64, 30, 20  # tokens, tokens, spans; google-research/bert `run_squad.py`
_HANGUL = re.compile("[가-힣]")


@dataclasses.dataclass(frozen=True)
class Answer:
    """An answer, `context[start:end]` in characters (code points), and its probability among the best spans. Where the
    context does not answer the question, "" and -1. `others` are the next best, if they were asked for."""

    text: str
    start: int
    end: int
    score: float
    others: tuple = ()


@dataclasses.dataclass(frozen=True)
class Span(Task):
    """Extractive question answering: SQuAD v1.1, v2.0 with the null answer, KorQuAD (Devlin et al., 2018, sections 4.2
    and 4.3). A long context is read by windows, and the best span of all is taken.

    Args:
        doc_stride: tokens from the start of one window to that of the next.
        null_threshold: how far the score of no answer must be above that of the best one; None where each question
            has an answer.
    """

    doc_stride: int = 128
    null_threshold: float | None = None

    name, main, columns, length, several, unused = "span", "f1", ("question", "context"), 384, True, ("pooler",)

    @classmethod
    def read(cls, path, label="label", **_):
        examples = list(read_questions(path))
        for example in examples:
            if label is not None and not example.answers and not example.impossible:
                raise InputError(f"{path}: {example.place}: there is no answer")
        return examples

    @classmethod
    def learn(cls, path, examples, **settings):
        if settings["max_length"] < MAX_QUERY_LENGTH + 4:
            raise InputError(f"max_length must be at least {MAX_QUERY_LENGTH + 4}, a question and a token; "
                             f"got {settings['max_length']}")
        nulls = any(example.impossible for example in examples)
        return cls(null_threshold=0.0 if nulls else None, **settings)

    def check(self, path, examples, out_of_scope=None):
        if self.null_threshold is None and any(example.impossible for example in examples):
            raise InputError(f"{path}: must have an answer to each question, as the training file has")

    def head(self, bert, dropout):
        return BertSpanLabeler(bert)

    def loss(self):
        cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        logits = ("start_logits", "end_logits")
        return {"loss": {name: cross_entropy for name in logits}, "loss_weights": {name: 0.5 for name in logits}}

    def example(self, question, context):
        return QuestionExample(None, question, context, [], False, None)

    def encode(self, examples, tokenizer):
        questions = tokenizer.ids([example.question for example in examples])
        contexts = _shared(pieces_of, [example.context for example in examples], tokenizer)
        rows, parts, targets = [], [], []
        for number, (example, question, context) in enumerate(zip(examples, questions, contexts)):
            head = [tokenizer.cls_id, *question[:MAX_QUERY_LENGTH], tokenizer.sep_id]
            answer = _first_answer(example, context)
            for begin, end in windows(len(context.ids), self.max_length - len(head) - 1, self.doc_stride):
                rows.append(([*head, *context.ids[begin:end].tolist(), tokenizer.sep_id], len(head)))
                parts.append((number, begin, end))
                places = target((begin, end), answer)
                targets.append([len(head) + place for place in places] if places else [0, 0])
        starts, ends = np.array(targets, np.int32).reshape(-1, 2).T
        return Encoded(examples, rows, {"start_logits": starts, "end_logits": ends}, places=(contexts, parts))

    def answers(self, encoded, outputs, top_k=1):
        """An `Answer` a question, of `top_k` the best."""
        found = [self._answers(*question, top_k) for question in self._best(encoded, outputs)]
        return [dataclasses.replace(best, others=tuple(others)) for best, *others in found]

    def _best(self, encoded, outputs):
        """For each question its context, the pieces of that, the best spans, their scores and the null score."""
        contexts, parts = encoded.places
        by_question = [[] for _ in contexts]
        for (number, begin, end), (_, first), output in zip(parts, encoded.rows, outputs):
            starts, ends = output["start_logits"], output["end_logits"]
            by_question[number].append(((begin, end), starts[first:], ends[first:], starts[0], ends[0]))
        for example, context, some in zip(encoded.examples, contexts, by_question):
            places, starts, ends, *of_cls = zip(*some)
            spans, scores = best_spans(starts, ends, places, N_BEST, MAX_ANSWER_LENGTH)
            yield example.context, context, spans, scores, null_score(*map(np.array, of_cls))

    def _answers(self, text, pieces, spans, scores, null, top_k):
        with_null = self.null_threshold is not None or not spans
        shares = probabilities(scores, null if with_null else None).tolist()
        answers = []
        for (first, last), share in zip(spans, shares):
            start, end = int(pieces.starts[first]), int(pieces.ends[last])
            answers.append(Answer(text[start:end], start, end, share))
        if with_null:
            is_null = not spans or null - scores[0] > self.null_threshold
            answers.insert(0 if is_null else 1, Answer("", -1, -1, shares[-1]))
        return answers[:top_k]

    def tuned(self, encoded, outputs):
        """The task with the null threshold that is best on these examples."""
        if self.null_threshold is None:
            return self
        best = list(self._best(encoded, outputs))
        always = dataclasses.replace(self, null_threshold=np.inf)
        answers = [always._answers(*question, 1)[0].text for question in best]
        differences = [null - scores[0] if len(scores) else np.inf for *_, scores, null in best]
        threshold, _ = best_null_threshold(_golds(encoded), answers, differences)
        return dataclasses.replace(self, null_threshold=float(threshold))

    def score(self, encoded, outputs):
        """`f1` and `exact_match` in percent, of SQuAD v2.0 with their parts; of Korean texts `korquad_f1` and
        `korquad_exact_match` too; `loss`, the mean cross-entropy of starts and ends over the windows."""
        golds, answers = _golds(encoded), [answer.text for answer in self.answers(encoded, outputs)]
        losses = [-log_softmax(output[name][:len(ids)])[place[row]] for name, place in encoded.targets.items()
                  for row, ((ids, _), output) in enumerate(zip(encoded.rows, outputs))]
        scores = squad_scores(golds, answers)
        if any(_HANGUL.search(gold) for some in golds for gold in some):
            scores |= {f"korquad_{name}": value for name, value in korquad_scores(golds, answers).items()}
        return scores | {"loss": float(np.mean(losses))}

    def record(self, example, answer):
        best, *others = ({name: getattr(one, name) for name in ("text", "start", "end", "score")}
                         for one in (answer, *answer.others))
        record = {"id": example.id, "question": example.question} | best
        return record | {"others": others} if others else record

    def line(self, example, answer):
        return "\t".join([answer.text, f"{answer.score:.4f}", example.question])


def _shared(function, texts, tokenizer):
    """function(texts), each text that occurs again done once: many questions are asked of one context."""
    different = list(dict.fromkeys(texts))
    found = dict(zip(different, function(different, tokenizer)))
    return [found[text] for text in texts]


def _first_answer(example, pieces):
    """The first and the last piece of the first right answer, or None."""
    if not example.answers:
        return None
    text, start = example.answers[0]
    return tokens_of(pieces.starts, pieces.ends, start, start + len(text))


def _golds(encoded):
    return [[text for text, _ in example.answers] for example in encoded.examples]
