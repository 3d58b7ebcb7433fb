import json
import re
import sys
import warnings

import matplotlib
import matplotlib.image
import numpy as np
import pytest
from matplotlib import font_manager
from matplotlib.text import Text

from keras_bert.errors import InputWarning
from keras_bert.training import pictures
from keras_bert.training.pictures import FINE_TUNING, PRETRAINING, draw
from keras_bert.training.report import model_card

KOREAN = ["날씨_문의", "음악_재생", "알람_" + "아주_긴_이름_" * 8, "no_font_has_\ue123"]
LONG = ["a_label_of_" + 5 * "sixty_chars_" + str(i) for i in range(3)]
ODD = ["$cost$ of $\\nonsense$", "a|b", "<b>*bold*</b>", "two\nlines", "__init__", "back\\slash|"]


def make_metrics(labels, texts=20, epochs=4):
    """Metrics of a model that answers some texts of every third class with the two classes after it."""
    confusions = [[labels[i], labels[(i + step) % len(labels)], 6 - 2 * step]
                  for step in (1, 2) for i in range(0, len(labels), 3) if step % len(labels)]
    falling = np.linspace(1, 0.1, epochs)
    return json.loads(json.dumps({
        "task": "intent", "main": "accuracy", "inputs": ["text"], "columns": {},
        "base_model": {"name": "minilm", "repository": "a/MiniLM", "language": "English, uncased",
                       "licence": "Apache-2.0"},
        "accuracy": 0.94862, "macro_f1": 0.93951, "loss": 0.21234, "calibration_error": 0.03123,
        "history": {"loss": list(falling), "accuracy": list(1 - falling / 2), "val_loss": list(falling + 0.1),
                    "val_accuracy": list(0.9 - falling / 2)},
        "best_epoch": max(1, epochs - 1),
        "classes": {label: {"precision": 0.9, "recall": 0.8, "f1": 0.95 - 0.001 * i, "texts": texts}
                    for i, label in enumerate(labels)},
        "confusions": confusions,
        "calibration": [[0.2, 0.3, 4], [0.7, 0.6, 50], [0.98, 0.97, 3000]],
        "out_of_scope": {"threshold": 0.42424, "precision": 0.81818, "recall": 0.71717, "texts": 33,
                         "rejected_in_scope": 0.11364, "answered": 540, "wrong": 21},
        "risk_coverage": [[0.1, 0.0], [0.5, 0.02], [1.0, 0.06]],
        "data": {
            "train": 17561, "valid": texts * len(labels) + 33, "kind": "texts", "valid_kind": "texts", "unread": [],
            "held_out": None, "labels": dict.fromkeys(labels, 100),
            "labels_per_text": 1.0, "unlabelled": 0,
            "tokens": {"median": 9, "percentile_95": 15, "longest": 22}, "max_length": 128, "longer": 0, "cut": 0,
            "long_texts": [],
            "windows": False, "unknown": 0.0, "unknown_words": {}, "tokens_per_word": 1.0, "problems": [],
            **dict.fromkeys(("repeated", "contradictory", "leaked"), {"texts": 0, "places": []})},
        "train_examples": 17561, "valid_examples": texts * len(labels) + 33, "seconds": 730.1,
        "command": "keras-bert finetune --train=/data/train.tsv --valid=data/valid.tsv",
        "arguments": {"train": "/data/train.tsv", "valid": "/data/valid.tsv", "model": "MiniLM", "epochs": epochs,
                      "devices": [], "early_stopping": None},
        "sha256": {"train": "a" * 64, "valid": "b" * 64, "model": "c" * 64},
        "versions": {"python": "3.11.2", "keras": "3.15", "tensorflow": "2.20.0", "keras-bert-hub": "0.1.0"},
    }))


@pytest.fixture
def checked_draw(tmp_path, monkeypatch):
    """Draws, and checks that each picture has ink, and that all its texts lie within it, apart from each other."""
    texts, plain_draw = {}, Text.draw

    def draw_text(text, renderer):
        plain_draw(text, renderer)
        if text.get_visible() and text.get_text().strip():
            texts.setdefault(text.get_figure(root=True), {})[text] = text.get_window_extent(renderer).extents

    monkeypatch.setattr(Text, "draw", draw_text)

    def checked(metrics, kind=FINE_TUNING):
        texts.clear()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.filterwarnings("ignore", "pictures have boxes")  # for a character that no font has
            paths = draw(metrics, tmp_path, kind)
        for path, drawn in zip(paths, texts.values(), strict=True):
            image = matplotlib.image.imread(path)
            assert image[..., :3].std() > 0.01, f"{path} is blank"
            left, bottom, right, top = np.array(list(drawn.values())).T
            height, width = image.shape[:2]
            assert left.min() > 0 and bottom.min() > 0 and right.max() < width and top.max() < height, path
            assert min(text.get_fontsize() for text in drawn) >= 5
            # Two boxes overlap where they do in both directions; a pixel is the rounding.
            overlap = ((np.minimum(right[:, None], right) - np.maximum(left[:, None], left) > 1)
                       & (np.minimum(top[:, None], top) - np.maximum(bottom[:, None], bottom) > 1))
            np.fill_diagonal(overlap, False)
            names = [text.get_text() for text in drawn]
            assert not overlap.any(), f"{path}: {[(names[i], names[j]) for i, j in np.argwhere(overlap)[:5]]}"
        names = [path.removeprefix(f"{tmp_path}/").removesuffix(".png") for path in paths]
        return dict(zip(names, ([text.get_text() for text in drawn] for drawn in texts.values())))

    return checked


