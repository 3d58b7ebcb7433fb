"""Temperatures and thresholds of classifiers: the bound on errors, against the exact binomial distribution and known
error rates; and what `calibrate` writes."""

import dataclasses
import fractions
import itertools
import json
import math
import random

import numpy as np
import pytest
from text_reference import TOKENIZER

from keras_bert.errors import InputError, InputWarning
from keras_bert.inference.card import rewrite_card
from keras_bert.inference.task_model import TaskModel
from keras_bert.tasks import Classify, Intent, MultiLabel, Regress, calibration, read_settings
from keras_bert.tasks.calibration import Calibration, bounded, fit_temperature, tempered, thresholds_of

from conftest import TINY_VOCABULARY

WORDS = [word for word in TINY_VOCABULARY if word.isalpha()]
TEXTS = [" ".join(words) for words in itertools.product(WORDS[:13], repeat=3)]

# Scores, and the probability of a wrong answer at a score: as the scores say, overconfident, in steps.
SHAPES = {"separable": (lambda rng, size: rng.beta(6, 1, size), lambda scores: (1 - scores) ** 1.5),
          "overconfident": (lambda rng, size: rng.beta(8, 0.7, size), lambda scores: 0.25 - 0.24 * scores ** 4),
          "steps": (lambda rng, size: rng.uniform(0.3, 1, size), lambda scores: np.where(scores < 0.6, 0.11, 0.02))}


@pytest.mark.parametrize("shape", SHAPES)
def test_the_bound_holds_as_often_as_it_says(shape):
    """At 0.05, for which thresholds with true errors just above it pass often enough to be found out."""
    draw, risk = SHAPES[shape]
    rng, draws, broken, found = np.random.default_rng(0), 250, 0, 0
    many = draw(rng, 100_000)
    for _ in range(draws):
        scores = draw(rng, 1000)
        wrong = rng.random(1000) < risk(scores)
        try:
            threshold = bounded(scores, wrong, thresholds_of(draw(rng, 500)), 0.05)
        except InputError:
            continue
        found += 1
        broken += risk(many[many >= threshold]).mean() > 0.05
    assert found > 100 and broken / draws <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / draws)


def probability_of_at_most(wrong, answered, share):
    """The distribution function of the binomial, exactly."""
    wrong, answered, share = int(wrong), int(answered), fractions.Fraction(str(share))
    return sum(math.comb(answered, count) * share**count * (1 - share) ** (answered - count)
               for count in range(wrong + 1))


def test_thresholds_are_tested_in_order_until_one_fails():
    scores = np.repeat(np.float32([0.9, 0.8, 0.7, 0.6]), [100, 50, 30, 2000])
    wrong = np.zeros(len(scores), bool)
    wrong[[0, 120, 121, 122, 123]] = True  # 1 of 100, then 5 of 150; with the last 2,000, 5 of 2,180
    steps = [0.9, 0.8, 0.6]
    for max_error in (0.05, 0.06, 0.07, 0.08):
        passes = [float(probability_of_at_most(wrong[:count].sum(), count, max_error)) <= 0.05
                  for count in (100, 150, 2180)]
        wanted = list(itertools.takewhile(lambda pair: pair[1], zip(steps, passes)))
        assert wanted and bounded(scores, wrong, np.array(steps), max_error) == wanted[-1][0]
    with pytest.raises(InputError) as failure:
        bounded(scores, wrong, np.array(steps), 0.03)
    # The limit of Clopper and Pearson. 1 of 157 passes, and of the 2,180 texts 100 reach the threshold: 3,423.
    assert str(failure.value) == (
        "no threshold keeps max_error=0.03 with confidence 0.95: of the 100 texts with the highest scores, 1 is "
        "answered wrong, which bounds the errors by 0.047; about 3,400 texts instead of 2,180 would do if no larger "
        "share is wrong; pass a larger max_error with new texts, or more texts")
    assert probability_of_at_most(1, 100, 0.047) <= 0.05 < probability_of_at_most(1, 100, 0.046)
    assert probability_of_at_most(1, 157, 0.03) <= 0.05 < probability_of_at_most(1, 156, 0.03)
    with pytest.raises(InputError, match="more texts would not help"):
        bounded(scores, ~wrong, np.array(steps), 0.5)


