"""Compares the ways to classify texts that are longer than the encoder, on passages of 1,500 words by eight authors.

    KERAS_BERT_DATA=FOLDER python benchmarks/long_texts.py --results=FILE.jsonl [--model=minilm --seeds=0,1,2
        --methods=cut-128,cut-512,windows,consecutive,transformers]

FOLDER has `long/authors_train.tsv` and `long/authors_test.tsv`, whose passages are from other books. Each method is
trained for three epochs with a learning rate of 2e-4, in a process of its own. `finetune` keeps the epoch that is best
on a tenth of the training file, which it holds out. Models that are trained on cut texts also answer in windows, whose
logits are averaged. `transformers` is trained by PyTorch on the first 128 tokens of the same texts, as `cut-128` is,
and keeps the last epoch. The seconds are those of training, and of the answers; the memory is the peak of the process.
Runs that are already in `--results` are skipped.
"""

import argparse
import dataclasses
import json
import sys
import tempfile
import time

import ruler

EPOCHS, BATCH, RATE, HELD_OUT = 3, 32, 2e-4, 0.1
METHODS = {  # the options of `finetune`
    "cut-128": {}, "cut-512": {"max_length": 512}, "windows": {"doc_stride": 64}, "consecutive": {"doc_stride": 126},
    "transformers": {}}
STRIDE = 126  # of the windows of a model that was trained on cut texts


def finetuned(train, model, seed, options):
    """Returns the task, its tokenizer, and a function from encoded texts to the model's outputs."""
    from keras_bert.training import finetune

    with tempfile.TemporaryDirectory() as folder:
        tuned = finetune(train, model=model, output=f"{folder}/model", task="classify", epochs=EPOCHS,
                         batch_size=BATCH, learning_rate=RATE, seed=seed, valid_share=HELD_OUT, **options)
    return tuned.task, tuned.tokenizer, tuned.outputs


def transformers(train, model, seed, options):
    """Returns what `finetuned` returns, of a transformers model."""
    import torch
    from task_scores_torch import make_model, train_epochs

    from keras_bert import BertTokenizer, find_pretrained
    from keras_bert.tasks import Classify, run_model
    from keras_bert.training.held_out import hold_out

    torch.manual_seed(seed)
    folder, examples = find_pretrained(model), Classify.read(train)
    tokenizer = BertTokenizer.from_folder(folder)
    task = Classify.from_examples(train, examples, max_length=Classify.length)
    examples, _ = hold_out(task, train, examples, HELD_OUT, seed)
    module, forward, loss_of = make_model("classify", task, folder)
    batches = task.encode(examples, tokenizer).batched(tokenizer)
    for _ in train_epochs(module, forward, loss_of, batches, EPOCHS, BATCH, RATE, "float32", seed):
        pass
    return task, tokenizer, lambda encoded: run_model(forward, encoded.batched(tokenizer), BATCH)


def work(method):
    """Reads what to do from standard input, and writes the result as the last line of standard output."""
    given = json.load(sys.stdin)
    started = time.monotonic()
    make = transformers if method == "transformers" else finetuned
    task, tokenizer, outputs_of = make(given["train"], given["model"], given["seed"], METHODS[method])
    seconds, rows = time.monotonic() - started, []
    examples = task.read(given["test"])
    readings = [task] if task.windows else [task, dataclasses.replace(task, doc_stride=STRIDE)]
    for reading in readings:
        started = time.monotonic()
        encoded = reading.encode(examples, tokenizer)
        outputs = outputs_of(encoded)
        answering = time.monotonic() - started
        for aggregate in ("mean", "max") if reading.windows else ("mean",):
            scores = dataclasses.replace(reading, aggregate=aggregate).score(encoded, outputs)
            name = f"windows of {reading.doc_stride}, {aggregate}" if reading.windows else f"cut at {task.max_length}"
            rows.append({"read": name, "accuracy": scores["accuracy"], "training_seconds": seconds,
                         "seconds": answering, "peak_mb": ruler.peak_memory() / 1e6})
    print(json.dumps(rows))


def main():
    parser = ruler.parser(__doc__, results=str, model="minilm", seeds=[0, 1, 2], methods=list(METHODS))
    parser.add_argument("--work", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        return work(given.work)
    from real_texts import find
    from task_scores import append, matching

    versions, rows = ruler.describe("tensorflow", "keras", "torch", "transformers"), []
    files = {name: str(find(f"long/authors_{name}.tsv")) for name in ("train", "test")}
    for seed in given.seeds:
        for method in given.methods:
            wanted = {"method": method, "model": given.model, "seed": seed} | files
            found = matching(given.results, wanted)
            for row in found or [wanted | row for row in ruler.run_alone(
                    __file__, f"--work={method}", f"--results={given.results}", input=json.dumps(wanted))]:
                if not found:
                    append(given.results, row)
                rows.append(row)
                print(f"{method}, seed {seed}, {row['read']}: {row['accuracy']:.2%}", flush=True)
    columns = "accuracy", "training_seconds", "seconds", "peak_mb"
    by_library = {}
    for row in rows:
        by_library.setdefault(f"{row['method']}, {row['read']}", []).append(row)
    ruler.print_table(f"means over {len(given.seeds)} seeds", [
        {"library": name} | {column: sum(row[column] for row in some) / len(some) for column in columns}
        for name, some in by_library.items()])
    ruler.finish("long_texts", versions, given, rows)


if __name__ == "__main__":
    main()
