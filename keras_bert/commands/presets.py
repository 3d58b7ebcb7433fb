"""`keras-bert presets`."""

import dataclasses
import json
from typing import Literal

EXAMPLE = "keras-bert presets"


def run(output_format: Literal["text", "json"] = "text") -> None:
    """List the pretrained encoders that have a name.

    Args:
        output_format: A table, or one JSON list.
    """
    from keras_bert.presets import PRESETS, where

    presets = [dataclasses.asdict(preset) | {"where": where(preset)} for preset in PRESETS.values()]
    if output_format == "json":
        print(json.dumps(presets, indent=2))
        return
    rows = [("name", "layers and width", "parameters", "MB", "language", "licence", "learning rate", "chosen by",
             "prompts", "Hugging Face id", "found in")]
    for preset in presets:
        rate, source = preset["learning_rate"], "us" if preset["is_measured"] else "authors"
        rows.append((
            preset["name"], preset["size"], f"{preset['parameters']}M", f"{4 * preset['parameters']:.0f}",
            preset["language"], preset["licence"], f"{rate:.0e}".replace("e-0", "e-") if rate else "-",
            source if rate else "-", " ".join(map(json.dumps, preset["prompts"])) or "-", preset["repository"],
            preset["where"] or "to download"))
    widths = [max(map(len, column)) for column in zip(*rows)]
    for row in rows:
        print("  ".join(f"{cell:{width}}" for cell, width in zip(row, widths)).rstrip())
