"""`make_pretraining_data`, which turns text files into TFRecord files of masked, paired examples."""

import collections
import contextlib
import dataclasses
import functools
import itertools
import math
import os
import shutil
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Literal

import numpy as np

from keras_bert.arguments import Count, Path, Rule, Seed, as_list, check, check_rules
from keras_bert.errors import InputError, Option
from keras_bert.files.atomic import atomic_folder, check_free
from keras_bert.files.digests import file_digest
from keras_bert.files.json_files import write_json
from keras_bert.pretraining.corpus import Block, Corpus, MakeExamples, Section, WordIds, join, read_blocks, write_part
from keras_bert.pretraining.masking import Masking
from keras_bert.pretraining.pairs import full_sentences, pack_spans, pair_sentences, truncate
from keras_bert.pretraining.tfrecord import frame, serialize
from keras_bert.processes import available_cores, map_in_order
from keras_bert.text import Tokenizer

SETTINGS = "pretraining_data.json"
_TOKENIZING = 0.2  # of the time, about
_CHUNK = 2**19  # tokens per array of examples; bounds the memory that a large document needs


@dataclasses.dataclass(frozen=True)
class PretrainingSettings:
    """The settings for making examples.

    Args:
        max_length: tokens per example, [CLS] and [SEP] included.
        max_predictions_per_seq: maximum masked tokens per example. If None, 15% of `max_length`, rounded up.
        next_sentence: if True, makes pairs, half with a random second text. If False, fills texts with whole sentences.
        masking: `static` masks when the examples are written, `dynamic` each time they are read.
        whole_word_mask: if True, masks all tokens of a word or none.
        dupe_factor: how often the texts are used, each time with new pairs and masks. If None, 10, or 1 if `dynamic`.
        seed: seed of the random numbers. The same seed, settings and files give the same examples.
    """

    # At least [CLS], two texts of one token, and a [SEP] after each.
    max_length: Annotated[int, Rule("from 5 to 8192", lambda value: 5 <= value <= 8192)] = 128
    max_predictions_per_seq: Count | None = None
    next_sentence: bool = True
    masking: Literal["static", "dynamic"] = "static"
    whole_word_mask: bool = False
    dupe_factor: Count | None = None
    seed: Seed = 0

    def __post_init__(self) -> None:
        check(PretrainingSettings, vars(self))
        masked = self.max_predictions_per_seq
        check_rules(("max_predictions_per_seq", masked, [f"at most {self.max_length}, the ", Option("max_length")],
                     masked is None or masked <= self.max_length))
        defaults = {"max_predictions_per_seq": -(-15 * self.max_length // 100),
                    "dupe_factor": 10 if self.masking == "static" else 1}
        for name, value in defaults.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)


