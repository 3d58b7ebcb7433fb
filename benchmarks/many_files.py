"""Measures texts per second of labelling many texts with `predict --output`, `serve` and PyTorch's transformers.

    python benchmarks/many_files.py reviews.txt more.txt [--count=200000 --peer_count=20000]

The arguments are files with one text per line. Repeated lines are left out, and --count of the others are drawn by a
fixed seed. The model is a classifier of MiniLM's size with random weights and the vocabulary of KoELECTRA, the same for
all three, and all labels are compared. `predict` reads and writes 16 files; its time is that of the whole command. The
server answers requests of 64 texts from 8 clients, and transformers batches of 64 texts, as they arrive and sorted by
length; these three get only the first --peer_count texts, and their time does not include loading.
"""

import collections
import concurrent.futures
import functools
import itertools
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import time

import ruler
from peer_models import config_of
from serving import PATH, connect, running
from texts import KOREAN, tokenizer_of

from keras_bert.convert import convert
from keras_bert.layers import BertLayer
from keras_bert.models import BertClassifier
from keras_bert.tasks import TASKS
from keras_bert.training import FineTuned

_FILES, _BATCH, _CLIENTS, _MAX_LENGTH = 16, 64, 8, 128
_LABELS = ["negative", "neutral", "positive"]


def main():
    parser = ruler.parser(__doc__, count=200_000, peer_count=20_000, size="L6-H384")
    parser.add_argument("files", nargs="+")
    arguments = parser.parse_args()
    ruler.describe("tensorflow", "torch", "transformers")
    texts = read_texts(arguments.files, arguments.count)
    some = texts[:arguments.peer_count]
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        write_model(root, arguments.size)
        lengths = [len(ids) for ids, _ in tokenizer_of(KOREAN).pack(some, None, _MAX_LENGTH)]
        print(f"{len(texts):,} texts of {sum(lengths) / len(lengths):.1f} tokens")
        answers, seconds = run_predict(root, texts)
        report("predict --output", len(texts), seconds)
        print(f"{'':30} {dict(collections.Counter(answers))}")
        peers = {"serve": ask_server, "transformers, as they arrive": run_transformers,
                 "transformers, sorted": functools.partial(run_transformers, sort=True)}
        for name, (found, seconds) in ruler.installed(peers, root, some).items():
            report(name, len(some), seconds)
            different = sum(a != b for a, b in zip(found, answers))
            print(f"{'':30} {different} of {len(some):,} labels differ from those of predict")


def report(name, count, seconds):
    print(f"{name:30} {count:8,} texts {seconds:8.1f} s {count / seconds:8,.0f} texts/s", flush=True)


def read_texts(paths, count):
    """Returns distinct texts in random order."""
    lines = itertools.chain.from_iterable(pathlib.Path(path).read_text(encoding="utf-8").split("\n") for path in paths)
    texts = [line for line in dict.fromkeys(line.strip() for line in lines) if line]
    if len(texts) < count:
        sys.exit(f"many_files.py: the files must have at least {count:,} different lines; they have {len(texts):,}")
    return random.Random(0).sample(texts, count)


def write_model(root, size):
    """Writes the model as a folder of `finetune`, as a SavedModel and for transformers."""
    tokenizer = tokenizer_of(KOREAN)
    # Larger weights than initial ones, so that texts get different labels.
    bert = BertLayer(config_of(size, vocab_size=len(tokenizer.vocabulary), initializer_range=0.1))
    task = TASKS["classify"](_MAX_LENGTH, labels=_LABELS)
    fine_tuned = FineTuned(BertClassifier(bert, len(_LABELS)), tokenizer, task)
    fine_tuned.save(root / "model")
    fine_tuned.export(root / "answers")
    convert(root / "model", root / "transformers", "huggingface")


def run_predict(root, texts):
    """Returns the labels and the seconds of the command."""
    (root / "texts").mkdir()
    for number in range(_FILES):
        lines = [json.dumps({"text": text}) + "\n" for text in texts[number::_FILES]]
        (root / f"texts/{number:02}.jsonl").write_text("".join(lines), encoding="utf-8")
    command = [sys.executable, "-m", "keras_bert.cli", "predict", f"--model={root}/answers",
               f"--input={root}/texts/*.jsonl", f"--output={root}/labelled"]
    started = time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    seconds = time.monotonic() - started
    labels = [None] * len(texts)
    for number in range(_FILES):
        with open(root / f"labelled/{number:02}.jsonl", encoding="utf-8") as file:
            labels[number::_FILES] = [json.loads(line)["label"] for line in file]
    return labels, seconds


def ask_server(root, texts):
    """Returns the labels that the server gives and the seconds."""
    def ask(port, client):
        connection, labels = connect(port), {}
        for first in range(client * _BATCH, len(texts), _CLIENTS * _BATCH):
            body = json.dumps({"instances": texts[first:first + _BATCH]})
            connection.request("POST", PATH, body)
            predictions = json.loads(connection.getresponse().read())["predictions"]
            labels[first] = [prediction["label"] for prediction in predictions]
        return labels

    with running(root / "answers") as (_, port), concurrent.futures.ThreadPoolExecutor(_CLIENTS) as pool:
        started, parts = time.monotonic(), {}
        for labels in pool.map(functools.partial(ask, port), range(_CLIENTS)):
            parts |= labels
        seconds = time.monotonic() - started
    return [label for first in sorted(parts) for label in parts[first]], seconds


def run_transformers(root, texts, sort=False):
    """Returns the labels of transformers and the seconds."""
    import torch
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(root / "transformers")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(root / "transformers").eval()
    started = time.monotonic()
    order = sorted(range(len(texts)), key=lambda index: len(texts[index])) if sort else range(len(texts))
    labels = [None] * len(texts)
    with torch.inference_mode():
        for first in range(0, len(texts), _BATCH):
            rows = order[first:first + _BATCH]
            inputs = tokenizer([texts[row] for row in rows], padding=True, truncation=True, max_length=_MAX_LENGTH,
                               return_tensors="pt")
            for row, index in zip(rows, model(**inputs).logits.argmax(-1).tolist()):
                labels[row] = model.config.id2label[index]
    return labels, time.monotonic() - started


if __name__ == "__main__":
    main()
