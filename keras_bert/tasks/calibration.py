"""What makes the scores of a classifier probabilities, and which answers can be relied on: a temperature, and a
threshold with a bound on the errors."""

import dataclasses
import hashlib
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal, cast

import numpy as np

from keras_bert.arguments import MaxError, Rule, plural
from keras_bert.errors import InputError, InputWarning, Option
from keras_bert.tasks.base import Encoded, Outputs, Task, require

if TYPE_CHECKING:  # it imports this module
    from keras_bert.tasks.classify import Classify

# A threshold that rejects every text is above 1.
Threshold = Annotated[float, Rule("from 0 to 1", lambda value: 0 <= value < 1.001)]
Temperature = Annotated[float, Rule("above 0 and finite", lambda value: 0 < value < np.inf)]
CONFIDENCE = 0.95
SMALL_ERROR = 0.02  # an expected calibration error up to this one is left as it is
_BINS = 15  # Guo et al., 2017, section 4
_COVERAGE, _STEP = 0.5, 0.01  # of the first threshold that is tested, and the distance to the next ones
_DIGITS = 3  # of the distance of a threshold from 1, beyond which the scores of runtimes and batches may differ
_LARGEST = 10.0  # temperature; the smallest is its inverse
_USER = "a calibration needs"


@dataclasses.dataclass(frozen=True)
class Calibration:
    """What `calibrate` found.

    Args:
        by: what set the threshold: `max_error`, a bound on the errors, or `hand`. If None, it is the best one for texts
            out of scope, or there is none.
        model: the runtime and the dtype that computed the scores, such as "LiteRT int8"; None if `by` is not
            `max_error`.
        texts: number of texts that were measured for a bound; they fitted no temperature.
        answered: number of these whose score reaches the threshold.
        wrong: number of the answered ones that have another label or are out of scope.
        max_error: with probability `confidence`, at most this share of all texts that reach the threshold is answered
            wrong, among texts like those that were measured.
        confidence: see `max_error`.
        error_before, error_after: expected calibration error of the texts in scope without and with the temperature.
    """

    by: Literal["max_error", "hand"] | None = None
    model: str | None = None
    texts: int | None = None
    answered: int | None = None
    wrong: int | None = None
    max_error: MaxError | None = None
    confidence: float | None = None
    error_before: float | None = None
    error_after: float | None = None

    def __post_init__(self) -> None:
        bound = self.model, self.texts, self.answered, self.wrong, self.max_error, self.confidence
        if self.by == "max_error" and None in bound:
            raise InputError("a calibration with a bound must have all fields from model to confidence")
        if (self.error_before is None) != (self.error_after is None):
            raise InputError("a calibration must have both error_before and error_after, or none")

    def describe(self) -> str:
        """Returns what set the threshold, in words."""
        if self.by != "max_error":
            return "set by hand" if self.by == "hand" else "the best one for texts out of scope"
        share = f"{100 * (self.max_error or 0):.4g}%"
        return (f"with confidence {self.confidence:g} at most {share} of the answers in scope are wrong: of "
                f"{self.texts:,} texts, {self.answered:,} reach it, and {self.wrong:,} of these answers are wrong; "
                f"measured with {self.model}. It holds for texts like these: if the texts change, measure again")


def warn_if_unmeasured(task: Task, runtime: str) -> None:
    """Warns if a task has a bound that was measured on the scores of another runtime or dtype."""
    found = getattr(task, "calibration", None)
    if found and found.by == "max_error" and found.model != runtime:
        warnings.warn(InputWarning(f"the bound on the errors was measured with {found.model}, and {runtime} may have "
                                   "other scores: calibrate the folder that is used"), stacklevel=3)


def calibration_bins(scores: np.ndarray, is_right: np.ndarray) -> list[list]:
    """Returns the mean score, the accuracy and the number of texts of each of 15 bins of scores that is not empty."""
    bins = np.minimum((scores * _BINS).astype(int), _BINS - 1)
    return [[float(scores[bins == i].mean()), float(is_right[bins == i].mean()), int((bins == i).sum())]
            for i in np.unique(bins)]


