"""Labels the texts of JSON Lines files with an exported classifier, on this machine or in a Ray cluster.

    python examples/ray_data.py --model=answers --input=texts --output=labelled --actors=2

The model is the folder that `keras-bert export text-model` wrote; only TensorFlow is needed to run it. The files in the
folder of the input have a key `text`. docs/clusters.md says how to run it in a cluster, and what happens when a machine
or this program is lost.

Each actor loads the model once and uses one thread. Ray counts it as half a core, so that the other machines have room
for the actors of a lost one. Reading and writing reserve no core: they would wait for ever if the actors had them all.
"""

import argparse
import os
import sys

import ray
import tensorflow as tf


class Labels:
    """An actor that adds labels and scores to batches of texts."""

    def __init__(self, model):
        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(1)
        self.answer = tf.saved_model.load(model)

    def __call__(self, batch):
        answers = self.answer(tf.constant(batch["text"].tolist()))
        labels = [label.decode() for label in answers["label"].numpy()]
        return batch | {"label": labels, "score": answers["score"].numpy()}


def main(model, input, output, actors, address, id_column):
    model, input, output = map(os.path.abspath, (model, input, output))
    checkpoints = f"{output}.checkpoints"
    if os.path.exists(output) and not (id_column and os.path.exists(checkpoints)):
        sys.exit(f"{output}: exists already; pass another --output")  # the rows would be added to those of another run
    ray.init(address)
    if id_column:
        ray.data.DataContext.get_current().checkpoint_config = ray.data.checkpoint.CheckpointConfig(
            id_column, checkpoints)
    texts = ray.data.read_json(input, lines=True, num_cpus=0)
    labelled = texts.map_batches(Labels, fn_constructor_args=[model], batch_size=256, num_cpus=0.5,
                                 compute=ray.data.ActorPoolStrategy(size=actors))
    labelled.write_json(output, ray_remote_args={"num_cpus": 0})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--input", required=True)
    parser.add_argument("--output", required=True)
    parser.add_argument("--actors", type=int, default=2, help="number of actors, in the whole cluster")
    parser.add_argument("--address", help="HOST:PORT of the cluster; default: RAY_ADDRESS, or one on this machine")
    parser.add_argument("--id_column", help="column of unique ids; with it, the same command continues after a kill")
    main(**vars(parser.parse_args()))
