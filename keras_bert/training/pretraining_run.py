"""The training loop of pretraining: runs the phases, logs, writes checkpoints and resumes from them."""

import dataclasses
import itertools
import math
import signal
import time

from keras_bert.errors import InputError, Stopped
from keras_bert.training.checkpoints import ADVICE
from keras_bert.training.loop import recorded_signals

POINTS = 200  # maximum number of points of the training curve
PACE = 2.0  # seconds between two checks for signals


@dataclasses.dataclass(frozen=True)
class Phase:
    """A phase of pretraining: some of the steps, with their own batches.

    Args:
        steps: number of steps.
        batch_size: examples per step.
        seq_length: tokens per example.
        batches: function of a step, a shard and the number of shards that returns a dataset, see
            `PretrainingInput.batches`. Steps are counted from the start of the phase.
        valid: the same function for held-out examples, or None.
        valid_steps: number of held-out batches to score.
    """

    steps: int
    batch_size: int
    seq_length: int
    batches: object
    valid: object = None
    valid_steps: int = 0


def run(trainer, phases, checkpoints, log, *, save_steps, eval_steps):
    """Trains from the last checkpoint to the end.

    Args:
        trainer: a `PretrainingTrainer`, or a `JaxTrainer` on JAX.
        phases: list of `Phase`.
        checkpoints: `Checkpoints` of this run; the chief writes them, all processes read them.
        log: a `PretrainingLog`.
        save_steps: steps between two checkpoints; there is also one after each evaluation.
        eval_steps: steps between two evaluations; there is also one at the end of each phase.

    Returns:
        the `Progress`. Its history has one value of `step`, `loss` and so on per point of the training curve, and one
        value of `valid_step`, `valid_loss` and so on per evaluation.

    Raises:
        InputError: the loss is not finite, or a checkpoint cannot be written.
        Stopped: a signal was received; everything is saved.
    """
    trainer.shared(0.0)  # waits until the chief has created the folder
    progress = checkpoints.restore_last(trainer)
    log.begin(progress)
    saved = progress.step
    ends = list(itertools.accumulate(phase.steps for phase in phases))
    point = -(-ends[-1] // POINTS)

    def save():
        nonlocal saved
        if trainer.is_chief:
            checkpoints.save_last(trainer, progress)
        saved = progress.step

    with recorded_signals() as received:
        for phase, end in zip(phases, ends):
            if progress.step >= end:
                continue
            trainer.feed(phase.batches, progress.step - (end - phase.steps))
            seconds = math.inf  # per step; infinite, so that the first call runs one step: it also builds the graph
            while progress.step < end:
                goals = (_next(progress.step, point), _next(progress.step, eval_steps), saved + save_steps, end)
                steps = max(1, min(min(goals) - progress.step, int(PACE / seconds)))
                started = time.monotonic()
                trainer.train(steps)
                progress.step += steps
                first, seconds = seconds == math.inf, trainer.shared((time.monotonic() - started) / steps)
                stop = trainer.shared(bool(received)) > 0
                scores = trainer.scores()
                if not math.isfinite(scores["loss"]):
                    raise InputError(f"the loss must be a finite number; at step {progress.step} it is "
                                     f"{scores['loss']}; the last checkpoint is of step {saved}; {ADVICE}")
                if not first:
                    log.stepped(scores, steps, seconds, phase)
                if progress.step % point == 0 or progress.step == end:
                    progress.add({"step": progress.step} | scores)
                    log.point("train", scores)
                    trainer.reset()
                if phase.valid and (progress.step % eval_steps == 0 or progress.step == end):
                    scores = trainer.evaluate(phase.valid, phase.valid_steps)
                    progress.add({f"valid_{name}": value for name, value in ({"step": progress.step} | scores).items()})
                    log.point("valid", scores)
                    save()
                elif stop or progress.step - saved >= save_steps:
                    save()
                if stop:
                    raise Stopped(received[0] if received else signal.SIGTERM, f"stopped at step {progress.step}, all "
                                  "is saved; the same command goes on from there")
    return progress


def _next(step, every):
    return (step // every + 1) * every
