"""Opens and loads pretrained weights of every format."""

import dataclasses
import inspect
import os
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

from keras_bert.arguments import Count, Path, Share
from keras_bert.errors import InputError, InputWarning, Option
from keras_bert.files.json_files import Record, check_followed
from keras_bert.files.paths import naming_damage
from keras_bert.layers import BertLayer
from keras_bert.presets import find_pretrained
from keras_bert.weights import garden, huggingface, kerashub, native, sentence_transformers, tf1, tfhub
from keras_bert.weights.format import Source, Weights
from keras_bert.weights.kinds import ENCODER, KINDS

# In the order in which they are tried. Hugging Face is last, because it accepts every folder with a config.json
# or weights of its names.
FORMATS = {module.FORMAT.name: module.FORMAT for module in (
    tfhub, native, kerashub, garden, tf1, sentence_transformers, huggingface)}
# Arguments that `load_pretrained` passes to `BertLayer`. `trainable` goes to the model with the head.
_ENCODER_ARGUMENTS = ("dtype", "layout", "frozen", "lora_rank", "gradient_checkpointing", "output_mask")
# Arguments of models that have no default; if neither the weights nor the caller give one, what is wrong with the
# weights, and the possible values.
_NEEDED = {"num_classes": ("have no classification head", "the number of classes, for {} to add one"),
           "pooling": ("do not say how to pool the vectors of tokens", "mean, cls or max")}


def open_weights(name: Path, config: Path | None = None, next_sentence_pooler: bool = False,
                 allow_inexact: bool = False, takes_texts: bool = False) -> Source:
    """Opens weights of any format, with what their files say about the task; see `convert.open_source`."""
    path, config = os.fspath(name), None if config is None else os.fspath(config)
    if not os.path.isdir(path) and not os.path.exists(f"{path}.index"):
        path = find_pretrained(path)
    if (form := next((form for form in FORMATS.values() if form.recognise(path)), None)) is None:
        names = sorted(os.listdir(path))
        found = ("this is a LiteRT folder: pass the folder that it was exported from" if "model.tflite" in names
                 else f"it contains {', '.join(names[:10]) or 'nothing'}")
        raise InputError(f"{path}: must have one of the formats {', '.join(FORMATS)}; {found}")
    if next_sentence_pooler and form is not garden.FORMAT:
        raise InputError(f"{path}: ", Option("next_sentence_pooler"),
                         f" is for the Model Garden's checkpoints; this one is {form.name}")
    with naming_damage(path):
        source = with_labels(form.read(path, config, True) if next_sentence_pooler else form.read(path, config))
        if files := source.files:
            source = dataclasses.replace(source, notes=(*files.notes, *files.remarks, *source.notes),
                                         differences=source.differences + files.differences)
        if not allow_inexact:
            check_followed(path, source.differences)
        if takes_texts and source.files is None:
            raise source.no_vocabulary()
        if source.tokenizer:
            source.tokenizer.check_rows(path, source.config.vocab_size)
    if source.unopened:
        raise source.unopened
    return source


def load_pretrained(name: Path | Source, /, model: Callable = BertLayer, config: Path | None = None,
                    **kwargs: Any) -> Any:
    """Returns a model with pretrained weights of any format.

    `load_pretrained("path/to/folder", BertClassifier, num_classes=3, dtype="mixed_bfloat16")`

    Args:
        name, config: see `convert.open_source`. `name` may also be the `Source` that it returns.
        model: `BertLayer`, or the class of a model with a head. If the source has no such head, or one for another
            number of classes, the head is randomly initialised, with a warning; so is a missing pooler, unless the
            model does not use it or it is in `frozen`.
        **kwargs: arguments of `BertLayer`, e.g. `dtype` and `layout`, and of the model's class.

    Raises:
        InputError: see `convert.open_source` and `Source.load`; or the model needs `num_classes`, and neither the
            source nor the arguments have it.
    """
    source = name if isinstance(name, Source) else open_weights(name, config)
    if model is BertLayer:
        weights, _, missing = source.load(ENCODER)
        _warn_of([] if "pooler" in kwargs.get("frozen", ()) else _new_pooler(weights, missing), source)
        return weights.build(**kwargs)
    encoder = {name: kwargs.pop(name) for name in _ENCODER_ARGUMENTS if name in kwargs}
    kind = source.kind if KINDS[source.kind].model is model else ENCODER
    if kind == "pretraining" and kwargs.get("next_sentence") is False:
        kind = "masked_lm"
    if kwargs.get("num_classes", source.options.get("num_classes")) != source.options.get("num_classes"):
        kind = ENCODER
    weights, _, missing = source.load(kind)
    parameters = inspect.signature(model).parameters
    for name, (problem, values) in _NEEDED.items():
        if name in parameters and name not in weights.options | kwargs:
            raise InputError(f"{source.path}: these weights {problem}; pass ", Option(f"{name}=…"),
                             f", {values.format(model.__name__)}")
    head = weights.build(model, kwargs, **encoder)
    read = [name for name in weights.read if not name.startswith("bert.")]
    is_pooled = any(kind.is_pooled for kind in KINDS.values() if kind.model is model)
    uses_pooler = is_pooled and getattr(head, "next_sentence", True) is not None
    new = _new_pooler(weights, missing) if uses_pooler else []
    if len(read) < len(head.weights) - len(head.bert.weights):
        new.append(f"{model.__name__} head")
    _warn_of(new, source)
    return head


def _new_pooler(weights: Weights, missing: list[str]) -> list[str]:
    """Returns the name of the pooler for `_warn_of`, if it is missing, or was missing at the first conversion."""
    return ["pooler"] if missing else ["trained pooler"] * weights.has_initial_pooler()


def _warn_of(new: list[str], source: Source) -> None:
    """Warns of parts of a model that the weights lack, or have as they were initialised."""
    if new:
        warnings.warn(f"{source.path}: no {' and no '.join(new)} in these weights; "
                      f"{'they are' if new[1:] else 'it is'} randomly initialised", InputWarning, stacklevel=3)


def with_labels(source: Source) -> Source:
    """Returns a `Source` whose classes all have names: LABEL_0, LABEL_1, … as in transformers if it does not say them.
    Raises an InputError if its labels are not different names, one for each class, or its dropout rate is invalid."""
    options = Record(source.path, "head", source.options)
    options.get("dropout", Share | None)
    if (count := options.get("num_classes", Count | None)) is None:
        return dataclasses.replace(source, labels=None)
    given: Any = [None] * count if source.labels is None else source.labels
    if not isinstance(given, list) or len(given) != count or not all(isinstance(label, str | None) for label in given):
        raise InputError(f"{source.path}: labels must be the names of the {count} classes; got {given!r:.100}")
    labels = [f"LABEL_{i}" if label is None else label for i, label in enumerate(given)]
    if repeated := [label for label, number in Counter(labels).items() if number > 1]:
        raise InputError(f"{source.path}: labels must be different names; {repeated[0]!r} is repeated")
    notes = source.notes
    if unnamed := [label for label, name in zip(labels, given) if name is None]:
        notes += (f"the source does not name all labels: {', '.join(unnamed[:5])}{', …' if unnamed[5:] else ''}",)
    differences = source.differences
    if count == 1 and source.kind == "classification" and source.settings.get("task") != "multilabel":
        differences += ("the head must have two classes or more, or be marked as one for regression; got one",)
    return dataclasses.replace(source, labels=labels, notes=notes, differences=differences)
