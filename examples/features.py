"""Nearest texts: computes vectors with a pretrained encoder, without training, and prints the texts nearest to each
question.

    python examples/features.py --texts=texts.txt "how do i change my password" "is it open on sunday"

The file has one text per line. The vector of a text is the mean of the last block's output over its tokens; the nearest
texts are those with the highest cosine similarity. To save vectors:
`keras-bert features --model=minilm --input=texts.txt --output=vectors.npz --features=last --pooling=mean`.
"""

import argparse

from keras_bert import startup

startup.quiet_tensorflow()

import numpy as np

import keras_bert
from keras_bert.data import iterate_lines
from keras_bert.models import BertFeatures

BATCH, NEAREST = 32, 3


def vectors_of(texts, features, tokenizer):
    """float32 [texts, width], each of length 1."""
    vectors = []
    for begin in range(0, len(texts), BATCH):
        inputs = tokenizer(texts[begin:begin + BATCH])
        mask = inputs["input_mask"][..., None]
        sums = (np.asarray(features(inputs)) * mask).sum(axis=1)
        vectors.append(sums / np.linalg.norm(sums, axis=1, keepdims=True))  # the direction of the mean
    return np.concatenate(vectors)


def main(texts, questions, encoder):
    folder = keras_bert.find_pretrained(encoder)
    tokenizer = keras_bert.BertTokenizer.from_folder(folder)
    features = BertFeatures(keras_bert.BertLayer.from_pretrained(folder), "last")
    texts = list(iterate_lines(texts))
    cosines = vectors_of(questions, features, tokenizer) @ vectors_of(texts, features, tokenizer).T
    for question, row in zip(questions, cosines):
        print(question)
        for number in np.argsort(-row)[:NEAREST]:
            print(f"    {row[number]:.2f}  {texts[number]}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", required=True)
    parser.add_argument("--encoder", default="minilm")
    parser.add_argument("questions", nargs="+")
    try:
        main(**vars(parser.parse_args()))
    except keras_bert.InputError as error:
        parser.exit(1, f"{parser.prog}: {error}\n")
