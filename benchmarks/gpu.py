"""Measures BERT on one GPU in at most ten minutes: outputs compared with the CPU's, inference and training steps.

    python benchmarks/gpu.py [--minutes=10 --sizes=base,large --lengths=128,512 --libraries=NAME,… --tiny]

Each library runs in its own process: this package on JAX and on TensorFlow, both with XLA, and transformers with
PyTorch's SDPA. A batch has 32,768 positions; the lengths of its texts are uniform between an eighth of `--lengths` and
all of it, so that 44% of the positions are padding. This package runs with the layouts `padded` and `packed`. The dtype
is bfloat16, for training with weights in float32 (transformers under autocast). Tokens are real tokens; the column
`share` is relative to the fastest product of two matrices in the same run. Libraries that are not installed or find no
GPU are named, and so are those that need more than their share of the time. `--tiny` runs a tiny encoder on the CPU, to
test this program.
"""

import itertools
import multiprocessing
import os
import sys
import tempfile
import time

import ruler

CLASSES, RATE, TURNS = 176, 5e-5, 5
COMPARED = 8, 128  # number and maximum length of the texts whose outputs are compared


class KerasBert:
    """This package, on the backend that KERAS_BACKEND names."""

    layouts = ("padded", "packed")

    def __init__(self):
        import keras

        if keras.backend.backend() == "jax":
            import jax

            self.has_gpu = jax.default_backend() == "gpu"
            self._compile = jax.jit
        else:
            import tensorflow as tf

            self.has_gpu = bool(tf.config.list_physical_devices("GPU"))
            self._compile = lambda function: tf.function(function, jit_compile=True, autograph=False)
        self._keras = keras

    def product(self, size):
        matrix = self._keras.ops.ones((size, size), "bfloat16")
        run = self._compile(lambda x: self._keras.ops.matmul(x, x))
        return lambda: float(run(matrix)[0, 0])

    def encoder(self, folder, layout, inputs, dtype):
        """Returns a function that computes the pooled output, as a float32 array."""
        from keras_bert.convert import load_pretrained

        bert = load_pretrained(folder, dtype=dtype, layout=layout)
        variables = bert.trainable_variables, bert.non_trainable_variables
        inputs = {key: self._keras.ops.convert_to_tensor(values) for key, values in inputs.items()}
        arguments = *([variable.value for variable in group] for group in variables), inputs
        run = self._compile(lambda *arguments: bert.stateless_call(*arguments, outputs="pooled")[0])
        return lambda: self._keras.ops.convert_to_numpy(self._keras.ops.cast(run(*arguments), "float32"))

    def trainer(self, folder, layout, inputs, targets):
        """Returns a function that trains a classifier for one step."""
        from keras_bert.convert import load_pretrained
        from keras_bert.models import BertClassifier
        from keras_bert.training.optimizer import make_optimizer

        model = BertClassifier(load_pretrained(folder, dtype="mixed_bfloat16", layout=layout), CLASSES)
        loss = self._keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(make_optimizer(model, RATE, 10**6), loss, jit_compile=True)
        return lambda: model.train_on_batch(inputs, targets)


