"""Measures throughput and latency of `keras-bert serve` under load, with and without batching, using wrk.

    keras-bert export text-model --model=demo/model --output=demo/answers
    python benchmarks/serving_load.py --model=demo/answers --texts=demo/data/valid.tsv

--model: a raw-text SavedModel whose only input is `text`. --texts: a table with a column `text`; each request sends one
of these texts, in their order. Needs wrk (Debian: apt-get install wrk). Takes half a minute for each of the eight rows
of the table.
"""

import argparse
import itertools
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time

from ruler import describe

from keras_bert.data.tables import read_table

SCRIPT = """
local bodies, turn = {}, 0
for line in io.lines("BODIES") do bodies[#bodies + 1] = line end
request = function()
  turn = turn + 1
  return wrk.format("POST", nil, nil, bodies[turn % #bodies + 1])
end
done = function(summary, latency, requests)
  print(string.format("RESULT %d %d %d %d %d %d", summary.requests, summary.duration, latency:percentile(50),
                      latency:percentile(99), latency:percentile(99.9),
                      summary.errors.status + summary.errors.timeout + summary.errors.read))
end
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--texts", required=True)
    parser.add_argument("--seconds", type=int, default=30)
    parser.add_argument("--connections", type=int, nargs="+", default=[1, 8, 64, 256])
    arguments = parser.parse_args()
    if not shutil.which("wrk"):
        sys.exit("serving_load.py: wrk is not installed; on Debian: apt-get install wrk")
    _, texts = read_table(arguments.texts, required=["text"])
    bodies = [json.dumps({"instances": [row["text"]]}) for _, row in itertools.islice(texts, 10_000)]
    rows = []
    describe("tensorflow", "keras-bert-hub")
    print(f"seconds a row: {arguments.seconds}\n")
    print(f"{'':10} {'connections':>11} {'requests/s':>11} {'p50, ms':>8} {'p99, ms':>8} {'p99.9, ms':>10}")
    for name, flags in (("batched", []), ("one by one", ["--max_batch_tokens=1"])):
        server, port = start(arguments.model, flags)
        try:
            for count in arguments.connections:
                row = measure(port, bodies, count, arguments.seconds)
                rows.append({"mode": name, "connections": count, **row})
                print(f"{name:10} {count:11} {row['rate']:11.1f} {row['p50_ms']:8.1f} {row['p99_ms']:8.1f} "
                      f"{row['p99_9_ms']:10.1f}", flush=True)
        finally:
            server.terminate()
            server.wait()
    print(json.dumps({"benchmark": "serving_load", "rows": rows}))


def start(model, flags):
    """Starts a server and waits until it is ready; returns its process and its port."""
    server = subprocess.Popen([sys.executable, "-m", "keras_bert.cli", "serve", f"--model=model={model}", "--port=0",
                               "--grpc_port=0", *flags], stderr=(log := tempfile.TemporaryFile("w+")))
    while server.poll() is None:
        time.sleep(0.5)
        log.seek(0)
        if '"event": "available"' in (text := log.read()):
            return server, int(re.search(r":(\d+)/v1", text)[1])
    sys.exit(text)


def measure(port, bodies, connections, seconds):
    """Warms up for two seconds, then runs wrk; returns the rate and the latencies."""
    url = f"http://127.0.0.1:{port}/v1/models/model:predict"
    with tempfile.NamedTemporaryFile("w") as lines, tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        lines.write("\n".join(bodies))
        lines.flush()
        script.write(SCRIPT.replace("BODIES", lines.name))
        script.flush()
        command = ["wrk", "-t1", f"-c{connections}", "--timeout=30s", "-s", script.name, url]
        subprocess.run([*command, "-d2s"], check=True, capture_output=True)
        output = subprocess.run([*command, f"-d{seconds}s"], check=True, capture_output=True, text=True).stdout
    requests, microseconds, p50, p99, p99_9, errors = map(int, re.search(r"RESULT (.*)", output)[1].split())
    if errors:
        sys.exit(f"serving_load.py: {errors} requests failed")
    return {"rate": requests / microseconds * 1e6, "p50_ms": p50 / 1000, "p99_ms": p99 / 1000,
            "p99_9_ms": p99_9 / 1000}


if __name__ == "__main__":
    main()
