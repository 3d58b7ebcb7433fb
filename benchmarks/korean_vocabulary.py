"""Compares a vocabulary trained on Korean text with the multilingual one, by fine-tuning on Korean reviews.

    python benchmarks/korean_vocabulary.py [--corpus='ko/*.txt' --multilingual=vocab.txt --reviews=nsmc.tsv]

The same small model is fine-tuned from random weights with each vocabulary. Files that are not given come from
`real_texts.py`. `--reviews` has the columns document and label, as NSMC does; every tenth row is for validation. Each
run is a separate process; for each seed, the vocabularies take turns. Takes about ten minutes on 2 cores for the 43,724
rows of NSMC that are available.
"""

import argparse
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

import ruler
from real_texts import announce, find
from task_scores import print_scores

SIZES = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 512}
EPOCHS, BATCH, LEARNING_RATE, MAX_LENGTH = 2, 64, 5e-4, 64
VOCABULARIES = ("korean", "multilingual")


def prepare(given, folder):
    """Writes the vocabularies and the two files of reviews; returns the seconds that training the vocabulary took."""
    corpus = given.corpus or f"{find('corpora/ko')}/*.txt"
    reviews = given.reviews or find("ko/nsmc/train_rebuilt.txt")
    started = time.monotonic()
    subprocess.run([sys.executable, "-m", "keras_bert.cli", "make-vocab", f"--input={corpus}",
                    f"--vocab_size={given.size}", f"--output={folder}/korean.txt"], check=True)
    seconds = time.monotonic() - started
    shutil.copyfile(given.multilingual or find("vocab/bert-base-multilingual-cased/vocab.txt"),
                    f"{folder}/multilingual.txt")
    with open(reviews, encoding="utf-8") as file:
        header, *rows = (line for line in file if len(line.split("\t")) == 3 and line.split("\t")[1].strip())
    announce(reviews, len(rows), "reviews")
    train = [line for number, line in enumerate(rows) if number % 10]
    for name, lines in (("valid", rows[::10]), ("train", train)):
        pathlib.Path(folder, f"{name}.tsv").write_text("".join([header, *lines]), encoding="utf-8")
    return seconds


def measure(folder, name, seed):
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
                 max_length=MAX_LENGTH, seed=seed)
        seconds = time.monotonic() - started
        metrics = json.loads(pathlib.Path(start, "model/metrics.json").read_text())
    return {"score": metrics["accuracy"], "seconds": seconds, "pieces_a_word_ratio": pieces,
            "unknown_share": tokenizer.unknown_rate(texts), "parameters": bert.count_params()}


def main():
    parser = ruler.parser(__doc__, corpus=None, multilingual=None, reviews=None, size=16000, seeds=[0, 1, 2])
    parser.add_argument("--measure", nargs=3, metavar=("FOLDER", "NAME", "SEED"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        folder, name, seed = given.measure
        return print(json.dumps(measure(folder, name, int(seed))))
    runs = {name: [] for name in VOCABULARIES}
    with tempfile.TemporaryDirectory() as folder:
        learning_seconds = prepare(given, folder)
        for seed in given.seeds:
            for name in VOCABULARIES:
                runs[name].append(ruler.run_alone(__file__, "--measure", folder, name, str(seed)))
    versions = ruler.describe("tensorflow", "keras", "tokenizers")
    print(f"{given.size} pieces learned in {learning_seconds:.1f} s, start-up and report included")
    table = print_scores("vocabulary", "accuracy", runs)
    rows = [{"library": name} | {key: some[0][key] for key in ("pieces_a_word_ratio", "unknown_share", "parameters")}
            for name, some in runs.items()]
    ruler.print_table("by vocabulary", rows)
    ruler.finish("korean_vocabulary", versions, given, [row | table[row["library"]] for row in rows])


if __name__ == "__main__":
    main()
