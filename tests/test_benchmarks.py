"""Benchmarks of speed run from their command to their line of JSON."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from conftest import REAL

BENCHMARKS = pathlib.Path(__file__).parents[1] / "benchmarks"


@pytest.mark.slow
def test_forward_ends_in_a_line_of_json():
    command = [sys.executable, BENCHMARKS / "forward.py", "--size=L2-H128", "--dtypes=float32", "--shapes=2x8,1x4",
               "--peers=keras_bert", "--turns=1"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    result = json.loads(lines[-1])
    assert result["benchmark"] == "forward" and result["config"]["size"] == "L2-H128"
    assert [(row["library"], row["dtype"], row["shape"]) for row in result["rows"]] == [
        ("keras_bert", "float32", "2x8"), ("keras_bert", "float32", "1x4")]
    for row, batch in zip(result["rows"], (2, 1)):
        assert row["ratio"] == 1 and row["share"] > 0
        assert abs(row["sequences_per_second"] * row["milliseconds"] / 1000 - batch) < 1e-9
        assert any(line.startswith("keras_bert ") and f" {row['milliseconds']:.1f} " in line for line in lines)


@pytest.mark.slow
def test_texts_come_from_the_repository_unless_another_folder_is_named():
    environment = {name: value for name, value in os.environ.items() if name != "KERAS_BERT_DATA"}
    command = [sys.executable, "-c", "from texts import mixed; print(len(set(mixed())))"]
    lines = subprocess.run(command, cwd=BENCHMARKS, env=environment | {"PYTHONPATH": str(BENCHMARKS.parent)},
                           capture_output=True, text=True, check=True).stdout.splitlines()
    assert lines == [f"70 texts from {REAL}/corpora/en/classic_books.txt",
                     f"20 texts from {REAL}/qa/xquad/xquad.en.json",
                     f"250 texts from {REAL}/intent/intent176/train.tsv", "340"]
    run = subprocess.run([sys.executable, BENCHMARKS / "pretraining_data.py"], capture_output=True, text=True,
                         env=environment | {"KERAS_BERT_DATA": "elsewhere"})
    assert (run.returncode, run.stdout) == (1, "")
    assert run.stderr.startswith("elsewhere/corpora/en/classic_books.txt does not exist; set KERAS_BERT_DATA to ")
