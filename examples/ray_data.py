"""Labels the texts of JSON Lines files in a Ray cluster, or on this machine, with an exported classifier.

    python examples/ray_data.py --model=answers --input=texts --output=labelled --actors=2

The model is the folder that `keras-bert export text-model` wrote. The files in the folder of the input have a key
`text`. Each actor loads the model once and uses one thread. Ray counts it as half a core: if the actors reserved all
cores, the tasks that read and write the files would wait for ever.
"""

import argparse
import os
import sys

os.environ["TF_NUM_INTRAOP_THREADS"] = os.environ["TF_NUM_INTEROP_THREADS"] = "1"

import ray
import tensorflow as tf


class Labels:
    """An actor that adds labels and scores to batches of texts."""

    def __init__(self, model):
        self.answer = tf.saved_model.load(model)

    def __call__(self, batch):
        answers = self.answer(tf.constant(batch["text"].tolist()))
        labels = [label.decode() for label in answers["label"].numpy()]
        return batch | {"label": labels, "score": answers["score"].numpy()}


def main(model, input, output, actors):
    if os.path.exists(output):  # write_json would add the rows to those of another run
        sys.exit(f"{output}: exists already; pass another --output")
    texts = ray.data.read_json(os.path.abspath(input), lines=True)
    labelled = texts.map_batches(Labels, fn_constructor_args=[os.path.abspath(model)], batch_size=256, num_cpus=0.5,
                                 compute=ray.data.ActorPoolStrategy(size=actors))
    labelled.write_json(os.path.abspath(output))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--input", required=True)
    parser.add_argument("--output", required=True)
    parser.add_argument("--actors", type=int, default=2)
    main(**vars(parser.parse_args()))
