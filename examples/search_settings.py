"""A search for the best settings with Optuna (Akiba et al., 2019): the learning rate, the batch size and the dropout.

    pip install -e ".[report,tasks,tune]"
    python examples/search_settings.py --train=train.tsv --valid=valid.tsv --output=search --trials=20

Each trial fine-tunes a model in OUTPUT. After each epoch, a trial is given up if its score is below the median of the
trials before it. After an interruption, run the same command again, one process at a time: it continues the trial and
the search. The scores are those of the validation file, so score the best model on other texts.
"""

import argparse
import json
import pathlib
import shutil

from keras_bert import startup

startup.quiet_tensorflow()

import keras
import optuna

import keras_bert


class Report(keras.callbacks.Callback):
    """Tells Optuna the score of each epoch, and ends a trial that Optuna gives up."""

    def __init__(self, trial):
        super().__init__()
        self.trial = trial

    def on_epoch_end(self, epoch, logs=None):
        score, = (value for name, value in logs.items() if name.startswith("val_") and name != "val_loss")
        self.trial.report(score, epoch)
        if self.trial.should_prune():
            raise optuna.TrialPruned


def main(train, valid, encoder, task, epochs, trials, output, **columns):
    if output.is_file():
        raise keras_bert.InputError(f"{output}: must be a folder; it is a file")
    output.mkdir(parents=True, exist_ok=True)

    def run(trial):
        settings = {"learning_rate": trial.suggest_float("learning_rate", 2e-5, 1e-3, log=True),
                    "batch_size": trial.suggest_categorical("batch_size", [16, 32]),
                    "dropout": trial.suggest_float("dropout", 0.0, 0.2, step=0.1)}
        folder = output / "-".join(f"{value:.3g}" for value in settings.values())
        trial.set_user_attr("folder", str(folder))
        if folder.exists():
            shutil.rmtree(f"{folder}.checkpoints", ignore_errors=True)  # of a trial that was killed as it ended
        else:
            try:
                keras_bert.finetune(train, valid, model=encoder, output=folder, task=task, epochs=epochs,
                                    callbacks=[Report(trial)], **columns, **settings)
            except optuna.TrialPruned:
                shutil.rmtree(f"{folder}.checkpoints")
                raise
        metrics = json.loads((folder / "metrics.json").read_text())
        return metrics[metrics["main"]]

    study = optuna.create_study(storage=f"sqlite:///{output}/study.db", study_name="settings", direction="maximize",
                                load_if_exists=True)
    given = {"train": train, "valid": valid, "encoder": encoder, "task": task, "epochs": epochs} | columns
    if (before := study.user_attrs.get("given", given)) != given and [*output.glob("*-*-*")]:  # models, or checkpoints
        raise keras_bert.InputError(f"{output}: holds a search with {before}; now {given}; pass another --output")
    study.set_user_attr("given", given)
    states = optuna.trial.TrialState
    waiting = [trial.system_attrs["fixed_params"] for trial in study.get_trials(states=[states.WAITING])]
    for trial in study.get_trials(states=[states.RUNNING, states.FAIL]):
        if is_killed := trial.state == states.RUNNING:
            study.tell(trial.number, state=states.FAIL)
        is_stopped = pathlib.Path(f"{trial.user_attrs.get('folder')}.checkpoints").exists()
        if (is_killed or is_stopped) and trial.params not in waiting:
            study.enqueue_trial(trial.params)
            waiting.append(trial.params)
    done = states.COMPLETE, states.PRUNED
    study.optimize(run, trials - len(study.get_trials(states=done)))
    for trial in sorted(study.get_trials(states=done[:1]), key=lambda trial: -trial.value):
        print(f"{trial.value:.4f}  {trial.user_attrs['folder']}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for flag in ("--train", "--valid"):
        parser.add_argument(flag, required=True)
    parser.add_argument("--output", required=True, type=pathlib.Path)
    parser.add_argument("--encoder", default="minilm")
    parser.add_argument("--task", default="intent")
    parser.add_argument("--epochs", default=4, type=int)
    parser.add_argument("--trials", default=20, type=int)
    for flag in ("--text_column", "--label_column"):
        parser.add_argument(flag, default=flag[2:].removesuffix("_column"))
    optuna.logging.set_verbosity(optuna.logging.ERROR)  # it would print a traceback for an error of the first trial
    try:
        main(**vars(parser.parse_args()))
    except keras_bert.InputError as error:
        parser.exit(1, f"{parser.prog}: {error}\n")
    except KeyboardInterrupt as error:
        parser.exit(130, f"{parser.prog}: {error}\n")
