"""The command line, `keras-bert COMMAND --flag=value`: parses the flags of a command and runs it."""

import dataclasses
import importlib
import inspect
import os
import re
import signal
import sys
import textwrap
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

try:
    from absl import flags
except ImportError:  # where only LiteRT is installed
    sys.exit("keras-bert: the command line needs absl-py: pip install absl-py")

from keras_bert import __version__
from keras_bert.arguments import NAMES, as_list, check_value, did_you_mean
from keras_bert.errors import InputError, InputWarning, Stopped
from keras_bert.flags import Argument, read, read_source
from keras_bert.startup import quiet_tensorflow
from keras_bert.terminal import print_error

# Each command is the function `run` of its module; the arguments are the flags. `*name` gets the texts or paths after
# the flags; `**name` stands for the arguments of the function that the module's `API` names.
COMMANDS = ("finetune", "evaluate", "calibrate", "predict", "export", "export preprocessor", "export text-model",
            "export litert", "features", "convert", "fill-mask", "make-vocab", "make-pretraining-data", "pretrain",
            "serve", "verify", "presets")
_WITHOUT_MODELS = "export preprocessor", "make-vocab", "make-pretraining-data", "presets"
_IMPORT = Argument("import", None, "Module of your own to import, for the tasks that it registers. This runs its code.",
                   list[str], str, None, is_list=True, is_repeated=False, is_single=False, is_positional=False)


def main(arguments: list[str] | None = None) -> None:
    """Runs the console script. Exits with 0, 1 for bad input, 2 for bad usage, 130 for Ctrl-C or 143 for SIGTERM."""
    warnings.showwarning = _show_warning
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == ["serve"] and sys.platform == "linux":
        # The supervisor waits for them. Until then, Linux would ignore them for the first process of a container, and
        # end any other; afterwards, a thread that has started before (of NumPy) could get them, and end it, too.
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))
    sys.exit(run(arguments))


def run(arguments: list[str]) -> int:
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
        hint = did_you_mean(name, COMMANDS) or f"; the commands are {', '.join(COMMANDS)}"
        hint = "; give the command first" if name.startswith("-") else hint
        return _fail(f"{name!r} is not a command{hint}", 2)
    if {"-h", "--help"} & set(rest):
        return _call(lambda: print(help_of(name)), [], [], {})
    given = arguments_of(name)
    if any(word.startswith(("--import", "-import")) for word in rest):  # which may register other tasks
        given = [dataclasses.replace(argument, choices=None) if argument.name == "task" else argument
                 for argument in given]
    try:
        positional, options = _parse(name, given, rest)
    except (flags.Error, ValueError) as error:  # of absl, also for --noflag=value
        return _fail(f"{name}: {_reword(error, given)}; see keras-bert {name} --help", 2)
    command, modules = module_of(name).run, options.pop(_IMPORT.name, None)

    def import_and_run(*texts: str, **values: Any) -> None:
        if modules:
            os.environ["KERAS_BERT_IMPORT"] = ",".join(modules)  # for the processes that the command starts, too
            importlib.import_module("keras_bert.tasks").import_tasks()
        command(*texts, **values)

    return _call(import_and_run, given, positional, options)


def arguments_of(name: str) -> list[Argument]:
    command = module_of(name)
    given = read(command.run)
    if hasattr(command, "API"):
        path, function = command.API
        given += read_source(os.path.join(os.path.dirname(__file__), path), function)
    return given if name in _WITHOUT_MODELS else [*given, _IMPORT]


def help_of(name: str) -> str:
    """Returns the help of a command: usage, summary, an example and its flags."""
    lines = [f"usage: {usage_of(name)}", "", summary_of(name), "", "example:", f"  {module_of(name).EXAMPLE}"]
    named = [argument for argument in arguments_of(name) if not argument.is_positional]
    for title, is_required in (("required flags:", True), ("flags:", False)):
        group = [argument for argument in named if argument.is_required is is_required]
        lines += ["", title, *map(_help_of_flag, group)] if group else []
    return "\n".join(lines)


def usage_of(name: str) -> str:
    given = arguments_of(name)
    required = [f"--{argument.name}={argument.name.upper()}" for argument in given
                if argument.is_required and not argument.is_positional]
    words = [f"{argument.name.upper()} ..." for argument in given if argument.is_positional]
    return " ".join(["keras-bert", name, *required, "[--FLAG=VALUE ...]", *words])


def summary_of(name: str) -> str:
    return (inspect.getdoc(module_of(name).run) or "").partition("\n")[0]  # `python -OO` has no docstrings


def module_of(name: str) -> ModuleType:
    return importlib.import_module(f"keras_bert.commands.{re.sub('[ -]', '_', name)}")