class Transformers:
    """transformers with PyTorch's `scaled_dot_product_attention`."""

    layouts = ("padded",)

    def __init__(self):
        import torch
        import transformers

        self._torch, self._transformers = torch, transformers
        self.has_gpu = torch.cuda.is_available()
        self._device = "cuda" if self.has_gpu else "cpu"

    def product(self, size):
        matrix = self._torch.ones(size, size, dtype=self._torch.bfloat16, device=self._device)
        return lambda: (matrix @ matrix)[0, 0].item()

    def encoder(self, folder, layout, inputs, dtype):
        model = self._load(self._transformers.BertModel, folder, dtype=getattr(self._torch, dtype)).eval()
        arguments = self._tensors(inputs)

        @self._torch.inference_mode()
        def encode():
            return model(*arguments).pooler_output.float().cpu().numpy()

        return encode

    def trainer(self, folder, layout, inputs, targets):
        from peer_models import torch_step

        model = self._load(self._transformers.BertForSequenceClassification, folder, num_labels=CLASSES).train()
        step = torch_step(model, RATE, clip_norm=1.0, device=self._device)
        arguments, labels = self._tensors(inputs), self._torch.from_numpy(targets).long().to(self._device)
        return lambda: step(*arguments, labels=labels).item()

    def _load(self, kind, folder, **options):
        return kind.from_pretrained(folder, attn_implementation="sdpa", **options).to(self._device)

    def _tensors(self, inputs):
        return [self._torch.from_numpy(inputs[name]).long().to(self._device)
                for name in ("input_word_ids", "input_mask", "segment_ids")]


LIBRARIES = {"keras_bert-jax": KerasBert, "keras_bert-tensorflow": KerasBert, "transformers": Transformers}


