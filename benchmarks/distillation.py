"""What does a student with fewer blocks lose, and what does it save?

    python benchmarks/distillation.py --work=FOLDER [--task=clinc-hwu-176 --model=minilm --layers=3 --epochs=6
        --seeds=0,1,2 --unlabelled=6000 --download]

For each seed, a teacher is fine-tuned with the settings of `task_scores.py`, which also says where the data come from.
A student with `--layers` of its blocks learns from it (`finetune(teacher=…)`); another begins with the same blocks of
the pretrained encoder, and learns from the labels alone, for as many epochs. All are exported to LiteRT, the students
with the tokens of these texts alone (`export litert --keep_tokens_of`), and answer the validation file. `--unlabelled`
is the number of texts without labels: for `clinc-hwu-176` of BANKING77 and SNIPS, otherwise of 3i4k. In `--work`,
folders that exist already are used again.

The times are those of one text: the median in a loop, and after pauses of 0.2 s. ONNX Runtime runs the teacher of the
first seed with the fast tokenizer of transformers; its score is that of a dense layer on the outputs of its encoder.
"""

import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np
import ruler
from real_texts import find
from task_scores import RUNS, files_of, read_3i4k, read_banking77

from keras_bert import FineTuned, LiteModel, find_pretrained
from keras_bert.arguments import as_flags, not_none
from keras_bert.convert import convert, open_source
from keras_bert.tasks import TASKS
from keras_bert.training import finetune
from keras_bert.weights import native

PAUSE, LOOP, PAUSES = 0.2, 100, 25
RATE = 4e-4  # of the students


def trained(path, **arguments):
    """Returns the folder of a model, which is trained if there is none."""
    if not path.exists():
        finetune(output=path, **arguments)
    return path


def shallow(model, layers, path):
    """Returns a folder with some blocks of a pretrained encoder, as a student begins."""
    if not path.exists():
        path.mkdir()
        native.write(open_source(model).load("encoder")[0].with_blocks(layers), path)
    return path


def unlabelled(task, count, known):
    """Returns texts of other data that are not known."""
    if task == "clinc-hwu-176":
        snips = find("intent/snips/train/seq.in").read_text(encoding="utf-8").split("\n")
        texts = {*filter(None, snips), *(text for text, _ in read_banking77(find("intent/banking77/train.csv")))}
    else:
        texts = {text for text, _ in map(tuple, read_3i4k(find("intent/3i4k_ko/fci_train_val.txt")))}
    lines = {" ".join(text.split()) for text in texts}
    return random.Random(1).sample(sorted(lines - known), count)


def exported(folder, dtype, texts=None):
    """Returns the LiteRT folder of a model, with the tokens of a file of texts alone if there is one."""
    path = folder.with_name(f"{folder.name}-{dtype}{'-trimmed' * (texts is not None)}")
    if not path.exists():
        flags = as_flags({"model": folder, "output": path, "dtype": dtype} | not_none(keep_tokens_of=texts))
        subprocess.run([sys.executable, "-m", "keras_bert.cli", "export", "litert", *flags], check=True,
                       stdout=subprocess.DEVNULL)
    return path


def milliseconds(answer, texts):
    """Returns the median times of one text: in a loop, and after pauses. The first answers do not count."""
    medians = []
    for pause, count in ((0, LOOP), (0, LOOP), (PAUSE, PAUSES)):
        times = []
        for text in texts[:count]:
            time.sleep(pause)
            begin = time.perf_counter()
            answer(text)
            times.append(1000 * (time.perf_counter() - begin))
        medians.append(statistics.median(times))
    return medians[1:]


def row(name, folder, valid, texts):
    """Returns the row of a LiteRT folder."""
    lite = LiteModel.load(folder)
    loop, pause = milliseconds(lambda text: lite.predict([text]), texts)
    scores = lite.evaluate(valid)
    size = sum(path.stat().st_size for path in folder.iterdir()) / 1e6
    return {"library": name, "megabytes": size, "loop_milliseconds": loop, "pause_milliseconds": pause,
            "score": scores[lite.task.main_score([])]}


