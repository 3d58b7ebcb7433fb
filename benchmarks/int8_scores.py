"""Compares the scores and answers of fine-tuned models in float32 with those in int8 and in bfloat16.

    python benchmarks/int8_scores.py [--tasks=clinc-hwu-176,sst2,wnut17,xquad,korsts-embed --model=minilm --seed=0]

Fine-tunes each model with the settings of `task_scores.py`, which also says where the data come from. A loss is in
percentage points. `korsts-embed` is Korean, which MiniLM does not know: its score is low. Takes half an hour on two
cores.
"""

import dataclasses
import pathlib
import tempfile

import ruler
from task_scores import RUNS, files_of

from keras_bert.inference.fine_tuned import equal_answers
from keras_bert.training import FineTuned, finetune

TASKS = ["clinc-hwu-176", "sst2", "wnut17", "xquad", "korsts-embed"]


def measure(name, model, seed):
    """Fine-tunes a model; returns a row of the result."""
    run = RUNS[name]
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        train, valid = files_of(run, folder)
        print(f"training on {train}", flush=True)
        finetune(train, valid, model=model, output=folder / "model", task=run.task, data_format=run.data_format,
                 epochs=run.epochs, batch_size=run.batch_size, learning_rate=run.learning_rate, seed=seed)
        tuned = FineTuned.load(folder / "model")
        found = tuned.compare_int8(valid, data_format=run.data_format)
        score, equal = compare_bfloat16(tuned, tuned.encode(valid, data_format=run.data_format), found.metric)
    print(f"{name}: {found}; {found.loss:.2f} points lost; {score:.4f} in bfloat16, "
          f"{'-' if equal is None else f'{equal:.2%}'} of the answers are equal", flush=True)
    return {"task": name} | dataclasses.asdict(found) | {
        "points_lost": found.loss, "bfloat16": score, "equal_bfloat16": equal}


def compare_bfloat16(tuned, encoded, metric):
    """Returns a model's score in bfloat16, and the fraction of answers that are the same as in float32."""
    half = dataclasses.replace(tuned, model=tuned.model.rebuild(dtype="bfloat16"))
    outputs = [one.outputs(encoded) for one in (tuned, half)]
    equal = equal_answers(*(tuned.task.answers(encoded, some) for some in outputs))
    return tuned.task.score(encoded, outputs[1])[metric], equal


def main():
    given = ruler.parser(__doc__, tasks=TASKS, model="minilm", seed=0).parse_args()
    versions = ruler.describe("tensorflow", "keras")
    ruler.finish("int8_scores", versions, given, [measure(name, given.model, given.seed) for name in given.tasks])


if __name__ == "__main__":
    main()
