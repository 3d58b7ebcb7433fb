"""Compares the scores and answers of fine-tuned models on LiteRT, in float32 and int8, and in a SavedModel, with those
on Keras.

    python benchmarks/litert_scores.py [--tasks=clinc-hwu-176,sst2,… --model=minilm --seed=0 --download]

Fine-tunes each model with the settings of `task_scores.py`, which also says where the data come from, and scores it on
the validation data. A loss is in percentage points. The seconds are those of all outputs; on Keras, they include the
tracing of the graphs. The milliseconds are those of one text alone, the megabytes those of the folder. `korsts-embed`
is Korean, which MiniLM does not know: its score is low. Takes forty minutes on two cores.
"""

import pathlib
import statistics
import tempfile

import ruler
from first_answer import timed
from peer_models import load_lite
from task_scores import RUNS, files_of

from keras_bert.inference.saved_model import Exported
from keras_bert.inference.task_model import Comparison, equal_answers
from keras_bert.training import finetune

ALONE = 100  # examples that are timed
TASKS = ["clinc-hwu-176", "sst2", "wnut17", "codah", "xquad", "korsts-embed"]


def measure(name, model, seed, download):
    """Fine-tunes a model and prints its table; returns the rows."""
    run = RUNS[name]
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        train, valid = files_of(run, folder, download)
        print(f"training on {train}", flush=True)
        tuned = finetune(train, valid, model=model, output=folder / "keras", task=run.task,
                         data_format=run.data_format, epochs=run.epochs, batch_size=run.batch_size,
                         learning_rate=run.learning_rate, seed=seed)
        encoded = tuned.encode(valid, data_format=run.data_format)
        models = {"keras": tuned} | {
            name: load_lite(tuned.model, tuned.tokenizer, folder / name, tuned.task, name.removeprefix("litert-"))
            for name in ("litert-float32", "litert-int8")}
        timings = {library: timed(answering.outputs, encoded) for library, answering in models.items()}
        tuned.export(folder / "saved_model")
        exported = Exported(str(folder / "saved_model"))
        seconds, (answers, _) = timed(exported.answer_with_cuts, encoded.examples)
        costs = {library: {"milliseconds": milliseconds(answering, encoded.examples[:ALONE]),
                           "megabytes": sum(path.stat().st_size for path in (folder / library).rglob("*.*")) / 1e6}
                 for library, answering in (models | {"saved_model": exported}).items()}
    _, original = timings["keras"]
    rows = [{"library": library} | compared(tuned.task, encoded, original, outputs) | {"seconds": seconds}
            for library, (seconds, outputs) in timings.items()]
    equal = equal_answers(tuned.task.answers(encoded, original), answers)
    rows.append(rows[0] | {"library": "saved_model", "score": None, "points_lost": None, "equal": equal,
                           "seconds": seconds})
    rows = [row | costs[row["library"]] for row in rows]
    ruler.print_table(f"{name}: {tuned.task.main_score(encoded.examples)}", rows)
    return [{"task": name} | row for row in rows]


def milliseconds(answering, examples):
    """Returns the median time of an answer to one example, of a model that has answered others."""
    times = [timed(answering.answer_with_cuts, [example])[0] for example in [*examples, *examples]]
    return 1000 * statistics.median(times[len(examples):])


def compared(task, encoded, original, outputs):
    """Returns the score of some outputs, and what they lose against the original ones."""
    metric, both = task.main_score(encoded.examples), (original, outputs)
    scores = [task.score(encoded, some)[metric] for some in both]
    equal = equal_answers(*(task.answers(encoded, some) for some in both))
    found = Comparison(metric, *scores, len(encoded.examples), equal, task.percent)
    return {"score": found.exported, "points_lost": found.loss, "equal": equal, "examples": found.examples}


def main():
    given = ruler.parser(__doc__, tasks=TASKS, model="minilm", seed=0, download=False).parse_args()
    versions = ruler.describe("tensorflow", "keras", "ai-edge-litert")
    rows = [row for name in given.tasks for row in measure(name, given.model, given.seed, given.download)]
    ruler.finish("litert_scores", versions, given, rows)


if __name__ == "__main__":
    main()
