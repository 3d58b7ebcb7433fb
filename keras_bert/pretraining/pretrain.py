"""`pretrain`: trains BERT and its pretraining heads on examples."""

import contextlib
import re
from collections.abc import Iterable, Iterator
from typing import Literal

import numpy as np
import tensorflow as tf

from keras_bert.arguments import Count, Path, Positive, PositiveOrZero, Seed, Share
from keras_bert.config import BertConfig
from keras_bert.errors import InputError, Option
from keras_bert.files.atomic import atomic_folder
from keras_bert.models import BertPretrainer, load_model
from keras_bert.pretraining.input import PretrainingInput
from keras_bert.pretraining.loop import train_phases
from keras_bert.pretraining.prepare import Options, Prepared, prepare, trainer_kind
from keras_bert.training import pictures
from keras_bert.training.checkpoints import Progress
from keras_bert.training.report import VERSIONS, write_metrics
from keras_bert.training.run import Output, TrainingLog, enable_determinism, peak
from keras_bert.weights import native
from keras_bert.weights.format import Weights

_Batches = Iterable[dict[str, np.ndarray]]
_COUNTED = 2**16  # training examples whose tokens are counted for the baselines


def pretrain(train: Path | list[Path], *, output: Path, steps: Count | list[Count],
             valid: Path | list[Path] | None = None, model: Path | None = None,
             config: Path | dict | BertConfig | None = None, vocab: Path | None = None,
             batch_size: Count | list[Count] = 256, learning_rate: Positive | list[Positive] = 1e-4,
             optimizer: Literal["adamw", "lamb"] = "adamw",
             warmup_ratio: Share = 0.01, power: Positive = 1.0, weight_decay: PositiveOrZero = 0.01,
             global_clipnorm: Positive | None = 1.0, gradient_accumulation_steps: Count = 1,
             directionality: Literal["bidi", "ltr", "rtl"] = "bidi", next_sentence: bool | None = None,
             next_sentence_weight: Positive = 1.0, masking: Literal["static", "dynamic"] | None = None,
             dtype: Literal["float32", "mixed_bfloat16", "mixed_float16"] = "float32",
             gradient_checkpointing: bool = False, distribution_strategy: str = "one", model_parallel: Count = 1,
             seed: Seed = 0, eval_steps: Count | None = None, save_steps: Count = 1000, skip_corrupt: bool = False,
             log_dir: Path | None = None, deterministic: bool = False, overwrite: bool = False) -> BertPretrainer:
    """Pretrains BERT (Devlin et al., 2018, section 3.1 and appendix A.2) and writes it with its heads to a folder.

    Training can have multiple phases, for example of 128 and then of 512 tokens: `train`, `valid`, `steps` and
    `batch_size` are each one value for all phases, or a list with one value per phase.

    If a run is stopped or killed, run the same command again with the same versions (see `Checkpoints`): it resumes
    from its last checkpoint, in `output`.checkpoints. The final weights are bit-identical on one CPU, and on a GPU with
    `deterministic`. With multiple workers, run the same command on each. The first one writes; all must be able to read
    the folder. If one is lost, the others end too.

    Args:
        train: Folder of make-pretraining-data, or a glob of TFRecord files with the Model Garden's features; per phase.
        output: Folder to write: the model, its vocabulary, metrics.json, and with matplotlib a picture of the curve.
        steps: Optimizer steps; per phase.
        valid: Held-out examples, in the form of train; scored in whole batches.
        model: Weights to start from, in any format: a folder or a name. Missing heads are randomly initialised.
        config: Without model: a size, as base or L4-H256, or a bert_config.json. Default: base.
        vocab: vocab.txt, a folder with one, or the name of a model. Default: that of model, or of the first examples.
        batch_size: Examples per step, over all devices; per phase.
        learning_rate: Peak of one schedule over all phases; multiple values for one schedule per phase.
        optimizer: Optimizer.
        warmup_ratio: Share of a schedule's steps in which the learning rate rises.
        power: Power of the decay that follows; 1 for a straight line.
        weight_decay: Decoupled weight decay; biases and layer norms do not decay.
        global_clipnorm: Maximum global gradient norm.
        gradient_accumulation_steps: Number of micro-batches per step and device, to save memory.
        directionality: ltr and rtl train a language model of the next or last token instead (ablations).
        next_sentence: Train the next-sentence head, for which all examples must be pairs. Default: if there are pairs.
        next_sentence_weight: Factor of the next-sentence loss.
        masking: static uses the masks of the examples, dynamic draws new ones at each step. Default: as they were made.
        dtype: mixed_bfloat16 and mixed_float16 compute in half precision; with mixed_float16 the loss is scaled.
        gradient_checkpointing: Recompute activations for the gradients, to save memory.
        distribution_strategy: one device; mirrored, over this machine's devices; multiworker, over the machines of
            TF_CONFIG; tpu or tpu:NAME. On the JAX backend one, which uses all devices.
        model_parallel: On the JAX backend: number of devices that share the weights; it divides the number of devices.
        seed: Seed of the weights, the order of the examples, the masks and the dropout.
        eval_steps: Steps between two evaluations. Default: a tenth of all steps.
        save_steps: Steps between two checkpoints.
        skip_corrupt: Skip broken records and count them.
        log_dir: Folder for TensorBoard logs.
        deterministic: Make training reproducible on a GPU too, slower; on a CPU it always is. This calls
            enable_determinism, which holds for the rest of the process.
        overwrite: Replace output, and the checkpoint of another run.

    Returns:
        the `BertPretrainer`, in float32.

    Raises:
        InputError: names the file or the argument.
        Stopped: Ctrl-C or SIGTERM; the state is saved.
    """
    options = Options.checked(pretrain, dict(locals()))
    make_trainer = trainer_kind(options)
    if deterministic:
        enable_determinism()
    folder = Output(options.output, overwrite)
    prepared = prepare(options, make_trainer)
    trainer = prepared.trainer
    checkpoints, is_written = folder.open(prepared.run, trainer.is_chief)
    if not is_written:
        total = sum(phase.steps for phase in prepared.phases)
        log = TrainingLog(total, "tokens", options.log_dir, peak())
        with _naming_errors(prepared.inputs, options.distribution_strategy, checkpoints.folder):
            progress = train_phases(trainer, prepared.phases, checkpoints, log, save_steps=options.save_steps,
                                    eval_steps=options.eval_steps or -(-total // 10))
        if trainer.is_chief:
            _write(options, prepared, progress, log.rate)
    if trainer.is_chief:
        checkpoints.remove()
    trainer.mean_over_processes(0.0)  # the other workers wait for the chief here
    return load_model(options.output)


@contextlib.contextmanager
def _naming_errors(inputs: Iterable[PretrainingInput], strategy: str, folder: str) -> Iterator[None]:
    """Turns TensorFlow's error for a broken example or a lost worker into an InputError."""
    try:
        with contextlib.ExitStack() as stack:
            for examples in inputs:
                stack.enter_context(examples.records.naming_errors())
            yield
    except tf.errors.InvalidArgumentError as error:
        reason = [line for line in error.message.splitlines() if line.strip() and "[[" not in line][-1]
        raise InputError(Option("train"), ": an example does not match the other examples or the vocabulary: ",
                         re.sub(r".*(}}|<unknown>,) ", "", reason)) from None
    except tf.errors.OpError as error:
        if strategy != "multiworker":
            raise
        raise InputError(f"another worker was lost ({type(error).__name__}); run the same command on all workers again "
                         f"to resume from the checkpoint in {folder}") from None


def _write(options: Options, prepared: Prepared, progress: Progress, tokens_per_second: float) -> None:
    """Writes the folder of the trained model, with `metrics.json` and a picture of the training curve."""
    model, phase = prepared.trainer.model, prepared.phases[-1]
    metrics = {"history": progress.history, **prepared.run, "tokens_per_second": round(tokens_per_second),
               "corrupt_records": sum(examples.records.corrupt for examples in prepared.inputs), "versions": VERSIONS}
    if phase.make_valid_dataset:
        scores = {name.removeprefix("valid_"): values[-1] for name, values in progress.history.items()
                  if name.startswith("valid_") and name != "valid_step"}
        trained = phase.make_dataset().take(min(phase.steps, -(-_COUNTED // phase.batch_size)))
        held_out = phase.make_valid_dataset().take(phase.valid_steps)
        guesses = baselines(trained.as_numpy_iterator(), held_out.as_numpy_iterator(),
                            model.bert.config.vocab_size, model.next_sentence is not None)
        metrics = {"valid": scores, "baselines": guesses} | metrics
    with atomic_folder(options.output, options.overwrite) as new:
        native.write(Weights.of(model, prepared.tokenizer), new)
        write_metrics(new, metrics, pictures.PRETRAINING)


def baselines(trained: _Batches, held_out: _Batches, vocab_size: int, next_sentence: bool) -> dict[str, float]:
    """Returns the scores on held-out examples of guesses by the counts of the training examples: `majority` always
    guesses the most frequent token or label; `unigram` guesses each token as often as it occurs, plus once."""
    (known, known_labels), (found, labels) = (
        _counts(batches, vocab_size, next_sentence) for batches in (trained, held_out))
    guessed, found = (known + 1) / (known + 1).sum(), found / max(found.sum(), 1)
    guesses = {"mlm_majority_accuracy": found[known.argmax()], "mlm_unigram_accuracy": found @ guessed,
               "mlm_unigram_loss": -(found @ np.log(guessed))}
    if next_sentence:
        guesses["next_sentence_majority_accuracy"] = labels[known_labels.argmax()] / labels.sum()
    return {name: float(value) for name, value in guesses.items()}


def _counts(batches: _Batches, vocab_size: int, next_sentence: bool) -> tuple[np.ndarray, np.ndarray]:
    """Counts each masked token, int [vocabulary], and the labels 0 and 1, float [2]."""
    tokens, labels = np.zeros(vocab_size, int), np.zeros(2)
    for batch in batches:
        tokens += np.bincount(batch["masked_lm_ids"][batch["masked_lm_weights"] > 0], minlength=vocab_size)
        if next_sentence:
            labels += np.bincount(batch["next_sentence_labels"], batch.get("example_weights"), minlength=2)
    return tokens, labels
