"""Fine-tuning on intents: accuracy and time beside PyTorch transformers.

    python benchmarks/intent_accuracy.py --train=train.tsv --valid=valid.tsv --init_from=FOLDER --results=FILE.jsonl

Each run is a process of its own; the two libraries take turns, seed by seed, on the same batches in the same order with
the same optimizer settings (AdamW, linear warm-up over a tenth and decay, no decay of biases and norms, global norm 1).
A run that stands in `--results` is not run again. About 20 minutes a seed on 2 cores for the 17,561 texts of CLINC150
and HWU64 with MiniLM (6 layers, width 384).
"""

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time

from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_string("train", None, "Training file.", required=True)
flags.DEFINE_string("valid", None, "Validation file.", required=True)
flags.DEFINE_string("init_from", None, "Folder of the encoder, as Hugging Face writes it.", required=True)
flags.DEFINE_string("results", None, "JSON Lines file, one run a line.", required=True)
flags.DEFINE_list("seeds", ["0", "1", "2"], "Seeds.")
flags.DEFINE_integer("epochs", 4, "Epochs.")
flags.DEFINE_integer("batch_size", 32, "Texts a batch.")
flags.DEFINE_float("learning_rate", 2e-4, "Peak learning rate.")
flags.DEFINE_string("run", None, "Internal: the library to run in this process.")

DROPOUT, WARMUP, WEIGHT_DECAY, EPSILON, MAX_LENGTH = 0.2, 0.1, 0.01, 1e-6, 128


def run_keras_bert(seed):
    from keras_bert.training import finetune

    with tempfile.TemporaryDirectory() as folder:
        output = os.path.join(folder, "model")
        started = time.monotonic()
        finetune(FLAGS.train, FLAGS.valid, FLAGS.init_from, output, epochs=FLAGS.epochs, batch_size=FLAGS.batch_size,
                 learning_rate=FLAGS.learning_rate, dropout=DROPOUT, warmup_ratio=WARMUP, weight_decay=WEIGHT_DECAY,
                 max_length=MAX_LENGTH, seed=seed)
        seconds = time.monotonic() - started
        with open(os.path.join(output, "metrics.json")) as file:
            return json.load(file)["history"]["val_accuracy"][-1], seconds  # the last epoch's, as below


def run_transformers(seed):
    import numpy as np
    import torch
    import transformers

    from keras_bert.data import TextBatches, plan_batches, read_examples, sorted_batches
    from keras_bert.text import BertTokenizer

    started = time.monotonic()
    torch.manual_seed(seed)
    tokenizer = BertTokenizer.from_folder(FLAGS.init_from)
    train, valid = read_examples(FLAGS.train), read_examples(FLAGS.valid)
    labels = sorted({example.label for example in train})

    def batches_of(examples):
        targets = np.array([labels.index(example.label) for example in examples])
        return TextBatches(tokenizer.pack([e.text for e in examples], None, MAX_LENGTH), tokenizer.pad_id, targets)

    def forward(batches, indices):
        inputs = {key: torch.from_numpy(value).long() for key, value in batches.inputs(indices).items()}
        return model(input_ids=inputs["input_word_ids"], attention_mask=inputs["input_mask"],
                     token_type_ids=inputs["segment_ids"]).logits

    train, valid = batches_of(train), batches_of(valid)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        FLAGS.init_from, num_labels=len(labels), classifier_dropout=DROPOUT)
    decayed, plain = [], []
    for name, parameter in model.named_parameters():
        (plain if name.endswith("bias") or "LayerNorm" in name else decayed).append(parameter)
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": WEIGHT_DECAY}, {"params": plain, "weight_decay": 0.0}],
        lr=FLAGS.learning_rate, eps=EPSILON)
    steps = -(-len(train.packed) // FLAGS.batch_size) * FLAGS.epochs
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, int(steps * WARMUP), steps)
    accuracy = 0.0
    for epoch in range(FLAGS.epochs):
        model.train()
        for indices in plan_batches(train.lengths, FLAGS.batch_size, np.random.default_rng((seed, epoch))):
            loss = torch.nn.functional.cross_entropy(forward(train, indices), torch.from_numpy(train.targets[indices]))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        model.eval()
        with torch.inference_mode():
            right = sum(
                int((forward(valid, indices).argmax(-1).numpy() == valid.targets[indices]).sum())
                for indices in sorted_batches(valid.lengths, FLAGS.batch_size))
        accuracy = right / len(valid.packed)
        print(f"epoch {epoch + 1}: {accuracy:.4f}", file=sys.stderr)
    return accuracy, time.monotonic() - started


RUNS = {"keras_bert": run_keras_bert, "transformers": run_transformers}


def done_runs():
    if not os.path.exists(FLAGS.results):
        return []
    with open(FLAGS.results) as file:
        return [json.loads(line) for line in file]


def summarize(results):
    import importlib.metadata

    print(f"{platform.machine()}, {os.cpu_count()} cores; " + ", ".join(
        f"{name} {importlib.metadata.version(name)}" for name in ("tensorflow", "keras", "torch", "transformers")))
    print(f"{'library':14} {'accuracy, by seed':32} {'mean':>7} {'std. error':>10} {'median s':>9}")
    summary = {}
    for name in RUNS:
        scores = [run["accuracy"] for run in results if run["library"] == name]
        seconds = statistics.median(run["seconds"] for run in results if run["library"] == name)
        error = statistics.stdev(scores) / len(scores) ** 0.5 if len(scores) > 1 else float("nan")
        by_seed = "  ".join(f"{score:.4f}" for score in scores)
        print(f"{name:14} {by_seed:32} {statistics.mean(scores):7.4f} {error:10.4f} {seconds:9.0f}")
        summary[name] = {"accuracy": statistics.mean(scores), "standard_error": error, "seconds": seconds}
    summary["time_ratio"] = summary["keras_bert"]["seconds"] / summary["transformers"]["seconds"]
    print(json.dumps(summary))


def main(_):
    if FLAGS.run:
        seed = int(FLAGS.seeds[0])
        accuracy, seconds = RUNS[FLAGS.run](seed)
        with open(FLAGS.results, "a") as file:
            run = {"library": FLAGS.run, "seed": seed, "accuracy": accuracy, "seconds": seconds}
            file.write(json.dumps(run) + "\n")
        return
    for seed in FLAGS.seeds:
        for name in RUNS:
            if not any(run["library"] == name and run["seed"] == int(seed) for run in done_runs()):
                subprocess.run([sys.executable, *sys.argv, f"--run={name}", f"--seeds={seed}"], check=True)
    summarize(done_runs())


if __name__ == "__main__":
    app.run(main)
