"""Tests `keras-bert serve` under sustained load: many connections, each answer checked, memory every minute.

    keras-bert export text-model --model=demo/model --output=demo/answers
    python benchmarks/serving_soak.py --folder=demo/model --model=demo/answers --texts=demo/data/valid.tsv --minutes=30

--folder: a fine-tuned classifier; its predictions in this process are the answers that the server must give. --model:
its raw-text SavedModel. --texts: a table with a column `text`; a request has one, two or five of these texts. An answer
that belongs to another text, or an error, ends the program with status 1. The memory is the worker's resident memory.
"""

import argparse
import concurrent.futures
import http.client
import json
import os
import random
import threading

os.environ |= {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}

from ruler import describe, resident
from serving_load import start

from keras_bert.data.tables import read_table
from keras_bert.inference.fine_tuned import FineTuned

TOLERANCE = 1e-5  # for probabilities: another batch sums in another order


class Soak:
    """Clients that compare the server's answers with the expected ones.

    Attributes:
        stopped: True once the clients must stop.
        requests: number of requests that were answered.
        worst: largest difference of a probability.
    """

    def __init__(self, port, wanted):
        self._port, self._wanted, self._texts, self.stopped = port, wanted, list(wanted), False
        self._lock, self.requests, self.worst = threading.Lock(), 0, 0.0

    def ask(self, number):
        """Runs one client, which sends requests on its own connection until `stopped` is True."""
        chance = random.Random(number)
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        while not self.stopped:
            texts = chance.sample(self._texts, chance.choice([1, 1, 1, 2, 5]))
            connection.request("POST", "/v1/models/model:predict", json.dumps({"instances": texts}))
            response = connection.getresponse()
            answer = json.loads(response.read())
            if response.status != 200:
                raise SystemExit(f"serving_soak.py: {response.status}: {answer}")
            self._compare(texts, answer["predictions"])

    def _compare(self, texts, predictions):
        for text, got in zip(texts, predictions, strict=True):
            label, score = self._wanted[text]
            if got["label"] != label or abs(got["score"] - score) > TOLERANCE:
                raise SystemExit(f"serving_soak.py: {text!r}: {got} instead of {label} {score}")
            with self._lock:
                self.worst = max(self.worst, abs(got["score"] - score))
        with self._lock:
            self.requests += 1


def soak_for(minutes, clients, soak, server):
    """Runs that many clients for that many minutes; returns the worker's memory after each minute, in megabytes."""
    with open(f"/proc/{server.pid}/task/{server.pid}/children") as file:
        worker, = file.read().split()
    megabytes = []
    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        asking = [pool.submit(soak.ask, number) for number in range(clients)]
        try:
            for minute in range(1, minutes + 1):
                if concurrent.futures.wait(asking, 60, concurrent.futures.FIRST_EXCEPTION).done:
                    break
                megabytes.append(resident(worker) / 1e6)
                print(f"{minute:4} min {soak.requests:9,} requests {megabytes[-1]:8.1f} MB", flush=True)
        finally:
            soak.stopped = True  # also after Ctrl-C
    for client in asking:
        client.result()
    return megabytes


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("folder", "model", "texts"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--minutes", type=int, default=30)
    parser.add_argument("--connections", type=int, default=64)
    arguments = parser.parse_args()
    _, rows = read_table(arguments.texts, required=["text"])
    texts = sorted({row["text"] for _, row in rows})
    wanted = {text: (row.label, row.score) for text, row in zip(texts, FineTuned.load(arguments.folder).predict(texts))}
    describe("tensorflow", "keras-bert-hub")
    server, port = start(arguments.model, [])
    soak = Soak(port, wanted)
    try:
        megabytes = soak_for(arguments.minutes, arguments.connections, soak, server)
    finally:
        server.terminate()
        server.wait()
    print(json.dumps({"benchmark": "serving_soak", "connections": arguments.connections, "requests": soak.requests,
                      "worst": soak.worst, "megabytes": megabytes}))


if __name__ == "__main__":
    main()
