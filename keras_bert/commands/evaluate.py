"""`keras-bert evaluate`: scores a fine-tuned model on labelled texts."""

import json

from absl import flags

REQUIRED = ("model", "data")


def define(values):
    flags.DEFINE_string("model", None, "Folder that finetune wrote.", flag_values=values)
    flags.DEFINE_string("data", None, "Labelled texts: .tsv, .csv (with header) or .jsonl.", flag_values=values)
    flags.DEFINE_string("text", "text", "Column of the text.", flag_values=values)
    flags.DEFINE_string("text_pair", None, "Column of the second text; text_pair if there is one.", flag_values=values)
    flags.DEFINE_string("label", "label", "Column of the label.", flag_values=values)
    flags.DEFINE_string("out_of_scope", None, "Label of the texts that no label of the model fits.", flag_values=values)
    flags.DEFINE_bool("choose_threshold", False, "Choose the score below which a text is out of scope on these texts, "
                      "validation data, and keep it in the model's folder.", flag_values=values)
    flags.DEFINE_enum("format", "text", ["text", "json"], "Tables, or one JSON object.", flag_values=values)


def run(values, _):
    import dataclasses

    from keras_bert.training import FineTuned, Labelled, evaluate

    model = FineTuned.load(values.model)
    data = Labelled.read(values.data, values.text, values.text_pair, values.label, model.labels, values.out_of_scope)
    scores = evaluate(model, data, choose=values.choose_threshold)
    if values.choose_threshold and scores["out_of_scope"]:
        dataclasses.replace(model, threshold=scores["out_of_scope"]["threshold"]).save_settings(values.model)
    print(json.dumps(scores, indent=2, ensure_ascii=False) if values.format == "json" else _tables(scores))


def _tables(scores):
    classes = {label: row for label, row in scores["classes"].items() if row["texts"]}
    width = max(map(len, classes))
    lines = [f"{'class':{width}}  precision  recall     F1  texts"]
    lines += [f"{label:{width}}  {row['precision']:9.4f}  {row['recall']:6.4f} {row['f1']:6.4f}  {row['texts']:5}"
              for label, row in classes.items()]
    if scores["confusions"]:
        lines += ["", "most often confused (right label, answer, texts)"]
        lines += [f"{right:{width}}  {answer:{width}}  {texts:5}" for right, answer, texts in scores["confusions"][:10]]
    lines += ["", *(f"{name:18} {scores[key]:.4f}" for name, key in (
        ("accuracy", "accuracy"), ("macro F1", "macro_f1"), ("loss", "loss"),
        ("calibration error", "calibration_error")))]
    if refused := scores["out_of_scope"]:
        what = "wrongly answered texts, in place of texts out of scope" if refused["stand_in"] else "texts out of scope"
        lines.append(f"{'threshold':18} {refused['threshold']:.4f}: refuses {what} ({refused['texts']}) with precision "
                     f"{refused['precision']:.4f}, recall {refused['recall']:.4f}")
    return "\n".join(lines)
