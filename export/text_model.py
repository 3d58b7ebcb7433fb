"""The raw-text SavedModel: takes strings, returns answers, and needs only TensorFlow's core operations.

Signatures, each of which returns a dict of dense tensors:

    serving_default  takes the strings of the list below; the root object is the same function, but that of a
                     BertEmbedder returns the embedding alone
    encode           takes input_word_ids, input_mask, input_type_ids, int32 [batch, seq]
    word_weights     takes the strings; of classifiers, of regression and of re-ranking
    query, document  of a BertEmbedder with prompts: like serving_default, after the prompt for queries or documents has
                     been put before each text; there is also a signature for each other prompt, named like it

What `serving_default` takes and returns (B batch, W words, E entities, N choices, L labels):

    BertLayer: text, text_pair, string [B] -> pooled_output; mean_output, the mean of sequence_output over the real
        tokens: float32 [B, hidden]
    BertEmbedder: text, string [B] -> embedding: float32 [B, hidden]; tokens, the number of tokens of the inputs of a
        text, [CLS] and [SEP] included: int32 [B]
    BertClassifier: text, text_pair, string [B] -> label: string [B]; score, its probability: float32 [B];
        probabilities: float32 [B, L]; in_scope: bool [B], only if there is a threshold
    BertClassifier with thresholds: text, text_pair, string [B] -> holds: bool [B, L]; probabilities: float32 [B, L];
        labels: string [B, L], those that hold, the most probable first, padded with ""
    BertRegressor: text, text_pair, string [B] -> value: float32 [B]
    BertRegressor with activation_fn: text, text_pair, string [B] -> score, the logit after the activation, and logit:
        float32 [B]
    BertTokenClassifier: text, string [B] -> word_start, word_end: int32 [B, W]; word_label: string [B, W]; word_score,
        the probability of the label: float32 [B, W]; the same for entities, as entity_*: [B, E], with entity_text and
        the mean score of the words; padded with -1, "" and 0. With unit="character", words are tokens
    BertJointClassifier: text, string [B] -> those of a BertClassifier and of a BertTokenClassifier; frame_score, the
        product of the probabilities of the label and of the words' tags: float32 [B]
    BertSpanLabeler: question, context, string [B] -> answer: string [B], "" for none; start, end: int32 [B], -1 for
        none; score, the probability among the 20 best spans: float32 [B]
    BertMultipleChoice: prompt, string [B], choices, string [B, N] -> choice: int32 [B]; probabilities: float32 [B, N]

A BertEmbeddingClassifier is like a BertClassifier, and a BertFeatureTagger like a BertTokenClassifier. Models for
single texts have no text_pair. Starts and ends count characters (code points); ends are exclusive. The order of
`probabilities` and `holds` is that of label_file.

`encode` returns the same, except: a `BertTokenClassifier` returns probabilities, float32 [batch, seq, labels]; a
`BertJointClassifier` returns probabilities, float32 [batch, labels], and tag_probabilities, float32 [batch, seq, tags];
a `BertSpanLabeler` returns start_logits and end_logits, float32 [batch, seq]; the inputs of a `BertMultipleChoice` are
int32 [batch, n, seq].

`word_weights` says how much each word counts for the answer, see keras_bert/tasks/word_weights.py:

    word_start, word_end: int32 [B, W], the position of each word in its text, padded with -1
    word_segment: int32 [B, W], 0 for the first text, 1 for the second, padded with -1
    word_weight: float32 [B, W, L], for each of the `probabilities`, or for `value` or `score` (L is 1), padded with 0

Attributes: `vocab_file`, `bert_config`, `label_file` (assets; JSON, if the model has labels), `do_lower_case`.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable
from typing import Any, Literal

import tensorflow as tf

from keras_bert.arguments import Path, check
from keras_bert.errors import InputError, Option
from keras_bert.files.json_files import write_json
from keras_bert.layers import BertLayer
from keras_bert.litert import INPUTS
from keras_bert.models.base import BertTask, check_names
from keras_bert.tasks import TASKS, Task, word_weights, word_weights_graph
from keras_bert.tasks.base import Answers
from keras_bert.tasks.calibration import warn_if_unmeasured
from keras_bert.tasks.graph import Reader, check_same_batch, next_of, text_specs
from keras_bert.text import Tokenizer

from . import writing

_SHORTEST = 4  # tokens of an input


@dataclasses.dataclass(frozen=True)
class _Encoding(Task):
    """What a `BertLayer` without a head computes from a text or, with `pairs`, a pair of texts."""

    pairs: bool = False

    name, heads = "", ("BertLayer",)  # no registered task has this name

    @property
    def inputs(self) -> tuple[str, ...]:
        return ("text", "text_pair")[:1 + self.pairs]

    def encode_in_graph(self, outputs: Any, mask: tf.Tensor) -> Answers:
        pooled, sequence = (tf.cast(output, tf.float32) for output in outputs)
        is_real = tf.cast(mask, tf.float32)[:, :, None]
        count = tf.maximum(tf.reduce_sum(is_real, axis=1), 1.0)
        return {"pooled_output": pooled, "mean_output": tf.reduce_sum(sequence * is_real, axis=1) / count}


class TextModel(writing.CallablePart):
    """The root object of the SavedModel, with copies of the variables. For the arguments see `export_text_model`."""

    def __init__(self, model: BertLayer | BertTask, task: Task, tokenizer: Tokenizer, dtype: str,
                 jit_compile: bool = False) -> None:
        # Not an attribute, because the SavedModel would then contain its weights, too.
        replica = model.rebuild(dtype=dtype, lora_rank=None, layout="padded" if jit_compile else "unpadded")
        weights = [writing.copy_variable(weight, weight.dtype) for weight in replica.weights]
        encoder = writing.encoder_of(replica)
        run = writing.with_variables(replica, weights, lambda *inputs: replica(list(inputs)))
        run = _compiled(run) if jit_compile else run
        named_prompts = task.named_prompts
        reader = Reader(run, tokenizer, task.max_length, lengths_up_to(task.max_length) if jit_compile else None)

        def answer(*inputs: tf.Tensor) -> Answers:
            check_same_batch(task.inputs, inputs[:len(task.inputs)])
            answers = task.answer_in_graph(reader, *inputs)
            if task.name in TASKS and (computed := sorted(answers)) != (declared := sorted(task.exported_outputs)):
                raise InputError(f"the graph of the task {task.name} must compute its exported_outputs, "
                                 f"{', '.join(declared)}; got {', '.join(computed)}")
            return answers

        def encode(*inputs: tf.Tensor) -> Answers:
            checked = writing.checked(inputs, encoder.config) if jit_compile else inputs
            return task.encode_in_graph(run(*checked), checked[1])

        texts = text_specs(task.inputs)
        prompt_length = [tf.TensorSpec([], tf.int64, "prompt_length")] * bool(named_prompts)
        answer_texts = tf.function(answer, input_signature=[*texts, *prompt_length], autograph=False)

        def with_prompt(prompt: str) -> Callable:
            """Returns a function of texts that puts a prompt before each."""
            length = tf.constant(len(tokenizer.ids([prompt])[0]), tf.int64)
            return tf.function(
                lambda *texts: answer_texts(*(tf.strings.join([prompt, text]) for text in texts), length),
                input_signature=texts, autograph=False)

        serve = with_prompt(task.default_prompt) if named_prompts else answer_texts
        super().__init__(serve if task.root is None else tf.function(
            lambda *texts: serve(*texts)[task.root], input_signature=texts, autograph=False))
        self.serve: Any = serve
        self.prompted = {name: with_prompt(prompt) for name, prompt in named_prompts.items()}
        self.weights = weights
        shape = [*texts[-1].shape, None]  # a row of ids for each text
        ids = [tf.TensorSpec(shape, tf.int32, name) for name in INPUTS]
        self.encode = tf.function(encode, input_signature=ids, autograph=False)
        if task.weighed:
            self.word_weights = tf.function(functools.partial(word_weights_graph.weigh, task, tokenizer, answer_texts),
                                            input_signature=texts, autograph=False)


def lengths_up_to(max_length: int) -> list[int]:
    """Returns the lengths to which a compiled model pads its inputs: 16, 32, 64, …, and finally `max_length`."""
    return [*itertools.takewhile(lambda length: length < max_length, (2**i for i in itertools.count(4))), max_length]


def _compiled(run: Callable) -> Callable:
    """Returns `run` compiled by XLA. As each shape is compiled once, rows are padded to a power of two."""
    compiled = tf.function(run, jit_compile=True, autograph=False)

    def call(*inputs: tf.Tensor) -> Any:
        rows = tf.shape(inputs[0])[0]
        more = next_of([2**i for i in range(31)], rows) - rows
        padded = [tf.pad(part, [[0, more], *[[0, 0]] * (part.shape.rank - 1)]) for part in inputs]
        return tf.nest.map_structure(lambda output: output[:rows], compiled(*padded))

    return call


def export_text_model(model: BertLayer | BertTask, tokenizer: Tokenizer, path: Path, task: Task | None = None, *,
                      max_length: int | None = None, dtype: Literal["float32", "bfloat16"] | None = None,
                      jit_compile: bool = False, overwrite: bool = False, **options: Any) -> None:
    """Writes a raw-text SavedModel. Output is written atomically.

    Args:
        model: a model with one of the heads in this module's list, or a `BertLayer`.
        tokenizer: the `Tokenizer` of the model.
        path: folder to write.
        task: what the model was trained for: `FineTuned.task`. If None, the options describe it.
        max_length: maximum length of an input, in tokens. Longer texts are truncated, in pairs the longer text first;
            with a `doc_stride`, the texts, or the second ones of pairs, are split into multiple inputs. The texts of a
            `BertTokenClassifier` and the contexts of a `BertSpanLabeler` are always split. Default: the task's, or the
            tokenizer's, at most the encoder's positions.
        dtype: dtype of the encoder: float32; or bfloat16, whose weights take half the size. Default: as the model
            computes, bfloat16 if it was trained in mixed_bfloat16, otherwise float32.
        jit_compile: If True (for GPUs), XLA compiles the model, but not the tokenization. Inputs are padded to a few
            lengths (16, 32, 64, … up to `max_length`), and the number of rows to a power of two, as each shape is
            compiled separately. If False, padding is skipped, which is faster on CPUs.
        overwrite: If True, replaces an existing `path`.
        options: fields of the task, in place of those that `task` has. Without a `task`: `labels` for classifiers and
            taggers; `thresholds` for a `BertClassifier` whose texts have any number of labels; `activation_fn` for a
            `BertRegressor` that re-ranks; and for each task, the other fields of its class in `keras_bert.tasks`.

    Raises:
        InputError: `path` exists or cannot be written, an argument is out of its range, or Keras does not run on
            TensorFlow.
    """
    check(export_text_model, {"max_length": max_length, "dtype": dtype})
    dtype = dtype or ("bfloat16" if writing.encoder_of(model).compute_dtype == "bfloat16" else "float32")
    writing.check_export(model, tokenizer, path, overwrite)
    task = task_of(model, tokenizer, task, {"max_length": max_length, **options})
    task.check_tokenizer(tokenizer)
    warn_if_unmeasured(task, f"Keras {dtype}")
    module = TextModel(model, task, tokenizer, dtype, jit_compile)
    # tf.functions instead of concrete functions, which would be traced and saved in the graph twice.
    signatures = {"serving_default": module.serve, "encode": module.encode}
    if task.weighed:
        signatures[word_weights.SIGNATURE] = module.word_weights
    if taken := sorted(signatures.keys() & module.prompted.keys()):
        raise InputError(f"a prompt must have another name than the signature {taken[0]}")
    signatures |= module.prompted
    assets: writing.Assets = {"bert_config": ("bert_config.json", writing.encoder_of(model).config.to_json)}
    if hasattr(task, "labels"):
        assets["label_file"] = ("labels.json", lambda file: write_json(file, task.labels))
    of_texts = [name for name in signatures if name != "encode"]
    prompts = {"serving_default": task.default_prompt, **task.named_prompts}
    lengths = dict(zip(prompts, map(len, tokenizer.ids(list(prompts.values())))))
    stored = {"task": {name: value for name, value in task.settings().items() if name != "labels"}}
    writing.save(module, path, signatures, tokenizer, assets, overwrite, row_wise=signatures,
                 split_texts=of_texts if task.windows else (), prompt_tokens=lengths, display=task.display,
                 **(stored if task.name in TASKS else {}))


def task_of(model: BertLayer | BertTask, tokenizer: Tokenizer, task: Task | None,
            options: dict[str, Any]) -> Task:
    """Returns a task with other fields; without one, the first that a model can have and that has these fields. A
    `max_length` of None is the default, as is each None without a task."""
    options = {name: value for name, value in options.items() if value is not None or task and name != "max_length"}
    every: list[type[Task]] = [_Encoding, *TASKS.values()]
    kinds = [type(task)] if task else [kind for kind in every if kind.fits(model)]
    if not kinds:
        heads = dict.fromkeys(head for kind in every for head in kind.heads)
        raise InputError(f"a raw-text model must be one of {', '.join(heads)}; got {type(model).__name__}")
    fields = {kind: [field.name for field in dataclasses.fields(kind)] for kind in kinds}
    kind = next((kind for kind, names in fields.items() if options.keys() <= {*names}), kinds[0])
    for name in sorted(options.keys() - {*fields[kind]}):
        raise InputError(f"a {type(model).__name__} takes only these options: {', '.join(fields[kind][1:])}; "
                         f"got {name}")
    check(kind, options)
    check_names(model, kind.named, {name: options.get(name, getattr(task, name, [])) for name in kind.named})
    length = writing.encoder_of(model).config.input_length(
        options.get("max_length", task and task.max_length), tokenizer.default_length)
    if length < _SHORTEST:
        raise InputError(Option("max_length"), f" must be at least {_SHORTEST}; got {length}")
    options = options | {"max_length": length}
    return dataclasses.replace(task, **options) if task else kind(**options)
