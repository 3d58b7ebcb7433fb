"""The scores of tasks in words."""

from typing import Any

from keras_bert.arguments import plural
from keras_bert.tasks import TASKS

SCORES = {
    "ndcg_at_10": "nDCG@10", "mrr_at_10": "MRR@10", "recall_at_1": "recall@1", "recall_at_5": "recall@5",
    "recall_at_10": "recall@10", "average_precision": "average precision", "accuracy": "accuracy",
    "accuracy_threshold": "threshold of the accuracy", "mean_average_precision": "mean average precision",
    "micro_f1_at_half": "micro F1 (threshold 0.5)", "macro_f1_at_half": "macro F1 (threshold 0.5)",
    "micro_f1": "micro F1", "macro_f1": "macro F1", "matthews": "Matthews correlation", "f1": "F1",
    "f1_threshold": "threshold of the F1", "exact_match": "exact match",
    "HasAns_exact": "exact match where there is an answer", "HasAns_f1": "F1 where there is an answer",
    "NoAns_f1": "F1 where there is none", "korquad_f1": "KorQuAD F1", "korquad_exact_match": "KorQuAD exact match",
    "precision": "precision", "recall": "recall", "entity_macro_f1": "macro F1 of entities",
    "character_macro_f1": "macro F1 of characters", "pearson": "Pearson correlation",
    "spearman": "Spearman correlation", "loss": "loss", "calibration_error": "expected calibration error"}
OF_CLASSES = {"precision": "precision", "recall": "recall", "f1": "F1", "average_precision": "average precision",
              "threshold": "threshold"}
# Where the thresholds of multi-label classification are from, by `thresholds_chosen_here` of its scores.
THRESHOLDS = {
    True: "chosen for the best F1 of each label on these very texts: their F1 is higher than on unseen texts. Mean "
          "average precision and the scores at threshold 0.5 do not depend on them",
    False: "not chosen on these texts"}


def describe_threshold(scope: dict[str, Any]) -> str:
    """Describes in words the dict that `classify.score_threshold` returns."""
    rejected = f"{scope['rejected_in_scope']:.1%} of the texts in scope"
    if scope["texts"]:
        rejected += (f" and {scope['recall']:.1%} of the {scope['texts']:,} out of scope, with precision "
                     f"{scope['precision']:.4f}")
    return (f"{scope['threshold']:.4f}: rejects {rejected}; of the {scope['answered']:,} answers that reach it, "
            f"{scope['wrong']:,} are wrong")


def count_scored(scores: dict[str, Any], texts: int) -> int:
    """Returns how many of the `texts` have scores: those out of scope have no class."""
    return sum(row["texts"] for row in scores["classes"].values()) if "classes" in scores else texts


def describe_texts(scores: dict[str, Any], texts: int, kind: str = "") -> str:
    """Describes which of the `texts` have scores. `kind` is an adjective."""
    scored = count_scored(scores, texts)
    return f"{texts:,} {kind}{plural('text', texts)}" if scored == texts else (
        f"the {scored:,} of {texts:,} {kind}texts that are in scope")


def shown_scores(task: str, scores: dict[str, Any]) -> dict[str, float]:
    """Returns the scores of a task by their names in words, those of the task itself first."""
    own, main = TASKS[task].score_names, getattr(TASKS[task], "main", "loss")  # that of `embed` varies
    names = own | SCORES | own  # its names and its order
    names.setdefault(main, main)
    return {name: scores[key] for key, name in names.items() if scores.get(key) is not None}