LARGE = {"labels": [*KOREAN, *LONG, *ODD, *(f"a_class_of_many_{i}" for i in range(39))], "epochs": 50}


@pytest.mark.parametrize("size", [
    {"labels": ["light", "music"], "epochs": 1},
    pytest.param(LARGE, marks=pytest.mark.slow("a picture that cannot be drawn"))], ids=["small", "large"])
def test_pictures_are_whole(checked_draw, size):
    labels, epochs = size["labels"], size["epochs"]
    texts = checked_draw(make_metrics(**size))
    assert list(texts) == ["learning_curves", "confusions", "confusion_matrix", "calibration", "risk_coverage"]
    assert {"1", f"epoch {max(1, epochs - 1)}, kept"} <= set(texts["learning_curves"])
    assert len({" ".join(label.split()) for label in labels} & set(texts["confusion_matrix"])) == min(len(labels), 30)
    assert f"{' '.join(labels[0].split())} → {labels[1]}" in texts["confusions"]
    assert "4 of 20 texts" in texts["confusions"]
    pairs = [text for text in texts["confusions"] if " → " in text]
    assert len(pairs) == (21 if size is LARGE else 2)  # 20 pairs and the title


@pytest.mark.parametrize("heads", [["mlm"], ["mlm", "next_sentence"]])
def test_the_curve_of_pretraining_has_every_head(checked_draw, heads):
    titles = {"mlm": "Masked tokens", "next_sentence": "Next sentence"}
    scores = {f"{head}_{score}": [3, 1] for head in heads for score in ("loss", "accuracy")}
    texts = checked_draw({"history": {"step": [1, 2]} | scores}, PRETRAINING)["pretraining_curve"]
    assert [text for text in texts if ": " in text] == [
        f"{titles[head]}: {score}" for head in heads for score in ("loss", "accuracy")]


def test_no_confusions(checked_draw):
    texts = checked_draw(make_metrics(["a", "b"]) | {"confusions": []})
    assert list(texts) == ["learning_curves", "calibration", "risk_coverage"]


def test_characters_without_a_font_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(pictures, "HANGUL_FONTS", ())
    with pytest.warns(InputWarning, match="characters that no installed font has; for Hangul, install"):
        draw(make_metrics(["날씨", "b"]), tmp_path, FINE_TUNING)


def test_matrix_holds_shares_of_the_true_class(checked_draw, monkeypatch):
    metrics = {key: make_metrics(["a", "b", "c", "never"])[key] for key in ("classes", "confusions")}
    metrics["classes"]["c"]["texts"] = 0
    metrics["confusions"] = [["a", "b", 5], ["b", "a", 20], ["a", "c", 1]]

    def numbers():
        return sorted(text for text in checked_draw(metrics)["confusion_matrix"] if re.fullmatch(r"<?\d+", text))

    assert numbers() == sorted(["70", "25", "5", "100"])  # a is right 14 times of 20; b and c never
    metrics["classes"]["a"]["texts"] = 2000
    assert numbers() == sorted(["100", "<1", "<1", "100"])
    monkeypatch.setattr(pictures, "MAX_CLASSES", 2)
    assert numbers() == sorted(["100", "<1", "100"])


@pytest.mark.slow("a picture that depends on the run")
def test_pictures_depend_on_the_metrics_alone(tmp_path):
    def drawn(labels):
        paths = draw(make_metrics(labels), tmp_path, FINE_TUNING)
        return [open(path, "rb").read() for path in paths]

    before = dict(matplotlib.rcParams)
    first = drawn(["날씨", "b"])
    with matplotlib.rc_context({"font.size": 20, "lines.linewidth": 9, "figure.facecolor": "black"}):
        assert drawn(["날씨", "b"]) == first
    assert dict(matplotlib.rcParams) == before
    # Without a font for them, all syllables are the same box.
    if set(pictures.HANGUL_FONTS) & set(font_manager.get_font_names()):
        assert drawn(["음악", "b"])[1:3] != first[1:3]


def test_without_matplotlib(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match="pip install matplotlib"):
        draw(make_metrics(["a", "b"]), tmp_path, FINE_TUNING)


