"""Pictures of a training run, drawn only from its `metrics.json`."""

import itertools
import os
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_bert.errors import InputWarning

if TYPE_CHECKING:  # matplotlib is optional
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Metrics = dict[str, Any]  # of `metrics.json`
Picture = tuple[str, str, Callable[["Figure", Metrics], None]]  # the file, the metric that it needs, what draws it

MAX_PAIRS, MAX_CLASSES, MAX_LABEL = 20, 30, 80
# Distinguishable for the colour-blind: two of Okabe and Ito's colours, and a colour map of one hue for shares.
TRAINING, VALIDATION, NEUTRAL, PALE, SHARES = "#0072B2", "#D55E00", "#666666", "#dddddd", "Blues"
# DejaVu Sans, which comes with matplotlib, has no Hangul.
HANGUL_FONTS = ("Noto Sans KR", "Noto Sans CJK KR", "Noto Sans CJK JP", "NanumGothic", "Malgun Gothic",
                "Apple SD Gothic Neo", "AppleGothic")
INCH = 72  # points
TITLES = {"mlm": "Masked tokens", "next_sentence": "Next sentence"}
# For each score of pretraining, the score of a guess without a model, and what is guessed.
BASELINES = {"loss": ("unigram_loss", "tokens by training frequency"),
             "accuracy": ("majority_accuracy", "always the most frequent")}


def draw(metrics: Metrics, folder: str, pictures: Sequence[Picture]) -> list[str]:
    """Draws pictures of metrics, except those whose numbers are missing, into a folder; returns the paths of the PNG
    files. Raises an ImportError if matplotlib is not installed."""
    try:
        from matplotlib import font_manager, style
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError("pictures need matplotlib: pip install matplotlib") from None
    installed = font_manager.get_font_names()
    fonts = ["DejaVu Sans", *(font for font in HANGUL_FONTS if font in installed)]
    # matplotlib's default style, because a user's matplotlibrc would change the pictures. Dollar signs in labels are
    # text, not mathematics.
    look = {"font.family": fonts, "text.parse_math": False, "axes.titlelocation": "left"}
    paths = []
    with style.context(["default", look]), warnings.catch_warnings(record=True) as caught:
        warnings.filterwarnings("always", "Glyph", UserWarning)
        for name, key, paint in pictures:
            if metrics.get(key):
                # The figure is one inch square, so that axes are placed in inches. The tight bounding box includes
                # everything outside this square, so that labels of any length are not cut off.
                figure = Figure(figsize=(1, 1), dpi=150)
                paint(figure, metrics)
                paths.append(os.path.join(folder, f"{name}.png"))
                figure.savefig(paths[-1], bbox_inches="tight", pad_inches=0.2, metadata={"Software": None})
    others = [each for each in caught if "Glyph" not in str(each.message)]
    for each in others:
        warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)
    if len(others) < len(caught):
        warnings.warn("pictures have boxes for characters that no installed font has; for Hangul, install one of "
                      f"{', '.join(HANGUL_FONTS[:4])}", InputWarning, stacklevel=2)
    return paths


