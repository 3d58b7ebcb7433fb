"""Compares the speed of encoders, from token ids to the pooled output, without padding tokens.

    python benchmarks/forward.py [--size=base --dtypes=float32,bfloat16 --shapes=1x128,8x128,32x128 --peers=NAME,…]

All encoders get the same ids. `peers.py` shows how each library is set up and has the names; `peer_models.py` has the
sizes. The column `share` assumes the cost of a whole encoder, with every token computed up to the last block; this
package skips the part of it that the pooled output does not need. Takes about twenty minutes for `base` on two cores,
four for `L6-H384`.

With --pause=0.2, the tables are others: each library runs alone in a process of its own, in a loop and after a pause of
0.2 s, in which others of the machine take the caches, and waiting threads fall asleep.
"""

import functools
import multiprocessing
import statistics
import tempfile
import time

import numpy as np
import ruler
from peer_models import config_of, write_encoder
from peers import ENCODERS, make_encoders
from texts import ENGLISH, tokenizer_of


def main():
    given = ruler.parser(__doc__, size="base", dtypes=["float32", "bfloat16"], shapes=["1x128", "8x128", "32x128"],
                         peers=list(ENCODERS), turns=7, pause=0.0).parse_args()
    versions, config, rows = ruler.describe(*ruler.PACKAGES), config_of(given.size), []
    with tempfile.TemporaryDirectory() as work:
        write_encoder(config, f"{work}/encoder", tokenizer_of(ENGLISH))
        for dtype in given.dtypes:
            if given.pause:
                rows += after_pauses(given, f"{work}/encoder", dtype)
                continue
            encoders = make_encoders(given.peers, f"{work}/encoder", dtype)
            for shape in given.shapes:
                found = measure(encoders, config, dtype, *map(int, shape.split("x")), given.turns)
                rows += [{"dtype": dtype, "shape": shape} | row for row in found]
    ruler.finish("forward", versions, given, rows)


def after_pauses(given, folder, dtype):
    """Prints the tables of one dtype; returns their rows."""
    rows, spawn = [], multiprocessing.get_context("spawn")
    for shape in given.shapes:
        found = []
        for name in given.peers:
            with spawn.Pool(1) as pool:
                found += pool.apply(alone, (name, folder, dtype, *map(int, shape.split("x")), given.pause))
        ruler.print_table(f"{dtype}, {shape} tokens, each library alone", found)
        rows += [{"dtype": dtype, "shape": shape} | row for row in found]
    return rows


def alone(name, folder, dtype, batch, length, pause):
    """Returns the row of a library that runs in this process alone, in a list; [] if it is not installed."""
    ids, rows = np.random.default_rng(0).integers(5, 1000, (batch, length), np.int32), []
    for encode in make_encoders([name], folder, dtype).values():
        for seconds, count in ((0, 30), (0, 50), (pause, 25)):  # the first are not counted
            times = []
            for _ in range(count):
                time.sleep(seconds)
                begin = time.perf_counter()
                encode(ids, np.ones_like(ids))
                times.append(1000 * (time.perf_counter() - begin))
            rows.append(statistics.median(times))
        rows = [{"library": name, "loop_milliseconds": rows[1], "after_pause_milliseconds": rows[2],
                 "after_pause_ratio": rows[2] / rows[1]}]
    return rows


def measure(encoders, config, dtype, batch, length, turns):
    """Prints the table of one shape; returns its rows."""
    ids = np.random.default_rng(0).integers(5, config.vocab_size, (batch, length), np.int32)
    steps = {name: functools.partial(encode, ids, np.ones_like(ids)) for name, encode in encoders.items()}
    cost = batch * ruler.forward_cost(config, length)
    results = ruler.compare(steps, turns, dtype)
    return ruler.report(f"{dtype}, {batch} x {length} tokens", *results, cost, sequences=batch)


if __name__ == "__main__":
    main()