class ExampleMaker:
    """The maker of the examples of a section of the corpus in a folder, the same in every process."""

    def __init__(self, settings: PretrainingSettings, tokenizer: Tokenizer, folder: str) -> None:
        assert settings.max_predictions_per_seq is not None  # `PretrainingSettings` has set it
        self.settings = settings
        self.tokenizer = tokenizer
        self.folder = folder
        self.masking = Masking(tokenizer, settings.max_predictions_per_seq, settings.whole_word_mask)

    def examples(self, section: Section) -> Iterator[tuple[np.ndarray, collections.Counter[str]]]:
        """Yields a few thousand serialized examples at a time, and how many examples, tokens, masked, random_next."""
        for features in self.features(section):
            masked = features.get("masked_lm_weights", np.zeros(1)).sum()
            yield serialize(features), collections.Counter(
                examples=len(features["input_mask"]), tokens=int(features["input_mask"].sum()), masked=int(masked),
                random_next=int(features["next_sentence_labels"].sum()))

    def features(self, section: Section) -> Iterator[dict[str, np.ndarray]]:
        """Yields the Model Garden's features of a few thousand examples at a time: int32 [examples, n];
        `masked_lm_weights` is float32."""
        assert self.settings.dupe_factor is not None
        for duplicate in range(self.settings.dupe_factor):
            rng = np.random.default_rng((self.settings.seed, section.number, duplicate))
            ids, spans, labels = self._texts(section, rng)
            order = rng.permutation(len(spans))
            count = _CHUNK // self.settings.max_length
            for chunk in (order[i:i + count] for i in range(0, len(order), count)):
                features = pack_spans(ids, spans[chunk], self.tokenizer, self.settings.max_length)
                if self.settings.masking == "static":
                    word_ids = features["input_word_ids"]
                    features |= self.masking(word_ids, self.masking.noise(rng, *word_ids.shape))
                yield features | {"next_sentence_labels": labels[chunk, None]}

    def _texts(self, section: Section, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns token ids, and as from `pair_sentences`, the spans of the texts in them and their labels."""
        corpus = Corpus.open(self.folder)  # in each process
        if self.settings.next_sentence:
            limit = self.settings.max_length - self.tokenizer.special_tokens(2)
            spans, labels = pair_sentences(corpus, section, limit, rng)
            return corpus.ids, truncate(spans, limit, rng), labels
        ids, spans = full_sentences(corpus.part(section), self.settings.max_length - 2, self.tokenizer.sep_id)
        return ids, spans, np.zeros(len(spans), np.int32)


class Processes:
    """Makes pretraining examples on this machine, with the `progress` of `make_pretraining_data`."""

    def __init__(self, processes: int, progress: Callable[[float, int], None] | None) -> None:
        self._processes = processes
        self._progress = progress or (lambda share, examples: None)

    def tokenize(self, write_part: Callable[[Block], int], read: Callable[[Path, int], Iterator[Block]],
                 paths: Sequence[Path]) -> collections.Counter[str]:
        """Passes each block of the files to `write_part`; returns the number of documents."""
        ends = [0, *itertools.accumulate(os.path.getsize(path) for path in paths)]
        counts = collections.Counter[str]()
        blocks = (block for number, path in enumerate(paths) for block in read(path, number))
        for block, documents in map_in_order(write_part, blocks, self._processes):
            counts["documents"] += documents
            done = ends[block.file] + block.share * (ends[block.file + 1] - ends[block.file])
            self._progress(_TOKENIZING * done / ends[-1], 0)
        return counts

    def write_shards(self, sections: Sequence[Section], make: MakeExamples, folder: str,
                     shards: int) -> collections.Counter[str]:
        """Writes examples to TFRecord files in turn, in the order of the texts; returns the counts. A worker writes a
        section to a temporary file, so that memory holds one section per process and a few thousand examples."""
        counts = collections.Counter[str]()
        write = functools.partial(_write_section, make=make, folder=folder)
        with contextlib.ExitStack() as stack:
            paths = [os.path.join(folder, f"pretraining-{shard:05}-of-{shards:05}.tfrecord") for shard in range(shards)]
            files = [stack.enter_context(open(path, "wb")) for path in paths]  # numbered as TensorFlow and Beam do
            for section, (part, shapes, made) in map_in_order(write, sections, self._processes):
                with open(part, "rb") as file:
                    for shape in shapes:
                        records = np.fromfile(file, np.uint8, math.prod(shape)).reshape(shape)
                        for index, shard in enumerate(files):
                            shard.write(records[index::shards].tobytes())
                        files = files[len(records) % shards:] + files[:len(records) % shards]
                os.remove(part)
                counts.update(made)
                self._progress(_TOKENIZING + (1 - _TOKENIZING) * section.last / sections[-1].last, counts["examples"])
        return counts


def _write_section(section: Section, make: MakeExamples,
                   folder: str) -> tuple[str, list[tuple], collections.Counter[str]]:
    """Writes a section's records to a new file; returns its path, the shapes of the arrays in it, the counts."""
    part, shapes, counts = os.path.join(folder, f"{section.number}.part"), [], collections.Counter[str]()
    with open(part, "wb") as file:
        for examples, made in make(section):
            records = frame(examples)
            file.write(records.data)
            shapes.append(records.shape)
            counts.update(made)
    return part, shapes, counts


def make_pretraining_data(paths: Path | Sequence[Path], tokenizer: Tokenizer, output: Path,
                          settings: PretrainingSettings | None = None, *, text_column: str = "text",
                          split_sentences: bool = False, shards: int = 10, processes: int | None = None,
                          beam_args: list[str] | None = None, overwrite: bool = False,
                          progress: Callable[[float, int], None] | None = None) -> dict:
    """Writes a folder of pretraining examples: `pretraining-00000-of-00010.tfrecord` and so on with the Model Garden's
    features, `pretraining_data.json` with the settings and counts, and the tokenizer's files.

    First the token ids of all documents are written to temporary files in the folder, 4 bytes a token, so the memory
    does not depend on the size of the texts. A random second text comes from any other document of all `paths`. The
    random numbers of a section of documents depend only on the seed and its number, so the examples are the same for
    any number of processes, and with Apache Beam. Without Beam, the files are the same too.

    Args:
        paths: text, JSON Lines and Parquet files, or the path of one.
        tokenizer: a tokenizer with [MASK].
        output: folder to write. It is written atomically.
        settings: see `PretrainingSettings`.
        text_column, split_sentences: see `read_blocks`.
        shards: number of TFRecord files.
        processes: number of worker processes. If None, one per core.
        beam_args: flags of a Beam pipeline, e.g. `--runner=…`, to run it there. If None, runs on this machine.
        overwrite: if True, replaces `output`.
        progress: called repeatedly with the fraction of the texts that is done and the number of examples so far.

    Returns:
        the content of `pretraining_data.json`.

    Raises:
        InputError: the input is invalid (the message names the file and the row), has no text, or only one document, so
            no random second texts; or a worker was killed.
    """
    settings, files = settings or PretrainingSettings(), as_list(paths)
    processes = processes or available_cores()
    check_rules(*((name, value, "from 1 to 10000", 1 <= value <= 10_000)
                  for name, value in (("shards", shards), ("processes", processes))))
    check_free(output, overwrite)
    read = functools.partial(read_blocks, text_column=text_column, split_sentences=split_sentences)
    runner = Processes(processes, progress) if beam_args is None else _pipelines().Pipelines(beam_args)
    with atomic_folder(output, overwrite) as folder:
        corpus = os.path.join(folder, "corpus")
        os.mkdir(corpus)
        maker = ExampleMaker(settings, tokenizer, corpus)
        counts = runner.tokenize(functools.partial(write_part, words=WordIds(tokenizer), folder=corpus), read, files)
        _check_documents(join(corpus), files, settings.next_sentence)
        counts.update(runner.write_shards([*Corpus.open(corpus).sections()], maker.examples, folder, shards))
        shutil.rmtree(corpus)
        tokenizer.save(folder)
        inputs = {"paths": [os.fspath(file) for file in files], "text_column": text_column,
                  "split_sentences": split_sentences, "shards": shards}
        description = {"settings": dataclasses.asdict(settings) | inputs, "counts": dict(counts),
                       "vocabulary_sha256": file_digest(os.path.join(folder, tokenizer.files[0]))}
        write_json(os.path.join(folder, SETTINGS), description)
        return description


def _check_documents(count: int, paths: list[Path], next_sentence: bool) -> None:
    texts = f"{paths[0]}{' and the others' * (len(paths) > 1)}"
    if not count:
        raise InputError(f"{texts}: must contain text; there is none")
    if count == 1 and next_sentence:
        raise InputError(f"{texts}: random second texts are from other documents, and there is only one; separate "
                         "documents by blank lines, or pass ", Option("next_sentence=False"))


def _pipelines() -> types.ModuleType:
    try:
        from keras_bert.pretraining import pipelines
    except ImportError:
        raise InputError(Option("beam=True"), " needs Apache Beam: pip install apache-beam") from None
    return pipelines
