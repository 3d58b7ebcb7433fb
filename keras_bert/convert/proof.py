"""`prove`: after a conversion, the source's own library and the model that was written answer the same texts."""

import contextlib
import importlib.metadata
import importlib.util
import inspect
import io
import logging
import os
import unicodedata
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_bert.errors import InputError, Option
from keras_bert.text.samples import TEXTS
from keras_bert.weights.format import Format, Source, Weights
from keras_bert.weights.kinds import ENCODER, KINDS

Row = tuple[str, str | None]  # a text, and the second one of a pair
Answer = dict[str, np.ndarray]  # `ids` and `segments` without padding, and the outputs, of one row
# Allowed difference, as a share of an output's largest value. Libraries sum in other orders, which changes float32 by
# less than 1e-5; what was read wrongly changes more than 1e-3.
_TOLERANCE, _NEAR_ZERO = 1e-4, 1e-5
_NAMES = {"pooler_output": "pooled_output", "prediction_logits": "mlm_logits",
          "seq_relationship_logits": "next_sentence_logits"}  # of transformers
_FIRST = np.zeros((1, 1), np.int32)  # positions for a masked LM head


def outputs(model: Any, kind: str, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the outputs of a `BertLayer` or of a model on one, by their names."""
    encoded = getattr(model, "bert", model).encode(inputs)
    outputs = {"pooled_output": encoded.pooled_output} if KINDS[kind].is_pooled else {}
    outputs["sequence_output"] = encoded.sequence_output
    if kind != ENCODER:
        if kind == "multiple_choice":
            inputs = {name: array[:, None] for name, array in inputs.items()}
        logits = model(inputs)
        outputs |= logits if isinstance(logits, dict) else {"embedding" if kind == "embedding" else "logits": logits}
    return {name: ops.convert_to_numpy(output) for name, output in outputs.items()}


def prove(source: Source, weights: Weights, changed: Sequence[str], target: Format, folder: str) -> str:
    """Compares the answers of the source's library with those of the model in the folder. Returns a line that says the
    largest difference, or why they were not compared: `changed` are the options that change answers. Raises an
    InputError if ids or outputs differ."""
    is_pair = source.format == "huggingface" and (
        source.settings.get("task") == "rerank" or source.settings.get("pairs") is True)
    name, ask = _LIBRARIES.get("pairs" if is_pair else source.format, ("", None))
    failed = "not compared with another library's answers, only with what was read"
    if ask is None or source.tokenizer is None:
        return f"{failed}: " + ("no vocabulary" if ask else f"keras_bert knows no library for {source.format}")
    if changed or importlib.util.find_spec(name) is None:
        return f"{failed}: " + (f"{', '.join(changed)} may change answers" if changed else f"{name} is not installed")
    length = weights.settings.get("max_length") or source.tokenizer.max_length or source.config.max_position_embeddings
    library = f"{name} {importlib.metadata.version(name.replace('_', '-'))}"
    # Of characters that it changes, KerasHub changes others than BERT: accents, Korean, compatible ones.
    is_ascii = source.format == "kerashub" and source.tokenizer.rules.normalize("É") != "É"
    texts, pairs = _rows(length, is_ascii)
    rows = pairs if is_pair else texts if source.kind == "embedding" else texts + pairs
    disabled = logging.root.manager.disable
    try:
        module = importlib.import_module(name)  # first, because its logs keep the stream that they find
        logging.disable()
        with warnings.catch_warnings(action="ignore"), contextlib.redirect_stderr(io.StringIO()):
            expected = [*ask(module, source, rows)]
    except Exception as error:
        return f"{failed}: {library} failed: {type(error).__name__}: {' '.join(str(error).split()):.200}"
    finally:
        logging.disable(disabled)
    found = _answers(target.read(folder).load()[0], source, weights, rows, length)
    problem, largest = _compare(rows, expected, found)
    asked = f"answers of {library} to {len(rows)} texts and pairs{' in ASCII' * is_ascii}"
    if not problem:
        return f"compared with {asked}: largest difference {largest:.1e}"
    if source.files and source.files.guesses:
        return f"the answers differ from those of {library}, which reads the files in another way: {problem}"
    raise InputError(f"{source.path}: the result must give the {asked}; {problem}; to convert it nevertheless, pass ",
                     Option("no_check=True"))


def _rows(length: int, is_ascii: bool) -> tuple[list[Row], list[Row]]:
    """Returns texts, one above the length, others with case, nothing, accents, NFD and Korean; and pairs. The first
    text of a pair is the longer one: of two that are both cut, libraries give an odd token to different ones."""
    texts = [text.encode("ascii", "ignore").decode() if is_ascii else text for text in TEXTS]
    whole, short, korean, accented = " ".join(texts * (length // len(texts) + 1)), texts[1], texts[3], texts[6]
    return ([(text, None) for text in (whole, short, "", accented, unicodedata.normalize("NFD", accented), korean)],
            [(whole, short), (accented, short), ("", korean)])


def _answers(written: Weights, source: Source, weights: Weights, rows: list[Row], length: int) -> list[Answer]:
    """Returns the answers of the model that was written."""
    prompt = source.settings.get("prompts", {}).get(source.settings.get("default_prompt_name"), "")
    activation = "sigmoid" if weights.settings.get("task") == "multilabel" else weights.settings.get("activation_fn")
    positions = {"masked_lm_positions": _FIRST} if written.kind in ("masked_lm", "pretraining") else {}
    answers, tokenizer = [], written.tokenizer or source.needed_tokenizer()
    with keras.device("cpu"):  # GPUs round more
        model = written.build()
        for text, pair in rows:
            inputs = tokenizer([prompt + text], None if pair is None else [pair], length)
            found = outputs(model, written.kind, inputs | positions)
            if activation:
                found["scores"] = found["logits"] if activation == "identity" else 1 / (1 + np.exp(-found["logits"]))
            answers.append({"ids": inputs["input_word_ids"], "segments": inputs["segment_ids"], **found})
    return answers


def _compare(rows: list[Row], expected: list[Answer], found: list[Answer]) -> tuple[str, float]:
    """Returns what differs for the first text that is answered differently, and the largest difference of outputs."""
    largest = 0.0
    for row, theirs, ours in zip(rows, expected, found):
        for name in [name for name in theirs if name in ours]:
            wanted, got = np.ravel(theirs[name]), np.ravel(ours[name])
            is_output = name not in ("ids", "segments")
            scale = max(float(np.abs(answer[name]).max()) for answer in expected)
            difference = np.abs(wanted - got).max() if wanted.shape == got.shape else np.inf
            if not difference <= is_output * (_NEAR_ZERO + _TOLERANCE * scale):  # NaN fails too
                texts = " and ".join(f"{text[:40]!r}" for text in row if text is not None)
                at = len(os.path.commonprefix([wanted.tolist(), got.tolist()]))
                values = [array[at:at + 5].tolist() for array in (wanted, got)]
                return f"{name} of {texts} differ " + (f"by {difference:.1e}" if is_output else (
                    f"from token {at} on: {values[0]}, here {values[1]}")), largest
            largest = max(largest, float(difference))
    return "", largest


def _ask_transformers(transformers: Any, source: Source, rows: list[Row]) -> Iterator[Answer]:
    names = transformers.AutoConfig.from_pretrained(source.path).architectures or ()
    name = next((name for name in names if hasattr(transformers, name)), "AutoModel")
    model, loading = getattr(transformers, name).from_pretrained(source.path, output_loading_info=True)
    missing = loading["missing_keys"]
    if not all("pooler" in name for name in missing):
        raise ValueError(f"it initialises {', '.join(missing)}")
    tokenizer = transformers.AutoTokenizer.from_pretrained(source.path)
    known = inspect.signature(model.float().eval().forward).parameters
    length = min(tokenizer.model_max_length, source.config.max_position_embeddings)
    for row in rows:
        tokens = tokenizer(*row, truncation=True, return_tensors="pt", max_length=length)
        ids, tensors = tokens["input_ids"].numpy(), {name: tokens[name] for name in tokens if name in known}
        if source.kind == "multiple_choice":
            tensors = {name: tensor[:, None] for name, tensor in tensors.items()}
        found = model(**tensors, output_hidden_states=True)
        arrays = {_NAMES.get(name, name): value.detach().numpy() for name, value in found.items()
                  if hasattr(value, "detach") and not (missing and name == "pooler_output")}
        if source.kind in ("masked_lm", "pretraining"):
            arrays["mlm_logits"] = arrays.pop("mlm_logits" if "mlm_logits" in arrays else "logits")[:, :1].copy()
        segments = tensors.get("token_type_ids", np.zeros_like(ids))
        yield {"ids": ids, "segments": np.ravel(segments),
               "sequence_output": found.hidden_states[-1].detach().numpy(), **arrays}


def _ask_sentence_transformers(library: Any, source: Source, rows: list[Row]) -> Iterator[Answer]:
    model = library.SentenceTransformer(source.path, device="cpu").float()
    prompt = model.prompts.get(model.default_prompt_name, "")
    for text, _ in rows:
        yield {"ids": model.preprocess([prompt + text])["input_ids"].numpy(),
               "embedding": model.encode([text], show_progress_bar=False)}


def _ask_cross_encoder(library: Any, source: Source, rows: list[Row]) -> Iterator[Answer]:
    model = library.CrossEncoder(source.path, device="cpu").float()
    for row in rows:
        logits = model.predict([row], activation_fn=lambda logits: logits, convert_to_tensor=True)
        yield {"ids": model.preprocess([row])["input_ids"].numpy(), "logits": logits.numpy(),
               "scores": model.activation_fn(logits).numpy()}


def _ask_keras_hub(library: Any, source: Source, rows: list[Row]) -> Iterator[Answer]:
    task = {"masked_lm": "BertMaskedLM", "classification": "BertTextClassifier"}.get(source.kind)
    model = getattr(library.models, task or "BertBackbone").from_preset(source.path)
    length = getattr(model.preprocessor, "sequence_length", 0) if task else 0
    packer = library.models.BertTextClassifierPreprocessor(
        library.models.BertTokenizer.from_preset(source.path), length or source.config.max_position_embeddings)
    for row in rows:
        inputs = packer(x=tuple(np.array([text]) for text in row if text is not None))
        inputs = {name: np.asarray(array)[:, :np.sum(inputs["padding_mask"])] for name, array in inputs.items()}
        found = dict((model.backbone if task else model)(inputs))
        if task:
            is_scores = getattr(getattr(model, "activation", None), "__name__", "") == "sigmoid"
            name = "mlm_logits" if source.kind == "masked_lm" else "scores" if is_scores else "logits"
            found[name] = model(inputs | ({"mask_positions": _FIRST} if source.kind == "masked_lm" else {}))
        yield {"ids": inputs["token_ids"], "segments": inputs["segment_ids"]} | {
            name: ops.convert_to_numpy(array) for name, array in found.items()}


# What reads a format: the library's module, and the function that asks it.
_LIBRARIES: dict[str, tuple[str, Callable[[Any, Source, list[Row]], Iterator[Answer]]]] = {
    "huggingface": ("transformers", _ask_transformers), "kerashub": ("keras_hub", _ask_keras_hub),
    "sentence_transformers": ("sentence_transformers", _ask_sentence_transformers),
    "pairs": ("sentence_transformers", _ask_cross_encoder)}
