"""Does the bound of `calibrate` hold, how many texts does it leave, and are the scores probabilities?

    python benchmarks/error_bounds.py                        scores whose true error is known
    python benchmarks/error_bounds.py --models=FOLDER [--tasks=banking77,intent176,nsmc --korean=MODEL --download]

The first command draws 1,000 scores that give the thresholds, and 5,000 that measure them, again and again, for three
shapes of scores. A bound is broken if the true error of the texts that reach the threshold is above it.

The second one fine-tunes a model for each task, exports it, and takes the probabilities of a SavedModel and of int8 on
LiteRT for texts that did not train it, all in `--models`, where it finds them again. It divides these texts at random,
200 times: a quarter fits the temperature, a quarter measures the threshold, and half tests them. `found` is the share
of the divisions with a threshold, `coverage` the mean share of the test texts that it answers, and `test_broken` the
share of the divisions in which more than `max_error` of these answers are wrong. The test texts are a sample, too: the
share of errors among them may be above a bound that holds. For `drawn_broken`, the two quarters are drawn from all
texts with replacement, so that the true error is known: it is that of all texts. The expected calibration error is that
of the texts that did not fit the temperature; that of a few thousand texts is above 0 even if the scores are the
probabilities. `nsmc` needs a Korean encoder (`--korean`, such as multilingual-e5-small).
"""

import contextlib
import pathlib
import random

import numpy as np
import ruler
from real_texts import announce, fetch, find
from task_scores import RUNS, files_of, read_nsmc, write

from keras_bert import LiteModel
from keras_bert.errors import InputError
from keras_bert.inference.saved_model import Exported
from keras_bert.tasks.calibration import bounded, error_of, fit_temperature, tempered, thresholds_of
from keras_bert.training import finetune

MAX_ERRORS, LOOSE = (0.01, 0.02, 0.05), 0.1
# Scores, and the probability of a wrong answer at a score, for a bound. The last one is just above each bound.
SHAPES = {
    "separable": (lambda rng, size: rng.beta(6, 1, size), lambda scores, bound: (1 - scores) ** 1.5),
    "overconfident": (lambda rng, size: rng.beta(8, 0.7, size), lambda scores, bound: 0.25 - 0.248 * scores ** 4),
    "just above": (lambda rng, size: rng.uniform(0.3, 1, size),
                   lambda scores, bound: bound * np.where(scores < 0.6, 3, 1.02))}
TASKS = {"banking77": "banking77", "intent176": "clinc-hwu-176", "nsmc": None}  # the runs of task_scores.py
NSMC = "ko/nsmc/train_rebuilt.txt"
DIVISIONS = 200
FIT, MEASURED = 1000, 5000  # scores of a draw


def draw_known(draws):
    """Returns a row for each shape and bound."""
    rows = []
    for shape, (draw, risk) in SHAPES.items():
        rng = np.random.default_rng(0)
        many = np.sort(draw(rng, 1_000_000))
        for max_error in MAX_ERRORS:
            beyond = np.cumsum(risk(many, max_error)[::-1])[::-1]  # of this score and all higher ones
            broken, coverages = 0, []
            for _ in range(draws):
                scores = draw(rng, MEASURED)
                is_wrong = rng.random(MEASURED) < risk(scores, max_error)
                try:
                    threshold = bounded(scores, is_wrong, thresholds_of(draw(rng, FIT)), max_error)
                except InputError:
                    continue
                first = np.searchsorted(many, threshold)
                broken += beyond[first] / (len(many) - first) > max_error
                coverages.append(1 - first / len(many))
            rows.append({"library": f"{shape}, at most {max_error}", "broken": broken / draws,
                         "found": len(coverages) / draws,
                         "coverage": float(np.mean(coverages)) if coverages else None})
    return rows


def texts_of(task, folder, download):
    """Returns the files of the texts that train a model, and of those that do not."""
    if task != "nsmc":
        return files_of(RUNS[TASKS[task]], folder, download)
    random.Random(0).shuffle(rows := list(read_nsmc((fetch if download else find)(NSMC))))
    return write(folder, "train", rows[:16_000]), write(folder, "test", rows[20_000:26_000])


def model_of(task, folder, korean, download):
    """Writes a model and its exports to a folder, unless they are there; returns the path of the texts that did not
    train it. A tenth of the training texts chooses the epoch."""
    folder.mkdir(parents=True, exist_ok=True)
    train, test = texts_of(task, folder, download)
    if not (folder / "int8").exists():
        settings = ({"model": korean, "epochs": 1, "learning_rate": 5e-5, "max_length": 64} if task == "nsmc" else
                    {"model": "minilm", "epochs": 4, "learning_rate": 2e-4})
        tuned = finetune(train, output=folder / "keras", task="classify", overwrite=True, **settings)
        tuned.export(folder / "saved_model", overwrite=True)
        tuned.export_litert(folder / "int8", dtype="int8", overwrite=True)
    return test