def calibration_error(bins: list[list]) -> float:
    """Returns the expected calibration error (Guo et al., 2017): the mean distance between score and accuracy."""
    return sum(abs(mean - accuracy) * count for mean, accuracy, count in bins) / sum(count for *_, count in bins)


def error_of(targets: np.ndarray, probabilities: np.ndarray) -> float:
    """Returns the expected calibration error of probabilities, [texts, classes], for the right classes, int [texts]."""
    return calibration_error(calibration_bins(probabilities.max(1), probabilities.argmax(1) == targets))


def tempered(probabilities: np.ndarray, temperature: float) -> np.ndarray:
    """Returns the probabilities, [texts, classes], of logits that are divided by a temperature. Their order stays."""
    if temperature == 1:
        return probabilities
    powers = (probabilities / probabilities.max(axis=1, keepdims=True)) ** (1 / temperature)
    return powers / powers.sum(axis=1, keepdims=True)


def fit_temperature(probabilities: np.ndarray, targets: np.ndarray) -> float:
    """Returns the temperature with the smallest mean cross-entropy (Guo et al., 2017) for probabilities, [texts,
    classes], and their right classes, int [texts]; 1 if the expected calibration error is at most 0.02."""
    if error_of(targets, probabilities) <= SMALL_ERROR:
        return 1.0
    rows = np.arange(len(targets))

    def loss(logarithm: float) -> float:
        right = tempered(probabilities, np.exp(logarithm))[rows, targets]
        return float(-np.log(np.maximum(right, 1e-30)).mean())

    limit = np.log(_LARGEST)
    found = require("scipy.optimize", _USER).minimize_scalar(loss, bounds=(-limit, limit), method="bounded")
    return round(float(np.exp(found.x)), 4)


def halves(task: "Classify", examples: Sequence, seed: int) -> tuple[list, list]:
    """Divides labelled examples into two random halves, which depend on the seed and the texts, but not on their order.
    All labels are in both in proportion. A text that occurs twice is in both, as in two samples of the same source.
    Raises an InputError if there are too few."""
    def rank(value: object) -> bytes:
        return hashlib.sha256(repr((seed, value)).encode()).digest()

    ordered = sorted(examples, key=lambda example: (rank(task.label(example)), rank(task.texts(example))))
    parts = ordered[::2], ordered[1::2]
    if not all(any(label in task.labels for label in map(task.label, part)) for part in parts):
        raise InputError("data: must have at least two texts in scope, to be divided into halves; got too few")
    return parts


def describe_repeats(task: Task, fit: Sequence, measured: Sequence) -> str | None:
    """Returns a line on texts that do not measure the bound independently, or None if there are none."""
    known, texts = set(map(task.texts, fit)), list(map(task.texts, measured))
    count = len(texts) - len({*texts} - known)
    return (f"{count:,} of {len(texts):,} texts occur more than once, or in the temperature data, too: the bound is "
            "right only if texts repeat as often in use; otherwise, leave the repeats out") if count else None


def thresholds_of(scores: np.ndarray) -> np.ndarray:
    """Returns the thresholds that answer at least the shares 0.5, 0.51, …, 1 of the texts with these scores."""
    quantiles = np.quantile(scores, np.arange(round((1 - _COVERAGE) / _STEP), -1, -1) * _STEP)
    distances = np.maximum(1 - quantiles, 1e-7)
    units = 10.0 ** (np.floor(np.log10(distances)) - _DIGITS + 1)
    return np.unique(np.round(1 - np.ceil(np.round(distances / units, 6)) * units, 10))[::-1]


