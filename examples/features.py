"""Vectors of texts from an encoder that is left as it is, and with them the texts nearest to a question.

    python examples/features.py --texts=texts.txt "how do i change my password" "is it open on sunday"

The file has a text a line. A text's vector is the mean of its tokens' vectors, the output of the last block; the texts
whose vectors have the highest cosine are the nearest. To keep vectors:
`keras-bert features --model=minilm --input=texts.txt --output=vectors.npz --features=last --pooling=mean`.
"""

import argparse
import pathlib

from keras_bert import startup

startup.quiet_tensorflow()

import numpy as np

import keras_bert
from keras_bert.models import BertFeatures

BATCH, NEAREST = 32, 3


def vectors_of(texts, features, tokenizer):
    """float32 [texts, width], each of length 1."""
    vectors = []
    for begin in range(0, len(texts), BATCH):
        inputs = tokenizer(texts[begin:begin + BATCH])
        mask = inputs["input_mask"][..., None]
        sums = (np.asarray(features(inputs)) * mask).sum(axis=1)
        vectors.append(sums / np.linalg.norm(sums, axis=1, keepdims=True))  # as the mean's: its length goes
    return np.concatenate(vectors)


def main(texts, questions, encoder):
    folder = keras_bert.find_pretrained(encoder)
    tokenizer = keras_bert.BertTokenizer.from_folder(folder)
    features = BertFeatures(keras_bert.BertLayer.from_pretrained(folder), "last")
    texts = pathlib.Path(texts).read_text(encoding="utf-8").splitlines()
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
    main(**vars(parser.parse_args()))
