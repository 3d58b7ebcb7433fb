"""The loop of pretraining, which logs, evaluates, saves and resumes from the last checkpoint."""

import dataclasses
import itertools
import math
import time

from keras_bert.errors import Option
from keras_bert.pretraining.input import MakeDataset
from keras_bert.pretraining.objective import Trainer
from keras_bert.training.checkpoints import Checkpoints, Progress
from keras_bert.training.run import Run, TrainingLog, naming_full_memory, recorded_signals

MAX_POINTS = 200  # of the training curve
CHECK_SECONDS = 2.0  # between two checks for signals


@dataclasses.dataclass(frozen=True)
class Phase:
    """A phase of pretraining: some of the steps, with their own `PretrainingInput.batches`, whose first step is 0."""

    steps: int
    batch_size: int
    tokens: int  # per step, padding included
    operations: float  # floating point operations per step
    make_dataset: MakeDataset
    make_valid_dataset: MakeDataset | None = None
    valid_steps: int = 0  # number of held-out batches to score


@naming_full_memory("try ", Option("gradient_checkpointing=True"), ", more ", Option("gradient_accumulation_steps=…"),
                    " or a smaller ", Option("batch_size=…"))
def train_phases(trainer: Trainer, phases: list[Phase], checkpoints: Checkpoints, log: TrainingLog, *,
                 save_steps: int, eval_steps: int) -> Progress:
    """Trains from the last checkpoint to the end. Also evaluates at the end of each phase; after each evaluation, the
    chief writes a checkpoint, which all processes read.

    Returns:
        The history has one value of `step`, `loss` and so on per point of the training curve, and one of `valid_step`,
        `valid_loss` and so on per evaluation.

    Raises:
        InputError: the loss is not finite, or a checkpoint cannot be written.
        Stopped: a signal was received; everything is saved.
    """
    trainer.mean_over_processes(0.0)  # waits until the chief has created the folder
    ends = list(itertools.accumulate(phase.steps for phase in phases))
    point_steps = -(-ends[-1] // MAX_POINTS)
    run = Run(trainer, checkpoints, ends[-1], save_steps)
    progress = run.progress
    with recorded_signals(run.signals):
        for phase, end in zip(phases, ends):
            if progress.step >= end:
                continue
            trainer.feed(phase.make_dataset, progress.step - (end - phase.steps))
            seconds = math.inf  # per step; infinite, so that the first call runs one step: it also builds the graph
            while progress.step < end:
                due = [(progress.step // every + 1) * every for every in (point_steps, eval_steps)]
                pause = min(*due, run.saved + save_steps, end)
                steps = max(1, min(pause - progress.step, int(CHECK_SECONDS / seconds)))
                started = time.monotonic()
                trainer.train(steps)
                progress.step += steps
                is_first = seconds == math.inf
                seconds = trainer.mean_over_processes((time.monotonic() - started) / steps)
                stop = trainer.mean_over_processes(bool(run.signals)) > 0
                scores = trainer.scores()
                run.check_loss(scores["loss"])
                if not is_first:
                    log.count(steps, steps * seconds, steps * phase.tokens, steps * phase.operations)
                    log.show(progress.step, f"step {progress.step}/{ends[-1]}", scores)
                if progress.step % point_steps == 0 or progress.step == end:
                    progress.add({"step": progress.step} | scores)
                    log.write(progress.step, "train", scores)
                    trainer.reset()
                is_due = progress.step % eval_steps == 0 or progress.step == end
                if evaluates := phase.make_valid_dataset is not None and is_due:
                    scores = trainer.evaluate(phase.make_valid_dataset, phase.valid_steps)
                    progress.add({f"valid_{name}": value for name, value in ({"step": progress.step} | scores).items()})
                    log.show(progress.step, f"held out, step {progress.step}/{ends[-1]}", scores, stays=True)
                    log.write(progress.step, "valid", scores)
                run.checkpoint(stop, now=evaluates)
    return progress
