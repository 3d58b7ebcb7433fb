"""The report in a trained model's folder: scores, pictures and, for a fine-tuned model, a model card."""

import html
import ntpath
import os
import platform
import re
import shlex
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from keras_bert.arguments import as_flags
from keras_bert.files.json_files import write_json
from keras_bert.inference.card import threshold_section
from keras_bert.inference.fine_tuned import FineTuned
from keras_bert.tasks import TASKS, Encoded, Intent
from keras_bert.tasks.score_names import (
    OF_CLASSES,
    SCORES,
    THRESHOLDS,
    describe_texts,
    describe_threshold,
    shown_scores,
)
from keras_bert.training import pictures
from keras_bert.training.checkpoints import Progress, made_with
from keras_bert.training.data_report import report_lines
from keras_bert.training.options import IN_MEMORY

VERSIONS = {"python": platform.python_version()} | made_with()


def write_report(folder: str, model: FineTuned, encoded: Encoded, progress: Progress, given: dict[str, Any],
                 description: dict[str, Any]) -> FineTuned:
    """Scores a model on its validation examples; writes `metrics.json`, the pictures and `README.md` into the folder in
    which the model is already saved. Returns the model, if its task has a threshold with one chosen on these examples.
    `given` are the arguments of `finetune` that are not defaults, `IN_MEMORY` for data without a file; `description`
    has more entries of `metrics.json`, about the run."""
    scores, model = model.score(encoded, choose_threshold=True)
    model.save_settings(folder)
    if isinstance(model.task, Intent):
        scope = scores["out_of_scope"]
        print("threshold:", describe_threshold(scope) if scope else
              "none, because every validation text is in scope, so answers have no in_scope; keras-bert calibrate "
              "chooses one on other texts", file=sys.stderr)
    is_in_memory = IN_MEMORY in (given["train"], given.get("valid")) or isinstance(given.get("class_weights"), dict)
    metrics = {"task": model.task.name, "main": model.task.main_score(encoded.examples),
               "inputs": model.task.inputs, **scores, "best_epoch": progress.best_epoch, "history": progress.history,
               "valid_examples": len(encoded.examples),
               "command": shlex.join(["keras-bert", "finetune", *as_flags(given)]) if not is_in_memory else None,
               # What `evaluate` must be given too, see `TaskModel.encode`.
               "columns": {name: given[name] for name in ("data_format", "out_of_scope_label") if name in given},
               **description, "versions": VERSIONS}
    drawn = write_metrics(folder, metrics, pictures.FINE_TUNING)
    with open(os.path.join(folder, "README.md"), "w", encoding="utf-8") as file:
        file.write(model_card(metrics, [os.path.basename(path) for path in drawn]))
    return model


def write_metrics(folder: str, metrics: dict[str, Any], table: Sequence[pictures.Picture]) -> list[str]:
    """Writes `metrics.json` and, if matplotlib is installed, pictures; returns their paths."""
    write_json(os.path.join(folder, "metrics.json"), metrics)
    try:
        return pictures.draw(metrics, folder, table)
    except ImportError as error:
        print(error, file=sys.stderr)
        return []


MAX_ROWS = 10  # of a table of classes
# Arguments that other sections of the card show.
SHOWN_ELSEWHERE = {"task", "train", "valid", "model", "teacher", "unlabelled"}
LANGUAGES = {"English": "en", "Korean": "ko", "Chinese": "zh"}
# Examples of each text of an input, in a command and in Python.
PLACEHOLDERS = {
    "text": ("a text", '"a text"'), "text_pair": ("another text", '"another text"'),
    "question": ("a question", '"a question"'), "context": ("a text", '"a text"'),
    "prompt": ("a beginning", '"a beginning"'), "choices": ("an ending\\tanother", '["an ending", "another"]')}


