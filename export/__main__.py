"""Runs `python -m export`, which is the same as `keras-bert export`."""

import sys

from keras_bert.cli import main

if __name__ == "__main__":
    main(["export", *sys.argv[1:]])
