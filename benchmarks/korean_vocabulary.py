"""Compares a vocabulary trained on Korean text with the multilingual one, by fine-tuning on Korean reviews.

    python benchmarks/korean_vocabulary.py [--corpus='ko/*.txt' --multilingual=vocab.txt --reviews=nsmc.tsv]

The same small model is fine-tuned from random weights with each vocabulary. Files that are not given come from
`real_texts.py`. `--reviews` has the columns document and label, as NSMC does; every tenth row is for validation. Each
run is a separate process; for each seed, the vocabularies take turns. Takes about ten minutes on 2 cores for the 43,724
rows of NSMC that are available.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time

from absl import app, flags
from real_texts import announce, find
from ruler import describe

FLAGS = flags.FLAGS
flags.DEFINE_string("corpus", None, "Korean text, a glob.")
flags.DEFINE_string("multilingual", None, "vocab.txt of multilingual BERT, cased.")
flags.DEFINE_string("reviews", None, "Labelled reviews, tab-separated.")
flags.DEFINE_integer("size", 16000, "Pieces in the vocabulary to learn.")
flags.DEFINE_list("seeds", ["0", "1", "2"], "Seeds.")
flags.DEFINE_string("run", None, "Internal: the vocabulary to run with in this process.")
flags.DEFINE_string("folder", None, "Internal: where the files are.")

SIZES = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 512}
EPOCHS, BATCH, LEARNING_RATE, MAX_LENGTH = 2, 64, 5e-4, 64


def prepare(folder):
    """Writes the vocabularies and the two files of reviews; returns the seconds that training the vocabulary took."""
    corpus = FLAGS.corpus or f"{find('corpora/ko')}/*.txt"
    multilingual = FLAGS.multilingual or find("vocab/bert-base-multilingual-cased/vocab.txt")
    reviews = FLAGS.reviews or find("ko/nsmc/train_rebuilt.txt")
    started = time.monotonic()
    subprocess.run([sys.executable, "-m", "keras_bert.cli", "make-vocab", f"--input={corpus}",
                    f"--size={FLAGS.size}", f"--output={folder}/korean.txt"], check=True)
    seconds = time.monotonic() - started
    with open(multilingual, "rb") as source, open(f"{folder}/multilingual.txt", "wb") as target:
        target.write(source.read())
    with open(reviews, encoding="utf-8") as file:
        header, *rows = (line for line in file if len(line.split("\t")) == 3 and line.split("\t")[1].strip())
    announce(reviews, len(rows), "reviews")
    for name, is_mine in (("valid", lambda row: row % 10 == 0), ("train", lambda row: row % 10 > 0)):
        with open(f"{folder}/{name}.tsv", "w", encoding="utf-8") as file:
            file.writelines([header, *(line for row, line in enumerate(rows) if is_mine(row))])
    return seconds


def run(folder, name, seed):
    """Fine-tunes one model from random weights; returns its scores."""
    import keras

    from keras_bert import BertClassifier, BertConfig, BertLayer, BertTokenizer, FineTuned, finetune
    from keras_bert.data import read_examples
    from keras_bert.tasks import Classify

    keras.utils.set_random_seed(seed)
    tokenizer = BertTokenizer(f"{folder}/{name}.txt", lower_case=False)
    texts = [example.text for example in read_examples(f"{folder}/valid.tsv", text_column="document")]
    pieces = sum(map(len, tokenizer.ids(texts))) / sum(len(tokenizer.rules.normalize(text).split()) for text in texts)
    bert = BertLayer(BertConfig(vocab_size=len(tokenizer.vocabulary), **SIZES))
    with tempfile.TemporaryDirectory() as start:
        FineTuned(BertClassifier(bert, 2), tokenizer, Classify(MAX_LENGTH, ["0", "1"])).save(start)
        started = time.monotonic()
        finetune(f"{folder}/train.tsv", f"{folder}/valid.tsv", model=start, output=f"{start}/model", task="classify",
                 text_column="document", epochs=EPOCHS, batch_size=BATCH, learning_rate=LEARNING_RATE,
                 max_length=MAX_LENGTH,
                 seed=seed)
        seconds = time.monotonic() - started
        with open(f"{start}/model/metrics.json") as file:
            metrics = json.load(file)
    return {"vocabulary": name, "seed": seed, "accuracy": metrics["accuracy"], "pieces_a_word": pieces,
            "unknown": tokenizer.unknown_rate(texts), "parameters": bert.count_params(), "seconds": seconds}


def summarize(runs, learning_seconds):
    describe("tensorflow", "keras", "tokenizers")
    print(f"{FLAGS.size} pieces learned in {learning_seconds:.1f} s, start-up and report included")
    print(f"{'vocabulary':13} {'accuracy, by seed':26} {'mean':>7} {'std. error':>10} {'pieces/word':>11} "
          f"{'[UNK]':>7} {'parameters':>10} {'median s':>8}")
    summary = {"learning_seconds": learning_seconds}
    for name in ("korean", "multilingual"):
        rows = [row for row in runs if row["vocabulary"] == name]
        scores = [row["accuracy"] for row in rows]
        error = statistics.stdev(scores) / len(scores) ** 0.5 if len(scores) > 1 else float("nan")
        first, seconds = rows[0], statistics.median(row["seconds"] for row in rows)
        by_seed = "  ".join(f"{score:.4f}" for score in scores)
        print(f"{name:13} {by_seed:26} {statistics.mean(scores):7.4f} {error:10.4f} {first['pieces_a_word']:11.3f} "
              f"{first['unknown']:7.4f} {first['parameters']:10} {seconds:8.0f}")
        summary[name] = first | {"accuracy": statistics.mean(scores), "standard_error": error, "seconds": seconds}
    print(json.dumps(summary))


def main(_):
    if FLAGS.run:
        print(json.dumps(run(FLAGS.folder, FLAGS.run, int(FLAGS.seeds[0]))))
        return
    with tempfile.TemporaryDirectory() as folder:
        learning_seconds = prepare(folder)
        runs = []
        for seed in FLAGS.seeds:
            for name in ("korean", "multilingual"):
                done = subprocess.run([sys.executable, *sys.argv, f"--run={name}", f"--seeds={seed}",
                                       f"--folder={folder}"], check=True, stdout=subprocess.PIPE, text=True)
                runs.append(json.loads(done.stdout.splitlines()[-1]))
        summarize(runs, learning_seconds)


if __name__ == "__main__":
    app.run(main)
