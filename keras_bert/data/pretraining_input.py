"""Examples for pretraining as they are found: a folder of `make_pretraining_data`, or files of the Model Garden."""

import dataclasses
import glob
import os

from keras_bert.data.masking import Masking, NextTokens
from keras_bert.data.pretraining import SETTINGS
from keras_bert.data.records import PretrainingRecords
from keras_bert.errors import InputError
from keras_bert.files import read_json
from keras_bert.text import BertTokenizer


@dataclasses.dataclass(frozen=True)
class PretrainingInput:
    """Examples and what is known of them.

    Args:
        path: the folder, or a glob of TFRecord files.
        records: `PretrainingRecords`.
        settings: dict, the settings they were made with; of files without a folder those that can be seen.
        tokenizer: `BertTokenizer` of the folder, None of files alone.
    """

    path: str
    records: PretrainingRecords
    settings: dict
    tokenizer: BertTokenizer | None

    @classmethod
    def open(cls, path, skip_corrupt=False):
        """Finds the examples.

        Args:
            path: see above.
            skip_corrupt: see `PretrainingRecords`.

        Raises:
            InputError: nothing is there, or not examples.
        """
        path = os.fspath(path)
        if not os.path.isdir(path):
            records = PretrainingRecords(sorted(glob.glob(path)) or [path], skip_corrupt)
            return cls(path, records, {"next_sentence": records.has_labels, "masking": "static"}, None)
        settings = os.path.join(path, SETTINGS)
        if not os.path.exists(settings):
            raise InputError(f"{path}: must hold {SETTINGS}, as keras-bert make-pretraining-data writes it; other files"
                             " are named by a glob")
        files = sorted(glob.glob(os.path.join(glob.escape(path), "*.tfrecord")))
        return cls(path, PretrainingRecords(files, skip_corrupt), read_json(settings)["settings"],
                   BertTokenizer.from_folder(path))

    def batches(self, tokenizer, batch_size, seed, directionality="bidi", masking=None):
        """How to get batches.

        Args:
            tokenizer: `BertTokenizer` of the model.
            batch_size, seed: as of `PretrainingRecords.dataset`.
            directionality: of the model; `ltr` and `rtl` guess each token's neighbour.
            masking: `static` or `dynamic`; None as the examples were made.

        Returns:
            function of `step`, `shard` and `shards` that returns a dataset, see there.

        Raises:
            InputError: the examples were made with another vocabulary.
        """
        if self.tokenizer and self.tokenizer.vocabulary != tokenizer.vocabulary:
            raise InputError(f"{self.path}: the examples must be made with the model's vocabulary; it is another one")
        masker = None
        if directionality != "bidi":
            masker = NextTokens(tokenizer, self.records.seq_length, directionality)
        elif (masking or self.settings["masking"]) == "dynamic":
            most = self.settings.get("max_predictions_per_seq", -(-15 * self.records.seq_length // 100))
            masker = Masking(tokenizer, most, self.settings.get("whole_word_mask", False))

        def dataset(step=0, shard=0, shards=1):
            return self.records.dataset(batch_size, seed, step, shard=shard, shards=shards, masking=masker)

        return dataset