def model_card(metrics: dict[str, Any], pictures: list[str]) -> str:
    """Returns a model card, from the content of `metrics.json` and the names of the pictures in the card's folder."""
    task = TASKS[metrics["task"]]
    pipeline, title, description = task.card
    own = "" if task.__module__.startswith("keras_bert.") else (
        " Commands need `--import=MODULE`, with the module that registers the task; in Python, import it first.")
    base, base_model = _base_model(metrics["base_model"])
    if metrics["data"]["problems"]:  # the vocabulary does not fit the texts, so their language is another
        base = re.sub(r"^language:.*\n(?:[ \t-].*\n)*", "", base, flags=re.MULTILINE)
    commands, calls = zip(*(PLACEHOLDERS.get(name, PLACEHOLDERS["text"]) for name in metrics["inputs"]))
    columns = metrics["columns"]
    names = metrics.get("classes") or metrics.get("labels")
    count = f"{len(names):,} " if names else ""
    details = []
    for kind in ("classes", "entities", "labels"):
        if kind in metrics:
            details += [f"## Weakest {kind}", *_weakest(metrics[kind], "entity" if kind == "entities" else "class")]
    if "teacher" in metrics:
        details += ["## Compared with the teacher", _lost(metrics)]
    if "confusions" in metrics:
        details += ["## Most frequent confusions", _confusions(metrics["confusions"])]
    if scope := metrics.get("out_of_scope"):
        details += [threshold_section([f"threshold: {describe_threshold(scope)}; measured on the validation texts, "
                                       "which chose it"])]
    if pictures:
        details += ["## Pictures", *(f"![{name.removesuffix('.png').replace('_', ' ')}]({name})" for name in pictures)]
    with open(os.path.join(os.path.dirname(__file__), "model_card.md"), encoding="utf-8") as file:
        return file.read().format(
            pipeline=pipeline, task=metrics["task"], title=count + title, description=description.format(count),
            base=base, model=base_model, data=_data(metrics), scores=_scores(metrics),
            details="".join(f"{part}\n\n" for part in details), training=_training(metrics),
            predict=_predict(commands), own=own,
            flags="".join(f" {shlex.quote(flag)}" for flag in as_flags(columns)),
            columns="".join(f", {name}={value!r}" for name, value in columns.items()),
            texts=", ".join(f"[{call}]" for call in calls))


def _predict(texts: Sequence[str]) -> str:
    if len(texts) == 1:
        return f'keras-bert predict --model=FOLDER "{texts[0]}"'
    line = r"\t".join(texts) + r"\n"
    return f"printf '{line}' | keras-bert predict --model=FOLDER --input=-"


def _base_model(base: dict[str, Any]) -> tuple[str, str]:
    """Returns lines of front matter about the pretrained weights, and their name in Markdown."""
    if "repository" not in base:
        return base.get("front_matter", ""), _text(base["name"])
    language = (base["language"] or "").partition(",")[0]
    lines = {"language": language and LANGUAGES.get(language, "multilingual"),
             "license": (base["licence"] or "").lower(), "base_model": base["repository"]}
    licence = f"; licence of these weights: {base['licence']}" if base["licence"] else ""
    return ("".join(f"{name}: {value}\n" for name, value in lines.items() if value),
            f"[{base['name']}](https://huggingface.co/{base['repository']}){licence}")


def _data(metrics: dict[str, Any]) -> str:
    rows = [(name, _text(ntpath.basename(metrics["arguments"][key] or "held out")), f"{metrics[f'{key}_examples']:,}",
             f"`{metrics['sha256'][key]}`" if key in metrics["sha256"] else "")
            for name, key in (("training", "train"), ("unlabelled", "unlabelled"), ("validation", "valid"))
            if f"{key}_examples" in metrics]
    lines = "\n".join(f"- {_text(line)}" for line in (*report_lines(metrics["data"]), *metrics.get("remarks", ())))
    return f"{_table(('', 'file', 'texts', 'SHA-256'), rows)}\n\n{lines}"


