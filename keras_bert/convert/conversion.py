"""Conversion of weights between formats, to another vocabulary and to fewer positions, with a check of the written
model's outputs."""

import dataclasses
import functools
import os
import warnings
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from keras_bert.arguments import Activation, Path, check, check_rules, to_json
from keras_bert.convert.proof import outputs, prove
from keras_bert.convert.task_settings import describe, open_source, with_settings, with_task
from keras_bert.convert.trimming import with_tokens_of
from keras_bert.errors import InputError, InputWarning, Option
from keras_bert.files.atomic import atomic_folder, check_free
from keras_bert.files.paths import find_texts
from keras_bert.text import Tokenizer, load_tokenizer
from keras_bert.text.samples import of_tokens, sample_inputs
from keras_bert.text.tokenizer_files import describe_casing, other_vocabulary
from keras_bert.text.vocabulary import check_tokens
from keras_bert.text.wordpiece import BertTokenizer, wordpiece
from keras_bert.weights.format import Format, Source, Weights
from keras_bert.weights.kinds import ENCODER, KINDS, OF_TOKENS
from keras_bert.weights.loading import FORMATS, with_labels


def differences(weights: Weights, target: Format, folder: str) -> dict[str, float]:
    """Returns the largest absolute difference of each output, on real texts, after reloading weights that were written
    to a folder; raises an InputError if the labels, the settings of the task or the tokenizer differ."""
    inputs = _inputs(weights)
    expected = outputs(weights.build(), weights.kind, inputs)
    if target.compute_outputs:
        found = target.compute_outputs(folder, inputs)
    else:
        again = with_task(with_labels(target.read(folder))).load()[0]
        if (again.settings, again.labels) != (weights.settings, weights.labels):
            raise InputError(f"{folder}: the task must be the same after reloading, {weights.settings} with the labels "
                             f"{weights.labels}; got {again.settings} with the labels {again.labels}")
        if not _is_kept(weights.tokenizer, again.tokenizer, target):
            raise InputError(f"{folder}: the tokenizer must have the same vocabulary and rules after reloading")
        found = outputs(again.build(), weights.kind, inputs)
    return {name: float(np.max(np.abs(of_tokens(np.asarray(found[name]), inputs) - of_tokens(value, inputs))))
            for name, value in expected.items()}


def _is_kept(tokenizer: Tokenizer | None, again: Tokenizer | None, target: Format) -> bool:
    """Returns True if a tokenizer read again is the same; its rules may be others if the format cannot store them."""
    if tokenizer is None or again is None:
        return tokenizer is again
    has_same_rules = bool(target.rules(tokenizer)) or not target.stores_segments or (
        tokenizer.rules, tokenizer.has_segments) == (again.rules, again.has_segments)
    return has_same_rules and tokenizer.vocabulary == again.vocabulary


