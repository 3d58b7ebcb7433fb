"""Writes the files that the documentation names, from the samples of this repository.

    python tests/snippet_files.py FOLDER [PAGE]      PAGE: docs/tasks/tag.md, for instance; default: docs/first_steps.md
"""

import json
import pathlib
import random
import re
import shutil
import sys

ROOT = pathlib.Path(__file__).parents[1]
REAL = ROOT / "tests/data/real"
sys.path.append(str(ROOT / "examples"))

from intents.build import read_templates, sample


def write_files(folder, page="docs/first_steps.md"):
    """Writes the files of a page: those that several pages name, and its own, which replace files of the same name."""
    write_intents(folder)
    for name, documents in (("corpus", slice(0, 4)), ("held_out", slice(4, 6))):
        texts = (REAL / "corpora/en/classic_books.txt").read_text(encoding="utf-8").split("\n\n")[documents]
        (folder / name).mkdir()
        (folder / name / "books.txt").write_text("\n\n".join(texts) + "\n", encoding="utf-8")
    shutil.copytree(REAL / "checkpoints/tiny_tf1_kerasbert", folder / "uncased_L-12_H-768_A-12")
    OF_PAGES.get(page, lambda folder: None)(folder)


def write_table(path, names, rows):
    lines = ["\t".join(map(str, row)) for row in [names, *rows]]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def texts_of(domain, rng):
    """The texts of a domain of examples/intents: two lists of (text, intent), those of training and held-out ones."""
    slots, intents = read_templates(ROOT / f"examples/intents/templates/{domain}.txt")
    rows = [], []
    for intent, templates in intents.items():
        for held_out, count in enumerate((30, 8)):
            chosen = [template.removeprefix("* ") for template in templates if template.startswith("* ") == held_out]
            rows[held_out].extend((text, intent) for text in sample(chosen, slots, count, rng))
    return rows


def write_intents(folder, out_of_scope=False):
    """The intents of two domains; small talk is out of scope."""
    rng = random.Random(0)
    alarms, banking = texts_of("alarms", rng), texts_of("banking", rng)
    train, held_out = alarms[0] + banking[0], alarms[1] + banking[1]
    strange = [(text, "none") for text, _ in texts_of("smalltalk", rng)[1][::3]] if out_of_scope else []
    write_table(folder / "train.tsv", ("text", "label"), train)
    write_table(folder / "valid.tsv", ("text", "label"), held_out[::2] + strange[::2])
    write_table(folder / "test.tsv", ("text", "label"), held_out[1::2] + strange[1::2])
    for name in ("questions.txt", "texts.txt"):
        (folder / name).write_text("".join(f"{text}\n" for text, _ in held_out[1:40:8]), encoding="utf-8")


def write_domains(folder):
    """Texts of examples/intents, labelled with their domains."""
    rng = random.Random(0)
    rows = {"train": [], "valid": [], "test": []}
    for domain in ("banking", "food", "health", "news", "shopping", "travel"):
        train, held_out = texts_of(domain, rng)
        for split, texts in (("train", train[::2]), ("valid", held_out[::2]), ("test", held_out[1::2])):
            rows[split] += [(text, domain) for text, _ in texts]
    for split, texts in rows.items():
        write_table(folder / f"{split}.tsv", ("text", "label"), texts)


def write_topics(folder):
    """Messages of up to three sentences of examples/intents, labelled with the domains of the sentences; small talk has
    no label."""
    rng, domains = random.Random(0), ("banking", "food", "health", "travel")
    of_domains = {domain: texts_of(domain, rng) for domain in (*domains, "smalltalk")}
    rows = {}
    for split, held_out, count in (("train", 0, 800), ("valid", 1, 200), ("test", 1, 200)):
        rows[split] = []
        for number in range(count):
            chosen = rng.sample(domains, number % 4) if number % 4 else ["smalltalk"]
            sentences = [rng.choice(of_domains[domain][held_out])[0] for domain in chosen]
            labels = sorted(chosen) if number % 4 else []
            rows[split].append({"text": ". ".join(sentences), "labels": labels})
        write_lines(folder / f"{split}.jsonl", rows[split])
    write_table(folder / "columns.tsv", ("text", *domains), (
        (row["text"], *(int(domain in row["labels"]) for domain in domains)) for row in rows["test"]))
    write_table(folder / "lists.tsv", ("text", "labels"), (
        (row["text"], ",".join(row["labels"])) for row in rows["test"]))


def write_similarities(folder):
    """KorSTS: pairs of Korean sentences with their similarity."""
    lines = (REAL / "ko/kornlu/KorSTS/sts-dev.tsv").read_text(encoding="utf-8").splitlines()[1:]
    rows = [(*cells[5:7], cells[4]) for cells in (line.split("\t") for line in lines)]
    for split, some in (("train", rows[:70]), ("valid", rows[70:85]), ("test", rows[85:])):
        write_table(folder / f"{split}.tsv", ("text", "text_pair", "label"), some)
    write_table(folder / "pairs.tsv", ("text", "text_pair"), [row[:2] for row in rows[85:88]])


def write_entities(folder):
    """WNUT-17."""
    train = (REAL / "ner/wnut17/train.conll").read_text(encoding="utf-8")
    (folder / "train.conll").write_text(train, encoding="utf-8")
    sentences = (REAL / "ner/wnut17/dev.conll").read_text(encoding="utf-8").strip().split("\n\n")
    for split, some in (("valid", sentences[::2]), ("test", sentences[1::2])):
        (folder / f"{split}.conll").write_text("\n\n".join(some) + "\n", encoding="utf-8")


