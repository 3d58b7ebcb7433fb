"""The paper's ablations at small scale, one seed each (Devlin et al., 2018, sections 5.1 to 5.3):

- Table 5, pretraining tasks: without next sentences; left-to-right, also with a BiLSTM on top; right-to-left; and both
  directions, concatenated as in ELMo.
- Table 6, sizes: layers, width, attention heads; with the perplexity of the masked tokens of held-out documents.
- Table 7, entities: fine-tuning, compared with a BiLSTM on features of the frozen encoder.

    python examples/ablations.py --text='books/*.txt' [--tagged_train=train.conll --tagged_valid=valid.conll]

Tables 5 and 6 pretrain on the text, which has one sentence per line and a blank line between documents, and fine-tune
on demo-176 (`intents`). Table 7 uses the pretrained `--encoder`, and is skipped without tagged files. Each table is
printed, and drawn in `--folder`. After an interruption, run the same command again: it resumes.
"""

import argparse
import functools
import math
import pathlib
import re
import sys

from keras_bert import startup

startup.quiet_tensorflow()

import keras
from ablations_parts.encoders import SideBySide, WithLstm, as_pretrained, untrained

from keras_bert import cli
from keras_bert.config import BertConfig
from keras_bert.errors import InputError, Stopped
from keras_bert.files.json_files import read_json, write_json
from keras_bert.files.paths import find_texts
from keras_bert.layers import BertLayer
from keras_bert.tasks import Classify
from keras_bert.text import BertTokenizer
from keras_bert.training import finetune, make_optimizer, pictures, pretrain

from intents.build import build

VOCABULARY, LENGTH, HELD_OUT, BATCH_SIZE, LEARNING_RATE = 4000, 64, 20, 32, 1e-3
# Columns of the tables; left-to-right and right-to-left guess the next token, the others masked ones.
NEXT, TOKENS, PERPLEXITY, INTENTS = "NSP accuracy, %", "token accuracy, %", "perplexity", "intent accuracy, %"
# The rows of Table 5: the examples, what tokens see in the encoders needed, and what is made of these.
TASKS = {
    "BERT": ("pairs", ["bidi"], as_pretrained),
    "no NSP": ("packed", ["bidi"], as_pretrained),
    "left-to-right, no NSP": ("packed", ["ltr"], as_pretrained),
    "  + BiLSTM": ("packed", ["ltr"], WithLstm),
    "right-to-left, no NSP": ("packed", ["rtl"], as_pretrained),
    "left-to-right + right-to-left": ("packed", ["ltr", "rtl"], SideBySide),
    "BERT, not pretrained": ("pairs", ["bidi"], untrained),
}
# The rows of Table 7: `features` of `finetune`.
FEATURES = {
    "fine-tuning": None,
    "embeddings": "embeddings",
    "second-to-last block": "second-to-last",
    "last block": "last",
    "sum of the last four": "sum-last-4",
    "last four side by side": "concat-last-4",
    "weighted sum of all": "weighted-all",
}


def run(*command):
    if cli.run([str(part) for part in command]):
        raise SystemExit(1)


def make_examples(text, folder):
    """A vocabulary, and examples with and without next sentences; every twentieth document is held out."""
    if not (folder / "vocab").exists():
        documents = "\n\n".join(pathlib.Path(path).read_text(encoding="utf-8") for path in find_texts([text]))
        documents = documents.split("\n\n")
        for split, chosen in (("valid", documents[::HELD_OUT]),
                              ("train", [document for number, document in enumerate(documents) if number % HELD_OUT])):
            (folder / f"{split}.txt").write_text("\n\n".join(chosen), encoding="utf-8")
        run("make-vocab", f"--input={folder}/train.txt", f"--vocab_size={VOCABULARY}", "--lower_case",
            f"--output={folder}/vocab")
    for pairs in (True, False):
        for split in ("train", "valid"):
            output = folder / f"{split}-{'pairs' if pairs else 'packed'}"
            if not output.exists():
                run("make-pretraining-data", f"--input={folder}/{split}.txt", f"--vocab={folder}/vocab",
                    f"--output={output}", f"--max_length={LENGTH}", f"--next_sentence={pairs}",
                    f"--masking={'dynamic' if split == 'train' else 'static'}", "--dupe_factor=1")


