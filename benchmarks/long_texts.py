"""Compares the ways to read texts that are longer than the encoder.

    KERAS_BERT_DATA=FOLDER python benchmarks/long_texts.py --results=FILE.jsonl [--model=minilm --seeds=0,1,2
        --texts=400 --methods=cut-128,cut-512,windows,transformers,entities]

Each method is trained in a process of its own, with a learning rate of 2e-4. `finetune` keeps the epoch that is best on
a tenth of the training texts, which it holds out. The seconds are those of training, and of the answers; the memory is
the peak of the process. Runs that are already in `--results` are skipped.

Classes: the authors of passages of 1,500 words. FOLDER has `long/authors_train.tsv`, of which `--texts` are read, and
`long/authors_test.tsv`, with passages from other books. Models that are trained on cut texts also answer in consecutive
windows. `windows` is trained on these, for one epoch, which has more steps than three of cut texts. `transformers` is
trained by PyTorch on the first 128 tokens of the same texts, as `cut-128` is, and keeps the last epoch; its windows
are those of its own tokenizer, and the mean of their logits is computed here.

Entities: those of WNUT-17 (`ner/wnut17`). The model is trained on the sentences, and answers those of `dev.conll`,
alone and joined to documents of 1,000 words: in consecutive windows, in windows that overlap by half, and in those of
transformers' pipeline with the same weights and the same overlap, if it is installed. `divided` is the number of right
entities that lie across a border of consecutive windows, `found` is how many of these are in the answers.
"""

import argparse
import dataclasses
import json
import sys
import tempfile
import time

import ruler

RATE, HELD_OUT = 2e-4, 0.1
LENGTH, CONSECUTIVE, OVERLAPPING = 128, 126, 64  # tokens of an input; the strides of windows
WORDS = 1000  # of a document


def classes(given, **options):
    """Returns the rows of a classifier of this package."""
    from keras_bert.tasks import Classify
    from keras_bert.training import finetune

    train = [(example.text, example.label) for example in read(given, Classify)]
    with tempfile.TemporaryDirectory() as folder:
        started = time.monotonic()
        tuned = finetune(train, model=given["model"], output=f"{folder}/model", task="classify", learning_rate=RATE,
                         seed=given["seed"], valid_share=HELD_OUT, **options)
        training, task, rows = time.monotonic() - started, tuned.task, []
    stride = task.max_length - 2
    for reading in [task] if task.windows else [task, dataclasses.replace(task, doc_stride=stride)]:
        started = time.monotonic()
        encoded = reading.encode(reading.read(given["test"]), tuned.tokenizer)
        outputs = tuned.outputs(encoded)
        seconds = time.monotonic() - started
        for aggregate in ("mean", "max") if reading.windows else ("mean",):
            scores = dataclasses.replace(reading, aggregate=aggregate).score(encoded, outputs)
            name = f"windows of {reading.max_length}, {aggregate}" if reading.windows else f"cut at {task.max_length}"
            rows.append(row_of(name, training, seconds, accuracy=scores["accuracy"]))
    return rows


def classes_of_transformers(given, epochs):
    """Returns the rows of a classifier of transformers."""
    import torch
    from task_scores_torch import make_model, train_epochs
    from transformers import AutoTokenizer

    from keras_bert import BertTokenizer, find_pretrained
    from keras_bert.tasks import Classify
    from keras_bert.training.held_out import hold_out

    torch.manual_seed(given["seed"])
    folder, examples = find_pretrained(given["model"]), read(given, Classify)
    tokenizer = BertTokenizer.from_folder(folder)
    task = Classify.from_examples(given["train"], examples, max_length=LENGTH)
    examples, _ = hold_out(task, given["train"], examples, HELD_OUT, given["seed"], task.same_texts(tokenizer))
    started = time.monotonic()
    module, forward, loss_of = make_model("classify", task, folder)
    batches = task.encode(examples, tokenizer).batched(tokenizer)
    for _ in train_epochs(module, forward, loss_of, batches, epochs, 32, RATE, "float32", given["seed"]):
        pass
    training, rows = time.monotonic() - started, []
    split, tests = AutoTokenizer.from_pretrained(folder), task.read(given["test"])
    for name, windows in ((f"cut at {LENGTH}", 1), (f"windows of {LENGTH}, mean", None)):
        started, right = time.monotonic(), 0
        for example in tests:
            inputs = split(example.text, truncation=True, max_length=LENGTH, return_overflowing_tokens=True,
                           padding=True, return_tensors="pt")
            with torch.inference_mode():
                logits = module(**{key: inputs[key][:windows] for key in split.model_input_names}).logits
            right += task.labels[int(logits.mean(0).argmax())] == example.label
        rows.append(row_of(name, training, time.monotonic() - started, accuracy=right / len(tests)))
    return rows