def onnx_row(teacher, valid, texts):
    """Returns the row of ONNX Runtime in int8 with a teacher's weights."""
    import onnxruntime
    import transformers
    from peer_models import write_onnx

    tuned = FineTuned.load(teacher)
    kernel, bias = (np.array(part) for part in tuned.model.classifier.get_weights())
    with tempfile.TemporaryDirectory() as work:
        convert(teacher, f"{work}/hf", "huggingface", no_check=True)
        write_onnx(f"{work}/hf", f"{work}/model.onnx", quantized=True)
        size = pathlib.Path(f"{work}/model.onnx").stat().st_size / 1e6
        tokenizer = transformers.AutoTokenizer.from_pretrained(f"{work}/hf")
        session = onnxruntime.InferenceSession(f"{work}/model.onnx", providers=["CPUExecutionProvider"])

        def answer(text):
            inputs = tokenizer([text], truncation=True, max_length=tuned.task.max_length, return_tensors="np")
            pooled, = session.run(None, {"ids": inputs["input_ids"].astype(np.int32),
                                         "mask": inputs["attention_mask"].astype(np.int32)})
            return int((pooled @ kernel + bias).argmax())

        loop, pause = milliseconds(answer, texts)
        examples = TASKS[tuned.task.name].read(valid)
        right = [tuned.task.labels[answer(example.text)] == example.label for example in examples]
    return {"library": "teacher, ONNX Runtime int8", "megabytes": size, "loop_milliseconds": loop,
            "pause_milliseconds": pause, "score": float(np.mean(right))}


def main():
    given = ruler.parser(__doc__, work=str, task="clinc-hwu-176", model="minilm", layers=3, epochs=6, seeds=[0, 1, 2],
                         unlabelled=0, download=False).parse_args()
    versions = ruler.describe("tensorflow", "keras", "ai-edge-litert", "onnxruntime", "transformers")
    run, work = RUNS[given.task], pathlib.Path(given.work)
    work.mkdir(exist_ok=True)
    train, valid = files_of(run, work, given.download)
    known, texts = ([example.text for example in TASKS[run.task].read(path)] for path in (train, valid))
    others = unlabelled(given.task, given.unlabelled, {*known, *texts}) if given.unlabelled else []
    used, more = work / "texts.txt", work / "unlabelled.txt"
    used.write_text("\n".join([*known, *others]), encoding="utf-8")
    more.write_text("\n".join(others), encoding="utf-8")
    common = dict(train=train, valid=valid, task=run.task, batch_size=run.batch_size)
    student = dict(epochs=given.epochs, learning_rate=RATE)
    encoder, rows = shallow(find_pretrained(given.model), given.layers, work / "encoder"), []
    for seed in given.seeds:
        teacher = trained(work / f"teacher-{seed}", model=given.model, seed=seed, epochs=run.epochs,
                          learning_rate=run.learning_rate, **common)
        folders = {"teacher": teacher,
                   "student": trained(work / f"student-{seed}", teacher=teacher, layers=given.layers, seed=seed,
                                      unlabelled=more if others else None, **common, **student),
                   "without a teacher": trained(work / f"alone-{seed}", model=encoder, seed=seed, **common, **student)}
        found = [row(f"{name}, {dtype}", exported(folder, dtype, None if name == "teacher" else used), valid, texts)
                 for name, folder in folders.items() for dtype in ("float32", "int8")]
        found += [onnx_row(teacher, valid, texts)] if seed == given.seeds[0] else []
        ruler.print_table(f"{given.task}, seed {seed}", found)
        rows += [{"seed": seed} | each for each in found]
    names = dict.fromkeys(each["library"] for each in rows)
    ruler.print_table("medians of the seeds, mean scores", [
        {"library": name} | {key: (statistics.mean if key == "score" else statistics.median)(
            [each[key] for each in rows if each["library"] == name]) for key in found[0] if key != "library"}
        for name in names])
    ruler.finish("distillation", versions, given, rows)


if __name__ == "__main__":
    main()