def test_thresholds_are_rounded_down_and_begin_at_half_of_the_texts():
    scores = np.linspace(0.200049, 0.999949, 1001)
    found = thresholds_of(scores)
    assert len(found) == 51 and found[0] == 0.599 and found[-1] == 0.2
    near_1 = 1 - np.geomspace(1e-6, 1e-2, 1001)  # three digits of the distance from 1
    np.testing.assert_allclose(thresholds_of(near_1)[[0, -1]], [0.9999, 0.99])
    assert all(np.mean(near_1 >= threshold) >= 0.5 for threshold in thresholds_of(near_1))
    assert thresholds_of(np.ones(5)).tolist() == [0.9999999]


def test_the_temperature_is_that_of_the_logits():
    rng = np.random.default_rng(1)
    logits = rng.normal(0, 2, (4000, 5))
    targets = np.array([rng.choice(5, p=row) for row in np.exp(logits) / np.exp(logits).sum(1, keepdims=True)])

    def softmax(logits):
        powers = np.exp(logits - logits.max(1, keepdims=True))
        return powers / powers.sum(1, keepdims=True)

    sharp = softmax(3 * logits)
    found = fit_temperature(sharp, targets)
    losses = {temperature: -np.log(softmax(3 * logits / temperature)[range(4000), targets]).mean()
              for temperature in np.arange(2.5, 3.5, 0.01)}
    assert found == pytest.approx(min(losses, key=losses.get), abs=0.02)
    np.testing.assert_allclose(tempered(sharp, found), softmax(3 * logits / found), atol=1e-9)
    np.testing.assert_array_equal(tempered(sharp, found).argmax(1), logits.argmax(1))
    assert calibration.error_of(targets, sharp) > 0.1 > 0.02 > calibration.error_of(targets, tempered(sharp, found))
    assert fit_temperature(softmax(logits), targets) == 1.0  # its error is small


@dataclasses.dataclass(frozen=True)
class Known(TaskModel):
    """A model whose logits for each text are known."""

    tokenizer: object
    task: object
    columns: dict
    logits: dict
    runtime = "known logits"

    def outputs(self, encoded, batch_size=None):
        return [self.logits[example.text] for example in encoded.examples]


@pytest.fixture(scope="module")
def known():
    """A model of two labels with too large logits, and 1,800 texts with labels, of which it answers most right; every
    tenth is out of scope, with smaller logits."""
    rng = np.random.default_rng(2)
    logits = {text: np.array([-1.0, 1.0]) * rng.normal() * (1 if number % 10 else 0.2)
              for number, text in enumerate(TEXTS)}
    labels = ["ab"[int(rng.random() < 1 / (1 + np.exp(-3 * (pair[1] - pair[0]))))] for pair in logits.values()]
    rows = [(text, label if number % 10 else "none") for number, (text, label) in enumerate(zip(TEXTS, labels))]
    model = Known(TOKENIZER, Intent(16, ["a", "b"]), {}, {text: 9 * pair for text, pair in logits.items()})
    return model, rows[:1800]


