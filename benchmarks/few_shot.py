"""Compares classification with a few texts per label: `finetune` with and without `few_shot`, and SetFit, on the CPU.

    python -m venv setfit && setfit/bin/python -m pip install setfit "transformers<5" torch
    python benchmarks/few_shot.py --results=FILE.jsonl --setfit=setfit/bin/python [--task=banking77 --shots=8
        --seeds=0,1,2 --methods=plain,few_shot,setfit --download]

Each seed draws `--shots` texts of each label from the training file; the whole validation file is scored, after the
last epoch. The tasks and their data are those of `task_scores.py`. SetFit has its own settings, with
`num_iterations=20` (https://github.com/huggingface/setfit): each text in 20 pairs with one of its label and in 20 with
one of another. Each run is a process of its own; the seconds are those of training and of the answers to the validation
file, without the imports. Runs that are already in `--results` are skipped.
"""

import argparse
import collections
import json
import pathlib
import random
import sys
import tempfile
import time

import ruler

METHODS = {  # the options of `finetune`, or of setfit's TrainingArguments
    "plain": {"epochs": 30, "batch_size": 16, "learning_rate": 2e-4},
    "few_shot": {"few_shot": True},  # with the defaults: 3 epochs, batches of 32, learning rate 5e-5
    "setfit": {"num_iterations": 20},
}


def draw(examples, shots, seed):
    """Returns (text, label) of `shots` different texts of each label, or of all if there are fewer."""
    texts, rng = collections.defaultdict(set), random.Random(seed)
    for example in examples:
        texts[example.label].add(example.text)
    return [(text, label) for label in sorted(texts)
            for text in rng.sample(sorted(texts[label]), min(shots, len(texts[label])))]


def finetuned(given):
    """Fine-tunes MiniLM; returns the accuracy after the last epoch and the seconds."""
    from keras_bert.training import finetune

    with tempfile.TemporaryDirectory() as folder:
        started = time.monotonic()
        finetune(given["train"], given["valid"], model="minilm", output=f"{folder}/model", seed=given["seed"],
                 **given["options"])
        seconds = time.monotonic() - started
        metrics = json.loads(pathlib.Path(folder, "model/metrics.json").read_text())
        return metrics["history"]["val_accuracy"][-1], seconds


def setfit(given):
    """Trains a SetFit model; returns the accuracy and the seconds. Needs only setfit."""
    import datasets
    from setfit import SetFitModel, Trainer, TrainingArguments

    texts, labels = zip(*given["train"])
    with tempfile.TemporaryDirectory() as folder:
        started = time.monotonic()
        model = SetFitModel.from_pretrained(given["model"], device="cpu")
        arguments = TrainingArguments(output_dir=folder, seed=given["seed"], save_strategy="no", report_to="none",
                                      **given["options"])
        Trainer(model, arguments, datasets.Dataset.from_dict({"text": texts, "label": labels})).train()
        answers = model.predict([text for text, _ in given["valid"]])
        seconds = time.monotonic() - started
    right = sum(answer == label for answer, (_, label) in zip(answers, given["valid"], strict=True))
    return right / len(given["valid"]), seconds


def work(method):
    """Reads what to do from standard input, and writes the result as the last line of standard output."""
    given = json.load(sys.stdin)
    accuracy, seconds = setfit(given) if method == "setfit" else finetuned(given)
    print(json.dumps({"score": accuracy, "seconds": seconds}))


def measure(given, wanted, **data):
    """Runs the method that the dict `wanted` names in its own process; returns a row of the result."""
    from task_scores import append, matching

    if known := matching(given.results, wanted):
        return known[0]
    method = wanted["method"]
    row = wanted | ruler.run_alone(
        __file__, f"--work={method}", f"--results={given.results}",
        python=given.setfit if method == "setfit" else sys.executable,
        input=json.dumps(data | {name: wanted[name] for name in ("seed", "options")}))
    append(given.results, row)
    print(f"{method}, seed {row['seed']}: {row['score']:.4f}, {row['seconds']:.0f} s", flush=True)
    return row


def main():
    parser = ruler.parser(__doc__, results=str, setfit=None, shots=8, seeds=[0, 1, 2], methods=list(METHODS),
                          download=False)
    parser.add_argument("--task", default="clinc-hwu-176", choices=("clinc-hwu-176", "banking77", "sst2-16"))
    parser.add_argument("--work", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        return work(given.work)
    from real_texts import DATA, DOWNLOADS
    from task_scores import RUNS, files_of, print_scores

    from keras_bert.convert import convert
    from keras_bert.tasks import TASKS

    versions, run, methods = ruler.describe("tensorflow", "keras"), RUNS[given.task], list(given.methods)
    if not given.setfit and "setfit" in methods:
        print("without setfit: --setfit names no Python that has it")
        methods.remove("setfit")
    rows = {method: [] for method in methods}
    with tempfile.TemporaryDirectory() as folder:
        train, valid = (TASKS[run.task].read(path) for path in files_of(run, pathlib.Path(folder), given.download))
        convert("minilm", f"{folder}/minilm", "sentence_transformers")
        valid = [(example.text, example.label) for example in valid]
        for seed in given.seeds:
            few = draw(train, given.shots, seed)
            for method in methods:
                wanted = {"task": given.task, "data": str(DOWNLOADS if given.download else DATA), "shots": given.shots,
                          "texts": len(few), "method": method, "options": METHODS[method], "seed": seed}
                rows[method].append(measure(given, wanted, train=few, valid=valid, model=f"{folder}/minilm"))
    print(f"\n{given.shots} texts per label, {len(valid):,} validation texts")
    print_scores(given.task, "accuracy", rows)
    ruler.finish("few_shot", versions, given, [row for some in rows.values() for row in some])


if __name__ == "__main__":
    main()
