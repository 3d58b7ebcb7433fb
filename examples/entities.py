"""Entities in texts: fine-tunes an encoder on WNUT-17 (Derczynski et al., 2017), scores it, predicts three texts,
exports it as a SavedModel that takes strings, and loads that.

    python examples/entities.py --train=train.conll --valid=dev.conll --output=entities

The files (https://github.com/leondz/emerging_entities_17) have CoNLL's format: one word and its tag per line, a blank
line between sentences. Scores to expect: docs/scores.md.
"""

import argparse
import os

from keras_bert import startup

startup.quiet_tensorflow()

import tensorflow as tf

import keras_bert

TEXTS = [
    "Ada Lovelace was born in London.",
    "watching the new Star Wars with Jenny at the Odeon tonight",
    "my Galaxy broke on the flight from Seoul to Berlin",
]


def main(train, valid, encoder, output):
    model = keras_bert.finetune(train, valid, model=encoder, output=output, task="tag", epochs=5, batch_size=16)
    scores = model.evaluate(valid)
    print(f"F1 of entities {scores['f1']:.3f}, precision {scores['precision']:.3f}, recall {scores['recall']:.3f}")
    for text, entities in zip(TEXTS, model.predict(TEXTS)):
        print(text)
        for entity in entities:
            print(f"    {entity.label:12} {entity.text} ({entity.score:.0%})")

    exported = os.path.join(output, "savedmodel")
    model.export(exported)
    answers = tf.saved_model.load(exported)(TEXTS)
    found = [text.decode() for text in answers["entity_text"].numpy().ravel() if text]  # "" is padding
    print(f"{exported} finds {', '.join(found)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for flag in ("--train", "--valid", "--output"):
        parser.add_argument(flag, required=True)
    parser.add_argument("--encoder", default="minilm")
    try:
        main(**vars(parser.parse_args()))
    except keras_bert.InputError as error:
        parser.exit(1, f"{parser.prog}: {error}\n")
