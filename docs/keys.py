"""Writes the keys that readers of foreign files and requests declare into docs/convert.md, as its last section.

    python docs/keys.py
"""

import pathlib

from keras_bert.files.json_files import declared

PAGE = pathlib.Path(__file__).parent / "convert.md"
# The places of declared keys by who writes the files: what they begin with.
WRITERS = {"Hugging Face, Google and the Model Garden": ["config.json", "config.json: sentence_transformers"],
           "The tokenizer": ["tokenizer"],
           "sentence-transformers": ["sentence_bert", "config_", "Pooling", "Normalize"],
           "KerasHub": ["config.json: config", "task.json", "preprocessor.json"], "Requests to the server": ["/"]}


def keys_section():
    """Returns the section with the keys of foreign files and requests."""
    of_places = {title: [keys for place, keys in declared().items() if any(
        place == begin or "json" not in begin and place.startswith(begin) for begin in places)]
        for title, places in WRITERS.items()}
    sections = [f"### {title}\n\n{''.join(map(keys_of_place, group))}" for title, group in of_places.items()]
    return ("## Keys of other libraries' files\n\nThis package reads files that other libraries wrote. It follows the "
            "keys under *applied*. Keys under *no effect* change no answer. Under *refused unless* are the only "
            "accepted values of other keys. A key of a file that is not listed here is refused. `keras-bert convert "
            "--allow_inexact` leaves out what is refused. Of a request, unknown keys are ignored.\n\n"
            ) + "".join(sections).rstrip() + "\n"


def keys_of_place(keys):
    rows = [("applied", " ".join(f"`{key}`" for key in keys.applied.split()))] if keys.applied else []
    rows += [(f"no effect: {reason}", " ".join(f"`{key}`" for key in names.split()))
             for reason, names in keys.without_effect.items()]
    if keys.neutral:
        rows.append(("refused unless", "; ".join(
            f"`{key}` {'is ' + ' or '.join(f'`{value}`' for value in allowed) if allowed else 'is left out'}"
            for key, allowed in keys.neutral.items())))
    return f"#### {keys.place}\n\n| | Keys |\n|---|---|\n" + "".join(
        f"| {name} | {cell} |\n" for name, cell in rows) + "\n"


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(text[:text.index("## Keys of other")] + keys_section(), encoding="utf-8")