def _learning_curves(figure: "Figure", metrics: Metrics) -> None:
    history, best = metrics["history"], metrics["best_epoch"]
    epochs = np.arange(1, len(history["loss"]) + 1)
    for left, name in ((0, "loss"), (5.2, metrics["main"])):
        score, title = history[f"val_{name}"][best - 1], name.replace("_", " ").capitalize()
        axes = figure.add_axes((left, 0, 4.5, 3), xlabel="epoch",
                               title=f"{title}: {score:.4f} on validation at epoch {best}")
        axes.axvline(best, color=NEUTRAL, linestyle=":", label=f"epoch {best}, kept")
        # Scores of whole files have no training curve; the loss with few_shot or a teacher is another one.
        arguments = metrics.get("arguments", {})
        if name in history and not (arguments.get("few_shot") or arguments.get("teacher")):
            axes.plot(epochs, history[name], color=TRAINING, marker="o", markersize=4, label="training")
        axes.plot(epochs, history[f"val_{name}"], color=VALIDATION, marker="s", markersize=4, label="validation")
        axes.set_xticks(epochs[::-(-len(epochs) // 10)])
        _add_grid_and_legend(axes)


def _pretraining_curve(figure: "Figure", metrics: Metrics) -> None:
    history, baselines = metrics["history"], metrics.get("baselines", {})
    heads = [head for head in ("mlm", "next_sentence") if f"{head}_loss" in history]
    for (row, head), (column, score) in itertools.product(enumerate(heads), enumerate(("loss", "accuracy"))):
        name = f"{head}_{score}"
        axes = figure.add_axes((5.2 * column, -4.2 * row, 4.5, 3), xlabel="step", title=f"{TITLES[head]}: {score}")
        axes.plot(history["step"], history[name], color=TRAINING, label="training")
        if f"valid_{name}" in history:
            axes.plot(history["valid_step"], history[f"valid_{name}"], color=VALIDATION, marker="s", markersize=4,
                      label="held out")
        baseline, label = BASELINES[score]
        if f"{head}_{baseline}" in baselines:
            axes.axhline(baselines[f"{head}_{baseline}"], color=NEUTRAL, linestyle=":", label=label)
        _add_grid_and_legend(axes)


def _add_grid_and_legend(axes: "Axes") -> None:
    axes.grid(alpha=0.3)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=3, frameon=False)


def _pairs(figure: "Figure", metrics: Metrics) -> None:
    """Draws the most frequently confused pairs of classes."""
    classes, confusions = metrics["classes"], metrics["confusions"]
    texts = sum(scores["texts"] for scores in classes.values())
    wrong = sum(count for _, _, count in confusions)
    shown = confusions[:MAX_PAIRS]
    axes = figure.add_axes((0, 0, 5, 0.26 * len(shown)))
    bars = axes.barh(range(len(shown)), [count for _, _, count in shown], color=VALIDATION)
    axes.bar_label(bars, [f"{count:,} of {classes[true]['texts']:,} texts" for true, _, count in shown], padding=4)
    axes.set_yticks(range(len(shown)), [f"{_line(true)} → {_line(predicted)}" for true, predicted, _ in shown])
    axes.set_ylim(len(shown) - 0.5, -0.5)
    axes.tick_params(left=False, bottom=False, labelbottom=False)
    axes.spines[["top", "right", "bottom"]].set_visible(False)
    axes.set_title(f"Most frequent confusions, true → predicted class: {len(shown)} of {len(confusions):,}\n"
                   f"{wrong:,} of {texts:,} validation texts are misclassified")


def _matrix(figure: "Figure", metrics: Metrics) -> None:
    """Draws the confusion matrix of the classes that are confused most often."""
    classes, confusions = metrics["classes"], metrics["confusions"]
    confused = dict.fromkeys(itertools.chain.from_iterable(pair for *pair, _ in confusions))
    labels = list(confused)[:MAX_CLASSES]
    positions = {label: position for position, label in enumerate(labels)}
    shares = np.diag([float(classes[label]["texts"] > 0) for label in labels])
    for true, predicted, count in confusions:
        if true in positions:
            share, row = count / classes[true]["texts"], positions[true]
            shares[row, row] -= share
            if predicted in positions:
                shares[row, positions[predicted]] = share
    shares[shares < 1e-9] = 0  # rounding errors for classes that were never predicted correctly

    cell = min(6 * INCH / len(labels), INCH / 2)  # in points; a number of three digits fits
    side = cell * len(labels) / INCH
    axes = figure.add_axes((0, 0, side, side))
    cells = axes.pcolormesh(range(len(labels)), range(len(labels)), np.ma.masked_equal(shares, 0), cmap=SHARES,
                            norm="log", vmin=0.01, vmax=1, edgecolors=PALE, linewidth=0.4)
    axes.invert_yaxis()
    for row, column in np.argwhere(shares):
        share = shares[row, column]
        axes.text(column, row, f"{100 * share:.0f}" if share >= 0.01 else "<1", ha="center", va="center",
                  fontsize=min(cell / 2, 9), color="white" if np.asarray(cells.norm(share)) > 0.6 else "black")
    names, fontsize = list(map(_line, labels)), min(0.65 * cell, 10)
    axes.set_yticks(range(len(names)), names, fontsize=fontsize)
    axes.set_xticks(range(len(names)), names, fontsize=fontsize, rotation=90)
    axes.set(xlabel="predicted class", ylabel="true class")
    axes.set_title(f"Classes most often confused: {len(labels)} of {len(classes):,}\nIn % of the true class's texts")


def _labels(figure: "Figure", metrics: Metrics) -> None:
    """Draws the labels of multi-label classification with the lowest average precision."""
    labels = [(label, scores) for label, scores in metrics["labels"].items() if scores["texts"]]
    names, scores = zip(*sorted(labels, key=lambda pair: pair[1]["average_precision"])[:MAX_PAIRS])
    height = 0.26 * len(names)
    axes = figure.add_axes((0, 0, 5, height), xlim=(0, 1.02))
    axes.barh(range(len(names)), [row["average_precision"] for row in scores], color=TRAINING, alpha=0.6,
              label="average precision")
    axes.plot([row["f1"] for row in scores], range(len(names)), "D", color=VALIDATION, markersize=5,
              label="F1; the threshold was chosen on the same texts")
    axes.set_yticks(range(len(names)), [f"{_line(name)}, {row['texts']:,} texts" for name, row in zip(names, scores)])
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.tick_params(left=False)
    axes.grid(axis="x", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(*axes.get_legend_handles_labels(), loc="upper left", bbox_to_anchor=(0, -0.35),
                  bbox_transform=figure.transFigure, frameon=False)
    axes.set_title(f"Labels with the lowest average precision: {len(names)} of {len(metrics['labels']):,}")


def _calibration(figure: "Figure", metrics: Metrics) -> None:
    confidences, accuracies, texts = zip(*metrics["calibration"])
    upper = figure.add_axes((0, 1.3, 4, 4), title=f"Calibration: error {metrics['calibration_error']:.4f}",
                            ylabel="share of right answers", xlim=(-0.03, 1.03), ylim=(-0.03, 1.03))
    upper.plot([0, 1], [0, 1], color=NEUTRAL, linestyle=":", label="perfectly calibrated")
    upper.plot(confidences, accuracies, color=VALIDATION, marker="s", markersize=5, label="validation")
    upper.tick_params(labelbottom=False)
    upper.grid(alpha=0.3)
    upper.legend()
    lower = figure.add_axes((0, 0, 4, 1), sharex=upper, xlabel="mean score of the answers", ylabel="texts")
    lower.bar(confidences, texts, width=0.03, color=VALIDATION)
    lower.set(yscale="log", ylim=(0.8, 2 * max(texts)))
    lower.yaxis.set_major_formatter("{x:,.0f}")
    lower.minorticks_off()


def _risk_coverage(figure: "Figure", metrics: Metrics) -> None:
    """Draws which share of the answers is wrong if only those with the highest scores are used."""
    coverage, errors = np.transpose(metrics["risk_coverage"])
    axes = figure.add_axes((0, 0, 4.5, 3), title="What it costs to answer more texts", xlim=(0, 1.02), ylim=(0, None),
                           xlabel="share of the texts that are answered, the highest scores first",
                           ylabel="share of these answers that is wrong")
    axes.plot(coverage, errors, color=VALIDATION, label="validation")
    if scope := metrics.get("out_of_scope"):
        answered = scope["answered"] / metrics["valid_examples"]
        axes.axvline(answered, color=NEUTRAL, linestyle=":", label=f"threshold {scope['threshold']:.4f}")
    _add_grid_and_legend(axes)


def _line(label: str) -> str:
    """Returns a label on one line, cut to `MAX_LABEL` characters."""
    line = " ".join(label.split())
    return line if len(line) <= MAX_LABEL else line[:MAX_LABEL - 1] + "…"


FINE_TUNING = (
    ("learning_curves", "history", _learning_curves),
    ("confusions", "confusions", _pairs),
    ("confusion_matrix", "confusions", _matrix),
    ("labels", "labels", _labels),
    ("calibration", "calibration", _calibration),
    ("risk_coverage", "risk_coverage", _risk_coverage),
)
PRETRAINING = (("pretraining_curve", "history", _pretraining_curve),)
