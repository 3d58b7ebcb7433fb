"""What the benchmarks share: their flags, the machine, turns, medians, a limit, tables and a line of JSON.

The programs begin with `import ruler`, so that TensorFlow, which is imported afterwards, sees no GPU and is quiet.

The libraries take turns, so that other load on the machine affects all of them equally. The first two turns, in which
graphs are traced and compiled, are not counted. A product of two large matrices takes turns with them; the speed that
it reaches in the same dtype is the limit. The column `share` is relative to that limit; `ratio` is a library's time
divided by this package's time.

Nothing else may run on the machine: OpenMP's threads, which PyTorch uses, spin while they wait for one another, and
take ten times as long next to a single busy program. The first line of the output has the machine's load at the start.
"""

import argparse
import importlib.metadata
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import time

GPUS = os.environ.get("CUDA_VISIBLE_DEVICES", "0")  # what `gpu.py` sees
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

OURS = "keras_bert"
PACKAGES = ("tensorflow", "keras", "torch", "transformers", "onnxruntime", "openvino", "keras-hub",
            "tf-models-official", "ai-edge-litert")
UNCOUNTED = 2
SETTLING = 0.05  # seconds; the previous library's threads keep spinning for part of this time
_PRODUCT = 2048  # rows and columns
# Names as in /proc/cpuinfo, on x86-64 and on arm64.
_INSTRUCTIONS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "asimd", "bf16")
# Variables that keep a library from using some of these instructions. OpenVINO has no such setting.
_LIMITS = ("TF_ENABLE_ONEDNN_OPTS", "ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS", "ATEN_CPU_CAPABILITY", "XLA_FLAGS")
# By the last word of a key.
_FORMATS = {"seconds": ".2f", "milliseconds": ",.1f", "share": ".0%", "ratio": ".2f", "score": ".4f", "lost": ".2f",
            "equal": ".2%", "accuracy": ".2%", "difference": ".1e", "broken": ".2%", "found": ".1%", "kept": ".1%",
            "coverage": ".1%", "error": ".2f", "probability": ".4f", "better": ".1%", "megabytes": ".1f"}


