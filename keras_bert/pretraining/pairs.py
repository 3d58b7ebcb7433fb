"""Texts and pairs of texts for pretraining from a corpus: as spans of its token ids, and as model inputs."""

import bisect
import itertools
from collections.abc import Iterator

import numpy as np

from keras_bert.pretraining.corpus import Corpus, Section
from keras_bert.text import Tokenizer

SHORT = 0.1  # fraction of the pairs that are made shorter than the limit


def pair_sentences(corpus: Corpus, section: Section, limit: int, rng: np.random.Generator
                   ) -> tuple[np.ndarray, np.ndarray]:
    """Makes pairs of texts A and B for next-sentence prediction (Devlin et al., 2018, appendix A.2;
    google-research/bert `create_pretraining_data.py`).

    Consecutive sentences of a document are collected until they reach `limit` tokens, or in one of ten cases a smaller,
    random number of tokens. They are divided into A and B after a random sentence. In half of the cases, the sentences
    of B are used for the next pair instead, and B begins with a random sentence of a random other document of the
    corpus, which must have at least two.

    Unlike Google's code, this draws the smaller number for each pair, not for each document, which may be a whole book.
    And a single sentence, e.g. at the end of a document, can only have a random B; a later pair gets its real next
    sentences instead, so that half of the pairs stay random.

    Args:
        section: the documents whose sentences become A.
        limit: target number of tokens of A and B together. They may have more, see `truncate`.

    Returns:
        (spans, labels): int64 [pairs, 4], begin and end of A and of B in `corpus.ids`; int32 [pairs], 1 for a random B.
    """
    documents = corpus.documents[section.first:section.last + 1].tolist()
    offset = documents[0]
    sentences = corpus.sentences[offset:documents[-1] + 1].tolist()
    found, owed, chance = [], 0, _chances(rng).__next__
    for owner, (first, last) in enumerate(itertools.pairwise(documents), section.first):
        first, last = first - offset, last - offset
        while first < last:
            target = 2 + int(chance() * (limit - 1)) if chance() < SHORT else limit
            end = bisect.bisect_left(sentences, sentences[first] + target, first + 1, last)
            cut = first + 1 + int(chance() * (end - first - 1))
            wanted = chance() < 0.5
            is_random = end - first == 1 or wanted and not owed
            owed += is_random - wanted
            found.append((sentences[first], sentences[cut], sentences[cut], sentences[end], is_random, target, owner))
            first = cut if is_random else end
    *bounds, labels, targets, owners = np.array(found, np.int64).T
    spans, random = np.stack(bounds, 1), labels == 1
    needed = (targets - (spans[:, 1] - spans[:, 0]))[random]
    spans[random, 2:] = _of_other_documents(corpus, owners[random], needed, rng)
    return spans, labels.astype(np.int32)


def _of_other_documents(corpus: Corpus, documents: np.ndarray, needed: np.ndarray, rng: np.random.Generator
                        ) -> np.ndarray:
    """Returns one span of sentences per document, int64 [documents, 2]: from a random sentence of a random other
    document on, as many as have `needed` tokens, or as there are."""
    count = len(corpus.documents) - 1
    other = (documents + rng.integers(1, count, len(documents))) % count
    begin, stop = rng.integers(corpus.documents[other], corpus.documents[other + 1]), corpus.documents[other + 1]
    end = np.clip(np.searchsorted(corpus.sentences, corpus.sentences[begin] + needed), begin + 1, stop)
    return np.stack([corpus.sentences[begin], corpus.sentences[end]], axis=1)


def _chances(rng: np.random.Generator) -> Iterator[float]:
    """Yields random floats from 0 to 1 without end, in a fifth of the time of calling `rng.random()` for each."""
    while True:
        yield from rng.random(1024).tolist()


def truncate(spans: np.ndarray, limit: int, rng: np.random.Generator) -> np.ndarray:
    """Removes tokens one by one from the longer of A and B, at random from its front or its end, until A and B together
    have at most `limit` tokens. `spans` and the result: int64 [pairs, 4], begin and end of A and of B."""
    begin_a, end_a, begin_b, end_b = spans.T
    length_a, length_b = end_a - begin_a, end_b - begin_b
    kept_a = np.minimum(length_a, np.maximum(limit - length_b, (limit + 1) // 2))  # equally long: first from B
    kept_b = np.minimum(length_b, limit - kept_a)
    begin_a = begin_a + rng.binomial(length_a - kept_a, 0.5)
    begin_b = begin_b + rng.binomial(length_b - kept_b, 0.5)
    return np.stack([begin_a, begin_a + kept_a, begin_b, begin_b + kept_b], axis=1)


def full_sentences(corpus: Corpus, limit: int, sep_id: int) -> tuple[np.ndarray, np.ndarray]:
    """Fills texts with whole sentences for training without next-sentence prediction.

    A text has as many consecutive sentences as fit. It may continue in the next document, with [SEP] in between
    (FULL-SENTENCES of Liu et al., 2019, section 4.2). A sentence longer than `limit` tokens is divided.

    Returns:
        (ids, spans): int32 [tokens and separators]; int64 [texts, 4] as from `pair_sentences`, with empty B.
    """
    documents = corpus.documents[1:]
    sentences = corpus.sentences.copy()
    ids = np.insert(corpus.ids, sentences[documents], sep_id)
    sentences += np.searchsorted(documents, np.arange(len(sentences)), side="right")
    parts = [part for begin, end in itertools.pairwise(sentences.tolist()) for part in range(begin, end, limit)]
    parts.append(len(ids))
    ends = np.array(parts[1:], int)
    stops = (ends - (ids[ends - 1] == sep_id)).tolist()  # a [SEP] at the end of a text is dropped
    cuts = [0]
    while cuts[-1] < len(stops):
        cuts.append(bisect.bisect_right(stops, parts[cuts[-1]] + limit))
    spans = [(parts[cut], stops[after - 1]) for cut, after in itertools.pairwise(cuts)]
    begin, end = np.array(spans, np.int64).reshape(-1, 2).T
    return ids, np.stack([begin, end, end, end], axis=1)


def pack_spans(ids: np.ndarray, spans: np.ndarray, tokenizer: Tokenizer, length: int) -> dict[str, np.ndarray]:
    """Packs spans of `ids`, int64 [examples, 4], begin and end of A and of B, into inputs: [CLS] A [SEP] B [SEP], or
    [CLS] A [SEP] if B is empty. Returns `input_word_ids`, `input_mask`, `input_type_ids`, int32 [examples, length]."""
    begin_a, end_a, begin_b, end_b = (column[:, None] for column in spans.T)
    position = np.arange(length)
    middle = end_a - begin_a + 1  # the position of the first [SEP]
    second = middle + tokenizer.separators
    last = np.where(end_b > begin_b, second + end_b - begin_b, middle)
    source = np.where(position < middle, begin_a + position - 1, begin_b + position - second)
    word_ids = ids.take(source, mode="clip")
    word_ids[:, 0] = tokenizer.cls_id
    word_ids[(position >= middle) & (position < second) | (position == last)] = tokenizer.sep_id
    word_ids[position > last] = tokenizer.pad_id
    return {"input_word_ids": word_ids, "input_mask": (position <= last).astype(np.int32),
            "input_type_ids": (tokenizer.has_segments & (position >= second) & (position <= last)).astype(np.int32)}
