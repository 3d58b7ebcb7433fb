"""The layouts of published files of labelled texts."""

import dataclasses

from keras_bert.errors import InputError


@dataclasses.dataclass(frozen=True)
class Columns:
    """Where a table has its texts and labels.

    Args:
        text, text_pair, label: names of columns; those that are None are not read.
        kind: suffix that says how to read the file, see `read_table`; the file's own where None.
        header: names of the columns of a file that has no header.
    """

    text: str
    text_pair: str | None = None
    label: str | None = "label"
    kind: str | None = ".tsv"
    header: tuple[str, ...] | None = None


FORMATS = {
    # GLUE (Wang et al., 2018), its train and dev files. Of test files only CoLA's differ: they have a header.
    "cola": Columns("sentence", header=("source", "label", "mark", "sentence")),
    "sst2": Columns("sentence"),
    "mrpc": Columns("#1 String", "#2 String", "Quality"),
    "qqp": Columns("question1", "question2", "is_duplicate"),
    "stsb": Columns("sentence1", "sentence2", "score"),
    "mnli": Columns("sentence1", "sentence2", "gold_label"),
    "qnli": Columns("question", "sentence"),
    "rte": Columns("sentence1", "sentence2"),
    "wnli": Columns("sentence1", "sentence2"),
    # Naver sentiment movie corpus, .txt files (github.com/e9t/nsmc).
    "nsmc": Columns("document"),
    # KorNLU (Ham et al., 2020).
    "kornli": Columns("sentence1", "sentence2", "gold_label"),
    "korsts": Columns("sentence1", "sentence2", "score"),
    # KLUE (Park et al., 2021), arrays of objects.
    "klue-tc": Columns("title", kind=".json"),
    "klue-nli": Columns("premise", "hypothesis", "gold_label", kind=".json"),
    "klue-sts": Columns("sentence1", "sentence2", "labels.label", kind=".json"),
}


def choose(path, format, formats):
    """What a format's name stands for in a table of formats.

    Raises:
        InputError: names the file and lists the formats.
    """
    if format not in formats:
        raise InputError(f"{path}: format must be one of {', '.join(formats)}; got {format!r}")
    return formats[format]
