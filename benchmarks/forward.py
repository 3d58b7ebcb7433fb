"""Compares the speed of encoders, from token ids to the pooled output, without padding tokens.

    python benchmarks/forward.py [--size=base --dtypes=float32,bfloat16 --shapes=1x128,8x128,32x128 --peers=NAME,…]

All encoders get the same ids. `peers.py` shows how each library is set up and has the names; `peer_models.py` has the
sizes. The column `share` assumes the cost of a whole encoder, with every token computed up to the last block; this
package skips the part of it that the pooled output does not need. Takes about twenty minutes for `base` on two cores,
four for `L6-H384`.
"""

import argparse
import functools
import os
import tempfile

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np  # noqa: E402
from peer_models import PACKAGES, config_of, write_encoder  # noqa: E402
from peers import ENCODERS, make_encoders  # noqa: E402
from ruler import compare, describe, finish, forward_cost, report  # noqa: E402
from texts import ENGLISH, tokenizer_of  # noqa: E402


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="base")
    parser.add_argument("--dtypes", default="float32,bfloat16")
    parser.add_argument("--shapes", default="1x128,8x128,32x128")
    parser.add_argument("--peers", default=",".join(ENCODERS))
    parser.add_argument("--turns", type=int, default=7)
    given = parser.parse_args()
    versions, config, rows = describe(*PACKAGES), config_of(given.size), []
    with tempfile.TemporaryDirectory() as work:
        write_encoder(config, f"{work}/encoder", tokenizer_of(ENGLISH))
        for dtype in given.dtypes.split(","):
            encoders = make_encoders(given.peers.split(","), f"{work}/encoder", dtype)
            for shape in given.shapes.split(","):
                found = measure(encoders, config, dtype, *map(int, shape.split("x")), given.turns)
                rows += [{"dtype": dtype, "shape": shape} | row for row in found]
    finish("forward", versions, given, rows)


def measure(encoders, config, dtype, batch, length, turns):
    """Prints the table of one shape; returns its rows."""
    ids = np.random.default_rng(0).integers(5, config.vocab_size, (batch, length), np.int32)
    steps = {name: functools.partial(encode, ids, np.ones_like(ids)) for name, encode in encoders.items()}
    cost = batch * forward_cost(config, length)
    return report(f"{dtype}, {batch} x {length} tokens", *compare(steps, turns, dtype), cost, sequences=batch)


if __name__ == "__main__":
    main()