def test_calibrate_finds_a_temperature_and_a_bound_that_hold_on_new_texts(known):
    model, rows = known
    found = model.calibrate(rows, max_error=0.2, out_of_scope_label="none").task
    said, scores = found.calibration, model.with_task(found).evaluate(rows, out_of_scope_label="none")
    assert found.temperature == pytest.approx(3, abs=0.6) and said.error_after < said.error_before / 2
    assert (said.by, said.model, said.max_error, said.confidence) == ("max_error", "known logits", 0.2, 0.95)
    assert 895 <= said.texts <= 905
    assert scores["calibration_error"] < 0.05 < model.evaluate(rows, out_of_scope_label="none")["calibration_error"]
    scope = scores["out_of_scope"]
    probabilities = {text: np.exp(pair / found.temperature) / np.exp(pair / found.temperature).sum()
                     for text, pair in model.logits.items()}
    answered = [(probabilities[text].argmax(), label) for text, label in rows
                if probabilities[text].max() >= found.threshold]
    wrong = sum(label != "ab"[number] for number, label in answered)  # those out of scope, too
    assert (scope["answered"], scope["wrong"]) == (len(answered), wrong) and wrong / len(answered) < 0.2
    coverage = dict(scores["risk_coverage"])
    assert len(coverage) == 100 and coverage[1.0] == np.mean([
        label != "ab"[probabilities[text].argmax()] for text, label in rows])
    # The halves: the order of the rows does not matter, another seed does.
    random.Random(0).shuffle(shuffled := rows.copy())
    assert model.calibrate(shuffled, max_error=0.2, out_of_scope_label="none").task == found
    assert model.calibrate(rows, max_error=0.2, out_of_scope_label="none", seed=1).task != found
    with pytest.warns(InputWarning, match="^data: 8 of 903 texts occur more than once, or in the temp"):
        model.calibrate([*rows[900:], *rows[900:903]], temperature_data=rows[:905], max_error=0.2,
                        out_of_scope_label="none")
    both = model.calibrate(rows[900:], temperature_data=rows[:900], max_error=0.2, out_of_scope_label="none").task
    assert both.calibration.texts == 900 and both.temperature != found.temperature


def test_halves_have_the_labels_in_proportion(known):
    task, counts = Classify(16, ["many", "few", "one"]), (50, 7, 1)
    rows = list(zip(TEXTS, itertools.chain.from_iterable(map(itertools.repeat, task.labels, counts))))
    for seed in range(3):
        halves = calibration.halves(task, task.read(task.open(rows, "rows")), seed)
        assert sorted((example.text, example.label) for half in halves for example in half) == sorted(rows)
        with pytest.raises(InputError, match="must have at least two texts in scope, to be divided into halves"):
            calibration.halves(task, task.read(task.open([rows[0], ("a", "none")], "rows")), seed)
        for label, count in zip(task.labels, counts):
            assert all(count // 2 <= sum(example.label == label for example in half) <= count // 2 + 1
                       for half in halves)


def test_other_ways_to_set_a_threshold(known):
    model, rows = known
    by_hand = model.calibrate(threshold=0.7).task
    assert (by_hand.threshold, by_hand.temperature, by_hand.calibration) == (0.7, 1.0, Calibration("hand"))
    chosen = model.calibrate(rows, out_of_scope_label="none").task
    assert chosen.threshold and chosen.temperature == 1 and chosen.calibration is None
    by_hand = model.calibrate(rows, max_error=0.2, out_of_scope_label="none").calibrate(threshold=0.7).task
    assert by_hand.temperature > 2 and by_hand.describe_thresholds()[0].startswith("temperature: ")
    both = model.calibrate(rows[900:], temperature_data=rows[:900], out_of_scope_label="none").task
    assert both.temperature > 2 and both.threshold < chosen.threshold and both.calibration.by is None
    of_classify = model.with_task(Classify(16, ["a", "b"]))
    in_scope = [row for row in rows if row[1] != "none"]
    warmer = of_classify.calibrate(in_scope[900:], temperature_data=in_scope[:900]).task
    assert warmer.temperature > 2 and warmer.threshold is None and warmer.calibration.error_before > 0.05


