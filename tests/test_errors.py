"""How the message of an error names arguments: as in Python, and on the command line as flags."""

import ast
import pathlib
import pickle
import re

import pytest

from keras_bert import cli
from keras_bert.errors import InputError, MissingColumn, Option

PACKAGE = pathlib.Path(cli.__file__).parent
FIELDS = {"activation_fn", "max_length", "max_position_embeddings", "vocab_size"}  # of files, too
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


def texts_of(node):
    """The strings of an expression, without those of Options."""
    if isinstance(node, ast.Constant):
        return [node.value] if isinstance(node.value, str) else []
    is_option = isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Option"
    return [] if is_option else [text for child in ast.iter_child_nodes(node) for text in texts_of(child)]


def test_every_argument_in_a_message_is_marked():
    """Where a name can be nothing else, as it has an underscore. Commands and the server write flags themselves."""
    names = {argument.name for command in cli.COMMANDS for argument in cli.arguments_of(command)}
    names = {name for name in names if "_" in name} - FIELDS
    calls = [(path, call) for path in PACKAGE.rglob("*.py") if path.parent.name not in ("commands", "serving")
             for call in ast.walk(ast.parse(path.read_text())) if isinstance(call, ast.Call)
             and getattr(call.func, "id", "") in ("InputError", "MissingColumn", "UnknownSuffix")]
    assert len(calls) > 200 and "few_shot" in names
    unmarked = [(path.name, call.lineno, word) for path, call in calls for argument in call.args
                for text in texts_of(argument) for word in re.findall(r"\w+", text) if word in names]
    assert not unmarked
