"""The best of four endings: fine-tunes an encoder on CODAH (Chen et al., 2019), scores it, predicts the endings of
three beginnings, exports it as a SavedModel that takes strings, and loads that.

    python examples/multiple_choice.py --train=train.tsv --valid=dev.tsv --output=endings

The files are those of one fold (https://github.com/Websail-NU/CODAH). Scores to expect: docs/scores.md.
"""

import argparse
import os

from keras_bert import startup

startup.quiet_tensorflow()

import tensorflow as tf

import keras_bert

BEGINNINGS = ["The umbrella was open because it", "The baby woke up hungry. She", "The chess player lost his queen. He"]
ENDINGS = [
    ["was raining.", "ate a fish.", "ran a marathon.", "was a song."],
    ["drove to the office.", "began to cry.", "read the newspaper.", "paid her taxes."],
    ["married the king.", "flew to the moon.", "soon lost the game.", "boiled an egg."],
]


def main(train, valid, encoder, output):
    model = keras_bert.finetune(train, valid, model=encoder, output=output, task="choice", data_format="codah",
                                epochs=4, batch_size=16)
    scores = model.evaluate(valid, data_format="codah")
    print(f"accuracy {scores['accuracy']:.1%}, by chance 25%")
    for beginning, endings, choice in zip(BEGINNINGS, ENDINGS, model.predict(BEGINNINGS, ENDINGS)):
        print(f"{beginning} {endings[choice.index]} ({max(choice.probabilities):.0%})")

    exported = os.path.join(output, "savedmodel")
    model.export(exported)
    answers = tf.saved_model.load(exported)(BEGINNINGS, ENDINGS)
    print(f"{exported} says", *(endings[number] for endings, number in zip(ENDINGS, answers["choice"].numpy())))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for flag in ("--train", "--valid", "--output"):
        parser.add_argument(flag, required=True)
    parser.add_argument("--encoder", default="minilm")
    try:
        main(**vars(parser.parse_args()))
    except keras_bert.InputError as error:
        parser.exit(1, f"{parser.prog}: {error}\n")
