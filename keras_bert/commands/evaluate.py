"""`keras-bert evaluate`."""

import itertools
import sys
from typing import Any, Literal, Unpack

from keras_bert.arguments import Normalization, ScoreColumns
from keras_bert.errors import InputError
from keras_bert.files.json_files import json_text
from keras_bert.files.paths import check_model_folder, check_readable

EXAMPLE = "keras-bert evaluate --model=my_model --data=test.tsv"


def run(model: str, data: str, choose_threshold: bool = False, normalization: Normalization | None = None,
        output_format: Literal["text", "json"] = "text", **columns: Unpack[ScoreColumns]) -> None:
    """Score a fine-tuned model on labelled texts.

    Args:
        model: Folder that finetune or export litert wrote.
        data: Labelled file of the model's task, as finetune takes it.
        data_format: Format of a published data set, see finetune.
        text_column: Column of the text. Default: as in training.
        text_pair_column: Column of the second text. Default: as in training.
        label_column: Column of the label. Default: as in training.
        label_columns: For multilabel: columns of the labels, see finetune. Default: as in training.
        label_delimiter: For multilabel: character between labels in a text. Default: as in training.
        out_of_scope_label: Label of the texts that are out of scope.
        choose_threshold: Choose the score below which a text is out of scope, or for multilabel the threshold of each
            label, on these texts, which should be validation data, and save it in the model's folder. For intents,
            some of the texts must have the out_of_scope_label. A label that no text has keeps its threshold.
        normalization: NFC composes texts in NFD, see predict. Default: as in training.
        output_format: Tables, or one JSON object.
    """
    check_model_folder(model)
    check_readable(data)
    from keras_bert.inference.answering import load_task_model

    tuned = load_task_model(model, normalization=normalization)
    if choose_threshold and not tuned.task.has_threshold:
        raise InputError("--choose_threshold is for the tasks intent and multilabel; "
                         f"{model} is of the task {tuned.task.name}")
    scores, calibrated = tuned.score(encoded := tuned.encode(data, **columns), choose_threshold)
    if choose_threshold:
        if calibrated.task is tuned.task:
            print("no threshold was chosen, and the model's settings are unchanged, because every text is in scope; "
                  "add texts that are not, and name their label with --out_of_scope_label", file=sys.stderr)
        else:
            calibrated.save_settings(model)
    print(json_text(scores, indent=2) if output_format == "json" else
          _tables(tuned.task.name, scores, len(encoded.examples)))


def _tables(task: str, scores: dict[str, Any], texts: int) -> str:
    from keras_bert.tasks import score_names as names

    shown = names.shown_scores(task, scores)
    tables = {what: rows for key, what in (("classes", "class"), ("labels", "class"), ("entities", "entity"))
              if (rows := {label: row for label, row in scores.get(key, {}).items() if row["texts"]})}
    width = max(map(len, itertools.chain(shown, *tables.values())))
    lines = []
    for what, classes in tables.items():
        more = {key: names.OF_CLASSES[key] for key in ("average_precision", "threshold")
                if key in next(iter(classes.values()))}
        lines += ["  ".join([f"{what:{width}}  precision  recall     F1", *more.values(), "texts"])]
        lines += ["  ".join([f"{label:{width}}  {row['precision']:9.4f}  {row['recall']:6.4f} {row['f1']:6.4f}",
                             *(f"{row[key]:{len(name)}.4f}" for key, name in more.items()), f"{row['texts']:5}"])
                  for label, row in classes.items()] + [""]
    if confusions := scores.get("confusions"):
        lines += ["most frequent confusions (true label, predicted label, texts)"]
        lines += [f"{right:{width}}  {answer:{width}}  {texts:5}" for right, answer, texts in confusions[:10]] + [""]
    lines += [f"{name:{width}} {value:.4f}" for name, value in shown.items()]
    if names.count_scored(scores, texts) < texts:
        lines.append(f"{'measured on':{width}} {names.describe_texts(scores, texts)}")
    if scope := scores.get("out_of_scope"):
        lines.append(f"{'threshold':{width}} {names.describe_threshold(scope)}")
    if "thresholds_chosen_here" in scores:
        lines.append(f"{'thresholds':{width}} {names.THRESHOLDS[scores['thresholds_chosen_here']]}")
    return "\n".join(lines)
