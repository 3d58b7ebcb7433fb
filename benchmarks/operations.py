"""Measures how much time an encoder spends in each kind of operation.

    python benchmarks/operations.py [--size=base --dtype=float32 --shape=32x128 --peers=keras_bert,kerashub,…]

TensorFlow's profiler traces five calls of each encoder (those of `peers.py` that run in TensorFlow); the call whose
operations took the least time is reported. Milliseconds are the time of an operation's kernel from start to end, summed
over all operations of one kind. If kernels run at the same time, the sum is more than the call takes.
"""

import argparse
import collections
import os
import pathlib
import tempfile

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
from peer_models import PACKAGES, config_of, write_encoder  # noqa: E402
from peers import make_encoders  # noqa: E402
from ruler import describe, finish  # noqa: E402
from tensorflow.tsl.profiler.protobuf import xplane_pb2  # noqa: E402

WARM_UP, CALLS = 3, 5


def trace(encode, ids):
    """Returns the milliseconds of each kind of operation in one call, as a `Counter`."""
    with tempfile.TemporaryDirectory() as folder:
        with tf.profiler.experimental.Profile(folder):
            encode(ids, np.ones_like(ids))
        path, = pathlib.Path(folder).rglob("*.xplane.pb")
        planes = xplane_pb2.XSpace.FromString(path.read_bytes()).planes
    spent = collections.Counter()
    for plane in planes:
        for event in (event for line in plane.lines for event in line.events):
            described = plane.event_metadata[event.metadata_id]
            if described.display_name and ":" in described.name:  # "name:Kind", shown as "Kind"
                spent[described.display_name] += event.duration_ps / 1e9
    return spent


def measure(encode, ids):
    """Returns the trace with the smallest total time, out of `CALLS` traces."""
    for _ in range(WARM_UP):
        encode(ids, np.ones_like(ids))
    return min((trace(encode, ids) for _ in range(CALLS)), key=lambda spent: spent.total())


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--size", default="base")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--shape", default="32x128")
    parser.add_argument("--peers", default="keras_bert,keras_bert-padded,kerashub,garden")
    given = parser.parse_args()
    versions, config = describe(*PACKAGES), config_of(given.size)
    ids = np.random.default_rng(0).integers(5, config.vocab_size, [*map(int, given.shape.split("x"))], np.int32)
    rows = []
    with tempfile.TemporaryDirectory() as work:
        write_encoder(config, f"{work}/encoder")
        for library, encode in make_encoders(given.peers.split(","), f"{work}/encoder", given.dtype).items():
            spent = measure(encode, ids)
            print(f"\n{library}, {given.dtype}, {given.shape}: {spent.total():,.1f} ms")
            for kind, milliseconds in spent.most_common(12):
                print(f"{kind:32} {milliseconds:10,.1f} {milliseconds / spent.total():6.1%}")
            rows.append({"library": library, "milliseconds": dict(spent)})
    finish("operations", versions, given, rows)


if __name__ == "__main__":
    main()
