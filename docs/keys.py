"""The page of the site with the keys that readers of foreign files and requests declare."""

import json

from keras_bert.files.json_files import declared

# The places of declared keys by who writes the files: what they begin with.
WRITERS = {"Hugging Face, Google and the Model Garden": ["config.json", "config.json: sentence_transformers"],
           "The tokenizer": ["tokenizer"],
           "sentence-transformers": ["sentence_bert", "config_", "Pooling", "Normalize"],
           "KerasHub": ["config.json: config", "task.json", "preprocessor.json"], "Requests to the server": ["/"]}
INTRODUCTION = """# Keys of other libraries' files

This package follows the keys under *applied*. Keys under *accepted values* may only have one of these values, and keys
under *refused* no value. Null and empty values are always accepted. Other keys of files are refused, too, except some
that change no answer. `keras-bert convert --allow_inexact` leaves out what is refused. Other keys of requests are
ignored.

"""


def keys_page():
    """Returns the page with the keys of foreign files and requests."""
    groups = {title: [keys for place, keys in declared().items() if any(
        place == begin or "json" not in begin and place.startswith(begin) for begin in places)]
        for title, places in WRITERS.items()}
    return INTRODUCTION + "\n\n".join(f"## {title}\n\n{table(group)}" for title, group in groups.items()) + "\n"


def table(group):
    lines, place_of = ["| | Applied | Accepted values | Refused |", "|---|---|---|---|"], {}
    for keys in group:
        neutral = keys.neutral.items()
        values = "; ".join(f"`{key}`: {code(map(shown, allowed))}" for key, allowed in neutral if allowed)
        refused = code(key for key, allowed in neutral if not allowed)
        same = place_of.setdefault((values, refused), keys.place)
        if refused and same != keys.place:
            values = refused = f"as {same}"
        if keys.applied or keys.neutral:
            lines.append(f"| {keys.place} | {code(keys.applied.split())} | {values} | {refused} |")
    return "\n".join(lines)


def code(words):
    return " ".join(f"`{word}`" for word in words)


def shown(value):
    return value if isinstance(value, str) else json.dumps(value)
