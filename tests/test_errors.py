"""How the message of an error names arguments: as in Python, and on the command line as flags."""

import pickle

import pytest

from keras_bert.errors import InputError, MissingColumn, Option

FLAGS = {"epochs", "next_sentence", "output", "overwrite", "task", "top_k"}


@pytest.mark.parametrize("parts, message, on_command_line", [
    ((Option("epochs"), " must be at least 1; got 0"),
     "epochs must be at least 1; got 0", "--epochs must be at least 1; got 0"),
    (("out: exists; pass another ", Option("output=…"), " or ", Option("overwrite=True")),
     "out: exists; pass another output=… or overwrite=True", "out: exists; pass another --output or --overwrite"),
    (("pass ", Option("next_sentence=False")), "pass next_sentence=False", "pass --nonext_sentence"),
    (("with ", Option("top_k=2"), " (now 1)"), "with top_k=2 (now 1)", "with --top_k=2 (now 1)"),
    (("pass ", Option("task='a=b'")), "pass task='a=b'", "pass --task='a=b'"),
    (("other commands take ", Option("config=…")), "other commands take config=…", "other commands take config=…"),
    (("epochs must be a key of my epochs=3.json",), *["epochs must be a key of my epochs=3.json"] * 2)])
def test_only_what_is_marked_becomes_a_flag(parts, message, on_command_line):
    error = MissingColumn(*parts)
    for same in (error, pickle.loads(pickle.dumps(error)), MissingColumn(*error.parts)):
        assert type(same) is MissingColumn and str(same) == message and same.on_command_line(FLAGS) == on_command_line
    longer = InputError(*error.parts, "; for pairs, pass ", Option("task='classify'"))
    assert longer.on_command_line(FLAGS) == f"{on_command_line}; for pairs, pass --task='classify'"
