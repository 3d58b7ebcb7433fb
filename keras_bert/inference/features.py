"""`write_features`: vectors of the texts in a file, computed by a pretrained encoder without training."""

import itertools
import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import numpy as np

from keras_bert.arguments import Count, Length, Normalization, Path, check, check_rules
from keras_bert.config import BertConfig
from keras_bert.data.batches import TextBatches
from keras_bert.data.chunks import sized
from keras_bert.data.examples import Example, iterate_examples
from keras_bert.data.rows import import_pyarrow, iterate_lines
from keras_bert.errors import InputError, InputWarning
from keras_bert.files.atomic import atomic_file, check_free
from keras_bert.files.paths import writing
from keras_bert.inference.lite_model import LiteModel
from keras_bert.litert import is_litert
from keras_bert.tasks import Embed, run_model
from keras_bert.tasks.embed import prompts_of
from keras_bert.tasks.embedding_scores import unit_vectors
from keras_bert.text import Tokenizer

# Returns the vectors of each row, float32 [tokens, width]; the number is the size of the batches.
_Compute = Callable[[TextBatches, int], Sequence[np.ndarray]]
# The texts of a chunk, the tokens of each text, and all vectors, float32 [vectors, width].
_Chunk = tuple[list[str], list[list[str]], np.ndarray]

# Functions of a text's vectors [tokens, width] that return the vectors to write.
POOLS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "none": lambda vectors: vectors,
    "cls": lambda vectors: vectors[:1],
    "mean": lambda vectors: vectors.mean(axis=0, keepdims=True),
    "max": lambda vectors: vectors.max(axis=0, keepdims=True),
}
_TOKENS = 2**14  # number of tokens whose vectors are in memory at once: 200 MB at a width of 3,072


def write_features(model: Path, input: Path, output: Path, features: str | None = None,
                   pooling: Literal["none", "cls", "mean", "max"] = "none", normalize: bool = False,
                   text_column: str = "text", text_pair_column: str | None = None, max_length: Length | None = None,
                   prompt_name: str | None = None, normalization: Normalization | None = None, batch_size: Count = 32,
                   overwrite: bool = False, progress: Callable[[int, int], None] | None = None) -> tuple[int, int]:
    """Writes the vectors of texts, in their order.

    `.npz` has `vectors`, float32 [texts, width]; without pooling `vectors` [tokens, width], of all texts end to end,
    `tokens`, str [tokens], and `text_ends`, int64 [texts], the number of tokens up to each text's end. The file is made
    in memory. `.parquet` has one row per text: `text`, `tokens`, and `vectors`, a list of float32, without pooling one
    per token; it is written as the vectors are computed. [CLS] and [SEP] count as tokens, also in pooling.

    Args:
        model: Pretrained encoder, a folder or a name; or a folder that finetune wrote, or export litert for embeddings.
        input: File of texts: .txt with one text per line; .tsv, .csv, .jsonl or .parquet with columns.
        output: .npz or .parquet file to write.
        features: embeddings, last, second-to-last, sum-all, sum-last-N, concat-last-N, or layer-N; layer-0 is the
            embeddings. Default: concat-last-4, or of an encoder with fewer blocks, all of them.
        pooling: none: one vector per token; cls, mean and max: one per text, that of [CLS], the mean, or the maximum in
            each dimension.
        normalize: Divide each vector by its L2 norm.
        text_column: Column of the text.
        text_pair_column: Column of the second text. Default: text_pair, if there is such a column.
        max_length: Longest input in tokens; longer texts are cut. Default: as the files of the model say
            (max_seq_length of sentence-transformers, model_max_length), or all positions.
        prompt_name: Name of the model's prompt to put before each text, query or document for example. Default: the
            model's default prompt, or none. Pairs of texts have none.
        normalization: NFC composes texts in NFD, as macOS writes them; none does not. Default: as the model's files
            say.
        batch_size: Texts per batch.
        overwrite: Replace the output.
        progress: called with the number of texts done and the number of all texts.

    Returns:
        the numbers of texts and tokens.

    Raises:
        InputError: an argument is out of range, the input or the model cannot be read, or the output cannot be written.
    """
    check(write_features, locals())
    model, input, output = (os.fspath(path) for path in (model, input, output))
    suffix = os.path.splitext(output)[1].lower()
    check_rules(("output", output, f"a file that ends in {' or '.join(_WRITERS)}",
                 suffix in _WRITERS and not os.path.isdir(output)),
                ("features", features, "without weights to train", features != "weighted-all"))
    check_free(output, overwrite)
    is_pair, total = _count(input, text_column, text_pair_column)
    check_rules(("prompt_name", prompt_name, "left out for pairs of texts", prompt_name is None or not is_pair))
    if is_litert(model):
        check_rules(("features", features, "left out for a LiteRT folder", features is None),
                    ("pooling", pooling, "left out for a LiteRT folder, which has its own", pooling == "none"))
        compute, tokenizer, config, task = _lite_vectors(model)
        pooling = "cls"  # of the one vector of a text
    else:
        compute, tokenizer, config, task = _keras_vectors(model, features)
    tokenizer = tokenizer.with_normalization(normalization)
    if prompt_name is not None:
        task = task.with_prompt(prompt_name)
    prompt, length = "" if is_pair else task.default_prompt, config.input_length(max_length, task.max_length)
    pool = POOLS[pooling] if not normalize else lambda vectors: unit_vectors(POOLS[pooling](vectors))
    counts: Counter[str] = Counter()

    def chunks() -> Iterator[_Chunk]:
        for examples in sized(_read(input, text_column, text_pair_column),
                              lambda example: (example.text, example.text_pair or "")):
            texts = [example.text for example in examples]
            packed = tokenizer.pack([prompt + text for text in texts],
                                    [example.text_pair for example in examples] if is_pair else None, length)
            counts["nfd"] += task.count_nfd([task.example(f"{x.text} {x.text_pair}") for x in examples], tokenizer)
            for chunk in _chunks(compute, tokenizer, texts, packed, pool, batch_size):
                yield chunk
                counts.update(texts=len(chunk[0]), tokens=sum(map(len, chunk[1])))
                (progress or (lambda *_: None))(counts["texts"], total)

    with writing(output):
        os.makedirs(os.path.dirname(os.path.abspath(output)), exist_ok=True)
    with atomic_file(output) as part:
        _WRITERS[suffix](part, chunks(), pooling)
    for line in task.describe_long(counts, total):
        warnings.warn(InputWarning(line), stacklevel=2)
    return counts["texts"], counts["tokens"]


