"""`keras-bert evaluate`: scores a fine-tuned model on labelled texts."""

import json

from absl import flags

from keras_bert.commands import layout

REQUIRED = ("model", "data")


def define(values):
    flags.DEFINE_string("model", None, "Folder that finetune wrote.", flag_values=values)
    flags.DEFINE_string("data", None, "Labelled file of the model's task, as finetune takes it.", flag_values=values)
    layout.define(values)
    flags.DEFINE_string("out_of_scope", None, "Label of the texts that no label of the model fits.", flag_values=values)
    flags.DEFINE_bool("choose_threshold", False, "Choose the score below which a text is out of scope on these texts, "
                      "validation data, and keep it in the model's folder.", flag_values=values)
    flags.DEFINE_enum("format", "text", ["text", "json"], "Tables, or one JSON object.", flag_values=values)


def run(values, _):
    from keras_bert.training import FineTuned

    model = FineTuned.load(values.model)
    examples = model.task.read(values.data, **layout.of(values))
    model.task.check(values.data, examples, values.out_of_scope)
    scores, chosen = model.evaluate(examples, values.choose_threshold)
    if values.choose_threshold:
        chosen.save_settings(values.model)
    print(json.dumps(scores, indent=2, ensure_ascii=False) if values.format == "json" else _tables(scores))


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