def probabilities_of(folder, test):
    """Returns the classes of the texts, int [texts], and each library's probabilities for them: [texts, classes]."""
    lite = LiteModel.load(folder / "int8")
    encoded = lite.encode(test)
    announce(test, len(encoded.examples))
    answers, _ = Exported(str(folder / "saved_model")).answer_with_cuts(encoded.examples, top_k=len(lite.task.labels))
    of_saved_model = [dict(zip(answer.labels, answer.scores)) for answer in answers]
    return encoded.text_targets, {
        "saved_model": np.array([[row[label] for label in lite.task.labels] for row in of_saved_model], np.float32),
        "int8": lite.task.probabilities(encoded, lite.outputs(encoded))}


def choose(targets, probabilities, fit, measured):
    """Returns the tempered probabilities, the temperature, and the threshold for each bound; None if there is none."""
    temperature = fit_temperature(probabilities[fit], targets[fit])
    warmed = tempered(probabilities, temperature)
    scores, is_wrong = warmed.max(1).astype(np.float32), warmed.argmax(1) != targets
    thresholds = dict.fromkeys([*MAX_ERRORS, LOOSE])
    for max_error in thresholds:
        with contextlib.suppress(InputError):
            thresholds[max_error] = bounded(scores[measured], is_wrong[measured], thresholds_of(scores[fit]), max_error)
    return warmed, temperature, thresholds


def divide(targets, probabilities):
    """Returns a row for each bound, and prints what the temperature does to the texts that did not fit it."""
    found, drawn = ({max_error: [] for max_error in (*MAX_ERRORS, LOOSE)} for _ in range(2))
    errors, temperatures, changed = [], [], 0
    for seed in range(DIVISIONS):
        rng, count = np.random.default_rng(seed), len(targets)
        fit, measured, test = np.split(rng.permutation(count), [count // 4, count // 2])
        again = rng.integers(count, size=(2, count // 4))  # with replacement
        for outcomes, parts, tested in ((found, (fit, measured), test), (drawn, again, np.arange(count))):
            warmed, temperature, thresholds = choose(targets, probabilities, *parts)
            for max_error, threshold in thresholds.items():
                if threshold is not None:
                    answered = tested[warmed[tested].max(1) >= threshold]
                    share = (warmed[answered].argmax(1) != targets[answered]).mean()
                    outcomes[max_error].append((share > max_error, len(answered) / len(tested)))
            if outcomes is found:
                temperatures.append(temperature)
                changed += int((warmed.argmax(1) != probabilities.argmax(1)).sum())
                others = np.concatenate([measured, test])
                chance = (rng.random((len(others), 1)) > np.cumsum(warmed[others], axis=1)).sum(1)
                errors.append([error_of(each, of_others) for each, of_others in (
                    (targets[others], probabilities[others]), (targets[others], warmed[others]),
                    (chance, warmed[others]))])
    before, after, least = np.mean(errors, axis=0)
    best = min(error_of(targets, tempered(probabilities, temperature)) for temperature in np.geomspace(0.5, 2, 50))
    print(f"temperature {np.median(temperatures):.3f} (median), expected calibration error {before:.4f} before, "
          f"{after:.4f} after, {least:.4f} if labels were drawn from the probabilities, {best:.4f} of all texts with "
          f"the temperature that is best for them; other answers: {changed}")
    return [{"max_error": max_error, "found": len(outcomes) / DIVISIONS,
             "coverage": float(np.mean([coverage for _, coverage in outcomes])) if outcomes else None,
             **{f"{name}_broken": float(sum(broken for broken, _ in some) / DIVISIONS)
                for name, some in (("test", outcomes), ("drawn", drawn[max_error]))}}
            for max_error, outcomes in found.items()]


def main():
    given = ruler.parser(__doc__, models=None, tasks=list(TASKS), korean=None, download=False, draws=2000).parse_args()
    versions, rows = ruler.describe("tensorflow", "ai-edge-litert", "scipy"), []
    if not given.models:
        rows = draw_known(given.draws)
        ruler.print_table(f"{given.draws:,} draws", rows)
        given.tasks = []
    for task in given.tasks:
        folder = pathlib.Path(given.models, task)
        targets, by_library = probabilities_of(folder, model_of(task, folder, given.korean, given.download))
        for library, probabilities in by_library.items():
            accuracy = float((probabilities.argmax(1) == targets).mean())
            print(f"\n{task}, {library}: accuracy {accuracy:.2%}", end="; ")
            found = divide(targets, probabilities)
            ruler.print_table(task, [{"library": f"{library}, at most {row['max_error']}"} | row for row in found])
            rows += [{"task": task, "library": library, "accuracy": accuracy} | row for row in found]
    ruler.finish("error_bounds", versions, given, rows)


if __name__ == "__main__":
    main()
