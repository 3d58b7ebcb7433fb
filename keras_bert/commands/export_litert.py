"""`keras-bert export litert`."""

from typing import Literal, Unpack

from keras_bert.arguments import Normalization, Pooling, PositiveOrZero, ScoreColumns, check_rules, not_none
from keras_bert.errors import InputError
from keras_bert.files.atomic import atomic_folder, check_free
from keras_bert.files.paths import check_readable, find_texts

_MAX_LOSS = 0.5
EXAMPLE = "keras-bert export litert --model=my_model --output=lite --dtype=int8"


def run(model: str, output: str, dtype: Literal["float32", "int8"] = "float32", pooling: Pooling | None = None,
        normalize: bool | None = None, normalization: Normalization | None = None, data: str | None = None,
        max_loss: PositiveOrZero = _MAX_LOSS, keep_tokens_of: list[str] | None = None, overwrite: bool = False,
        **columns: Unpack[ScoreColumns]) -> None:
    """Export a model for LiteRT, which answers without TensorFlow.

    Args:
        model: Folder that finetune wrote; or a pretrained encoder, a folder or a name, for embeddings.
        output: Folder to write.
        dtype: int8 takes a quarter of the space and is several times as fast.
        pooling: Export one embedding per text: mean, the mean of the tokens' vectors; cls, the vector of [CLS]; max,
            the maximum over the tokens in each dimension. Default: as the model says; a plain encoder needs one.
        normalize: Divide embeddings by their L2 norm; --nonormalize: do not. Default: as the model says.
        normalization: NFC composes texts in NFD, see predict. Default: as in training.
        data: Labelled file of the model's task, to compare scores and answers with the model's before the export.
        data_format: With data: format of a published data set, see finetune. Default: by the file's suffix.
        text_column: With data: column of the text. Default: as in training.
        text_pair_column: With data: column of the second text. Default: as in training.
        label_column: With data: column of the label. Default: as in training.
        label_columns: With data: columns of the labels, see finetune. Default: as in training.
        label_delimiter: With data: what separates the labels, see finetune. Default: as in training.
        out_of_scope_label: With data: label of the texts that are out of scope, which the score leaves out.
        max_loss: With data: largest loss of the score in percentage points; nothing is exported if more is lost.
        keep_tokens_of: Text files, to keep only the rows of the word embeddings of the tokens that these use, see
            convert.
        overwrite: Replace the output.
    """
    if data is None:
        check_rules(*((name, value, "left out without --data", value is None) for name, value in columns.items()),
                    ("max_loss", max_loss, "left out without --data", max_loss == _MAX_LOSS))
    else:
        check_readable(data)
    texts = None if keep_tokens_of is None else find_texts(keep_tokens_of, "keep_tokens_of")
    check_free(output, overwrite, (model, *(texts or ())))
    from keras_bert.convert.trimming import trimmed
    from keras_bert.export.litert import check_litert_export, why_not, write_litert
    from keras_bert.inference.fine_tuned import FineTuned, load_tuned
    from keras_bert.inference.lite_model import LiteModel
    from keras_bert.inference.task_model import compare

    tuned = load_tuned(model, not_none(pooling=pooling, normalize=normalize)).with_normalization(normalization)
    original = tuned
    if texts is not None:
        tuned = FineTuned(*trimmed(tuned.model, tuned.tokenizer, tuned.task.settings(), texts, print), tuned.task,
                          tuned.columns)
    check_litert_export(tuned.model, tuned.tokenizer, output, overwrite)
    encoded = None if data is None else original.encode(data, **columns)
    with atomic_folder(output, overwrite) as folder:
        differences = write_litert(tuned.model, tuned.tokenizer, folder, tuned.task, tuned.columns, dtype)
        if encoded is not None:
            comparison = compare(original, LiteModel.load(folder), encoded)
            if not comparison.loss <= max_loss:  # also if it is not a number
                raise InputError(f"the export must lose at most --max_loss={max_loss:g} points; it loses "
                                 f"{comparison.loss:.2f}: {comparison}")
            print(comparison)
    print(", ".join(f"largest difference of {name}: {value:.1e}" for name, value in differences.items()))
    if reason := why_not(tuned.task, tuned.tokenizer):
        print(f"without metadata for MediaPipe: {reason}")
    print(output)
