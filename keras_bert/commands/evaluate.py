"""`keras-bert evaluate`."""

import json
from typing import Literal

from keras_bert.errors import InputError

EXAMPLE = "keras-bert evaluate --model=my_model --data=test.tsv"


def run(model: str, data: str, layout: str | None = None, text: str = "text", text_pair: str | None = None,
        label: str = "label", out_of_scope: str | None = None, choose_threshold: bool = False,
        format: Literal["text", "json"] = "text"):
    """Score a fine-tuned model on labelled texts.

    Args:
        model: Folder that finetune wrote.
        data: Labelled file of the model's task, as finetune takes it.
        layout: Layout of a published file, see finetune.
        text: Column of the text.
        text_pair: Column of the second text; text_pair if there is one.
        label: Column of the label.
        out_of_scope: Label of the texts that no label of the model fits.
        choose_threshold: Choose the score below which a text is out of scope on these texts, which should be validation
            data, and save it in the model's folder.
        format: Tables, or one JSON object.
    """
    from keras_bert.training import FineTuned

    tuned = FineTuned.load(model)
    if choose_threshold and tuned.task.name != "intent":
        raise InputError(f"--choose_threshold is for the task intent; {model} is of the task {tuned.task.name}")
    examples = tuned.task.read(data, format=layout, text=text, text_pair=text_pair, label=label)
    tuned.task.check(data, examples, out_of_scope)
    scores, chosen = tuned.evaluate(examples, choose_threshold)
    if choose_threshold:
        chosen.save_settings(model)
    print(json.dumps(scores, indent=2, ensure_ascii=False) if format == "json" else _tables(scores))


def _tables(scores):
    from keras_bert.training.report import SCORES

    shown = {name: scores[key] for key, name in SCORES.items() if key in scores}
    classes = scores.get("classes") or scores.get("entities") or {}
    classes = {label: row for label, row in classes.items() if row["texts"]}
    width = max(map(len, [*shown, *classes]))
    lines = []
    if classes:
        lines += [f"{'class':{width}}  precision  recall     F1  texts"]
        lines += [f"{label:{width}}  {row['precision']:9.4f}  {row['recall']:6.4f} {row['f1']:6.4f}  {row['texts']:5}"
                  for label, row in classes.items()] + [""]
    if confusions := scores.get("confusions"):
        lines += ["most often confused (right label, answer, texts)"]
        lines += [f"{right:{width}}  {answer:{width}}  {texts:5}" for right, answer, texts in confusions[:10]] + [""]
    lines += [f"{name:{width}} {value:.4f}" for name, value in shown.items()]
    if refused := scores.get("out_of_scope"):
        what = "wrongly answered texts, in place of texts out of scope" if refused["stand_in"] else "texts out of scope"
        lines.append(f"{'threshold':{width}} {refused['threshold']:.4f}: refuses {what} ({refused['texts']}) with "
                     f"precision {refused['precision']:.4f}, recall {refused['recall']:.4f}")
    return "\n".join(lines)
