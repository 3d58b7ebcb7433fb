"""The sentences of a block to pairs of texts, as spans of its token ids."""

import bisect
import itertools

import numpy as np

SHORT = 0.1  # share of the pairs that are made shorter than fits


def pair_sentences(tokens, limit, rng):
    """Pairs of texts A and B for the prediction of next sentences (Devlin et al., 2018, appendix A.2;
    google-research/bert `create_pretraining_data.py`).

    Consecutive sentences of a document are gathered until they reach `limit` tokens, or in one case of ten fewer, a
    random number of them; a random cut makes them A and B. In half of the cases B is given back and comes from a random
    place of another document, or of the same where there is no other.

    As there, but for two things. The fewer tokens are drawn for each pair, not for each document, which may be a whole
    book. And a lone sentence, at the end of a document say, can only have a random B: another pair makes up for it, so
    that half of the pairs stay random.

    Args:
        tokens: `Tokens`.
        limit: tokens of A and B together; they may have more, see `truncate`.
        rng: `numpy.random.Generator`.

    Returns:
        (spans, labels): int64 [pairs, 4], begin and end of A and of B in `tokens.ids`; int32 [pairs], 1 where B is
        random.
    """
    sentences, spans, labels, owed = tokens.sentences, [], [], 0
    count, chance = len(tokens.documents) - 1, _chances(rng).__next__
    for document, (first, last) in enumerate(itertools.pairwise(tokens.documents)):
        while first < last:
            target = _below(chance(), limit - 1) + 2 if chance() < SHORT else limit
            end = bisect.bisect_left(sentences, sentences[first] + target, first + 1, last)
            cut = first + 1 + _below(chance(), end - first - 1)
            wanted = chance() < 0.5
            is_random = end - first == 1 or wanted and not owed
            owed += is_random - wanted
            if is_random:
                other = (document + 1 + _below(chance(), count - 1)) % count
                begin, stop = tokens.documents[other:other + 2]
                begin += _below(chance(), stop - begin)
                needed = target - (sentences[cut] - sentences[first])
                stop = bisect.bisect_left(sentences, sentences[begin] + needed, begin + 1, stop)
            else:
                begin, stop = cut, end
            spans.append((sentences[first], sentences[cut], sentences[begin], sentences[stop]))
            labels.append(is_random)
            first = cut if is_random else end
    return np.array(spans, np.int64).reshape(-1, 4), np.array(labels, np.int32)


def _chances(rng):
    """Random floats from 0 to 1, without end: in a fifth of the time that `rng.random()` takes for each."""
    while True:
        yield from rng.random(1024).tolist()


def _below(chance, limit):
    """A random int under `limit`, 0 if there is none."""
    return int(chance * limit)


def truncate(spans, limit, rng):
    """Cuts tokens off the longer of A and B, one after the other, each from its front or its end at random, until both
    have `limit` at most.

    Args:
        spans: int64 [pairs, 4], begin and end of A and of B.

    Returns:
        spans, as `spans`.
    """
    begin_a, end_a, begin_b, end_b = spans.T
    longer = (end_a - begin_a) - (end_b - begin_b)
    excess = np.maximum(end_a - begin_a + end_b - begin_b - limit, 0)
    shared = np.maximum(excess - np.abs(longer), 0)  # cut in turn once both are equally long, first off B
    alone = excess - shared
    cut_a = np.where(longer > 0, alone, 0) + shared // 2
    cut_b = np.where(longer > 0, 0, alone) + shared - shared // 2
    front_a, front_b = rng.binomial(cut_a, 0.5), rng.binomial(cut_b, 0.5)
    return np.stack([begin_a + front_a, end_a - cut_a + front_a, begin_b + front_b, end_b - cut_b + front_b], axis=1)


def pack_sentences(tokens, limit, sep_id):
    """Whole sentences for training without next sentences, as many in a row as fit, also of several documents with
    [SEP] between them (FULL-SENTENCES of Liu et al., 2019, section 4.2). A sentence longer than `limit` is cut.

    Args:
        tokens: `Tokens`.
        limit: tokens of a text.

    Returns:
        (ids, spans): int32 [tokens and separators]; int64 [texts, 4] as of `pair_sentences`, each B empty.
    """
    documents = np.array(tokens.documents[1:])
    sentences = np.array(tokens.sentences)
    ids = np.insert(tokens.ids, sentences[documents], sep_id)
    sentences += np.searchsorted(documents, np.arange(len(sentences)), side="right")
    parts = [part for begin, end in itertools.pairwise(sentences.tolist()) for part in range(begin, end, limit)]
    parts.append(len(ids))
    ends = np.array(parts[1:], int)
    stops = (ends - (ids[ends - 1] == sep_id)).tolist()  # [SEP] is between texts
    cuts = [0]
    while cuts[-1] < len(stops):
        cuts.append(bisect.bisect_right(stops, parts[cuts[-1]] + limit))
    spans = [(parts[cut], stops[after - 1]) for cut, after in itertools.pairwise(cuts)]
    begin, end = np.array(spans, np.int64).reshape(-1, 2).T
    return ids, np.stack([begin, end, end, end], axis=1)


def join(ids, spans, tokenizer, length):
    """[CLS] A [SEP] B [SEP], or [CLS] A [SEP] where B is empty.

    Args:
        ids: int32 [tokens].
        spans: int64 [examples, 4], begin and end of A and of B in `ids`.
        length: the padded length.

    Returns:
        dict of int32 [examples, length]: `input_word_ids`, `input_mask`, `input_type_ids`.
    """
    begin_a, end_a, begin_b, end_b = (column[:, None] for column in spans.T)
    place = np.arange(length)
    middle = end_a - begin_a + 1  # the place of the first [SEP]
    last = middle + np.where(end_b > begin_b, end_b - begin_b + 1, 0)
    source = np.where(place < middle, begin_a + place - 1, begin_b + place - middle - 1)
    joined = ids.take(source, mode="clip")
    joined[:, 0] = tokenizer.cls_id
    joined[(place == middle) | (place == last)] = tokenizer.sep_id
    joined[place > last] = tokenizer.pad_id
    return {"input_word_ids": joined, "input_mask": (place <= last).astype(np.int32),
            "input_type_ids": ((place > middle) & (place <= last)).astype(np.int32)}