def parser(description, **defaults):
    """Returns a parser of the flags that have these defaults; see `add_flags`."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    return add_flags(made, **defaults)


def add_flags(made, **defaults):
    """Adds flags to a parser and returns it. A flag has the type of its default. A list is given with commas, False is
    the default of a switch, None that of a str, and a type in place of a default makes the flag a required one. The
    default of `peers` names all that there are, unless it is empty."""
    for name, default in defaults.items():
        if default is False:
            made.add_argument(f"--{name}", action="store_true")
        elif isinstance(default, type):
            made.add_argument(f"--{name}", type=default, required=True)
        elif isinstance(default, list):
            read = _list_of(type(default[0]) if default else str, default if name == "peers" else ())
            made.add_argument(f"--{name}", type=read, default=default)
        else:
            made.add_argument(f"--{name}", type=str if default is None else type(default), default=default)
    return made


def _list_of(kind, names):
    """Returns a function that reads a list; if there are `names`, of these alone."""
    def read(text):
        parts = [kind(part) for part in text.split(",") if part]
        if names and (unknown := [part for part in parts if part not in names]):
            raise argparse.ArgumentTypeError(f"must be of {', '.join(names)}; got {', '.join(unknown)}")
        return parts

    return read


def describe(*packages):
    """Prints the machine, its instruction sets, whether TensorFlow uses oneDNN, the variables that limit these, the
    machine's load, and the packages' versions.

    Returns:
        dict of the versions; None for a package that is not installed.
    """
    from keras_bert.startup import enable_onednn

    enable_onednn()  # as in all runs that import keras_bert first
    from tensorflow.python.framework.test_util import IsMklEnabled  # no public function tells it

    versions = {}
    for package in packages:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = None
    with open("/proc/cpuinfo") as file:
        text = file.read()
    model = re.search("model name\\s*: (.*)", text)
    flags = set(re.findall(r"\w+", "".join(re.findall(r"^(?:flags|Features)\s*: (.*)", text, re.M)[:1])))
    instructions, onednn = " ".join(name for name in _INSTRUCTIONS if name in flags), "on" if IsMklEnabled() else "off"
    print(f"{model[1] if model else platform.machine()}, {os.cpu_count()} cores, {instructions}, oneDNN {onednn}, "
          f"load {os.getloadavg()[0]:.1f}; "
          + "".join(f"{name}={os.environ[name]}; " for name in _LIMITS if name in os.environ)
          + ", ".join(f"{name} {version or 'not installed'}" for name, version in versions.items()))
    return versions


def installed(makers, *arguments):
    """Calls each maker with the arguments and returns a dict of the results. Skips what is not installed, or cannot run
    on this machine, and prints its name.

    Args:
        makers: dict of names to functions.
    """
    from keras_bert.errors import InputError

    made = {}
    for name, make in makers.items():
        try:
            made[name] = make(*arguments)
        except (ImportError, InputError) as error:
            print(f"without {name}: {error}")
    return made


def run_alone(*command, python=sys.executable, **options):
    """Runs a Python program in a process of its own, with options of `subprocess.run`; returns what the last line of
    its output has as JSON."""
    run = subprocess.run([python, *command], stdout=subprocess.PIPE, text=True, check=True, **options)
    return json.loads(run.stdout.splitlines()[-1])


def take_turns(steps, turns):
    """Returns the median seconds of each step, as a dict.

    Args:
        steps: dict of names to functions without arguments.
        turns: number of turns that count.
    """
    seconds = {name: [] for name in steps}
    for _ in range(UNCOUNTED + turns):
        for name, step in steps.items():
            time.sleep(SETTLING)
            started = time.perf_counter()
            step()
            seconds[name].append(time.perf_counter() - started)
    return {name: statistics.median(times[UNCOUNTED:]) for name, times in seconds.items()}


def compare(steps, turns, dtype):
    """Runs `take_turns` with the matrix product as an additional step.

    Args:
        dtype: name of the product's dtype.

    Returns:
        (dict of the median seconds of each step; the product's floating point operations per second).
    """
    import tensorflow as tf

    matrix = tf.cast(tf.random.normal([_PRODUCT, _PRODUCT]), dtype)
    product = {"matrix product": lambda: tf.linalg.matmul(matrix, matrix).numpy()}
    seconds = take_turns(steps | product, turns)
    return seconds, 2 * _PRODUCT**3 / seconds.pop("matrix product")


def ratios(seconds):
    """Returns a dict of each library's time divided by this package's; None if this package is not included."""
    return {name: value / seconds[OURS] if OURS in seconds else None for name, value in seconds.items()}


def forward_cost(config, length):
    """Returns the floating point operations that encoding a text takes: 2 for each weight of a block that a token is
    multiplied by, and 4 for each element of its vector and each token that it attends to
    (`pretraining.prepare.cost_of_token` returns those of training).

    Args:
        config: a `BertConfig`.
        length: length of the text, in tokens.
    """
    hidden = config.hidden_size
    block = 4 * hidden**2 + 2 * hidden * config.intermediate_size
    return config.num_hidden_layers * length * (2 * block + 4 * hidden * length)


def resident(process="self"):
    """Returns the resident memory of a process, in bytes."""
    with open(f"/proc/{process}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def peak_memory():
    """Returns this process's peak memory, in bytes. `getrusage` would also count the parent's before the start."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM:"))


def print_table(title, rows):
    """Prints a table of rows: dicts with the same keys, where `library` is a name and the others are numbers or
    None."""
    columns = [key for key in rows[0] if key != "library"]
    width = max(24, *(len(row["library"]) + 1 for row in rows))
    heads = "".join(f"{column.replace('_per_second', '/s'):>20}" for column in columns)
    print(f"\n{title}\n{'library':{width}}{heads}")
    for row in rows:
        cells = ["-" if row[key] is None else format(row[key], _FORMATS.get(key.rpartition("_")[2], ",.0f"))
                 for key in columns]
        print(f"{row['library']:{width}}" + "".join(f"{cell:>20}" for cell in cells), flush=True)


def report(title, seconds, limit, cost, **amounts):
    """Prints a table of the results of `compare`; returns its rows.

    Args:
        seconds, limit: the results of `compare`.
        cost: floating point operations of a step.
        amounts: what a step processes, for example `tokens=2048`.
    """
    ratio = ratios(seconds)
    rows = [{"library": name, "milliseconds": 1000 * value}
            | {f"{unit}_per_second": amount / value for unit, amount in amounts.items()}
            | {"share": cost / value / limit, "ratio": ratio[name]} for name, value in seconds.items()]
    print_table(f"{title}; a matrix product reaches {limit / 1e9:.0f} GFLOP/s", rows)
    return rows


def finish(benchmark, versions, arguments, rows):
    """Prints the results as one line of JSON.

    Args:
        arguments: the program's arguments, a namespace.
    """
    print(json.dumps({"benchmark": benchmark, "versions": versions, "config": vars(arguments), "rows": rows}))
