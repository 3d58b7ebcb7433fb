"""Batches of pretraining examples, from a folder of `make_pretraining_data` or from files of the Model Garden."""

import contextlib
import dataclasses
import functools
import glob
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, Self

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError

from keras_bert.arguments import Path
from keras_bert.errors import InputError, Option
from keras_bert.files.json_files import read_json
from keras_bert.pretraining.examples import SETTINGS
from keras_bert.pretraining.masking import TARGETS, Masking, NextTokens
from keras_bert.pretraining.tfrecord import RecordFiles
from keras_bert.text import Tokenizer, load_tokenizer

# Google's own names of two features (google-research/bert `create_pretraining_data.py`).
_OLD_NAMES = {"input_ids": "input_word_ids", "segment_ids": "input_type_ids"}
_INPUTS = ("input_word_ids", "input_mask", "input_type_ids")
MakeDataset = Callable[..., tf.data.Dataset]  # of a step, a shard and the number of shards, by default 0, 0 and 1


class PretrainingRecords:
    """The `tf.train.Example`s in TFRecord files of `make_pretraining_data`, the Model Garden or Google's BERT, read by
    number, so that a resumed run continues at its step without delay.

    Args:
        paths: the files, uncompressed. Their order affects the order of the examples.
        skip_corrupt: if True, replaces a corrupt example by the next intact one in the order of training, and skips the
            rest of a file if the length of a record is corrupt. If False, raises an error for both.

    Attributes:
        digest: SHA-256 of the checksums of all records.
        seq_length: number of tokens per example.
        has_labels: True if the examples have `next_sentence_labels`.

    Raises:
        InputError: a file cannot be read, has no such examples, has features that differ from the first file's, or is
            truncated or corrupt; the message names the file, and the byte if the file is corrupt.
    """

    def __init__(self, paths: Sequence[Path], skip_corrupt: bool = False) -> None:
        self._files = RecordFiles(paths, skip_corrupt)
        self.paths, self.digest = self._files.paths, self._files.digest
        self._failure: InputError | None = None
        if not len(self):
            raise InputError(f"{', '.join(self.paths) or 'paths'}: must contain examples; there are none")
        specs = {path: spec for file, path in enumerate(self.paths) if (spec := self._spec(file, path))}
        if not specs:
            raise InputError(f"{', '.join(self.paths)}: every example is corrupt")
        first, self._features = next(iter(specs.items()))
        for path, spec in specs.items():
            if spec != self._features:
                raise InputError(f"{path}: the examples must have the features of {first}, {_list(self._features)}; "
                                 f"got {_list(spec)}")
        self.seq_length = self._features["input_word_ids"][1]
        self.has_labels = "next_sentence_labels" in self._features

    def __len__(self) -> int:
        return len(self._files)

    @property
    def corrupt(self) -> int:
        """Number of corrupt records found so far, also in batches that were read ahead."""
        return len(self._files.broken)

    def plan(self, seed: int, epoch: int) -> np.ndarray:
        """Returns the order of the examples in an epoch: int64 [examples], each number once."""
        return _plan(len(self), seed, epoch)

    def dataset(self, batch_size: int, seed: int, step: int = 0, shard: int = 0, shards: int = 1, *,
                masking: Masking | NextTokens | None = None, once: bool = False) -> tf.data.Dataset:
        """Returns an endless dataset of batches that starts at `step`.

        The examples are in the order of `plan`, epoch after epoch, also within a batch. A batch depends only on `seed`
        and its step, not on the step that the dataset starts at.

        Args:
            batch_size: number of examples per batch, of all shards together.
            seed: 0 or more.
            step: number of the first batch, from 0 over all epochs.
            shard, shards: returns part `shard`, from 0, of the `shards` equal, consecutive parts of each batch.
            masking: masks the examples, differently at each step. If None, the masks in the files are used.
            once: if True, examples after the first epoch, which fill up its last batch, have the weight 0.

        Returns:
            batches, dicts of int32 tensors: `input_word_ids`, `input_mask`, `input_type_ids` [batch, seq];
            `masked_lm_positions`, `masked_lm_ids` and float32 `masked_lm_weights` [batch, n]; `next_sentence_labels`
            [batch], if the examples have them; `dropout_seed` [batch, 2], the seed and the step in each row; with
            `once`, float32 `example_weights` [batch], 1 or 0, by which `masked_lm_weights` are multiplied.

        Raises:
            InputError: the batch cannot be divided among the shards, or the examples are not masked and `masking` is
                None. Iterate within `naming_errors` to raise it for a corrupt example too.
        """
        if batch_size < 1 or batch_size % shards or not 0 <= shard < shards:
            raise InputError(Option("batch_size"), " must be a positive multiple of shards, and shard from 0 to shards "
                             "- 1; got ", Option(f"batch_size={batch_size}"), f", shards={shards}, shard={shard}")
        if masking is None and "masked_lm_ids" not in self._features:
            raise InputError(f"{self.paths[0]}: the examples are not masked; pass ", Option("masking=dynamic"))
        count = batch_size // shards
        rows = slice(shard * count, (shard + 1) * count)

        def read(step: np.int64) -> np.ndarray:
            positions = np.arange(step * batch_size, (step + 1) * batch_size)[rows]
            return np.array(self._read(seed, positions), object)

        def mask(step: np.int64, word_ids: np.ndarray, *masks: np.ndarray) -> list[np.ndarray]:
            assert masking is not None
            noise = masking.noise(np.random.default_rng((seed, int(step), 1)), batch_size, self.seq_length)
            return list(masking(_unmask(word_ids, *masks) if masks else word_ids, noise[rows]).values())

        def batch(step: tf.Tensor) -> dict[str, tf.Tensor]:
            features = self._parse(tf.numpy_function(read, [step], tf.string, stateful=False), count)
            if masking is not None:
                known = [features[name] for name in ("input_word_ids", *TARGETS) if name in features]
                word_ids, *masked = tf.numpy_function(mask, [step, *known], [tf.int32, *TARGETS.values()],
                                                      stateful=False)
                features["input_word_ids"] = tf.ensure_shape(word_ids, [count, self.seq_length])
                for name, values in zip(TARGETS, masked):
                    features[name] = tf.ensure_shape(values, [count, masking.max_predictions])
            if once:
                positions = step * batch_size + tf.range(rows.start, rows.stop, dtype=tf.int64)
                weights = tf.cast(positions < len(self), tf.float32)
                features |= {"example_weights": weights,
                             "masked_lm_weights": features["masked_lm_weights"] * weights[:, None]}
            seeds = tf.stack([tf.constant(seed, tf.int32), tf.cast(step, tf.int32)])
            return features | {"dropout_seed": tf.tile(seeds[None], [count, 1])}

        steps = tf.data.Dataset.range(step, tf.int64.max)
        return steps.map(batch, tf.data.AUTOTUNE, deterministic=True).prefetch(tf.data.AUTOTUNE)

    @contextlib.contextmanager
    def naming_errors(self) -> Iterator[None]:
        """Context manager in which the iteration of a dataset raises the InputError that names the file and the byte of
        a corrupt example, instead of TensorFlow's own error."""
        try:
            yield
        except tf.errors.OpError:
            if self._failure:
                raise self._failure from None
            raise

    def _read(self, seed: int, positions: np.ndarray) -> list[bytes | None]:
        """Reads the records at `positions`, which count on over the plans of all epochs."""
        try:
            records = self._files.read(self._numbers(seed, positions))
            for row, position in enumerate(positions):
                for later in range(position + 1, position + 2 * len(self)):
                    if records[row] is not None:
                        break
                    records[row], = self._files.read(self._numbers(seed, [later]))
            if None in records:
                raise InputError(f"{', '.join(self.paths)}: every example is corrupt")
            return records
        except InputError as error:
            self._failure = error
            raise

    def _numbers(self, seed: int, positions: np.ndarray | list[int]) -> np.ndarray:
        epochs, indices = np.divmod(positions, len(self))
        return np.concatenate([self.plan(seed, int(epoch))[indices[epochs == epoch]] for epoch in np.unique(epochs)])

    def _spec(self, file: int, path: str) -> dict[str, tuple[str, int]] | None:
        """Returns a file's features by its first intact example, if any: {our name: (name in the file, size)}."""
        records = (self._files.read([number])[0] for number in range(*self._files.firsts[file:file + 2]))
        if (record := next((record for record in records if record is not None), None)) is None:
            return None
        try:
            found = tf.train.Example.FromString(record).features.feature
        except DecodeError:
            raise InputError(f"{path}: must contain tf.train.Examples") from None
        spec = {_OLD_NAMES.get(name, name): (name, len(feature.float_list.value or feature.int64_list.value))
                for name, feature in found.items()}
        if missing := [name for name in _INPUTS if name not in spec]:
            raise InputError(f"{path}: must contain pretraining examples; these lack {', '.join(missing)}")
        return {name: spec[name] for name in (*_INPUTS, *TARGETS, "next_sentence_labels") if name in spec}

    def _parse(self, records: tf.Tensor, count: int) -> dict[str, tf.Tensor]:
        """Parses examples to tensors [count, n], int32 or float32; `next_sentence_labels` is [count]."""
        features = tf.io.parse_example(tf.ensure_shape(records, [count]), {
            name: tf.io.FixedLenFeature([size], tf.float32 if name == "masked_lm_weights" else tf.int64)
            for name, size in self._features.values()})
        features = {ours: tf.cast(features[name], tf.float32 if name == "masked_lm_weights" else tf.int32)
                    for ours, (name, _) in self._features.items()}
        if "next_sentence_labels" in features:
            features["next_sentence_labels"] = features["next_sentence_labels"][:, 0]
        return features


