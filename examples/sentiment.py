"""Sentiment of sentences, negative or positive: fine-tunes an encoder on SST-2 (Socher et al., 2013), scores it,
predicts three sentences, exports it as a SavedModel that takes strings, and loads that.

    python examples/sentiment.py --train=SST-2/train.tsv --valid=SST-2/dev.tsv --output=sentiment

The files are GLUE's (https://gluebenchmark.com/tasks), columns `sentence` and `label`. Scores to expect:
docs/scores.md.
"""

import argparse
import os

from keras_bert import startup

startup.quiet_tensorflow()

import tensorflow as tf

import keras_bert

LABELS = {"0": "negative", "1": "positive"}
SENTENCES = [
    "a quiet film that stays with you for days",
    "two hours of my life that nobody gives back",
    "the actors are fine , the script is not",
]


def main(train, valid, encoder, output):
    model = keras_bert.finetune(train, valid, model=encoder, output=output, task="classify", data_format="sst2",
                                epochs=3)
    scores = model.evaluate(valid, data_format="sst2")
    print(f"accuracy {scores['accuracy']:.1%}")
    for sentence, answer in zip(SENTENCES, model.predict(SENTENCES)):
        print(f"{LABELS[answer.label]} ({answer.score:.0%})  {sentence}")

    exported = os.path.join(output, "savedmodel")
    model.export(exported)
    answers = tf.saved_model.load(exported)(SENTENCES)
    print(f"{exported} says", *(LABELS[label.decode()] for label in answers["label"].numpy()))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for flag in ("--train", "--valid", "--output"):
        parser.add_argument(flag, required=True)
    parser.add_argument("--encoder", default="minilm")
    try:
        main(**vars(parser.parse_args()))
    except keras_bert.InputError as error:
        parser.exit(1, f"{parser.prog}: {error}\n")