def bounded(scores: np.ndarray, is_wrong: np.ndarray, thresholds: np.ndarray, max_error: float,
            given: int | None = None) -> float:
    """Returns the lowest of the thresholds at which, with probability 0.95, at most the share `max_error` of the texts
    that reach it is answered wrong.

    The thresholds, which must not depend on these scores, are tested from the highest one on, until a test fails
    (fixed sequence testing). A test passes if so few wrong answers had a probability of at most 0.05 for a share of
    `max_error`. The result is too low only if the first threshold in this order with a larger share passes. The number
    of wrong ones among those that reach it is binomial, so this has a probability of at most 0.05 (Angelopoulos et al.,
    2021, "Learn then test"; for one threshold, Geifman and El-Yaniv, 2017).

    Raises an InputError if the first test fails; it says which bound holds, and how many texts it would take, of which
    the scores are a part if more were `given`."""
    given = given or len(scores)
    stats, lowest = require("scipy.stats", _USER), None
    for threshold in thresholds:
        answered = scores >= np.float32(threshold)
        count, wrong = int(answered.sum()), int(is_wrong[answered].sum())
        if stats.binom.cdf(wrong, count, max_error) > 1 - CONFIDENCE:
            break
        lowest = float(threshold)
    if lowest is not None:
        return lowest
    if not count:
        raise InputError("no threshold keeps ", Option(f"max_error={max_error}"), f": none of {len(scores):,} texts "
                         f"has a score of {thresholds[0]:.7g}, with which the search begins; pass more texts")
    limit = float(stats.beta.ppf(CONFIDENCE, wrong + 1, count - wrong)) if count > wrong else 1.0
    sizes = np.unique(np.ceil(count * 1.02 ** np.arange(350)))  # up to a thousand times as many
    enough = sizes[stats.binom.cdf(np.floor(sizes * wrong / count), sizes, max_error) <= 1 - CONFIDENCE]
    needed = float(f"{enough[0] * given / count:.2g}") if len(enough) else np.inf
    more = (f"about {needed:,.0f} texts instead of {given:,} would do if "
            "no larger share is wrong" if len(enough) else "more texts would not help")
    raise InputError(
        "no threshold keeps ", Option(f"max_error={max_error}"), f" with confidence {CONFIDENCE}: of the {count:,} "
        f"{plural('text', count)} with the highest scores, {wrong:,} {'is' if wrong == 1 else 'are'} answered wrong, "
        f"which bounds the errors by {np.ceil(limit * 1000) / 1000:.3f}; {more}; pass a larger ", Option("max_error"),
        " with new texts", ", or more texts" if len(enough) else "")


def recalibrated(task: "Classify", runtime: str, fit: tuple[Encoded, Outputs], measured: tuple[Encoded, Outputs],
                 max_error: float | None = None, given: int | None = None) -> "Classify":
    """Returns the task with the temperature that fits labelled examples and, if there is a `max_error`, with the lowest
    threshold for which this bound holds on other ones, `measured`, see `bounded`, also for `given`. `runtime`
    computed the outputs. Raises an InputError if no threshold is good enough, or the old one is for another
    temperature."""
    plain = dataclasses.replace(task, temperature=1.0)
    targets, probabilities = _in_scope(plain, *fit)
    warmed = chosen = dataclasses.replace(task, temperature=fit_temperature(probabilities, targets))
    if max_error is None:
        chosen = warmed.calibrated(*measured)
        if chosen is warmed and task.threshold is not None and task.temperature != warmed.temperature:
            raise InputError(f"the temperature {warmed.temperature} changes the scores, so the threshold must be set "
                             "again: pass ", Option("max_error"), ", or for the task intent texts with the ",
                             Option("out_of_scope_label"))
    else:
        of_measured = warmed.probabilities(*measured)
        scores, is_wrong = of_measured.max(1), of_measured.argmax(1) != measured[0].text_targets
        thresholds = thresholds_of(tempered(probabilities, warmed.temperature).max(1))
        threshold = bounded(scores, is_wrong, thresholds, max_error, given)
        answered = scores >= np.float32(threshold)
        chosen = warmed.with_threshold(
            threshold, "max_error", model=runtime, texts=len(scores), answered=int(answered.sum()),
            wrong=int(is_wrong[answered].sum()), max_error=max_error, confidence=CONFIDENCE)
    before, after = (error_of(*_in_scope(each, *measured)) for each in (plain, chosen))
    found = cast(Calibration, chosen.calibration or Calibration())
    return dataclasses.replace(chosen, calibration=dataclasses.replace(found, error_before=before, error_after=after))


def _in_scope(task: "Classify", encoded: Encoded, outputs: Outputs) -> tuple[np.ndarray, np.ndarray]:
    """Returns the classes of the texts that are in scope, int [texts], and their probabilities."""
    in_scope = encoded.text_targets >= 0
    return encoded.text_targets[in_scope], task.probabilities(encoded, outputs)[in_scope]
