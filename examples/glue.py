"""GLUE with the settings of the paper (Devlin et al., 2018, section 4.1): three epochs, batches of 32, for each task
the best of four learning rates, and of the epochs the best, on dev. Prints the row of the paper's Table 1, and below it
the paper's own for BERT-base.

    python examples/glue.py --data=GLUE_FOLDER --encoder=bert-base-uncased [--output=glue --tasks=CoLA,RTE]

The folder holds GLUE's own (https://gluebenchmark.com/tasks): CoLA, SST-2 and so on, each with train.tsv and dev.tsv;
tasks that it lacks are passed over. The paper's row is of the test set, whose labels are not public; WNLI it leaves
out. Averages are over the tasks that both rows have. A run that was stopped goes on where it was. Each model stands in
OUTPUT_DIR/TASK-RATE, those of BERT-base take 440 MB each.
"""

import argparse
import json
import pathlib
import statistics

from keras_bert import startup

startup.quiet_tensorflow()

import keras_bert

# For each task its data_format, its score, and the paper's, of BERT-base on test.
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
    """The metrics of one fine-tuning, a dict; one that is done is not done again."""
    if not folder.exists():
        dev = "dev_matched.tsv" if task == "MNLI" else "dev.tsv"
        data_format, score, _ = TASKS[task]
        keras_bert.finetune(
            data / task / "train.tsv", data / task / dev, model=encoder, output=folder, data_format=data_format,
            epochs=3, batch_size=32,
            task="regress" if score == "spearman" else "classify", learning_rate=rate, dropout=0.1, max_length=128)
    return json.loads((folder / "metrics.json").read_text())


def row(name, scores):
    """A line of the table: scores by task, None where there is none."""
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
    main(**vars(arguments))
