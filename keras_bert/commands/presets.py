"""`keras-bert presets`: lists the pretrained encoders that have a name."""

import dataclasses
import json

from absl import flags

REQUIRED = ()


def define(values):
    flags.DEFINE_enum("format", "text", ["text", "json"], "A line a name, or one JSON list.", flag_values=values)


def run(values, _):
    from keras_bert.presets import PRESETS, where

    presets = [dataclasses.asdict(preset) | {"where": where(preset)} for preset in PRESETS.values()]
    if values.format == "json":
        print(json.dumps(presets, indent=2))
        return
    rows = [(preset["name"], preset["size"], f"{preset['parameters']}M", preset["language"], preset["licence"],
             preset["where"] or "to download") for preset in presets]
    widths = [max(map(len, column)) for column in zip(*rows)]
    for row in rows:
        print("  ".join(f"{cell:{width}}" for cell, width in zip(row, widths)).rstrip())