def make_flags(given: list[Argument]) -> flags.FlagValues:
    """Returns absl's flags for the arguments that are not positional."""
    values = flags.FlagValues()
    kinds: dict[type, Callable] = {bool: flags.DEFINE_bool, int: flags.DEFINE_integer, float: flags.DEFINE_float,
                                   str: flags.DEFINE_string}
    for argument in given:
        default = None if argument.is_required else argument.default
        if argument.is_positional:
            continue
        if argument.is_repeated:
            flags.DEFINE_multi_string(argument.name, default, argument.help, flag_values=values)
        elif argument.is_list:
            texts = None if default is None else [str(part) for part in as_list(default)]
            flags.DEFINE_list(argument.name, texts, argument.help, flag_values=values)
        elif argument.choices:
            flags.DEFINE_enum(argument.name, default, argument.choices, argument.help, flag_values=values)
        else:
            kinds[argument.kind](argument.name, default, argument.help, flag_values=values)
    return values


def _parse(name: str, given: list[Argument], rest: list[str]) -> tuple[list[str], dict[str, Any]]:
    """Returns the texts after the flags, and a dict of the flags' values."""
    values = make_flags(given)
    positional = values([name, *rest])[1:]
    options = [argument for argument in given if not argument.is_positional]
    if positional and len(options) == len(given):
        raise flags.Error(f"takes only flags, as --name=value; got {positional[0]!r}"
                          f"{did_you_mean(f'{name} {positional[0]}', set(COMMANDS) - {name})}")
    if missing := [f"--{argument.name}" for argument in options
                   if argument.is_required and getattr(values, argument.name) is None]:
        raise flags.Error(f"missing {', '.join(missing)}")
    return positional, {argument.name: _value(argument, getattr(values, argument.name)) for argument in options}


def _reword(error: Exception, given: list[Argument]) -> object:
    """Rewords absl's message about an unknown flag or a value of another type."""
    if isinstance(error, flags.UnrecognizedFlagError):
        meant = did_you_mean(error.flagname, [argument.name for argument in given])
        return f"there is no flag --{error.flagname}{meant.replace('mean ', 'mean --')}"
    if isinstance(error, flags.IllegalFlagValueError):
        name, value = re.findall(r"^flag --(\w+)=(.*?): ", str(error), re.DOTALL)[0]
        argument = next(argument for argument in given if argument.name == name)
        rule = f"one of {', '.join(argument.choices)}" if argument.choices else NAMES[argument.kind]
        own = "; for a task of your own, pass --import=MODULE" * (name == "task")
        return f"--{name} must be {rule}; got {value!r}{did_you_mean(value, argument.choices or ())}{own}"
    return error


def _value(argument: Argument, value: Any) -> Any:
    if not argument.is_list or value is None:
        return value
    try:
        values = [argument.kind(text) for text in value]
    except ValueError:
        raise flags.Error(f"--{argument.name} must be numbers; got {','.join(value)}") from None
    return values[0] if argument.is_single and len(values) == 1 else values


def _help_of_flag(argument: Argument) -> str:
    note = f" (default: {argument.shown_default})" if argument.shown_default else ""
    body = textwrap.indent(textwrap.fill(argument.help + note, 96), " " * 8)
    return f"  {argument.spelling}\n{body}"


def _call(command: Callable, given: list[Argument], positional: list[str], options: dict[str, Any]) -> int:
    quiet_tensorflow()
    try:
        for argument in given:  # before TensorFlow is imported, which takes seconds
            if argument.name in options:
                check_value(argument.name, options[argument.name], argument.annotation)
        command(*positional, **options)
        sys.stdout.flush()
        return 0
    except BrokenPipeError:  # the reader of the output has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Stopped as stopped:
        return _fail(stopped, 128 + stopped.signal)
    except KeyboardInterrupt:
        return _fail("interrupted", 130)
    except InputError as error:
        return _fail(error.on_command_line({*options, "import"}), 1)
    except ImportError as error:
        return _fail(f"{error}{_cure(error.name)}", 1)
    except OSError as error:
        return _fail(f"{error.filename}: {error.strerror}" if error.filename else error, 1)


def _show_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    """Prints this package's warnings as one line. Hides those of other libraries, which the user can ignore."""
    if category is InputWarning:
        print_error(f"warning: {message}")


def _cure(module: str | None) -> str:
    """Returns what to do if a module is missing, for the end of a message."""
    if module in ("tensorflow", "keras", "safetensors"):
        return "; only LiteRT folders can do without TensorFlow: pip install tensorflow keras safetensors"
    return f": pip install {module.partition('.')[0]}" if module else ""


def _fail(message: object, status: int) -> int:
    print_error(" ".join(str(message).split()))
    return status


def _overview() -> str:
    width = max(map(len, COMMANDS))
    commands = "\n".join(f"  {name:{width}}  {summary_of(name)}" for name in COMMANDS)
    return f"usage: keras-bert COMMAND --flag=value ...\n\n{commands}\n\nkeras-bert COMMAND --help lists its flags."


if __name__ == "__main__":
    main()
