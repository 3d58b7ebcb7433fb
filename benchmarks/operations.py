"""Measures how much time an encoder, or a training step, spends in each kind of operation.

    python benchmarks/operations.py [--size=base --dtype=float32 --shape=32x128 --peers=keras_bert,garden --training]

TensorFlow's profiler traces five calls of each encoder (those of `peers.py` that run in TensorFlow), or with
`--training` five fine-tuning steps (those of `training_step.py`); the call whose operations took the least time is
reported. `--shape=mixed` takes one batch of the texts that `training_step.py` trains on. Milliseconds are the time of
an operation's kernel from start to end, summed over all operations of one kind. If kernels run at the same time, the
sum is more than the call takes.
"""

import argparse
import collections
import functools
import os
import pathlib
import tempfile

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf  # noqa: E402
from peer_models import PACKAGES, config_of, write_encoder  # noqa: E402
from peers import make_encoders  # noqa: E402
from ruler import OURS, describe, finish, installed  # noqa: E402
from tensorflow.tsl.profiler.protobuf import xplane_pb2  # noqa: E402
from texts import ENGLISH, tokenizer_of  # noqa: E402
from training_step import TRAINERS, full_batch, mixed_texts, real_batches  # noqa: E402

WARM_UP, CALLS = 3, 5


def trace(call):
    """Returns the milliseconds of each kind of operation in one call, as a `Counter`."""
    with tempfile.TemporaryDirectory() as folder:
        with tf.profiler.experimental.Profile(folder):
            call()
        path, = pathlib.Path(folder).rglob("*.xplane.pb")
        planes = xplane_pb2.XSpace.FromString(path.read_bytes()).planes
    spent = collections.Counter()
    for plane in planes:
        for event in (event for line in plane.lines for event in line.events):
            described = plane.event_metadata[event.metadata_id]
            if described.display_name and ":" in described.name:  # "name:Kind", shown as "Kind"
                spent[described.display_name] += event.duration_ps / 1e9
    return spent


def measure(call):
    """Returns the trace with the smallest total time, out of `CALLS` traces."""
    for _ in range(WARM_UP):
        call()
    return min((trace(call) for _ in range(CALLS)), key=lambda spent: spent.total())


def encoder_calls(names, config, dtype, ids, mask):
    """Returns a dict of functions that encode one batch."""
    with tempfile.TemporaryDirectory() as work:
        write_encoder(config, f"{work}/encoder")
        encoders = make_encoders(names, f"{work}/encoder", dtype)
    return {name: functools.partial(encode, ids, mask) for name, encode in encoders.items()}


def training_calls(names, config, dtype, inputs, targets):
    """Returns a dict of functions that train for one step."""
    trainers = installed({name: TRAINERS[name] for name in names}, config, dtype)
    return {name: functools.partial(step, *inputs, targets=targets) for name, step in trainers.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="base")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--shape", default="32x128", help="BATCHxTOKENS, or mixed")
    parser.add_argument("--peers")
    parser.add_argument("--training", action="store_true")
    given = parser.parse_args()
    given.peers = given.peers or ",".join([OURS, *([] if given.training else [f"{OURS}-padded"]), "kerashub", "garden"])
    versions, tokenizer = describe(*PACKAGES), tokenizer_of(ENGLISH)
    config = config_of(given.size, vocab_size=len(tokenizer.vocabulary))
    if given.shape == "mixed":
        inputs, targets = real_batches(mixed_texts(tokenizer, 1))[0]
    else:
        inputs, targets = full_batch(config, *map(int, given.shape.split("x")))[0]
    names, rows = given.peers.split(","), []
    calls = training_calls(names, config, given.dtype, inputs, targets) if given.training else encoder_calls(
        names, config, given.dtype, *inputs[:2])
    for library, call in calls.items():
        spent = measure(call)
        print(f"\n{library}, {given.dtype}, {given.shape}: {spent.total():,.1f} ms")
        for kind, milliseconds in spent.most_common(20 if given.training else 12):
            print(f"{kind:32} {milliseconds:10,.1f} {milliseconds / spent.total():6.1%}")
        rows.append({"library": library, "milliseconds": dict(spent)})
    finish("operations", versions, given, rows)


if __name__ == "__main__":
    main()
