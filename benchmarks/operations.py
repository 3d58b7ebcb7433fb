"""Measures how much time an encoder, or a training step, spends in each kind of operation.

    python benchmarks/operations.py [--size=base --dtype=float32 --shape=32x128 --peers=keras_bert,garden --training]

TensorFlow's profiler traces five calls of each encoder (those of `peers.py` that run in TensorFlow), or with
`--training` five fine-tuning steps (those of `training_step.py`); the call whose operations took the least time is
reported. `--shape=mixed` takes one batch of the texts that `training_step.py` trains on. Milliseconds are the time of
an operation's kernel from start to end, summed over all operations of one kind. If kernels run at the same time, the
sum is more than the call takes.
"""

import collections
import functools
import pathlib
import tempfile

import ruler
import tensorflow as tf
from peer_models import config_of, write_encoder
from peers import make_encoders
from tensorflow.tsl.profiler.protobuf import xplane_pb2
from texts import ENGLISH, tokenizer_of
from training_step import TRAINERS, full_batch, mixed_texts, real_batches

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


def calls_of(given, config, inputs, targets):
    """Returns a dict of functions that encode one batch, or train for one step."""
    if given.training:
        trainers = ruler.installed({name: TRAINERS[name] for name in given.peers}, config, given.dtype)
        return {name: functools.partial(step, *inputs, targets=targets) for name, step in trainers.items()}
    with tempfile.TemporaryDirectory() as work:
        write_encoder(config, f"{work}/encoder")
        encoders = make_encoders(given.peers, f"{work}/encoder", given.dtype)
    return {name: functools.partial(encode, *inputs[:2]) for name, encode in encoders.items()}


def main():
    given = ruler.parser(__doc__, size="base", dtype="float32", shape="32x128", peers=[], training=False).parse_args()
    padded = [] if given.training else [f"{ruler.OURS}-padded"]
    given.peers = given.peers or [ruler.OURS, *padded, "kerashub", "garden"]
    versions, tokenizer = ruler.describe(*ruler.PACKAGES), tokenizer_of(ENGLISH)
    config = config_of(given.size, vocab_size=len(tokenizer.vocabulary))
    batches = (real_batches(mixed_texts(tokenizer, 1)) if given.shape == "mixed"
               else full_batch(config, *map(int, given.shape.split("x"))))
    rows = []
    for library, call in calls_of(given, config, *batches[0]).items():
        spent = measure(call)
        print(f"\n{library}, {given.dtype}, {given.shape}: {spent.total():,.1f} ms")
        for kind, milliseconds in spent.most_common(20 if given.training else 12):
            print(f"{kind:32} {milliseconds:10,.1f} {milliseconds / spent.total():6.1%}")
        rows.append({"library": library, "milliseconds": dict(spent)})
    ruler.finish("operations", versions, given, rows)


if __name__ == "__main__":
    main()
