"""The report in a fine-tuned model's folder: scores, pictures and a model card."""

import html
import importlib.metadata
import ntpath
import os
import platform
import re
import sys

import numpy as np
from keras import ops

from keras_bert.files import read_json, write_json
from keras_bert.training import pictures


def write_report(folder, model, encoded, progress, description):
    """Scores a model on its validation examples; writes `metrics.json`, the pictures and `README.md` into its folder.

    Args:
        folder: folder of the model, which is already saved there.
        model: a `FineTuned`.
        encoded: the labelled validation examples, `Encoded`.
        progress: the `Progress` of the training.
        description: dict of more entries of `metrics.json`, about the run.

    Returns:
        the model; if its task has a threshold, with the threshold chosen on the validation examples.
    """
    scores, model = model.score(encoded, choose_threshold=True)
    model.save_settings(folder)
    metrics = {"task": model.task.name, "main": model.task.main, **scores, "best_epoch": progress.best_epoch,
               "history": progress.history, "valid_examples": len(encoded.examples), **description,
               "versions": versions(), "attention": attention(model, encoded)}
    write_json(os.path.join(folder, "metrics.json"), metrics)
    try:
        drawn = pictures.draw(metrics, folder)
    except ImportError as error:
        print(error, file=sys.stderr)
        drawn = []
    with open(os.path.join(folder, "README.md"), "w", encoding="utf-8") as file:
        file.write(model_card(metrics, [os.path.basename(path) for path in drawn]))
    return model


def versions():
    """Returns the versions of Python and of the packages that a model is made with, a dict."""
    return {"python": platform.python_version()} | {
        name: importlib.metadata.version(name) for name in ("keras-bert-hub", "keras", "tensorflow")}


def is_report_of(folder, run):
    """Returns True if `folder` holds the report of this run, see `Checkpoints`."""
    path = os.path.join(folder, "metrics.json")
    metrics = read_json(path) if os.path.exists(path) else {}
    return all(metrics.get(key) == value for key, value in run.items())


# The attention picture shows a text with this many tokens, if there is one.
_TOKENS = range(6, 17)


def attention(model, encoded):
    """Returns the attention probabilities for a short one of the examples.

    Args:
        model: a `FineTuned`.
        encoded: `Encoded` examples.

    Returns:
        dict of `tokens`, and `layers`, [layer][head][token][token] as lists.
    """
    batches = encoded.batched(model.tokenizer)
    fitting = [i for i, length in enumerate(batches.lengths) if length in _TOKENS]
    inputs = batches.inputs([fitting[0] if fitting else int(np.argmin(batches.lengths))])
    length = inputs["input_mask"].reshape(-1, inputs["input_mask"].shape[-1])[0].sum()
    inputs = {name: values.reshape(-1, values.shape[-1])[:1, :length] for name, values in inputs.items()}
    layers = model.model.bert.encode(inputs, return_attention=True).attention_probabilities
    return {"tokens": [model.tokenizer.vocabulary[i] for i in inputs["input_word_ids"][0]], "layers": [
        np.round(ops.convert_to_numpy(ops.cast(layer[0], "float32")).astype(float), 4).tolist() for layer in layers]}


MOST = 10
TOLD_ELSEWHERE = {"task", "train", "valid", "init_from"}
# For each task: Hugging Face's pipeline tag, the end of the title "BERT for …", and a sentence on what the model does,
# in which {} is replaced by the number of classes.
TASKS = {
    "intent": ("text-classification", "classes of text", "Answers a text with one of {}classes."),
    "classify": ("text-classification", "classes of text", "Answers a text with one of {}classes."),
    "regress": ("text-classification", "a score of texts", "Answers a text, or a pair of texts, with a number."),
    "tag": ("token-classification", "entities in texts", "Marks the entities in a text."),
    "span": ("question-answering", "answers in texts", "Answers a question with a part of a text."),
    "choice": ("multiple-choice", "the best of several endings", "Chooses the best of several endings of a text."),
}
SCORES = {
    "accuracy": "accuracy", "macro_f1": "macro F1", "matthews": "Matthews correlation", "f1": "F1",
    "exact_match": "exact match", "HasAns_exact": "exact match where there is an answer",
    "HasAns_f1": "F1 where there is an answer", "NoAns_f1": "F1 where there is none",
    "korquad_f1": "KorQuAD F1", "korquad_exact_match": "KorQuAD exact match", "precision": "precision",
    "recall": "recall", "pearson": "Pearson correlation", "spearman": "Spearman correlation", "loss": "loss",
    "calibration_error": "expected calibration error",
}