def _inputs(weights: Weights) -> dict[str, np.ndarray]:
    """Returns `sample_inputs`, or if there is no vocabulary, random ids of the same shape."""
    config, rng = weights.config, np.random.default_rng(0)
    length = config.max_position_embeddings
    if weights.tokenizer is None:
        ids, segments = (rng.integers(0, size, (6, length)).astype(np.int32)
                         for size in (config.vocab_size, config.type_vocab_size))
        mask = (np.arange(length) < [[length], [length], *[[max(length // 4, 1)]] * 4]).astype(np.int32)
        inputs = {"input_word_ids": ids, "input_mask": mask, "input_type_ids": segments}
    else:
        inputs = sample_inputs(weights.tokenizer, length, config.type_vocab_size)
    if weights.kind in ("masked_lm", "pretraining"):
        last = inputs["input_mask"].sum(axis=1, dtype=np.int32) - 1
        inputs["masked_lm_positions"] = np.stack([np.zeros_like(last), last // 2, last], axis=1)
    return inputs


# Allowed difference: float32 sums differ this much if they are computed in another order.
_EXACT = 2e-5
# The options that change what the source's own library answers; others say what its files do not.
_CHANGING = ("config", "vocab", "keep_tokens_of", "max_position_embeddings", "hidden_act", "activation_fn",
             "allow_missing")


def convert(model: Path, output: Path,
            format: Literal["huggingface", "tf1", "garden", "kerashub", "hub", "keras_bert", "sentence_transformers"],
            *, config: Path | None = None, vocab: Path | None = None, keep_tokens_of: list[Path] | None = None,
            max_position_embeddings: int | None = None, next_sentence_pooler: bool = False,
            hidden_act: Literal["gelu", "gelu_tanh"] | None = None,
            pairs: bool | None = None, activation_fn: Activation | None = None, query_prompt: str | None = None,
            document_prompt: str | None = None, allow_missing: list[str] | None = None, ignore: list[str] | None = None,
            allow_inexact: bool = False, no_check: bool = False, overwrite: bool = False,
            report: Callable[[str], None] = lambda line: None) -> dict[str, float]:
    """Writes a model in another format, with its task. The output is written atomically, read again and compared: with
    the weights that were read, and with the answers of the source's own library, if that is installed.

    Args:
        model: Weights to read, in any format: a folder, a TensorFlow checkpoint or a name.
        output: Folder to write.
        format: Format to write.
        config: bert_config.json, for weights without one.
        vocab: Another vocab.txt, or a folder with a tokenizer of the same kind, as of make-vocab --extend. The
            rows of the word embeddings are mapped to its tokens.
        keep_tokens_of: Text files, one text per line, or glob patterns: keep the word embeddings of their tokens, of
            special tokens, and single characters, but not letters of scripts with less than 1% of these tokens.
        max_position_embeddings: Number of positions to keep. Default: all.
        next_sentence_pooler: Use the dense layer of the next-sentence head as the pooler: for pretraining checkpoints
            of the Model Garden, whose own pooler is not trained.
        hidden_act: Form of the GELU to use instead of the config's, if gelu means another form there: gelu is computed
            by erf, gelu_tanh by tanh.
        pairs: True if a classifier or regression model takes pairs of texts, False if single texts; for formats that do
            not say.
        activation_fn: Convert a model with one value as one for re-ranking, whose score is the sigmoid of the logit, or
            with identity the logit. For folders of CrossEncoder that do not say; sentence-transformers uses the sigmoid
            for them. Default: as the files say.
        query_prompt: Text that a model for embeddings puts before queries, for models whose files do not say:
            "query: " for E5. Default: as the files say.
        document_prompt: The same for documents: "passage: " for E5.
        allow_missing: Names of weights that may be missing, with * as a wildcard; they are initialised.
        ignore: Names of weights to skip, with * as a wildcard.
        allow_inexact: Write what this package follows of the source's files, and what the format can store, if that is
            not everything.
        no_check: Do not compare with the answers of the source's own library.
        overwrite: Replace the output.
        report: function that gets each line of the report.

    Returns:
        the largest absolute difference of each output between the weights and what was written.

    Raises:
        InputError: see `open_source` and `Source.load`; the format cannot store the weights; or the written model
            gives other outputs.
    """
    check(convert, given := dict(locals()))
    changed = [name for name in _CHANGING if given[name]]
    max_position_embeddings = to_json(max_position_embeddings)
    texts = None if keep_tokens_of is None else find_texts(keep_tokens_of, "keep_tokens_of")
    check_free(output, overwrite, (model, config, vocab, *(texts or ())))
    source = open_source(model, config, next_sentence_pooler, allow_inexact)
    weights, skipped, missing = source.load(None, allow_missing or (), ignore or ())
    _report_source(source, weights, skipped, missing, report)
    if hidden_act is not None:
        if not weights.config.hidden_act.startswith("gelu"):
            raise InputError(f"{model}: ", Option("hidden_act"), " chooses the form of a GELU; got "
                             f"{hidden_act} for weights with {weights.config.hidden_act}")
        if hidden_act != weights.config.hidden_act:
            report(f"computes {hidden_act} instead of the config's {weights.config.hidden_act}")
        weights = weights.with_config(hidden_act=hidden_act)
    weights = with_settings(weights, activation_fn, pairs, query=query_prompt, document=document_prompt)
    if vocab is not None:
        weights, kept, unknown = with_vocabulary(weights, vocab)
        size = weights.config.vocab_size
        report(f"vocabulary {vocab}: {size} tokens: {kept} kept, {size - kept - unknown} from the tokens that spell "
               f"them, {unknown} from the mean of all")
        if 2 * unknown > size:
            warnings.warn(f"{vocab}: the model's tokens spell fewer than half of these: it has not learned their "
                          "language; pretrain it, or take another model", InputWarning, stacklevel=2)
        before, after = source.tokenizer, weights.tokenizer
        if before and after and after.rules != before.rules:
            report(f"texts are read by the rules of {vocab}" if os.path.isdir(vocab) else
                   describe_casing(after.rules.lower_case))
    if texts is not None:
        weights = with_tokens_of(weights, texts, report)
    if max_position_embeddings is not None:
        weights = with_positions(weights, max_position_embeddings)
        report(f"kept positions 0 to {max_position_embeddings - 1}")
    target = FORMATS[format]
    target = target.variant(weights) if target.variant else target
    if source.differences:
        report(f"not followed: {'; '.join(source.differences)}")
    if losses := [*source.losses, *target.losses(weights)]:
        if not allow_inexact:
            raise InputError(f"{target.name} cannot store these weights exactly: {'; '.join(losses)}; pass ",
                             Option("allow_inexact=True"), " to write them as closely as possible")
        report(f"inexact: {'; '.join(losses)}")
    if weights.kind not in target.kinds:  # without the heads that the format lacks
        is_reduced = weights.kind == "pretraining" and "masked_lm" in target.kinds
        weights = weights.as_kind("masked_lm" if is_reduced else ENCODER)
    if weights.settings:
        report(describe(weights.settings))
        if ignored := target.not_applied(weights.settings):
            report(f"{target.settings_file} stores, but {target.name} does not apply: {describe(ignored)}")
    with atomic_folder(output, overwrite) as new:
        target.write(target.closest(weights), new)
        found = differences(weights, target, new)
        largest = ", ".join(f"{name} {value:.1e}" for name, value in found.items())
        report(f"largest difference after reloading: {largest}; of texts and pairs of up to "
               f"{weights.config.max_position_embeddings} tokens")
        if not allow_inexact and not all(value <= _EXACT for value in found.values()):  # NaN fails too
            raise InputError(f"{output}: the written model must give the same outputs within {_EXACT}; got {found}")
        if not no_check:
            changed += ["allow_inexact"] * bool(losses or source.differences)
            report(prove(source, weights, changed, target, new))
    return found


def _report_source(source: Source, weights: Weights, skipped: dict[str, str], missing: list[str],
                   report: Callable[[str], object]) -> None:
    config = weights.config
    report(f"{source.format} {source.path}: {weights.kind}, {config.num_hidden_layers} blocks of width "
           f"{config.hidden_size}, {config.hidden_act}, {config.vocab_size} tokens")
    report(f"loaded {len(weights.read) - len(missing)} weights")
    for reason in dict.fromkeys(skipped.values()):
        names = sorted(name for name in skipped if skipped[name] == reason)
        report(f"skipped {len(names)}: {', '.join(names[:3])}{', …' if len(names) > 3 else ''}: {reason}")
    if missing:
        unused = "" if KINDS[weights.kind].is_pooled else f", and models for {weights.kind} do not use the pooler"
        report(f"initialised {', '.join(missing)}: not in the source{unused}")
    for note in source.notes:
        report(note)
    if source.tokenizer is None:
        why = other_vocabulary(source.path) or (
            "copy the model's vocab.txt, tokenizer.json or .model file next to the weights")
        report(f"no vocabulary: outputs are compared on random ids, and the result cannot take texts; {why}")
        return
    if rest := config.vocab_size - len(source.tokenizer.vocabulary):
        report(f"the last {rest} rows of the word embeddings have no token")


_OF_WEIGHTS = "has_segments", "separators", "truncation_side", "max_length"  # of a tokenizer
_POSITIONS = "bert.embeddings.position_embeddings.embeddings"


def with_vocabulary(weights: Weights, path: Path) -> tuple[Weights, int, int]:
    """Returns the weights with one row per token of another `vocab.txt`, or of a folder with a tokenizer; the number of
    tokens that keep their row, because they are in both vocabularies, and of those that get the mean of all rows. All
    others get the mean of the rows of the old tokens that spell them."""
    old = weights.tokenizer
    if old is None:
        raise InputError(f"{path}: another vocabulary needs the old one too; add the vocab.txt of the weights to their "
                         "folder")
    if not os.path.exists(path):
        raise InputError(f"{path}: must be a vocab.txt, or a folder with a tokenizer; there is none")
    tokenizer = load_tokenizer(path) if os.path.isdir(path) else wordpiece(old, f"{path}").with_vocabulary(path)
    if type(tokenizer) is not type(old):
        raise InputError(f"{path}: the tokenizer must be of the kind of the weights', with {old.files[0]}; this is "
                         f"{tokenizer.files[0]}")
    if isinstance(tokenizer, BertTokenizer):
        check_tokens(path, tokenizer.vocabulary)
    for name in _OF_WEIGHTS:
        setattr(tokenizer, name, getattr(old, name))
    spellings = old.spellings(tokenizer.vocabulary)
    kept = sum(map(set(old.vocabulary).__contains__, tokenizer.vocabulary))
    mapped = {name: functools.partial(_mapped, weights.read[name], spellings)
              for name in OF_TOKENS if name in weights.read}
    weights = weights.with_config(vocab_size=len(tokenizer.vocabulary), pad_token_id=tokenizer.pad_id)
    weights = dataclasses.replace(weights, read={**weights.read, **mapped}, tokenizer=tokenizer)
    return weights, kept, spellings.count([])


def _mapped(read: Callable[[], np.ndarray], spellings: Sequence[list[int]]) -> np.ndarray:
    """Returns the rows of new tokens, each the mean of the rows of the old tokens that spell it."""
    rows = read()
    mean = rows.mean(axis=0)
    return np.stack([rows[spelling].mean(axis=0) if spelling else mean for spelling in spellings])


def with_positions(weights: Weights, number: int) -> Weights:
    """Returns the weights with only the first `number` position embeddings."""
    limit = weights.config.max_position_embeddings
    check_rules(("max_position_embeddings", number, f"from 1 to {limit}, the number in the weights",
                 1 <= number <= limit))
    read = {**weights.read, _POSITIONS: lambda: weights.read[_POSITIONS]()[:number]}
    settings = weights.settings and weights.settings | {"max_length": min(weights.settings["max_length"], number)}
    return dataclasses.replace(weights.with_config(max_position_embeddings=number), read=read, settings=settings)
