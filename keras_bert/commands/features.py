"""`keras-bert features`."""

from typing import Any

from keras_bert.terminal import StatusLine

EXAMPLE = "keras-bert features --model=minilm --input=texts.txt --output=vectors.npz"
API = "inference/features.py", "write_features"


def run(**arguments: Any) -> None:
    """Write an encoder's vectors of texts."""
    from keras_bert.inference.features import write_features

    def show(done: int, texts: int) -> None:
        if line.is_due():
            line.show(f"{done} of {texts} texts")

    with StatusLine() as line:
        texts, tokens = write_features(**arguments, progress=show)
    print(f"{arguments['output']}: {texts} texts, {tokens} tokens")
