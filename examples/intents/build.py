"""Writes the data set demo-176: `python examples/intents/build.py FOLDER` fills templates into train.tsv and valid.tsv.

176 intents in 16 domains, one file of `templates/` each. A line `@slot = a | b` lists the values of `{slot}`,
`[intent]` starts an intent, the lines below it are its templates; those that start with `* ` are for validation. So
training and validation share no template, and no two of their texts differ only in a slot.
"""

import itertools
import pathlib
import random
import re
import sys

TRAIN_TEXTS, VALID_TEXTS = 30, 8  # an intent, at most
TEMPLATES = sorted((pathlib.Path(__file__).parent / "templates").glob("*.txt"))  # a domain each


def read_templates(path):
    """Reads one domain: (slots, {intent: [template, ...]})."""
    slots, intents = {}, {}
    for line in path.read_text(encoding="utf-8").split("\n"):
        line = line.strip()
        if line.startswith("@"):
            name, values = line[1:].split("=", 1)
            slots[name.strip()] = [value.strip() for value in values.split("|")]
        elif line.startswith("["):
            templates = intents[line.strip("[]")] = []
        elif line and not line.startswith("#"):
            templates.append(line)
    return slots, intents


def fill(template, slots):
    """Every text of one template."""
    names = re.findall(r"{(\w+)}", template)
    return [template.format(**dict(zip(names, values))) for values in itertools.product(*(slots[n] for n in names))]


def sample(templates, slots, count, rng):
    """At most `count` texts, drawn from the templates in turn."""
    queues = [rng.sample(texts, len(texts)) for texts in (fill(template, slots) for template in templates)]
    in_turn = (text for texts in itertools.zip_longest(*queues) for text in texts if text is not None)
    return list(itertools.islice(in_turn, count))


def make_texts():
    """Returns {"train": [(text, intent), ...], "valid": [...]}, the same at each run."""
    rng = random.Random(0)
    rows = {"train": [], "valid": []}
    for path in TEMPLATES:
        slots, intents = read_templates(path)
        for intent, templates in intents.items():
            training = [template for template in templates if not template.startswith("* ")]
            held_out = [template[2:] for template in templates if template.startswith("* ")]
            rows["train"] += [(text, intent) for text in sample(training, slots, TRAIN_TEXTS, rng)]
            rows["valid"] += [(text, intent) for text in sample(held_out, slots, VALID_TEXTS, rng)]
    return rows


def build(folder):
    """Writes `train.tsv` and `valid.tsv` into `folder`; returns how many texts each has."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    rows = make_texts()
    for split, texts in rows.items():
        lines = ["text\tlabel", *(f"{text}\t{intent}" for text, intent in texts)]
        (folder / f"{split}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return {split: len(texts) for split, texts in rows.items()}


if __name__ == "__main__":
    print(build(sys.argv[1]))
