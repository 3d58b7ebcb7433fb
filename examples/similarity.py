"""Similarity of two sentences, from 0 to 5: fine-tunes an encoder on STS-B (Cer et al., 2017), scores it, predicts
three pairs, exports it as a SavedModel that takes strings, and loads that.

    python examples/similarity.py --train=STS-B/train.tsv --valid=STS-B/dev.tsv --output=similarity

The files are GLUE's (https://gluebenchmark.com/tasks), columns `sentence1`, `sentence2` and `score`.
"""

import argparse
import os

from keras_bert import startup

startup.quiet_tensorflow()

import tensorflow as tf

import keras_bert

PAIRS = [
    ("A man is playing a guitar.", "Someone plays the guitar."),
    ("A dog runs through the snow.", "An animal is outside."),
    ("The bank raised its rates.", "Children build a castle of sand."),
]


def main(train, valid, encoder, output):
    model = keras_bert.finetune(train, valid, model=encoder, output=output, task="regress", data_format="stsb",
                                epochs=3)
    scores = model.evaluate(valid, data_format="stsb")
    print(f"correlation: Pearson {scores['pearson']:.3f}, Spearman {scores['spearman']:.3f}")
    firsts, seconds = map(list, zip(*PAIRS))
    for (first, second), value in zip(PAIRS, model.predict(firsts, seconds)):
        print(f"{value:.2f}  {first} | {second}")

    exported = os.path.join(output, "savedmodel")
    model.export(exported)
    answers = tf.saved_model.load(exported)(firsts, seconds)
    print(f"{exported} says", *(f"{value:.2f}" for value in answers["value"].numpy()))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for flag in ("--train", "--valid", "--output"):
        parser.add_argument(flag, required=True)
    parser.add_argument("--encoder", default="minilm")
    try:
        main(**vars(parser.parse_args()))
    except keras_bert.InputError as error:
        parser.exit(1, f"{parser.prog}: {error}\n")