def tables(card):
    """The rows of each section's table, without its header."""
    found = {}
    for section in card.split("\n## ")[1:]:
        title, *lines = section.splitlines()
        rows = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines if line.startswith("|")]
        assert len({len(row) for row in rows}) <= 1, rows
        found[title] = rows[2:]
    return found


def test_card_tells_the_metrics():
    metrics = make_metrics([f"class_{i}" for i in range(30)])
    card = model_card(metrics, ["confusions.png"])
    assert card.startswith(
        "---\nlibrary_name: keras\npipeline_tag: text-classification\nlanguage: en\nlicense: apache-2.0\n"
        "base_model: a/MiniLM\ntags:\n- bert\n- intent\n---\n\n# BERT")
    unfit = metrics | {"data": metrics["data"] | {"problems": ["the vocabulary is that of another language"]}}
    assert "-classification\nlicense: apache-2.0\n" in model_card(unfit, [])
    unfit["base_model"] = {"name": "x", "front_matter": "language:\n- en\n- ko\nlicense: mit\n"}
    assert "-classification\nlicense: mit\n" in model_card(unfit, [])
    assert "[minilm](https://huggingface.co/a/MiniLM); licence of these weights: Apache-2.0." in card
    assert "![confusions](confusions.png)" in card and card.count("![") == 1
    assert "```\nkeras-bert finetune --train=train.tsv --valid=data/valid.tsv\n```" in card
    assert "on the 600 of 633 validation texts that are in scope, after epoch 3 of 4" in card
    assert ("\n- threshold: 0.4242: rejects 11.4% of the texts in scope and 71.7% of the 33 out of scope, with "
            "precision 0.8182; of the 540 answers that reach it, 21 are wrong; measured on the validation ") in card
    assert "30 classes" in card
    found = tables(card)
    assert [float(value) for _, value in found["Scores"]] == pytest.approx(
        [metrics[key] for key in ("accuracy", "macro_f1", "loss", "calibration_error")], abs=5e-5)
    assert found["Data"] == [["training", "train.tsv", "17,561", f"`{'a' * 64}`"],
                             ["validation", "valid.tsv", "633", f"`{'b' * 64}`"]]
    assert "\n- 9 tokens at the median, 15 at the 95th percentile, 22 at most\n" in card
    assert found["Weakest classes"] == [[f"class_{i}", "0.9000", "0.8000", f"{0.95 - 0.001 * i:.4f}", "20"]
                                        for i in range(29, 19, -1)]
    assert found["Most frequent confusions"] == [[f"class_{i}", f"class_{i + 1}", "4"] for i in range(0, 30, 3)]
    assert found["Training"] == [["epochs", "4"]]


@pytest.mark.parametrize("inputs, command, call", [
    (["text"], 'keras-bert predict --model=FOLDER "a text"', 'predict(["a text"])'),
    (["text", "text_pair"], r"printf 'a text\tanother text\n' | keras-bert predict --model=FOLDER --input=-",
     'predict(["a text"], ["another text"])'),
    (["question", "context"], r"printf 'a question\ta text\n' | keras-bert", 'predict(["a question"], ["a text"])'),
    (["prompt", "choices"], r"printf 'a beginning\tan ending\tanother\n' | keras-bert",
     'predict(["a beginning"], [["an ending", "another"]])'),
])
def test_card_shows_the_calls_of_its_task(inputs, command, call):
    metrics = make_metrics(["a", "b"]) | {
        "inputs": inputs, "columns": {"text_column": "my text"}, "base_model": {"name": "my_encoder"}}
    card = model_card(metrics, [])
    assert command in card and f"model.{call}[0]" in card
    assert "--data=FILE '--text_column=my text'\n" in card and "evaluate(\"FILE\", text_column='my text')" in card
    assert "Fine-tuned from my_encoder." in card
    assert "license" not in card and "base_model" not in card


def test_card_of_odd_labels():
    metrics = make_metrics(ODD) | {"command": "keras-bert finetune '--text_column=```'"}
    card = model_card(metrics, [])
    assert [row[0] for row in tables(card)["Weakest classes"]][::-1] == [
        r"\$cost\$ of \$\\nonsense\$", r"a\|b", r"&lt;b&gt;\*bold\*&lt;/b&gt;",
        "two lines", r"\_\_init\_\_", r"back\\slash\|"]
    assert f"````\n{metrics['command']}\n````" in card


def test_card_of_what_there_is():
    metrics = make_metrics(["a", "b", "untested"]) | {"out_of_scope": None, "command": None, "confusions": []}
    metrics["classes"]["untested"]["texts"] = 0
    card = model_card(metrics, [])
    assert "out-of-scope" not in card and "## Pictures" not in card and "None" not in card
    assert [row[0] for row in tables(card)["Weakest classes"]] == ["b", "a"]
    assert "Classes without a validation text: 1." in card and "No validation text is misclassified." in card
