"""Answers in a text: fine-tunes an encoder on SQuAD (Rajpurkar et al., 2016 and 2018), scores it, answers three
questions, exports it as a SavedModel that takes strings, and loads that.

    python examples/question_answering.py --train=train-v1.1.json --valid=dev-v1.1.json --output=answers

The files are SQuAD's (https://rajpurkar.github.io/SQuAD-explorer), v1.1, or v2.0, which has questions without an
answer; those of KorQuAD and XQuAD have the same format. Scores to expect: docs/scores.md.
"""

import argparse
import os

from keras_bert import startup

startup.quiet_tensorflow()

import tensorflow as tf

import keras_bert

CONTEXT = ("The Analytical Engine was a calculating machine designed by Charles Babbage in 1837. Ada Lovelace wrote a "
           "program for it that computes Bernoulli numbers. The machine was never finished, as money ran out.")
QUESTIONS = ["Who designed the Analytical Engine?", "What does the program compute?", "Why was it never finished?"]


def main(train, valid, encoder, output):
    model = keras_bert.finetune(train, valid, model=encoder, output=output, task="span", epochs=3, batch_size=16)
    scores = model.evaluate(valid)
    print(f"F1 {scores['f1']:.1f}, exact match {scores['exact_match']:.1f}")
    contexts = [CONTEXT] * len(QUESTIONS)
    for question, answer in zip(QUESTIONS, model.predict(QUESTIONS, contexts)):
        print(f"{question}  {answer.text or '(no answer)'} ({answer.score:.0%})")

    exported = os.path.join(output, "savedmodel")
    model.export(exported)
    answers = tf.saved_model.load(exported)(QUESTIONS, contexts)
    print(f"{exported} says", " | ".join(text.decode() for text in answers["answer"].numpy()))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for flag in ("--train", "--valid", "--output"):
        parser.add_argument(flag, required=True)
    parser.add_argument("--encoder", default="minilm")
    try:
        main(**vars(parser.parse_args()))
    except keras_bert.InputError as error:
        parser.exit(1, f"{parser.prog}: {error}\n")
