"""`keras-bert export preprocessor`."""

import itertools
import warnings
from typing import Literal

from keras_bert.arguments import Count, Normalization
from keras_bert.commands.tokenizers import find_tokenizer
from keras_bert.errors import InputWarning
from keras_bert.files.atomic import check_free

EXAMPLE = "keras-bert export preprocessor --vocab=vocab.txt --output=preprocessor"


def run(vocab: str, output: str, lower_case: bool | None = None, strip_accents: bool | None = None,
        split_cjk: bool | None = None, normalization: Normalization | None = None, segments: bool | None = None,
        max_length: Count = 128, truncator: Literal["round_robin", "waterfall"] = "round_robin",
        sample: str | None = None, overwrite: bool = False) -> None:
    """Export a tokenizer as a SavedModel that takes strings.

    Args:
        vocab: vocab.txt, a folder with the files of a tokenizer, or the name of a model, see keras-bert presets.
        output: SavedModel folder to write.
        lower_case: With a vocab.txt: lower-case the texts, for uncased models. Default: if the vocabulary has no
            capital letters.
        strip_accents: With a vocab.txt: decompose the texts and remove accents. Default: as lower_case.
        split_cjk: With a vocab.txt: make each CJK ideograph a word. Default: true.
        normalization: With a vocab.txt: NFC composes the Hangul syllables that strip_accents decomposes. Default: if
            the vocabulary spells Korean in syllables.
        segments: With a vocab.txt: number the texts of an input in its type ids. Default: true; off for encoders with
            one segment type: RoBERTa, DistilBERT.
        max_length: Length in tokens to which the root object pads and truncates.
        truncator: How multiple texts share the length: round_robin gives each one token in turn, waterfall fills the
            first texts first.
        sample: File with one text per line; print a warning if the vocabulary does not suit its first
            1,000 lines.
        overwrite: Replace the output.
    """
    check_free(output, overwrite, (vocab, sample))
    from keras_bert.export import export_preprocessor
    from keras_bert.text.coverage import Coverage

    tokenizer = find_tokenizer(vocab, lower_case=lower_case, strip_accents=strip_accents, split_cjk=split_cjk,
                               normalization=normalization, has_segments=segments)
    if sample is not None:
        coverage = Coverage(tokenizer)
        with open(sample, encoding="utf-8", errors="replace") as file:
            coverage.lengths(itertools.islice(file, 1000))
        for problem in coverage.problems():
            warnings.warn(f"{sample}: {problem}", InputWarning, stacklevel=2)
    export_preprocessor(tokenizer, output, max_length=max_length, truncator=truncator, overwrite=overwrite)
    print(output)
