"""GLUE with the settings of the paper (Devlin et al., 2018, section 4.1): three epochs, batches of 32, and for each
task the learning rate (of four) and the epoch with the best score on dev. Prints the row of the paper's Table 1 and,
below it, that of BERT-base in the paper.

    python examples/glue.py --data=GLUE_FOLDER --encoder=bert-base-uncased [--output=glue --tasks=CoLA,RTE]

The folder contains those of GLUE (https://gluebenchmark.com/tasks): CoLA, SST-2 and so on, each with train.tsv and
dev.tsv; missing tasks are skipped. The paper's row is for the test set, whose labels are not public, and has no WNLI.
Averages are over the tasks in both rows. After an interruption, run the same command again: it resumes. Each model is
written to OUTPUT/TASK-RATE; one of BERT-base takes 440 MB.
"""

import argparse
import json
import pathlib
import statistics

from keras_bert import startup

startup.quiet_tensorflow()

import keras_bert

# For each task: data_format, score, and BERT-base's score on the test set in the paper.
TASKS = {
    "MNLI": ("mnli", "accuracy", 84.6),
    "QQP": ("qqp", "f1", 71.2),
    "QNLI": ("qnli", "accuracy", 90.5),
    "SST-2": ("sst2", "accuracy", 93.5),
    "CoLA": ("cola", "matthews", 52.1),
    "STS-B": ("stsb", "spearman", 85.8),
    "MRPC": ("mrpc", "f1", 88.9),
    "RTE": ("rte", "accuracy", 66.4),
    "WNLI": ("wnli", "accuracy", None),
}


def metrics_of(data, task, rate, encoder, folder):
    """Returns the metrics of one fine-tuning, a dict; fine-tunes unless the model exists."""
    if not folder.exists():
        dev = "dev_matched.tsv" if task == "MNLI" else "dev.tsv"
        data_format, score, _ = TASKS[task]
        keras_bert.finetune(
            data / task / "train.tsv", data / task / dev, model=encoder, output=folder, data_format=data_format,
            task="regress" if score == "spearman" else "classify", epochs=3, batch_size=32, learning_rate=rate,
            dropout=0.1, max_length=128)
    return json.loads((folder / "metrics.json").read_text())


def row(name, scores):
    """Returns a line of the table for a dict of scores by task, None for a missing one."""
    both = [score for task, score in scores.items() if score is not None and TASKS[task][2] is not None]
    cells = [*scores.values(), statistics.mean(both) if both else None]
    return f"{name:20}" + "".join(f"{'-' if cell is None else f'{cell:.1f}':>9}" for cell in cells)


def main(data, encoder, output, tasks, learning_rates):
    best = {}
    for task in tasks:
        by_rate = {rate: 100 * metrics_of(data, task, float(rate), encoder, output / f"{task}-{rate}")[
            TASKS[task][1]] for rate in learning_rates}
        rate = max(by_rate, key=by_rate.get)
        best[task] = by_rate[rate]
        print(f"{task}: {TASKS[task][1]} {best[task]:.1f} with {rate}; "
              + ", ".join(f"{other} {score:.1f}" for other, score in by_rate.items()))
    print(f"{'':20}" + "".join(f"{name:>9}" for name in [*best, "average"]))
    print(row(f"{encoder}, dev", best))
    print(row("BERT-base, test", {task: TASKS[task][2] for task in best}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, type=pathlib.Path)
    parser.add_argument("--encoder", required=True)
    parser.add_argument("--output", default="glue", type=pathlib.Path)
    parser.add_argument("--tasks", type=lambda names: names.split(","))
    parser.add_argument("--learning_rates", default="5e-5,4e-5,3e-5,2e-5", type=lambda rates: rates.split(","))
    arguments = parser.parse_args()
    found = [task for task in TASKS if (arguments.data / task).is_dir()]
    arguments.tasks = arguments.tasks or found
    if not arguments.tasks or not set(arguments.tasks) <= set(found):
        parser.error(f"{arguments.data}: must have a folder for each task of {', '.join(arguments.tasks or TASKS)}; "
                     f"it has {', '.join(found) or 'none'}")
    try:
        main(**vars(arguments))
    except keras_bert.InputError as error:
        parser.exit(1, f"{parser.prog}: {error}\n")