def write_frames(folder):
    """Requests about alarms, timers and reminders of examples/intents, with their intents and slots."""
    rng = random.Random(0)
    slots, intents = read_templates(ROOT / "examples/intents/templates/alarms.txt")
    kinds = {"clock": "time", "when": "time", "nap": "length", "span": "length", "topic": "task", "effort": "task"}
    marked = {name: [f"[{value}|{kinds.get(name, name)}]" for value in values] for name, values in slots.items()}
    rows = {"train": [], "valid": [], "test": []}
    for intent, templates in intents.items():
        for held_out, count in enumerate((30, 8)):
            chosen = [template.removeprefix("* ") for template in templates if template.startswith("* ") == held_out]
            for number, filled in enumerate(sample(chosen, marked, count, rng)):
                text, entities = "", []
                for plain, value, kind in re.findall(r"([^[]*)(?:\[(.*?)\|(\w+)\])?", filled):
                    text += plain + value
                    if kind:
                        entities.append({"start": len(text) - len(value), "end": len(text), "label": kind})
                split = ("valid", "test")[number % 2] if held_out else "train"
                rows[split].append({"text": text, "label": intent, "entities": entities})
    for split, some in rows.items():
        write_lines(folder / f"{split}.jsonl", some)


def read_articles():
    return json.loads((REAL / "qa/xquad/xquad.en.json").read_text(encoding="utf-8"))["data"]


def write_questions(folder):
    """XQuAD, by article; its questions all have answers."""
    articles = read_articles()
    for split, some in (("train", articles[:1] + articles[3:]), ("valid", articles[1:2]), ("test", articles[2:3])):
        (folder / f"{split}.json").write_text(json.dumps({"version": "1.1", "data": some}), encoding="utf-8")
    paragraph = max(articles[2]["paragraphs"], key=lambda paragraph: len(paragraph["qas"]))
    write_lines(folder / "questions.jsonl", [
        {"id": entry["id"], "question": entry["question"], "context": paragraph["context"]}
        for entry in paragraph["qas"]])


def write_answers(folder):
    """XQuAD, by article: each question with the sentence of its answer."""
    articles = read_articles()

    def rows(some):
        for paragraph in (paragraph for article in some for paragraph in article["paragraphs"]):
            for entry in paragraph["qas"]:
                start = entry["answers"][0]["answer_start"]
                before, after = paragraph["context"][:start], paragraph["context"][start:]
                yield {"text": entry["question"], "text_pair": before.split(". ")[-1] + after.split(". ")[0]}

    for split, some in (("train", articles[:1] + articles[4:]), ("valid", articles[1:3]), ("test", articles[3:4])):
        write_lines(folder / f"{split}.jsonl", rows(some))
    sentences = dict.fromkeys(row["text_pair"] for row in rows(articles[3:4]))
    (folder / "sentences.txt").write_text("".join(f"{text}\n" for text in sentences), encoding="utf-8")


def write_rankings(folder):
    """The questions and sentences of `write_answers`; in the test, the sentences of other questions are negatives."""
    write_answers(folder)
    rows = [json.loads(line) for line in (folder / "test.jsonl").read_text(encoding="utf-8").splitlines()]
    sentences = dict.fromkeys(row["text_pair"] for row in rows)
    write_lines(folder / "test.jsonl", [
        row | {"negative": [text for text in sentences if text != row["text_pair"]]} for row in rows])
    write_lines(folder / "pairs.jsonl", [{"text": "When did Tesla die?", "text_pair": text} for text in sentences])


def write_choices(folder):
    """CODAH."""
    def read(split):
        lines = (REAL / f"multiple_choice/codah/fold0_{split}.tsv").read_text(encoding="utf-8").splitlines()
        for _, prompt, *choices, label in (line.split("\t") for line in lines):
            yield {"prompt": prompt, "choices": choices, "label": int(label)}

    rows = list(read("dev"))
    write_lines(folder / "train.jsonl", read("train"))
    write_lines(folder / "valid.jsonl", rows[::2])
    write_lines(folder / "test.jsonl", rows[1::2])
    questions = [{"prompt": row["prompt"], "choices": row["choices"]} for row in rows[1:6:2]]
    write_lines(folder / "questions.jsonl", questions)


def write_requests(folder):
    """SNIPS: requests to an assistant, one per line."""
    shutil.copyfile(REAL / "intent/snips/train/seq.in", folder / "texts.txt")


OF_PAGES = {
    "docs/search.md": write_requests,
    "docs/tasks/classify.md": write_domains,
    "docs/tasks/intent.md": lambda folder: write_intents(folder, out_of_scope=True),
    "docs/tasks/multilabel.md": write_topics,
    "docs/tasks/regress.md": write_similarities,
    "docs/tasks/tag.md": write_entities,
    "docs/tasks/joint.md": write_frames,
    "docs/tasks/features.md": write_entities,
    "docs/tasks/span.md": write_questions,
    "docs/tasks/choice.md": write_choices,
    "docs/tasks/embed.md": write_answers,
    "docs/tasks/rerank.md": write_rankings,
}

if __name__ == "__main__":
    if not sys.argv[1:] or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    target, pages = pathlib.Path(sys.argv[1]), sys.argv[2:]
    for page in pages:
        if not (ROOT / page).is_file():
            sys.exit(f"{page}: must be a page of this checkout, such as docs/tasks/embed.md")
    if target.exists():
        sys.exit(f"{target}: exists already; name a new folder")
    target.mkdir()
    write_files(target, *pages)