def model_card(metrics, pictures):
    """Returns a model card in the style of Hugging Face's.

    Args:
        metrics: dict of `metrics.json`.
        pictures: list of str, file names of the pictures in the card's folder; may be empty.

    Returns:
        str, Markdown with YAML front matter.
    """
    pipeline, what, answers = TASKS[metrics["task"]]
    count = f"{len(metrics['classes']):,} " if "classes" in metrics else ""
    parts = [
        f"---\nlibrary_name: keras\npipeline_tag: {pipeline}\ntags:\n- bert\n- {metrics['task']}\n---",
        f"# BERT for {count}{what}",
        f"{answers.format(count)} Fine-tuned from {_text(metrics['arguments']['init_from'])}.",
        "## Data", _data(metrics),
        "## Scores", *_scores(metrics),
    ]
    if "classes" in metrics:
        parts += ["## Weakest classes", *_weakest(metrics["classes"]),
                  "## Most frequent confusions", _confusions(metrics["confusions"])]
    if "entities" in metrics:
        parts += ["## Weakest entities", *_weakest(metrics["entities"])]
    if pictures:
        parts += ["## Pictures", *(f"![{_title(name)}]({name})" for name in pictures)]
    parts += ["## Use", USE, "## Training", *_training(metrics)]
    return "\n\n".join(parts) + "\n"


def _data(metrics):
    rows = [(name, _text(ntpath.basename(metrics["arguments"][key])), f"{metrics[f'{key}_examples']:,}",
             f"`{metrics['sha256'][key]}`") for name, key in (("training", "train"), ("validation", "valid"))]
    return _table(("", "file", "texts", "SHA-256"), rows)


def _scores(metrics):
    rows = [(name, metrics[key]) for key, name in SCORES.items() if key in metrics]
    # Not `valid_examples`, which includes the out-of-scope texts: they have no class to be scored on.
    texts = sum(scores["texts"] for scores in metrics["classes"].values()) if "classes" in metrics else (
        metrics["valid_examples"])
    basis = (f"Measured on {texts:,} validation texts, after epoch {metrics['best_epoch']} of "
             f"{len(metrics['history']['loss'])}. The same texts chose the epoch: this is no test on unseen texts.")
    scope = metrics.get("out_of_scope")
    if scope:
        rows += [("out-of-scope threshold", scope["threshold"]), ("out-of-scope precision", scope["precision"]),
                 ("out-of-scope recall", scope["recall"])]
        what = (f"the {scope['texts']:,} wrongly answered validation texts, since there were no texts out of scope"
                if scope["stand_in"] else f"{scope['texts']:,} validation texts out of scope")
        basis += (f"\n\nAn answer with a score below the threshold counts as out of scope. The threshold was chosen to "
                  f"refuse {what}; its precision and recall are measured on the texts that chose it.")
    return _table(("score", "value"), [(name, f"{value:.4f}") for name, value in rows]), basis


def _weakest(classes):
    tested = [(label, scores) for label, scores in classes.items() if scores["texts"]]
    rows = [(_text(label), *(f"{scores[key]:.4f}" for key in ("precision", "recall", "f1")), f"{scores['texts']:,}")
            for label, scores in sorted(tested, key=lambda pair: pair[1]["f1"])[:MOST]]
    untested = len(classes) - len(tested)
    note = [f"Classes without a validation text: {untested:,}. Nothing is known of them."] if untested else []
    return [_table(("class", "precision", "recall", "F1", "validation texts"), rows), *note]


def _confusions(confusions):
    if not confusions:
        return "No validation text is answered wrongly."
    return _table(("class", "answered as", "texts"),
                  [(_text(true), _text(predicted), f"{count:,}") for true, predicted, count in confusions[:MOST]])


def _training(metrics):
    settings = [(name, _text(str(value))) for name, value in metrics["arguments"].items()
                if name not in TOLD_ELSEWHERE and value not in (None, [])]
    versions = ", ".join(f"{name} {version}" for name, version in metrics["versions"].items())
    command = [_fenced(metrics["command"])] if metrics["command"] else []
    return [*command, _table(("setting", "value"), settings), f"It took {metrics['seconds']:,.0f} s. {versions}."]


def _table(header, rows):
    """Returns a Markdown table. Cells with text from files or arguments must have been escaped by `_text`."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, ("---",) * len(header), *rows))


def _text(text):
    """Escapes a text so that Markdown shows it unchanged, on one line. Underscores between letters need no escape."""
    line = html.escape(" ".join(text.split()), quote=False)
    return re.sub(r"[\\`*\[\]|~$]|(?<![^\W_])_|_(?![^\W_])", r"\\\g<0>", line)


def _fenced(code):
    fence = "```"
    while fence in code:
        fence += "`"
    return f"{fence}\n{code}\n{fence}"


def _title(name):
    return name.removesuffix(".png").replace("_", " ")


USE = """\
`FOLDER` is the folder of this card.

```
keras-bert predict --model=FOLDER "a text"
keras-bert evaluate --model=FOLDER --data=FILE
keras-bert export --model=FOLDER --output=ENCODER
```

```python
from keras_bert import FineTuned

model = FineTuned.load("FOLDER")
model.predict(["a text"])[0]
```"""