def _keras_vectors(model: str, features: str | None) -> tuple[_Compute, Tokenizer, BertConfig, Embed]:
    """Returns the function of an encoder's token vectors, its tokenizer and config, and a task with its prompts and the
    default `max_length`."""
    from keras_bert.models.feature_tagger import BertFeatures
    from keras_bert.weights import load_pretrained, open_weights

    source = open_weights(model, takes_texts=True)
    bert, tokenizer = load_pretrained(source, frozen=["pooler"]), source.needed_tokenizer()
    if features is None:
        blocks = bert.config.num_hidden_layers
        features = f"concat-last-{min(4, blocks)}"
        if blocks < 4:
            warnings.warn(InputWarning(f"features={features}, because the encoder has {blocks} blocks"), stacklevel=3)
    extractor = BertFeatures(bert, features)
    task = Embed(tokenizer.default_length, **prompts_of(source.settings))
    return lambda batches, size: run_model(extractor, batches, size), tokenizer, bert.config, task


def _lite_vectors(model: str) -> tuple[_Compute, Tokenizer, BertConfig, Embed]:
    """Returns what `_keras_vectors` does, of a LiteRT folder: the one vector of each text."""
    lite = LiteModel.load(model)
    if not isinstance(lite.task, Embed):
        raise InputError(f"{model}: must return embeddings, as an encoder exported with --pooling does; this LiteRT "
                         f"folder is for the task {lite.task.name}")
    return (lambda batches, size: [vector[None] for vector in lite.outputs_of_rows(batches.packed, size)],
            lite.tokenizer, lite.runner.config, lite.task)


def _read(path: str, text_column: str, text_pair_column: str | None) -> Iterator[Example]:
    """Returns the texts, perhaps with second ones."""
    if path.lower().endswith(".txt"):
        return (Example(line, None, None, None) for line in iterate_lines(path))
    return iterate_examples(path, text_column, text_pair_column, label_column=None)


def _count(*arguments: Any) -> tuple[bool, int]:
    """Returns whether the texts of `_read` have second ones, and their number. All are read once before any vector is
    computed, so that an invalid one costs no time."""
    examples = _read(*arguments)
    if (first := next(examples, None)) is None:
        raise InputError(f"{arguments[0]}: the file must have at least one line of text")
    return first.text_pair is not None, 1 + sum(1 for _ in examples)


def _chunks(compute: _Compute, tokenizer: Tokenizer, texts: list[str], packed: list[tuple[list[int], int]],
            pool: Callable[[np.ndarray], np.ndarray], batch_size: int) -> Iterator[_Chunk]:
    ends = np.cumsum([len(ids) for ids, _ in packed])
    cuts = [0, *np.flatnonzero(np.diff(ends // _TOKENS)) + 1, len(packed)]
    for begin, end in itertools.pairwise(cuts):
        batches = TextBatches(packed[begin:end], tokenizer.pad_id)
        outputs = compute(batches, batch_size)
        vectors = [pool(output[:length]) for output, length in zip(outputs, batches.lengths)]
        tokens = [[tokenizer.vocabulary[i] for i in ids] for ids, _ in batches.packed]
        yield texts[begin:end], tokens, np.concatenate(vectors)


def _write_npz(path: str, chunks: Iterator[_Chunk], pooling: str) -> None:
    _, tokens, vectors = zip(*chunks)
    arrays = {"vectors": np.concatenate(vectors)}
    if pooling == "none":
        of_texts = list(itertools.chain.from_iterable(tokens))
        arrays |= {"tokens": np.concatenate(of_texts), "text_ends": np.cumsum(list(map(len, of_texts)), dtype=np.int64)}
    with open(path, "wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]  # mypy takes the arrays for the argument allow_pickle


def _write_parquet(path: str, chunks: Iterator[_Chunk], pooling: str) -> None:
    pyarrow, parquet = import_pyarrow(path)
    vector = pyarrow.list_(pyarrow.float32())
    schema = pyarrow.schema({"text": pyarrow.string(), "tokens": pyarrow.list_(pyarrow.string()),
                             "vectors": pyarrow.list_(vector) if pooling == "none" else vector})
    with parquet.ParquetWriter(path, schema) as writer:
        for texts, tokens, vectors in chunks:
            ends = np.arange(len(vectors) + 1, dtype=np.int32) * vectors.shape[1]
            column = pyarrow.ListArray.from_arrays(ends, vectors.ravel())
            if pooling == "none":
                column = pyarrow.ListArray.from_arrays(np.cumsum([0, *map(len, tokens)], dtype=np.int32), column)
            writer.write_table(pyarrow.table([texts, tokens, column], schema))


_WRITERS: dict[str, Callable[[str, Iterator[_Chunk], str], None]] = {".npz": _write_npz, ".parquet": _write_parquet}
