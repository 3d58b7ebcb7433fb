"""A benchmark of speed runs from its command to its line of JSON."""

import json
import pathlib
import subprocess
import sys

PROGRAM = pathlib.Path(__file__).parents[1] / "benchmarks/forward.py"


def test_forward_ends_in_a_line_of_json():
    command = [sys.executable, PROGRAM, "--size=L2-H128", "--dtypes=float32", "--shapes=2x8,1x4", "--peers=keras_bert",
               "--turns=1"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    result = json.loads(lines[-1])
    assert result["benchmark"] == "forward" and result["config"]["size"] == "L2-H128"
    assert [(row["library"], row["dtype"], row["shape"]) for row in result["rows"]] == [
        ("keras_bert", "float32", "2x8"), ("keras_bert", "float32", "1x4")]
    for row, batch in zip(result["rows"], (2, 1)):
        assert row["ratio"] == 1 and row["share"] > 0
        assert abs(row["sequences_per_second"] * row["milliseconds"] / 1000 - batch) < 1e-9
        assert any(line.startswith("keras_bert ") and f" {row['milliseconds']:.1f} " in line for line in lines)
