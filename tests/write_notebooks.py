"""Executes notebooks of `examples/` and saves them with their outputs:

    python tests/write_notebooks.py intent_classification korean_sentiment

Outputs that depend on the machine or on the trained weights are in cells with the tag `varies`; `test_notebook.py`
compares the others.
"""

import os
import pathlib
import re
import sys

import nbformat
from nbclient import NotebookClient

EXAMPLES = pathlib.Path(__file__).parents[1] / "examples"
PASSING = re.compile(  # progress, and notes of TensorFlow 2.21
    r"^((epoch|(held out, )?step) \d+/\d+ |I0000 |WARNING: All log messages before ).*\n", re.M)


def path(name):
    return EXAMPLES / f"{name}.ipynb"


def read(name):
    notebook = nbformat.read(path(name), as_version=4)
    nbformat.validate(notebook)
    return notebook


def execute(notebook):
    """Executes a notebook in the folder `examples`. Removes the progress of training and the notes of TensorFlow
    from the outputs, and the times of execution."""
    os.environ.pop("NSMC", None)  # the bundled data
    NotebookClient(notebook, timeout=1200, record_timing=False, coalesce_streams=True,
                   resources={"metadata": {"path": EXAMPLES}}).execute()
    notebook.metadata = {"kernelspec": notebook.metadata.kernelspec, "language_info": {"name": "python"}}
    for cell in notebook.cells:
        if cell.cell_type == "code":
            for output in cell.outputs:
                if output.get("name") == "stderr":
                    output.text = PASSING.sub("", output.text)
            cell.outputs = [output for output in cell.outputs if output.get("text") != ""]


def main(*names):
    for name in names:
        notebook = read(name)
        execute(notebook)
        nbformat.write(notebook, path(name))


if __name__ == "__main__":
    main(*sys.argv[1:])
