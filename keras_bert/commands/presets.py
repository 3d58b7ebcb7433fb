"""`keras-bert presets`."""

import dataclasses
import json
from typing import Literal

EXAMPLE = "keras-bert presets"


def run(output_format: Literal["text", "json"] = "text"):
    """List the pretrained encoders that have a name.

    Args:
        output_format: One line per name, or one JSON list.
    """
    from keras_bert.presets import PRESETS, where

    presets = [dataclasses.asdict(preset) | {"where": where(preset)} for preset in PRESETS.values()]
    if output_format == "json":
        print(json.dumps(presets, indent=2))
        return
    rows = [(preset["name"], preset["size"], f"{preset['parameters']}M", preset["language"], preset["licence"],
             preset["where"] or "to download") for preset in presets]
    widths = [max(map(len, column)) for column in zip(*rows)]
    for row in rows:
        print("  ".join(f"{cell:{width}}" for cell, width in zip(row, widths)).rstrip())
