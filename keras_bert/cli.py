"""`keras-bert COMMAND --flag=value`: parses the flags of a command and runs it."""

import importlib
import os
import re
import sys
import warnings

from absl import flags

from keras_bert import __version__, startup
from keras_bert.errors import InputError, InputWarning, Stopped

# The line of each command in the overview; its code is `keras_bert.commands.<name>`.
COMMANDS = {
    "finetune": "Fine-tune a pretrained encoder on labelled texts.",
    "evaluate": "Score a fine-tuned model on labelled texts.",
    "predict": "Answer texts with a fine-tuned model.",
    "export": "Write an encoder as a Hub-style SavedModel.",
    "export preprocessor": "Write a tokenizer as a SavedModel that takes strings.",
    "export text-model": "Write a model as a SavedModel that takes strings and answers them.",
    "features": "Write an encoder's vectors of texts.",
    "convert": "Write weights in another library's format.",
    "fill-mask": "Guess the [MASK] in texts.",
    "make-vocab": "Learn a vocabulary from text.",
    "make-pretraining-data": "Make masked, paired examples from text.",
    "pretrain": "Train an encoder and its heads on such examples.",
    "serve": "Serve exported models over HTTP and gRPC.",
    "verify": "Check a SavedModel against the contract of a Hub-style encoder or preprocessor.",
    "presets": "List the pretrained encoders that have a name.",
}
# Commands that take texts or paths as arguments; the others take flags alone.
_TAKE_ARGUMENTS = ("fill-mask", "predict", "verify")


def main(arguments=None):
    """The console script. Exits with 0, with 1 for bad input, 2 for bad usage, 130 for Ctrl-C,
    143 for SIGTERM."""
    warnings.showwarning = _show_warning
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments):
    """Runs one command; returns the exit status."""
    name, *rest = arguments or ["--help"]
    if rest and f"{name} {rest[0]}" in COMMANDS:
        name, rest = f"{name} {rest[0]}", rest[1:]
    if name == "--version":
        print(f"keras-bert-hub {__version__}")
        return 0
    if name in ("-h", "--help", "help"):
        print(_overview())
        return 0 if arguments else 2
    if name not in COMMANDS:
        return _fail(f"{name!r} is not a command; the commands are {', '.join(COMMANDS)}", 2)
    command = importlib.import_module(f"keras_bert.commands.{re.sub('[ -]', '_', name)}")
    values = flags.FlagValues()
    command.define(values)
    if {"-h", "--help"} & set(rest):
        lists = [values.module_help(module) for module in values.flags_by_module_dict() if module != flags.__name__]
        print(f"keras-bert {name}: {COMMANDS[name]}\n" + "\n".join(text.split("\n", 2)[2] for text in lists))
        return 0
    try:
        positional = _parse(name, command, values, rest)
    except flags.Error as error:
        return _fail(f"{name}: {error}; see keras-bert {name} --help", 2)
    return _run(command, values, positional)


def _parse(name, command, values, rest):
    positional = values([name, *rest])[1:]
    if positional and name not in _TAKE_ARGUMENTS:
        raise flags.Error(f"takes flags alone, as --name=value; got {positional[0]!r}")
    if missing := [f"--{flag}" for flag in command.REQUIRED if getattr(values, flag) is None]:
        raise flags.Error(f"missing {', '.join(missing)}")
    return positional


def _run(command, values, positional):
    startup.quiet_tensorflow()
    try:
        command.run(values, positional)
        sys.stdout.flush()
        return 0
    except BrokenPipeError:  # the reader of our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Stopped as stopped:
        return _fail(stopped, 128 + stopped.signal)
    except KeyboardInterrupt:
        return _fail("interrupted", 130)
    except (InputError, ImportError) as error:
        return _fail(error, 1)
    except OSError as error:
        return _fail(f"{error.filename}: {error.strerror}" if error.filename else error, 1)


def _show_warning(message, category, *_):
    """Ours as one line; other libraries' are not the user's business."""
    if category is InputWarning:
        print(f"keras-bert: warning: {message}", file=sys.stderr)


def _fail(message, status):
    print(f"keras-bert: {' '.join(str(message).split())}", file=sys.stderr)
    return status


def _overview():
    width = max(map(len, COMMANDS))
    commands = "\n".join(f"  {name:{width}}  {summary}" for name, summary in COMMANDS.items())
    return f"usage: keras-bert COMMAND --flag=value ...\n\n{commands}\n\nkeras-bert COMMAND --help lists its flags."


if __name__ == "__main__":
    main()