@functools.lru_cache(maxsize=2)
def _plan(count: int, seed: int, epoch: int) -> np.ndarray:
    order = np.random.default_rng((seed, epoch)).permutation(count)
    order.setflags(write=False)
    return order


def _unmask(word_ids: np.ndarray, positions: np.ndarray, ids: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Returns the texts with the original tokens at the masked positions."""
    rows, slots = np.nonzero(weights)
    word_ids = word_ids.copy()
    word_ids[rows, positions[rows, slots]] = ids[rows, slots]
    return word_ids


def _list(spec: dict[str, tuple[str, int]]) -> str:
    return ", ".join(f"{name} [{size}]" for name, (_, size) in spec.items())


@dataclasses.dataclass(frozen=True)
class PretrainingInput:
    """Pretraining examples with their settings and tokenizer.

    Args:
        path: path of the folder, or a glob pattern of TFRecord files.
        records: the examples.
        settings: the settings that the examples were made with. For files of others, those that can be inferred.
        tokenizer: tokenizer of the folder. None for files of others.
    """

    path: str
    records: PretrainingRecords
    settings: dict[str, Any]
    tokenizer: Tokenizer | None

    @classmethod
    def open(cls, path: Path, skip_corrupt: bool = False) -> Self:
        """Finds and opens the examples.

        Args:
            path: path of the folder, or a glob pattern of TFRecord files. Files in one folder of make-pretraining-data
                have its settings and tokenizer.
            skip_corrupt: see `PretrainingRecords`.

        Raises:
            InputError: there are no files, or they are not examples for pretraining.
        """
        path = os.fspath(path)
        is_folder = os.path.isdir(path)
        files = sorted(glob.glob(os.path.join(glob.escape(path), "*.tfrecord") if is_folder else path)) or [path]
        folders = {path} if is_folder else set(map(os.path.dirname, files))
        settings = os.path.join(folders.pop(), SETTINGS)
        if folders or not os.path.exists(settings):
            if is_folder:
                raise InputError(f"{path}: has no {SETTINGS}, which make-pretraining-data writes; to read other "
                                 f"TFRecord files, pass a glob pattern, e.g. '{path}/*.tfrecord'")
            records = PretrainingRecords(files, skip_corrupt)
            return cls(path, records, {"next_sentence": records.has_labels, "masking": "static"}, None)
        values = read_json(settings)["settings"]
        if is_folder and len(files) < (shards := values.get("shards", 0)):
            raise InputError(f"{path}: must have the {shards} files that make-pretraining-data wrote; it has "
                             f"{len(files)}; copy the others, or pass a glob pattern to train on a part")
        return cls(path, PretrainingRecords(files, skip_corrupt), values,
                   load_tokenizer(os.path.dirname(settings)))

    def batches(self, tokenizer: Tokenizer, batch_size: int, seed: int, directionality: str = "bidi",
                masking: Literal["static", "dynamic"] | None = None, once: bool = False) -> MakeDataset:
        """Returns a function that makes datasets of batches.

        Args:
            tokenizer: tokenizer of the model.
            batch_size, seed, once: see `PretrainingRecords.dataset`.
            directionality: directionality of the model. For `ltr` and `rtl`, each token predicts its neighbour.
            masking: `static` or `dynamic`. If None, as in `settings`.

        Returns:
            function of `step`, `shard` and `shards`, see `PretrainingRecords.dataset`.

        Raises:
            InputError: the examples were made with another vocabulary.
        """
        if self.tokenizer and self.tokenizer.vocabulary != tokenizer.vocabulary:
            raise InputError(f"{self.path}: the examples must be made with the model's vocabulary, or with ",
                             Option("vocab"), " if it is given; they use another; make them again with this vocabulary")
        masker: Masking | NextTokens | None = None
        if directionality != "bidi":
            masker = NextTokens(tokenizer, self.records.seq_length, directionality)
        elif (masking or self.settings["masking"]) == "dynamic":
            limit = self.settings.get("max_predictions_per_seq", -(-15 * self.records.seq_length // 100))
            masker = Masking(tokenizer, limit, self.settings.get("whole_word_mask", False))

        return functools.partial(self.records.dataset, batch_size, seed, masking=masker, once=once)
