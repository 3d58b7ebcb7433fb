"""`keras-bert predict`: answers texts with a fine-tuned model."""

import itertools
import json
import sys

from absl import flags

from keras_bert.errors import InputError

_LINES_AT_ONCE = 1024

REQUIRED = ("model",)


def define(values):
    flags.DEFINE_string("model", None, "Folder that finetune wrote.", flag_values=values)
    flags.DEFINE_string("input", None, "File of texts: .tsv, .csv, .jsonl by column names, else one text a line; - for "
                        "standard input. In lines a pair is separated by a tab.", flag_values=values)
    flags.DEFINE_string("text", "text", "Column of the text.", flag_values=values)
    flags.DEFINE_string("text_pair", None, "Column of the second text; text_pair if there is one.", flag_values=values)
    flags.DEFINE_enum("format", "text", ["text", "jsonl"],
                      "Lines of label, score, text; or one JSON object a line.", flag_values=values)
    flags.DEFINE_integer("top_k", 1, "Labels a text.", flag_values=values, lower_bound=1)


def run(values, texts):
    if bool(texts) == (values.input is not None):
        raise InputError("predict answers either texts as arguments or --input; "
                         + ("got both" if texts else "got neither"))
    from keras_bert.training import FineTuned

    model = FineTuned.load(values.model)
    for chunk in _chunks(values, texts, model.pairs):
        firsts = [first for first, _ in chunk]
        seconds = [second for _, second in chunk] if model.pairs else None
        for pair, prediction in zip(chunk, model.predict(firsts, seconds, values.top_k)):
            print(_format_prediction(pair, prediction, values.format))
        sys.stdout.flush()


def _chunks(values, texts, pairs):
    """Lists of (text, second text or None), in order."""
    if values.input is None:
        yield [_split_pair(text, pairs, f"argument {number}") for number, text in enumerate(texts, 1)]
    elif values.input == "-":
        yield from _line_chunks(sys.stdin.buffer, "standard input", pairs)
    elif values.input.endswith((".tsv", ".csv", ".jsonl")):
        from keras_bert.data import read_examples

        examples = read_examples(values.input, values.text, values.text_pair, label=None)
        if pairs and examples[0].text_pair is None:
            raise InputError(f"{values.input}: this model takes pairs of texts; there is no second column")
        yield [(example.text, example.text_pair) for example in examples]
    else:
        with open(values.input, "rb") as file:
            yield from _line_chunks(file, values.input, pairs)


def _line_chunks(stream, name, pairs):
    """One line at once from a terminal, many from a file or a pipe."""
    size = 1 if stream.isatty() else _LINES_AT_ONCE
    lines = enumerate(stream, 1)
    while chunk := list(itertools.islice(lines, size)):
        yield [_split_pair(_decode(line, f"{name}: line {number}"), pairs, f"{name}: line {number}")
               for number, line in chunk]


def _decode(line, place):
    try:
        return line.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise InputError(f"{place}: must be UTF-8 text: {error.reason} at byte {error.start}") from None


def _split_pair(text, pairs, place):
    if not pairs:
        return text, None
    parts = text.split("\t")
    if len(parts) != 2:
        raise InputError(f"{place}: this model takes pairs of texts, separated by one tab; got {text[:60]!r}")
    return tuple(parts)


def _format_prediction(pair, prediction, form):
    if form == "text":
        scores = "\t".join(f"{label}\t{score:.4f}" for label, score in zip(prediction.labels, prediction.scores))
        return "\t".join([scores, *filter(None, pair)])
    answer = {"text": pair[0]} | ({"text_pair": pair[1]} if pair[1] is not None else {})
    answer |= {"label": prediction.label, "score": prediction.score}
    if prediction.in_scope is not None:
        answer["in_scope"] = prediction.in_scope
    if len(prediction.labels) > 1:
        answer["top"] = [{"label": label, "score": score}
                         for label, score in zip(prediction.labels, prediction.scores)]
    return json.dumps(answer, ensure_ascii=False)