@pytest.mark.parametrize(("task", "arguments", "message"), [
    (Classify, {"data": "rows"}, "a model of the task classify needs a max_error, temperature_data or a threshold"),
    (MultiLabel, {"data": "rows", "max_error": 0.1}, "this model is of the task multilabel"),
    (MultiLabel, {"threshold": 0.1}, "this model is of the task multilabel"),
    (Regress, {"data": "rows", "max_error": 0.1}, "this model is of the task regress"),
    (Intent, {}, "data must be labelled data, or left out with a threshold; got None"),
    (Intent, {"max_error": 0.1}, "data must be labelled data, or left out with a threshold; got None"),
    (Intent, {"data": "rows", "max_error": 1.0}, "max_error must be above 0 and below 1; got 1.0"),
    (Intent, {"data": "rows", "threshold": 0.5}, "threshold must be the only argument; got 0.5"),
    (Intent, {"threshold": 50}, "threshold must be from 0 to 1; got 50"),
    (Intent, {"threshold": 0.5, "text_column": "t"}, "threshold must be the only argument; got 0.5"),
    (Intent, {"data": "few", "max_error": 0.1}, "no threshold keeps max_error=0.1 with confidence 0.95: of the"),
])
def test_refusals(known, task, arguments, message):
    model, rows = known
    task = task(16) if task is Regress else task(16, ["a", "b"])
    data = {"rows": rows, "few": [*rows[1:9], rows[0]]}
    given = {name: data.get(value, value) for name, value in arguments.items()}
    with pytest.raises(InputError) as failure:
        model.with_task(task).calibrate(**given, **({"out_of_scope_label": "none"} if "data" in given else {}))
    assert message in str(failure.value)


def test_a_threshold_is_not_left_for_scores_with_another_temperature(known):
    model, rows = known
    in_scope = [row for row in rows if row[1] != "none"]
    with pytest.raises(InputError, match="changes the scores, so the threshold must be set again"):
        model.calibrate(threshold=0.7).calibrate(in_scope[900:], temperature_data=in_scope[:900])


def test_settings_and_model_card(known, tmp_path):
    model, rows = known
    card = tmp_path / "README.md"
    card.write_text("# Mine\n\n## Scores\n\nhigh\n\n## Training\n\nlong\n")
    model.calibrate(rows, max_error=0.2, out_of_scope_label="none").save_settings(tmp_path)
    task, _ = read_settings(tmp_path)
    assert task == model.calibrate(rows, max_error=0.2, out_of_scope_label="none").task
    before, section, after = card.read_text().partition("## Threshold\n")
    assert before == "# Mine\n\n## Scores\n\nhigh\n\n## Training\n\nlong\n\n"
    assert f"threshold: {task.threshold:.7g}, with confidence 0.95 at most 20% of the answers in scope are" in after
    assert "known logits" in after and f"temperature: {task.temperature}" in after
    model.calibrate(threshold=0.7).save_settings(tmp_path)
    assert "- threshold: 0.7, set by hand\n" in card.read_text() and "known logits" not in card.read_text()
    card.write_bytes(b"mine\r\n" + card.read_bytes().replace(b"\n", b"\r\n") + b"### Mine\r\n\r\n# Too\r\n")
    rewrite_card(tmp_path, task)  # everything else stays, and the section is there once
    changed = card.read_bytes()
    assert changed.startswith(b"mine\r\n# Mine") and changed.endswith(b"### Mine\r\n\r\n# Too\r\n")
    assert changed.count(b"\n") == changed.count(b"\r\n") and changed.count(b"## Threshold") == 1
    assert b"known logits" in changed and b"by hand" not in changed
    card.write_bytes(b"\xb0\xa1")
    with pytest.warns(InputWarning, match="README.md: is not UTF-8, so it does not get the threshold"):
        rewrite_card(tmp_path, task)
    assert card.read_bytes() == b"\xb0\xa1"
    settings = json.loads((tmp_path / "settings.json").read_text())
    for wrong in (*({"calibration": value} for value in (
            {"by": "chance"}, {"nobody": 1}, {"texts": "many"}, 3, {"by": "max_error"}, {"error_after": 0.1})),
            {"threshold": 2.0}, {"threshold": float("nan")}, {"temperature": float("inf")}, {"temperature": 0}):
        (tmp_path / "settings.json").write_text(json.dumps(settings | wrong))
        with pytest.raises(InputError, match="settings.json and labels.json: the settings of the task intent: "):
            read_settings(tmp_path)
