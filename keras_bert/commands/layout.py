"""Flags that say where a data file has what."""

from absl import flags


def define(values, label=True):
    flags.DEFINE_string("layout", None, "Layout of a published file: cola, sst2, mrpc, klue-nli, conll, swag and so "
                        "on; where not given, by the file's suffix.", flag_values=values)
    flags.DEFINE_string("text", "text", "Column of the text.", flag_values=values)
    flags.DEFINE_string("text_pair", None, "Column of the second text; text_pair if there is one.", flag_values=values)
    if label:
        flags.DEFINE_string("label", "label", "Column of the label.", flag_values=values)


def of(values):
    """The flags as the readers take them: a dict; no label where it is no flag."""
    return {"format": values.layout, "text": values.text, "text_pair": values.text_pair,
            "label": values.label if "label" in values else None}
