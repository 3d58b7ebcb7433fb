"""`keras-bert make-pretraining-data`: makes masked, paired examples from texts."""

import contextlib
import os
import signal
import time

from absl import flags

from keras_bert.commands import casing
from keras_bert.errors import InputError, Stopped
from keras_bert.terminal import StatusLine

REQUIRED = ("input", "vocab", "output")


def define(values):
    flags.DEFINE_list("input", None, "UTF-8 files, globs allowed: text with a sentence a line and a blank line between "
                      "documents; .jsonl or .parquet with a document a row.", flag_values=values)
    flags.DEFINE_string("vocab", None, "vocab.txt, or a folder with vocab.txt and tokenizer_config.json.",
                        flag_values=values)
    flags.DEFINE_string("output", None, "Folder to write.", flag_values=values)
    flags.DEFINE_string("text", "text", "Key or column of the text in .jsonl and .parquet files.", flag_values=values)
    flags.DEFINE_bool("split_sentences", False, "Split lines after . ! ? … before white space, and after 。 ！ ？.",
                      flag_values=values)
    casing.define(values)
    flags.DEFINE_integer("max_seq_length", 128, "Tokens of an example.", flag_values=values)
    flags.DEFINE_integer("max_predictions_per_seq", None, "Masked tokens of an example at most; 15% of max_seq_length, "
                         "rounded up, where not given.", flag_values=values)
    flags.DEFINE_bool("next_sentence", True, "Make pairs, half of them with a random second text; else pack whole "
                      "sentences to full length.", flag_values=values)
    flags.DEFINE_enum("masking", "static", ["static", "dynamic"], "Mask now, or leave it to who reads the examples, "
                      "anew each time.", flag_values=values)
    flags.DEFINE_bool("whole_word_mask", False, "Mask all pieces of a word or none.", flag_values=values)
    flags.DEFINE_integer("dupe_factor", None, "How often the texts are used, each time paired and masked anew; where "
                         "not given, 10, or 1 with --masking=dynamic.", flag_values=values)
    flags.DEFINE_integer("seed", 0, "The same seed gives the same examples.", flag_values=values)
    flags.DEFINE_integer("shards", 10, "TFRecord files to write.", flag_values=values)
    flags.DEFINE_integer("processes", None, "Worker processes; one a core where not given.", lower_bound=1,
                         flag_values=values)
    flags.DEFINE_bool("beam", False, "Run as an Apache Beam pipeline, with the same examples in another order.",
                      flag_values=values)
    flags.DEFINE_list("beam_args", [], "The pipeline's own flags: --runner=FlinkRunner,--parallelism=8.",
                      flag_values=values)
    flags.DEFINE_bool("overwrite", False, "Replace the output.", flag_values=values)


def run(values, _):
    from keras_bert.data.pretraining import PretrainingSettings, make_pretraining_data
    from keras_bert.text.learning import find_texts

    if values.beam_args and not values.beam:
        raise InputError("--beam_args needs --beam")
    settings = PretrainingSettings(
        values.max_seq_length, values.max_predictions_per_seq, values.next_sentence, values.masking,
        values.whole_word_mask, values.dupe_factor, values.seed)
    with _stoppable(), _Progress() as progress:
        made = make_pretraining_data(
            find_texts(values.input), _tokenizer(values), values.output, settings, text=values.text,
            split_sentences=values.split_sentences, shards=values.shards, processes=values.processes,
            beam_args=values.beam_args if values.beam else None, overwrite=values.overwrite, progress=progress)
    print(f"{values.output}: " + ", ".join(f"{count} {name}" for name, count in made["counts"].items()))


def _tokenizer(values):
    from keras_bert.text import BertTokenizer

    if not os.path.isdir(values.vocab):
        return casing.tokenizer(values)
    if given := [f"--{name}" for name in casing.NAMES if values[name].present]:
        raise InputError(f"{', '.join(given)}: only for a vocab.txt; {values.vocab} says by itself how to read texts")
    return BertTokenizer.from_folder(values.vocab)


@contextlib.contextmanager
def _stoppable():
    """Makes SIGTERM an exception, which leaves nothing behind."""
    def stop(number, _):
        raise Stopped(number, "stopped; nothing was written")

    previous = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


class _Progress(StatusLine):
    """Shows the share of the texts that is done, examples a second and time left."""

    def __enter__(self):
        self.started = time.monotonic()
        return self

    def __exit__(self, *_):
        self.clear()

    def __call__(self, share, examples):
        if not self.is_due():
            return
        seconds, filled = time.monotonic() - self.started, round(20 * share)
        left = round(seconds * (1 - share) / share)
        self.show(f"[{'=' * filled}{' ' * (20 - filled)}] {share:.0%}  {examples} examples  "
                  f"{examples / seconds:.0f} examples/s  {left // 60}:{left % 60:02d} left")
