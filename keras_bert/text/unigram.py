"""`UnigramTokenizer`, whose vocabulary is a unigram model of SentencePiece."""

import functools
import hashlib
import itertools
import os
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Self

import numpy as np
import tokenizers
from tokenizers import decoders, normalizers, pre_tokenizers, processors

from keras_bert.arguments import Path
from keras_bert.errors import InputError
from keras_bert.files.json_files import write_json
from keras_bert.text.charsmap import META, STAND_INS, Charsmap
from keras_bert.text.packing import Side
from keras_bert.text.tokenizer import Tokenizer
from keras_bert.text.tokenizer_files import CONFIG, SPECIAL, TOKENIZER
from keras_bert.text.unigram_files import SPACES

_JOINED = 1e-3  # what a token scores above the tokens that it joins, for each border, so that it replaces them
UNKNOWN_PENALTY = 10.0  # what an unknown character scores below the worst piece


class UnigramTokenizer(Tokenizer):
    """The tokenizer of a unigram model of SentencePiece (Kudo, 2018), as multilingual-e5, XLM-R and KoBERT have it.
    Each word gets the pieces whose scores have the largest sum.

    Texts are normalized as in sentencepiece, see `Charsmap`. The pieces are those of Hugging Face's `tokenizers`: it
    adds scores in float64, for each word, and of equal sums, the one whose last piece is longer wins. sentencepiece
    adds in float32, for the whole text, so that some texts with equal sums differ, `....` for example.

    Args:
        pieces: the pieces, in the order of their ids.
        scores: their scores, logarithms of probabilities.
        special: the names of the tokens for [PAD], [UNK], [CLS], [SEP] and [MASK]; the last may be missing.
        hidden: ids of other pieces that no text has.
        rules: the normalization.
        max_length: maximum number of ids of an input, unless a call gives another. If None, 128.
        has_segments: if False, both texts of a pair have id 0.
        truncation_side: the end at which a long text is cut: `right`, or `left`, which keeps its last tokens.
        separators: number of [SEP] between the texts of a pair: 2 in XLM-R.
    """

    files = TOKENIZER, CONFIG
    can_normalize = False
    max_split = 1.0  # words include punctuation, so the share says little
    rules: Charsmap

    def __init__(self, pieces: list[str], scores: Sequence[float], special: Sequence[str], hidden: Collection[int] = (),
                 rules: Charsmap | None = None, max_length: int | None = None, has_segments: bool = False,
                 truncation_side: Side = "right", separators: int = 2) -> None:
        ids = {piece: index for index, piece in enumerate(pieces)}
        self.hidden = frozenset({ids[name] for name in special if name in ids} | set(hidden))
        self.is_special = np.isin(np.arange(len(pieces)), [*self.hidden])
        self.scores = np.where(self.is_special, 0.0, np.asarray(scores, np.float64))  # 0: none changes the lowest one
        # No word has a space, so these are not found.
        self.forms = [f" {index}" if index in self.hidden else piece.translate(STAND_INS)
                      for index, piece in enumerate(pieces)]
        model = tokenizers.models.Unigram([*zip(self.forms, self.scores.tolist())], ids[special[1]], False)
        self.separators = separators
        super().__init__(pieces, ids, special, Charsmap() if rules is None else rules, model, max_length, has_segments,
                         truncation_side)

    def with_normalization(self, normalization: str | None) -> Self:
        if normalization is not None:
            raise InputError(f"normalization must be left out for a vocabulary of SentencePiece, whose own rules "
                             f"normalize texts; got {normalization}")
        return self

    def settings(self) -> dict[str, Any]:
        digests = {"scores": self.scores.tobytes(), "charsmap": self.rules.data}
        return super().settings() | {"splits_white_space": self.rules.splits_white_space} | {
            name: hashlib.sha256(data).hexdigest() for name, data in digests.items()}

    @functools.cached_property
    def starts_word(self) -> np.ndarray:  # type: ignore[override]  # computed when needed, as the others
        return np.array([piece.startswith(META) for piece in self.vocabulary]) | self.is_special

    @functools.cached_property
    def _lengths(self) -> np.ndarray:
        """The number of characters of each piece, int64 [vocabulary]."""
        return np.array([len(piece) for piece in self.vocabulary])

    @property
    def is_character(self) -> np.ndarray:  # type: ignore[override]
        return self._lengths - self.starts_word <= 1

    def restricted(self, ids: list[int]) -> "UnigramTokenizer":
        return self._with([self.vocabulary[index] for index in ids], self.scores[ids].tolist(),
                          [row for row, index in enumerate(ids) if index in self.hidden])

    def extended(self, tokens: dict[str, list[int]]) -> "UnigramTokenizer":
        lowest = self.scores.min()
        scores = [self.scores[ids].sum() + _JOINED * (len(ids) - 1) if ids else lowest for ids in tokens.values()]
        return self._with([*self.vocabulary, *tokens], [*self.scores.tolist(), *scores], self.hidden)

    def spellings(self, tokens: Iterable[str]) -> list[list[int]]:
        own, tokens = {piece: index for index, piece in enumerate(self.vocabulary)}, [*tokens]
        spelled = self.ids_of_words([token.translate(STAND_INS) for token in tokens])
        return [[own[token]] if token in own else [] if self.unk_id in ids else ids
                for token, ids in zip(tokens, spelled)]

    def _with(self, pieces: list[str], scores: list[float], hidden: Collection[int]) -> "UnigramTokenizer":
        special = [self.vocabulary[index] for index in (self.pad_id, self.unk_id, self.cls_id, self.sep_id)]
        mask = "" if self.mask_id is None else self.vocabulary[self.mask_id]
        return UnigramTokenizer(pieces, scores, [*special, mask], hidden, self.rules, self.max_length,
                                self.has_segments, self.truncation_side, self.separators)

    def spell(self, words: list[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        of_words = self.ids_of_words(words)
        counts = np.array([len(ids) for ids in of_words], np.int64)
        ids = np.fromiter(itertools.chain.from_iterable(of_words), np.int32, counts.sum())
        lengths, firsts = self._lengths[ids], np.cumsum(counts) - counts
        for number in np.unique(np.searchsorted(firsts, np.flatnonzero(ids == self.unk_id), "right") - 1).tolist():
            spans = self.subwords.encode(words[number]).offsets  # of unknown characters, several may be one token
            lengths[firsts[number]:firsts[number] + counts[number]] = [end - start for start, end in spans]
        return ids, counts, lengths

    def save(self, folder: Path) -> None:
        self._save(folder, self.max_length)

    def save_for_transformers(self, folder: Path, length: int) -> None:
        self._save(folder, length)

    def _save(self, folder: Path, length: int | None) -> None:
        """Writes `tokenizer.json`, as XLM-R's, and `tokenizer_config.json`. `Precompiled` of `tokenizers` applies the
        rules to each grapheme, so that transformers gives other ids for some texts, above all in NFD."""
        special = {key: self.vocabulary[index] for key, index in zip(SPECIAL, (
            self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id)) if index is not None}
        cls, sep, second = special["cls_token"], special["sep_token"], int(self.has_segments)
        fast = tokenizers.Tokenizer(tokenizers.models.Unigram(
            [*zip(self.vocabulary, self.scores.tolist())], self.unk_id, False))
        steps = [normalizers.Precompiled(self.rules.data)] if self.rules.data else []
        fast.normalizer = normalizers.Sequence([*steps, *(normalizers.Replace(tokenizers.Regex(pattern), space)
                                                          for pattern, space in SPACES.items())])
        split = [pre_tokenizers.WhitespaceSplit()] if self.rules.splits_white_space else []
        fast.pre_tokenizer = pre_tokenizers.Sequence([*split, pre_tokenizers.Metaspace()])
        fast.decoder = decoders.Metaspace()
        between = " ".join([f"{sep}:0"] * self.separators)
        fast.post_processor = processors.TemplateProcessing(
            single=f"{cls}:0 $A:0 {sep}:0", pair=f"{cls}:0 $A:0 {between} $B:{second} {sep}:{second}",
            special_tokens=[(cls, self.cls_id), (sep, self.sep_id)])
        fast.add_special_tokens([tokenizers.AddedToken(self.vocabulary[index], normalized=False, special=True)
                                 for index in sorted(self.hidden)])
        if length is not None:
            fast.enable_truncation(length, direction=self.truncation_side)
        fast.enable_padding(pad_id=self.pad_id, pad_token=special["pad_token"])
        fast.save(os.path.join(folder, TOKENIZER), pretty=False)
        names = ["input_ids", *["token_type_ids"] * self.has_segments, "attention_mask"]
        settings = {"tokenizer_class": "PreTrainedTokenizerFast", "truncation_side": self.truncation_side,
                    "model_input_names": names} | special
        write_json(os.path.join(folder, CONFIG), settings | ({} if length is None else {"model_max_length": length}))

    def graph(self) -> Any:
        from keras_bert.text.graph_unigram import GraphUnigram

        return GraphUnigram(self)