def random_texts(count, longest, vocab_size):
    """Returns texts as `BertTokenizer.pack` does: a list of (ids, length of the first segment)."""
    import numpy as np

    rng = np.random.default_rng(0)
    lengths = [longest, *rng.integers(max(2, longest // 8), longest + 1, count - 1)]
    return [(rng.integers(5, vocab_size, length, np.int32), length) for length in lengths]


def inputs_of(texts, layout, longest):
    from keras_bert.data.batches import PackedBatches, TextBatches

    batches = TextBatches(texts, 0) if layout == "padded" else PackedBatches(texts, 0, None, longest)
    return batches.inputs(range(len(texts)))


def median(step):
    return ruler.take_turns({"step": step}, TURNS)["step"]


def compare(library, name, folder, vocab_size, reference):
    """Yields a row with the largest difference to the CPU for each layout and dtype."""
    texts = random_texts(*COMPARED, vocab_size)
    for layout, dtype in itertools.product(library.layouts, ("float32", "bfloat16")):
        pooled = library.encoder(folder, layout, inputs_of(texts, layout, COMPARED[1]), dtype)()
        yield {"library": f"{name}, {layout}", "dtype": dtype, "difference": float(abs(pooled - reference).max())}


def measure(library, name, folders, given):
    """Yields a row for each size, length, layout and kind of work.

    Args:
        folders: dict of sizes to (Hugging Face folder, `BertConfig`).
    """
    import numpy as np

    for (size, (folder, config)), length in itertools.product(folders.items(), given.lengths):
        texts = random_texts(given.positions // length, length, config.vocab_size)
        lengths = [length for _, length in texts]
        cost, targets = sum(ruler.forward_cost(config, length) for length in lengths), np.arange(len(texts)) % CLASSES
        for layout in library.layouts:
            inputs = inputs_of(texts, layout, length)
            for work, passes, make, argument in (("inference", 1, library.encoder, "bfloat16"),
                                                 ("training", 3, library.trainer, targets)):
                title = f"{work}, {size}, {length} tokens"
                try:
                    seconds = median(make(folder, layout, inputs, argument))
                except Exception as error:  # no class for full memory is common to all libraries
                    yield {"problem": f"{title}, {layout}: {type(error).__name__}: {str(error)[:200]}"}
                    continue
                yield {"work": title, "library": f"{name}, {layout}",
                       "milliseconds": 1000 * seconds, "tokens_per_second": sum(lengths) / seconds,
                       "flops": passes * cost / seconds}


def run_library(name, folders, given, reference, results):
    """Measures one library in this process, and sends the rows through the connection `results`. Sends the pooled
    output of the compared texts instead if `reference` is None."""
    try:
        library = LIBRARIES[name]()
    except ImportError as error:
        results.send({"problem": f"{error}"})
        return
    folder, config = next(iter(folders.values()))
    if reference is None:
        texts = random_texts(*COMPARED, config.vocab_size)
        results.send(library.encoder(folder, "padded", inputs_of(texts, "padded", COMPARED[1]), "float32")())
        return
    if not library.has_gpu and not given.tiny:
        results.send({"problem": "it finds no GPU"})
        return
    results.send({"product": 2 * given.product**3 / median(library.product(given.product))})
    for row in itertools.chain(compare(library, name, folder, config.vocab_size, reference),
                               measure(library, name, folders, given)):
        results.send(row)


def rows_of(name, folders, given, reference, environment, seconds):
    """Runs `run_library` in a process with other environment variables; yields what it sends within the time."""
    os.environ |= environment
    receiver, sender = multiprocessing.get_context("spawn").Pipe(duplex=False)
    process = multiprocessing.get_context("spawn").Process(
        target=run_library, args=(name, folders, given, reference, sender), daemon=True)
    process.start()
    sender.close()  # the process has the other end; without it, the end of the process would go unnoticed
    deadline = time.monotonic() + seconds
    try:
        while receiver.poll(max(0, deadline - time.monotonic())):
            yield receiver.recv()
        yield {"problem": "stopped, as its share of the time is used up"}
    except EOFError:
        process.join()
        if process.exitcode:
            yield {"problem": f"it ended with status {process.exitcode}"}
    finally:
        process.kill()


def write_folders(sizes, folder):
    """Writes an encoder of each size; returns the `folders` of `measure`."""
    from peer_models import config_of, write_encoder

    folders = {size: (f"{folder}/{size}", config_of(size)) for size in sizes}
    for path, config in folders.values():
        write_encoder(config, path)
    return folders


def main():
    started = time.monotonic()
    given = ruler.parser(__doc__, minutes=10.0, sizes=["base", "large"], lengths=[128, 512], libraries=list(LIBRARIES),
                         tiny=False).parse_args()
    given.positions, given.product = 2**15, 8192
    if given.tiny:
        given.sizes, given.lengths, given.positions, given.product = ["L2-H128"], [16], 64, 64
    versions = ruler.describe("tensorflow", "jax", "torch", "transformers", "keras")
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    found = []
    with tempfile.TemporaryDirectory() as work:
        os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # this process writes the encoders
        folders = write_folders(given.sizes, work)
        reference = next(rows_of("keras_bert-tensorflow", folders, given, None, {"KERAS_BACKEND": "tensorflow"}, 600))
        if isinstance(reference, dict):
            sys.exit(f"gpu.py: the outputs on the CPU cannot be computed: {reference['problem']}")
        for number, name in enumerate(given.libraries):
            left = (60 * given.minutes - (time.monotonic() - started)) / (len(given.libraries) - number)
            backend = "jax" if name.endswith("jax") else "tensorflow"
            environment = {"CUDA_VISIBLE_DEVICES": ruler.GPUS, "KERAS_BACKEND": backend}
            for row in rows_of(name, folders, given, reference, environment, left):
                print(f"{name}: {row.get('problem') or row}", file=sys.stderr, flush=True)
                found.append(row)
    differences, rows = ([row for row in found if key in row] for key in ("difference", "work"))
    if not rows:
        sys.exit("gpu.py: no library could be measured")
    fastest = max(row["product"] for row in found if "product" in row)
    for row in rows:
        row["share"] = row.pop("flops") / fastest
    print(f"a matrix product reaches {fastest / 1e12:.1f} TFLOP/s in bfloat16")
    for row in differences:
        print(f"largest difference to the CPU in float32: {row['library']}, {row['dtype']}: {row['difference']:.2g}")
    for work in dict.fromkeys(row["work"] for row in rows):
        ruler.print_table(work, [{name: value for name, value in row.items() if name != "work"}
                                 for row in rows if row["work"] == work])
    ruler.finish("gpu", versions, given, [*differences, *rows])


if __name__ == "__main__":
    main()
