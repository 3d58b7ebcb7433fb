"""What are new tokens and more pretraining worth to a model of a domain?

    python benchmarks/own_words.py --work=FOLDER [--task=banking77 --model=minilm --new=500 --steps=600 --per_label=10
        --seeds=0,1,2 --download]

The texts of the training file, without labels, are the domain's. Four encoders are fine-tuned on `--per_label` of them
and scored on the validation file: the model as it is; with `--new` tokens for words of these texts (`make-vocab
--extend`); pretrained on them for `--steps` steps of 32 texts; and both. `task_scores.py` says where the data come
from. In `--work`, folders that exist already are used again.
"""

import pathlib
import random
import statistics
import subprocess
import sys

import ruler
from task_scores import RUNS, files_of, write

from keras_bert import FineTuned, find_pretrained
from keras_bert.arguments import as_flags
from keras_bert.tasks import TASKS
from keras_bert.text import load_tokenizer
from keras_bert.training import finetune


def run(command, **flags):
    """Runs a command, unless its output is there."""
    if not pathlib.Path(flags["output"]).exists():
        subprocess.run([sys.executable, "-m", "keras_bert.cli", *command.split(), *as_flags(flags)], check=True,
                       stdout=subprocess.DEVNULL)
    return flags["output"]


def adapted(work, model, vocabulary, texts, steps):
    """Returns a model that was pretrained on texts."""
    name = pathlib.Path(model).name
    data = run("make-pretraining-data", input=texts, vocab=vocabulary, output=work / f"data-{name}", max_length=64,
               masking="dynamic", next_sentence=False, dupe_factor=1)
    return run("pretrain", train=data, model=model, output=work / f"adapted-{name}", steps=steps, batch_size=32,
               learning_rate=1e-4)


def few(examples, per_label, seed):
    """Returns some examples of each label."""
    by_label = {}
    for example in random.Random(seed).sample(examples, len(examples)):
        by_label.setdefault(example.label, []).append((example.text, example.label))
    return [row for rows in by_label.values() for row in rows[:per_label]]


def main():
    given = ruler.parser(__doc__, work=str, task="banking77", model="minilm", new=500, steps=600, per_label=10,
                         seeds=[0, 1, 2], download=False).parse_args()
    versions = ruler.describe("tensorflow", "keras", "tokenizers")
    settings, work = RUNS[given.task], pathlib.Path(given.work)
    work.mkdir(exist_ok=True)
    train, valid = files_of(settings, work, given.download)
    examples = [*TASKS[settings.task].read(train)]
    texts = work / "texts.txt"
    texts.write_text("".join(f"{example.text}\n" for example in examples), encoding="utf-8")
    model = find_pretrained(given.model)
    size = len(load_tokenizer(model).vocabulary) + given.new
    words = run("make-vocab", extend=model, input=texts, vocab_size=size, output=work / "words")
    larger = run("convert", model=model, vocab=words, format="keras_bert", output=work / "larger", no_check=True,
                 allow_inexact=True)
    encoders = {"as it is": model, "new tokens": larger, "pretrained": adapted(work, model, model, texts, given.steps),
                "both": adapted(work, larger, larger, texts, given.steps)}
    rows = []
    for seed in given.seeds:
        sample = write(work, f"train-{seed}", few(examples, given.per_label, seed))
        for name, encoder in encoders.items():
            folder = work / f"{name.replace(' ', '-')}-{seed}"
            if not folder.exists():
                finetune(sample, valid, model=encoder, task=settings.task, output=folder, epochs=12, batch_size=16,
                         learning_rate=settings.learning_rate, seed=seed)
            tuned = FineTuned.load(folder)
            tokens = statistics.mean(map(len, tuned.tokenizer.ids([example.text for example in examples])))
            rows.append({"library": name, "seed": seed, "tokens_per_text": tokens, **tuned.evaluate(valid)})
    ruler.print_table(f"{given.task}, {given.per_label} texts per label, means", [
        {"library": name} | {key: statistics.mean(row[key] for row in rows if row["library"] == name)
                             for key in ("tokens_per_text", "accuracy")} for name in encoders])
    ruler.finish("own_words", versions, given, rows)


if __name__ == "__main__":
    main()
