"""The token ids of a block of documents."""

import dataclasses
import itertools

import numpy as np

from keras_bert.data.documents import BLOCK


class WordIds:
    """Texts to token ids, in a third of the tokenizer's time: most words of a text came before.

    Args:
        tokenizer: `BertTokenizer`; what it makes of a text is what it makes of the parts between spaces.
    """

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self._forget()

    def __call__(self, texts):
        """The ids of texts, end to end, int32, and how many each has, int64 [texts]."""
        if len(self._ids) > BLOCK:  # bounds the memory
            self._forget()
        words = " ".join(texts).split(" ")
        numbers = np.fromiter(map(self._numbers.__getitem__, words), int, len(words))
        self._learn(list(itertools.islice(self._numbers, len(self._counts), None)))
        counts = self._counts[numbers]
        begins = np.cumsum(self._counts)[numbers] - counts
        places = np.repeat(begins - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
        firsts = np.cumsum([0, *(text.count(" ") + 1 for text in texts[:-1])])
        return self._ids[places], np.add.reduceat(counts, firsts)

    def _forget(self):
        self._numbers = _Numbers()
        self._ids, self._counts = np.empty(0, np.int32), np.empty(0, int)  # of all words, by their numbers

    def _learn(self, words):
        ids, counts = self.tokenizer.flat_ids(words)
        self._ids, self._counts = np.append(self._ids, ids), np.append(self._counts, counts)


class _Numbers(dict):
    """Numbers of words in the order in which they are met."""

    def __missing__(self, word):
        return self.setdefault(word, len(self))


@dataclasses.dataclass(frozen=True)
class Tokens:
    """The token ids of some documents, end to end; sentences and documents without tokens are left out.

    Args:
        ids: int32 [tokens].
        sentences: list of int, where in `ids` each sentence begins, and where the last one ends.
        documents: list of int, the first sentence of each document, and the number of sentences.
    """

    ids: np.ndarray
    sentences: list
    documents: list

    @classmethod
    def of(cls, documents, words):
        """Tokenizes documents, lists of str, by `WordIds`, a million characters at a time, which bounds the memory."""
        sentences = [sentence for document in documents for sentence in document]
        ends = np.cumsum([len(sentence) for sentence in sentences]) // BLOCK
        ids, lengths = zip(*(words([sentences[i] for i in group])
                             for _, group in itertools.groupby(range(len(sentences)), ends.__getitem__)))
        lengths = np.concatenate(lengths)
        owners = np.repeat(np.arange(len(documents)), [len(document) for document in documents])[lengths > 0]
        firsts = np.flatnonzero(np.diff(owners, prepend=-1))
        return cls(np.concatenate(ids), [0, *np.cumsum(lengths[lengths > 0]).tolist()], [*firsts.tolist(), len(owners)])