def _scores(metrics: dict[str, Any]) -> str:
    rows = list(shown_scores(metrics["task"], metrics).items())
    basis = (f"Measured on {describe_texts(metrics, metrics['valid_examples'], 'validation ')}, after epoch "
             f"{metrics['best_epoch']} of {len(metrics['history']['loss'])}. The same texts chose the epoch: this is "
             "not a test on unseen texts.")
    if "thresholds_chosen_here" in metrics:
        basis += f"\n\nThe thresholds were {THRESHOLDS[metrics['thresholds_chosen_here']]}."
    return _table(("score", "value"), [(name, f"{value:.4f}") for name, value in rows]) + "\n\n" + basis


def _weakest(classes: dict[str, dict], what: str) -> list[str]:
    tested = [(label, scores) for label, scores in classes.items() if scores["texts"]]
    columns = {name: key for key, name in OF_CLASSES.items() if key in next(iter(classes.values()))}
    rows = [(_text(label), *(f"{scores[key]:.4f}" for key in columns.values()), f"{scores['texts']:,}")
            for label, scores in sorted(tested, key=lambda pair: pair[1]["f1"])[:MAX_ROWS]]
    untested = len(classes) - len(tested)
    note = [f"Classes without a validation text: {untested:,}. They have no scores."] if untested else []
    return [_table((what, *columns, "validation texts"), rows), *note]


def _lost(metrics: dict[str, Any]) -> str:
    """Returns a table of the main score, and of the labels whose F1 is the farthest below the teacher's."""
    teacher, classes, main = metrics["teacher"], metrics.get("classes") or metrics["labels"], metrics["main"]
    rows = [(_text(label), f1, classes[label]["f1"]) for label, f1 in teacher["f1"].items() if classes[label]["texts"]]
    rows = sorted((row for row in rows if row[2] < row[1]), key=lambda row: row[2] - row[1])
    shown = [(SCORES[main], teacher[main], metrics[main]), *((f"F1 of {label}", *f1) for label, *f1 in rows[:MAX_ROWS])]
    return (_table(("score", "teacher", "this model", "difference"),
                   [(name, f"{old:.4f}", f"{new:.4f}", f"{new - old:+.4f}") for name, old, new in shown])
            + f"\n\n{len(rows):,} of {len(classes):,} labels have a lower F1.")


def _confusions(confusions: list[tuple[str, str, int]]) -> str:
    if not confusions:
        return "No validation text is misclassified."
    return _table(("class", "answered as", "texts"),
                  [(_text(true), _text(predicted), f"{count:,}") for true, predicted, count in confusions[:MAX_ROWS]])


def _training(metrics: dict[str, Any]) -> str:
    settings = [(name, _text(str(value))) for name, value in metrics["arguments"].items()
                if name not in SHOWN_ELSEWHERE and value not in (None, [])]
    versions = ", ".join(f"{name} {version}" for name, version in metrics["versions"].items())
    parts = [_table(("setting", "value"), settings), f"It took {metrics['seconds']:,.0f} s. {versions}."]
    if metrics["command"]:
        # Without the folders of absolute paths, which mean nothing on another machine.
        command = shlex.join(
            re.sub(r"=(/|[A-Za-z]:\\).*[/\\](?=.)", "=", part) for part in shlex.split(metrics["command"]))
        fence = "`" * max(3, 1 + max(map(len, re.findall("`+", command)), default=0))
        parts.insert(0, f"{fence}\n{command}\n{fence}")
    return "\n\n".join(parts)


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns a Markdown table. Cells with text from files or arguments must have been escaped by `_text`."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, ("---",) * len(header), *rows))


def _text(text: str) -> str:
    """Escapes a text so that Markdown shows it unchanged, on one line. Underscores between letters need no escape."""
    line = html.escape(" ".join(text.split()), quote=False)
    return re.sub(r"[\\`*\[\]|~$]|(?<![^\W_])_|_(?![^\W_])", r"\\\g<0>", line)
