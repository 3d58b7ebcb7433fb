"""`keras-bert convert`."""

from typing import Any

EXAMPLE = "keras-bert convert --model=bert-base-uncased --output=bert_tf1 --format=tf1"
API = "convert/conversion.py", "convert"


def run(**arguments: Any) -> None:
    """Write weights in another library's format."""
    from keras_bert.convert import convert

    convert(**arguments, report=print)
    print(f"done: {arguments['output']}")