def config_of(size, pieces=VOCABULARY):
    """The configuration of layers, width and heads in a name."""
    found = re.fullmatch(r"L(\d+)-H(\d+)-A(\d+)", size)
    if not found:
        raise InputError(f"a size must name layers, width and heads as L2-H128-A2 does; got {size!r}")
    layers, hidden, heads = map(int, found.groups())
    # So few steps show no text twice: nothing need drop out. A narrow encoder wants larger weights than BERT-base.
    return BertConfig(pieces, hidden, layers, heads, 4 * hidden, max_position_embeddings=LENGTH,
                      hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
                      initializer_range=0.02 * (768 / hidden) ** 0.5)


def pretrained(given, size, data, directionality):
    """The folder of an encoder, pretrained if it is not there."""
    output, examples = given.folder / f"{size}-{data}-{directionality}", given.folder / f"train-{data}"
    if not output.exists():
        print(output, file=sys.stderr)
        pieces = len(BertTokenizer.from_folder(examples).vocabulary)
        pretrain(examples, output=output, steps=given.steps, valid=given.folder / f"valid-{data}",
                 config=config_of(size, pieces),
                 directionality=directionality, batch_size=BATCH_SIZE, learning_rate=LEARNING_RATE, warmup_ratio=0.05,
                 eval_steps=given.steps)
    return output


def finetuned(given, make):
    """Fine-tunes the encoder that `make` returns: its parameters, and its accuracy after the last epoch."""
    keras.utils.set_random_seed(0)
    encoder, intents = make(), given.folder / "intents"
    tokenizer = BertTokenizer.from_folder(given.folder / "train-pairs")
    train, valid = (Classify.read(intents / f"{split}.tsv") for split in ("train", "valid"))
    task = Classify.from_examples(intents / "train.tsv", train, max_length=LENGTH)
    batches, held_out = (task.encode(examples, tokenizer).batched(tokenizer) for examples in (train, valid))
    model = task.new_head(encoder, task.dropout)
    optimizer = make_optimizer(model, LEARNING_RATE, given.epochs * batches.steps(BATCH_SIZE))
    model.compile(optimizer, **task.loss_arguments(), jit_compile=False)  # which would take a compilation a length
    for epoch in range(given.epochs):
        model.fit(batches.training_dataset(BATCH_SIZE, 0, epoch, 0), shuffle=False, verbose=0)
    scores = model.evaluate(held_out.validation_dataset(BATCH_SIZE), return_dict=True, verbose=0)
    return {"parameters": encoder.count_params(), INTENTS: 100 * scores["accuracy"]}


def intent_scores(given, size, data, directions, make):
    """A row of Table 5 or 6."""
    path = given.folder / f"{size}-{data}-{'-'.join(directions)}-{make.__name__}.json"
    if not path.exists():
        folders = [pretrained(given, size, data, directionality) for directionality in directions]
        print(path, file=sys.stderr)
        scores = finetuned(given, lambda: make(*map(BertLayer.from_pretrained, folders)))
        if make is as_pretrained:
            held_out = read_json(folders[0] / "metrics.json")["valid"]
            scores |= {TOKENS: 100 * held_out["mlm_accuracy"], PERPLEXITY: math.exp(held_out["mlm_loss"])}
            if data == "pairs":
                scores[NEXT] = 100 * held_out["next_sentence_accuracy"]
        write_json(path, scores)
    return read_json(path)


def entity_scores(given, features):
    """A row of Table 7: the scores of the best epoch, as in the paper those on the validation file."""
    output = given.folder / f"entities-{features or 'fine-tuning'}"
    if not output.exists():
        print(output, file=sys.stderr)
        finetune(given.tagged_train, given.tagged_valid, model=given.encoder, output=output, task="tag",
                 features=features, epochs=given.tag_epochs, batch_size=16, learning_rate=1e-3 if features else 2e-4)
    metrics = read_json(output / "metrics.json")
    return {f"{name}, %": 100 * metrics[name.lower()] for name in ("precision", "recall", "F1")}


