"""Answers texts with MediaPipe; `mediapipe_texts.py` runs this program with the Python that has the package.

    python benchmarks/mediapipe_answers.py MODEL.tflite < TEXTS.json

The last line of the output is JSON: for each text a dict of the labels and their probabilities, or None if MediaPipe
fails.
"""

import json
import sys

from mediapipe.tasks.python.text import TextClassifier


def answers(path, texts):
    """Yields the answer to each text."""
    classifier = TextClassifier.create_from_model_path(path)
    for text in texts:
        try:
            scores, = classifier.classify(text).classifications
            yield {category.category_name: category.score for category in scores.categories}
        except RuntimeError:
            yield None
            classifier = TextClassifier.create_from_model_path(path)  # after an error, it answers nothing


if __name__ == "__main__":
    print(json.dumps(list(answers(sys.argv[1], json.load(sys.stdin)))))
