"""`keras-bert presets`."""

import dataclasses
import json
from typing import Any, Literal

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
    header = ("name", "layers and width", "parameters", "MB", "language", "licence", "learning rate", "chosen by",
              "Hugging Face id", "found in")
    rows = [(preset["name"], preset["size"], f"{preset['parameters']}M", f"{4 * preset['parameters']:.0f}",
             preset["language"], preset["licence"], *_learning_rate(preset), preset["repository"],
             preset["where"] or "to download")
            for preset in presets]
    widths = [max(map(len, column)) for column in zip(header, *rows)]
    for row in (header, *rows):
        print("  ".join(f"{cell:{width}}" for cell, width in zip(row, widths)).rstrip())


def _learning_rate(preset: dict[str, Any]) -> tuple[str, str]:
    """Returns the learning rate and who chose it, as the table has them."""
    if preset["learning_rate"] is None:
        return "-", "-"
    return f"{preset['learning_rate']:.0e}".replace("e-0", "e-"), "us" if preset["is_measured"] else "authors"
