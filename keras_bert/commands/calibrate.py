"""`keras-bert calibrate`."""

import os
from typing import TYPE_CHECKING, Any, Unpack

from keras_bert.arguments import MaxError, Normalization, Probability, ScoreColumns, Seed, not_none
from keras_bert.errors import InputError
from keras_bert.files.json_files import Record, read_object
from keras_bert.files.paths import check_model_folder, check_readable
from keras_bert.terminal import print_error

if TYPE_CHECKING:  # for NumPy, which takes time to import
    from keras_bert.inference.task_model import TaskModel

EXAMPLE = "keras-bert calibrate --model=my_model --data=new.tsv --max_error=0.02"


def run(model: str, data: str | None = None, temperature_data: str | None = None, max_error: MaxError | None = None,
        threshold: Probability | None = None, seed: Seed = 0, normalization: Normalization | None = None,
        **named: Unpack[ScoreColumns]) -> None:
    """Choose the threshold from which on a classifier's answers are used, for instance by a bound on the errors.

    Args:
        model: Folder that finetune or export litert wrote. Its settings and its model card are changed.
        data: Labelled file that did not train the model, as finetune takes it.
        temperature_data: Another such file, which fits a temperature if the scores differ from probabilities. Default:
            with max_error, a random half of the data, which then does not choose the threshold.
        max_error: With confidence 0.95, at most this share of the answers in scope is wrong, for texts like those of
            the data. Texts out of scope that are answered count as wrong.
        threshold: Set the threshold by hand, without data.
        seed: Determines the halves.
        normalization: NFC composes texts in NFD, see predict. Default: as in training.
        data_format: Format of a published data set, see finetune.
        text_column: Column of the text. Default: as in training.
        text_pair_column: Column of the second text. Default: as in training.
        label_column: Column of the label. Default: as in training.
        label_columns: For multilabel: columns of the labels, see finetune. Default: as in training.
        label_delimiter: For multilabel: character between labels in a text. Default: as in training.
        out_of_scope_label: Label of the texts that are out of scope. Without max_error, they choose the threshold of an
            intent model.
    """
    check_model_folder(model)
    if (data is None) == (threshold is None):
        raise InputError("pass --data=FILE or --threshold=X, and not both")
    given, columns = not_none(data=data, temperature_data=temperature_data), not_none(**named)
    check_readable(*given.values())
    from keras_bert.inference.answering import load_task_model

    tuned = load_task_model(model, normalization=normalization)
    calibrated = tuned.calibrate(**given, **not_none(max_error=max_error, threshold=threshold), seed=seed, **columns)
    if calibrated.task is tuned.task:
        raise InputError(f"{data}: no threshold was chosen, because every text is in scope; pass --max_error, or texts "
                         "that are not, and name their label with --out_of_scope_label")
    _warn_of_seen(tuned, model, list(given.values()), columns)
    calibrated.save_settings(model)
    print(*calibrated.task.describe_thresholds(), sep="\n")


def _warn_of_seen(tuned: "TaskModel", model: str, paths: list[str], columns: dict[str, Any]) -> None:
    """Warns if texts of files were in the training or validation file, or if these are not where they were. Raises an
    InputError if most texts of a file were."""
    if not paths:
        return
    same = tuned.task.same_texts(tuned.tokenizer)

    def keys(file: str, **given: Any) -> list[tuple]:
        return tuned.task.groups(list(tuned.iterate(file, **given)), same)

    try:
        metrics = read_object(os.path.join(model, "metrics.json"), required=True)
        arguments = Record(model, "", metrics).get("arguments", dict)
        known = {key for name in ("train", "valid") if (file := arguments.get(name))
                 for key in keys(file, **not_none(data_format=arguments.get("data_format")))}
    except InputError as error:  # a LiteRT folder has no metrics.json
        return print_error(f"{', '.join(paths)}: make sure that these texts did not train the model, which is unknown: "
                           f"{error}")
    for path in paths:
        new = keys(path, **{name: value for name, value in columns.items() if name != "out_of_scope_label"})
        if count := sum(map(known.__contains__, new)):
            found = (f"{path}: {count:,} of {len(new):,} texts were in the training or validation file; errors on them "
                     "are rarer than on new texts")
            if 2 * count > len(new):
                raise InputError(f"{found}; pass texts that the model has not seen")
            print_error(found)
