"""`keras-bert make-pretraining-data`."""

from typing import Literal

from keras_bert.arguments import Count, Normalization, Seed
from keras_bert.commands.tokenizers import find_tokenizer
from keras_bert.errors import InputError
from keras_bert.terminal import ProgressLine, stoppable

EXAMPLE = "keras-bert make-pretraining-data --input='texts/*.txt' --vocab=vocab.txt --output=examples"


def run(input: list[str], vocab: str, output: str, text_column: str = "text", split_sentences: bool = False,
        lower_case: bool | None = None, strip_accents: bool | None = None, split_cjk: bool | None = None,
        normalization: Normalization | None = None, max_length: int = 128, max_predictions_per_seq: int | None = None,
        next_sentence: bool = True, masking: Literal["static", "dynamic"] = "static", whole_word_mask: bool = False,
        dupe_factor: int | None = None, seed: Seed = 0, shards: int = 10, processes: Count | None = None,
        beam: bool = False, beam_args: list[str] | None = None, overwrite: bool = False) -> None:
    """Make masked, paired examples for pretraining from text.

    Args:
        input: UTF-8 files, globs allowed: text with one sentence per line and a blank line between documents; .jsonl or
            .parquet with one document per row.
        vocab: vocab.txt, a folder with the files of a tokenizer, or the name of a model, see keras-bert presets.
        output: Folder to write.
        text_column: Key or column of the text in .jsonl and .parquet files.
        split_sentences: Split lines after . ! ? … before white space, and after 。 ！ ？.
        lower_case: With a vocab.txt: lower-case the texts. Default: if the vocabulary has no capital letters.
        strip_accents: With a vocab.txt: decompose the texts and remove accents. Default: as lower_case.
        split_cjk: With a vocab.txt: make each CJK ideograph a word. Default: true.
        normalization: With a vocab.txt: NFC composes the Hangul syllables that strip_accents decomposes. Default: if
            the vocabulary spells Korean in syllables.
        max_length: Tokens per example.
        max_predictions_per_seq: Maximum number of masked tokens per example. Default: 15% of max_length, rounded up.
        next_sentence: Make pairs, half of them with a random second text; otherwise fill the examples with whole
            sentences.
        masking: static masks the tokens now; with dynamic, pretrain masks other tokens at each step.
        whole_word_mask: Mask all tokens of a word or none.
        dupe_factor: How often to use the texts, each time paired and masked differently. Default: 10, or 1 with
            --masking=dynamic.
        seed: The same seed gives the same examples.
        shards: Number of TFRecord files.
        processes: Worker processes. Default: one per core.
        beam: Run as an Apache Beam pipeline: the same examples, in another order.
        beam_args: Flags of the pipeline: --runner=FlinkRunner,--parallelism=8.
        overwrite: Replace the output.
    """
    from keras_bert.files.paths import find_texts
    from keras_bert.pretraining.examples import PretrainingSettings, make_pretraining_data

    if beam_args and not beam:
        raise InputError("--beam_args needs --beam")
    settings = PretrainingSettings(
        max_length, max_predictions_per_seq, next_sentence, masking, whole_word_mask, dupe_factor, seed)
    tokenizer = find_tokenizer(vocab, lower_case=lower_case, strip_accents=strip_accents, split_cjk=split_cjk,
                               normalization=normalization)
    with stoppable("stopped; nothing was written"), ProgressLine("examples") as progress:
        made = make_pretraining_data(
            find_texts(input), tokenizer, output, settings, text_column=text_column, split_sentences=split_sentences,
            shards=shards, processes=processes, beam_args=(beam_args or []) if beam else None, overwrite=overwrite,
            progress=progress)
    print(f"{output}: " + ", ".join(f"{count} {name}" for name, count in made["counts"].items()))