def read(given, task):
    """Returns `given["texts"]` of the training texts, evenly spread over the file."""
    examples = task.read(given["train"])
    count = min(given["texts"], len(examples))
    return [examples[number * len(examples) // count] for number in range(count)]


def entities(given, **options):
    """Returns the rows of a tagger."""
    from entity_ceiling import entities as entities_of

    from keras_bert.convert import convert
    from keras_bert.tasks import Tag
    from keras_bert.training import finetune

    sentences, rows = Tag.read(given["entity test"]), []
    documents = joined(sentences)
    with tempfile.TemporaryDirectory() as folder:
        started = time.monotonic()
        tuned = finetune(given["entity train"], model=given["model"], output=f"{folder}/model", task="tag",
                         max_length=LENGTH, learning_rate=RATE, seed=given["seed"], valid_share=HELD_OUT, **options)
        training = time.monotonic() - started
        convert(f"{folder}/model", f"{folder}/transformers", "huggingface")
        pipeline = pipeline_of(f"{folder}/transformers")
    consecutive, overlapping = (dataclasses.replace(tuned.task, doc_stride=stride) for stride in (None, OVERLAPPING))
    divided = [{entity for entity in entities_of(document) if any(entity[0] < border < entity[1] for border in borders)}
               for document, borders in zip(documents, borders_of(consecutive, documents, tuned.tokenizer))]

    def answered(task):
        return lambda examples: [{(entity.start, entity.end, entity.label) for entity in answer}
                                 for answer in tuned.with_task(task).answer(examples)]

    readings = [("sentences, each alone", answered(consecutive), sentences),
                ("documents, consecutive windows", answered(consecutive), documents),
                (f"documents, a window every {OVERLAPPING} tokens", answered(overlapping), documents)]
    if pipeline:
        readings.append(("documents, transformers' pipeline", pipeline, documents))
    for name, answer, examples in readings:
        started = time.monotonic()
        answers = answer(examples)
        seconds, right = time.monotonic() - started, [entities_of(example) for example in examples]
        hits = sum(len(one & other) for one, other in zip(answers, right))
        f1 = 2 * hits / max(1, sum(map(len, answers)) + sum(map(len, right)))
        on_documents = examples is documents
        rows.append(row_of(
            name, training, seconds, f1_score=f1, divided=sum(map(len, divided)) if on_documents else None,
            found=sum(len(one & other) for one, other in zip(answers, divided)) if on_documents else None))
    return rows


def joined(sentences):
    """Returns tagged sentences as documents of `WORDS` words, the last of them shorter."""
    from keras_bert.data.tagged import TaggedExample

    documents = []
    for sentence in sentences:
        if not documents or len(documents[-1].words) >= WORDS:
            documents.append(TaggedExample([], [], sentence.row))
        documents[-1].words.extend(sentence.words)
        documents[-1].tags.extend(sentence.tags)
    return documents


def borders_of(task, documents, tokenizer):
    """Returns the first characters of all windows of each document but of its first one."""
    tokens, parts, _ = task.encode(documents, tokenizer).decoding
    return [[int(of_text.starts[begin]) for begin, _ in windows[1:]] for of_text, windows in zip(tokens, parts)]


def pipeline_of(folder):
    """Returns a function of examples that answers as transformers' pipeline does; None if it is not installed."""
    try:
        import transformers
    except ImportError:
        return None
    pipeline = transformers.TokenClassificationPipeline(
        model=transformers.AutoModelForTokenClassification.from_pretrained(folder),
        tokenizer=transformers.AutoTokenizer.from_pretrained(folder, model_max_length=LENGTH),
        aggregation_strategy="first", stride=LENGTH - 2 - OVERLAPPING)
    return lambda examples: [{(entity["start"], entity["end"], entity["entity_group"]) for entity in answer}
                             for answer in pipeline([example.text for example in examples])]


def row_of(name, training, seconds, **scores):
    return {"read": name, **scores, "training_seconds": training, "seconds": seconds,
            "peak_mb": ruler.peak_memory() / 1e6}


METHODS = {
    "cut-128": (classes, {"epochs": 3}), "cut-512": (classes, {"epochs": 3, "max_length": 512}),
    "windows": (classes, {"epochs": 1, "doc_stride": CONSECUTIVE}),
    "transformers": (classes_of_transformers, {"epochs": 3}), "entities": (entities, {"epochs": 3, "batch_size": 16})}


def work(method):
    """Reads what to do from standard input, and writes the result as the last line of standard output."""
    function, options = METHODS[method]
    print(json.dumps(function(json.load(sys.stdin), **options)))


def main():
    parser = ruler.parser(__doc__, results=str, model="minilm", seeds=[0, 1, 2], texts=400, methods=list(METHODS))
    parser.add_argument("--work", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        return work(given.work)
    from real_texts import find
    from task_scores import append, matching

    versions, rows = ruler.describe("tensorflow", "keras", "torch", "transformers"), []
    of_entities = {f"entity {name}": str(find(f"ner/wnut17/{file}.conll"))
                   for name, file in (("train", "train"), ("test", "dev"))}
    of_classes = {name: str(find(f"long/authors_{name}.tsv")) for name in ("train", "test")} | {"texts": given.texts}
    for seed in given.seeds:
        for method in given.methods:
            wanted = {"method": method, "model": given.model, "seed": seed} | (
                of_entities if method == "entities" else of_classes)
            found = matching(given.results, wanted)
            for row in found or [wanted | row for row in ruler.run_alone(
                    __file__, f"--work={method}", f"--results={given.results}", input=json.dumps(wanted))]:
                if not found:
                    append(given.results, row)
                rows.append(row)
                score = f"F1 {row['f1_score']:.4f}" if method == "entities" else f"accuracy {row['accuracy']:.2%}"
                print(f"{method}, seed {seed}, {row['read']}: {score}", flush=True)
    for title, column, more in (("classes", "accuracy", ()), ("entities", "f1_score", ("divided", "found"))):
        if some := [row for row in rows if column in row]:
            print_means(f"{title}: means over {len(given.seeds)} seeds", some,
                        (column, *more, "training_seconds", "seconds", "peak_mb"))
    ruler.finish("long_texts", versions, given, rows)


def print_means(title, rows, columns):
    by_name = {}
    for row in rows:
        by_name.setdefault(f"{row['method']}, {row['read']}", []).append(row)
    ruler.print_table(title, [
        {"library": name} | {column: None if some[0][column] is None else sum(row[column] for row in some) / len(some)
                             for column in columns} for name, some in by_name.items()])


if __name__ == "__main__":
    main()