def show(name, title, rows, columns, drawn, folder):
    """Prints a table and draws some of its columns.

    Args:
        name: of the picture's file.
        title: of the table.
        rows: dict of names to dicts of columns to numbers; a row may lack some.
        columns: names of the columns.
        drawn: those to draw.
        folder: where to.
    """
    print(f"\n{title}\n{'':30}" + "".join(f"{column:>22}" for column in columns))
    for row, values in rows.items():
        print(f"{row:30}" + "".join(f"{_text(values.get(column)):>22}" for column in columns), flush=True)
    paint = functools.partial(_bars, title=title, drawn=drawn)
    print(*pictures.draw({"rows": rows}, folder, [(name, "rows", paint)]))


def _text(value):
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:.2f}"


def _bars(figure, metrics, title, drawn):
    """A panel of bars a column."""
    rows = metrics["rows"]
    for panel, column in enumerate(drawn):
        axes = figure.add_axes([4.6 * panel, 0, 3.6, 0.36 * len(rows)])
        values = [values.get(column) for values in rows.values()]
        bars = axes.barh(range(len(rows)), [value or 0 for value in values], color=pictures.VALIDATION, height=0.7)
        axes.bar_label(bars, map(_text, values), padding=4)
        axes.set(xlabel=column, ylim=(len(rows) - 0.5, -0.5))
        axes.set_yticks(range(len(rows)), [] if panel else rows)
        axes.tick_params(left=False, bottom=False, labelbottom=False)
        axes.spines[["top", "right", "bottom"]].set_visible(False)
        axes.set_title("" if panel else title)


def claim(folder, **settings):
    """Refuses a folder whose results come from other settings, as these would be mixed up."""
    path = folder / "settings.json"
    kept = read_json(path) if path.exists() else {}
    for name, value in kept.items():
        if settings[name] not in (None, value):
            raise InputError(f"{folder}: holds a run with --{name}={value}; name another --folder")
    folder.mkdir(parents=True, exist_ok=True)
    write_json(path, kept | {name: value for name, value in settings.items() if value is not None})


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--text", required=True, help="text files, a glob")
    parser.add_argument("--folder", default="ablations", type=pathlib.Path)
    parser.add_argument("--steps", type=int, default=2000, help="of pretraining")
    parser.add_argument("--epochs", type=int, default=6, help="on the intents")
    parser.add_argument("--size", default="L2-H128-A2", help="layers, width and heads in Table 5")
    parser.add_argument("--sizes", default="L1-H128-A2,L2-H128-A1,L2-H128-A2,L4-H128-A2,L4-H256-A4", help="in Table 6")
    parser.add_argument("--tagged_train", help="tagged words, see docs/tasks/tag.md")
    parser.add_argument("--tagged_valid")
    parser.add_argument("--encoder", default="minilm", help="name or folder of that of Table 7")
    parser.add_argument("--tag_epochs", type=int, default=3)
    given = parser.parse_args(arguments)
    if bool(given.tagged_train) != bool(given.tagged_valid):
        parser.error("--tagged_train and --tagged_valid go together")
    sizes = given.sizes.split(",")
    for size in (given.size, *sizes):
        config_of(size)
    claim(given.folder, text=given.text, steps=given.steps, epochs=given.epochs, encoder=given.encoder,
          tagged_train=given.tagged_train, tagged_valid=given.tagged_valid, tag_epochs=given.tag_epochs)
    build(given.folder / "intents")
    make_examples(given.text, given.folder)

    show("table5", f"Table 5: pretraining tasks, {given.size}",
         {name: intent_scores(given, given.size, *variant) for name, variant in TASKS.items()},
         ("parameters", NEXT, TOKENS, INTENTS), (TOKENS, INTENTS), given.folder)
    show("table6", "Table 6: layers (L), width (H), attention heads (A)",
         {size: intent_scores(given, size, *TASKS["BERT"]) for size in sizes},
         ("parameters", PERPLEXITY, INTENTS), (PERPLEXITY, INTENTS), given.folder)
    if given.tagged_train:
        show("table7", f"Table 7: entities, {pathlib.Path(given.encoder).name}",
             {name: entity_scores(given, features) for name, features in FEATURES.items()},
             ("precision, %", "recall, %", "F1, %"), ("F1, %",), given.folder)


if __name__ == "__main__":
    try:
        main()
    except (InputError, ImportError, Stopped) as error:
        sys.exit(f"ablations: {error}")
