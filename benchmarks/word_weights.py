"""Do word weights find the words that decide, and what do they cost?

    python benchmarks/word_weights.py --models=FOLDER [--tasks=intent176,nsmc --texts=200 --download]

`--models` is the folder that `error_bounds.py` wrote. The program prints three tables:

Planted words: a model learns texts in which one inserted word decides the label. The share of other such texts in which
the word with the largest weight is that word.

Deletion curves: the words of a text are left out, those with the largest weights first. The number is the mean
probability of the answer over the curve: the lower, the sooner the words that decide were found. `attention` is that of
[CLS] in the last block, the mean over its heads; `integrated gradients` (Sundararajan et al., 2017) are those of the
embeddings, in 32 steps from a text of [PAD]; both are added up over the tokens of a word. Texts have at least four
words.

Time: a text of 16 words in the signatures `word_weights` and `serving_default` of a SavedModel; `ratio` is the number
of calls of the latter that take as long.
"""

import dataclasses
import pathlib
import random
import tempfile
import time
from unittest import mock

import numpy as np
import ruler
import tensorflow as tf
from error_bounds import texts_of

from keras_bert import FineTuned
from keras_bert.inference.saved_model import SavedModel
from keras_bert.tasks.word_weights import find_words
from keras_bert.text.offsets import tokens_with_offsets
from keras_bert.training import finetune

PLANTED = ["purple", "wooden", "seven", "quietly", "river", "candle", "northern", "velvet"]
STEPS = 32
WORDS = "wake me up at seven in the morning and then play some music for my dog"


def insert(words, count, rng):
    """Returns texts with one of the planted words at a random place, and this word as the label."""
    rows = []
    for text in words[:count]:
        parts, label = text.split(), rng.choice(PLANTED)
        parts.insert(rng.randrange(len(parts) + 1), label)
        rows.append((" ".join(parts), label))
    return rows


def find_planted(texts, count):
    """Returns the share of texts in which the planted word has the largest weight."""
    rng = random.Random(0)
    texts = [text for text in texts if not {*PLANTED} & {*text.split()}]
    rng.shuffle(texts)
    rows = insert(texts, 2000 + count, rng)
    with tempfile.TemporaryDirectory() as folder:
        tuned = finetune(rows[count:], model="minilm", output=pathlib.Path(folder, "model"), task="classify", epochs=2,
                         learning_rate=2e-4)
    found = tuned.word_weights([text for text, _ in rows[:count]])
    best = [max(weights, key=lambda weight: weight.weight).word for weights in found]
    return {"library": "word_weights", "texts": count, "found": float(np.mean([
        word == label for word, (_, label) in zip(best, rows)]))}


def occlusion(tuned, text, label):
    """Returns a weight for each word of a text, for the label of this number."""
    found, = tuned.word_weights([text], label=tuned.task.labels[label])
    return [weight.weight for weight in found]


def attention(tuned, text, label):
    output = tuned.model.bert.encode(inputs_of(tuned, text), return_attention=True)
    return by_word(tuned, text, np.array(output.attention_probabilities[-1])[0].mean(0)[0])


def integrated_gradients(tuned, text, label):
    inputs = {name: tf.repeat(part, STEPS, axis=0) for name, part in inputs_of(tuned, text).items()}
    bert, embeddings = tuned.model.bert, tuned.model.bert.embeddings
    ids, tokenizer = inputs["input_word_ids"], tuned.tokenizer
    is_special = (ids == tokenizer.cls_id) | (ids == tokenizer.sep_id)
    base = {**inputs, "input_word_ids": tf.where(is_special, ids, tokenizer.pad_id)}
    start, end = (bert.encode(part).embedding_output for part in (base, inputs))
    shares = (tf.range(STEPS, dtype=tf.float32) + 0.5)[:, None, None] / STEPS
    with tf.GradientTape() as tape:
        points = start + shares * (end - start)
        tape.watch(points)
        with mock.patch.object(embeddings, "call", lambda *_, **__: points):
            score = tf.reduce_sum(tf.nn.softmax(tuned.model(inputs))[:, label])
    gradients = tf.reduce_mean(tape.gradient(score, points), axis=0)
    return by_word(tuned, text, tf.reduce_sum(gradients * (end - start)[0], axis=-1).numpy())


def at_random(tuned, text, label):
    return np.random.default_rng(0).random(len(find_words(text)))


METHODS = {"word_weights": occlusion, "attention": attention, "integrated gradients": integrated_gradients,
           "at random": at_random}


def inputs_of(tuned, text):
    return {name: tf.constant(part) for name, part in tuned.tokenizer([text], max_length=tuned.task.max_length).items()}


def by_word(tuned, text, of_tokens):
    """Returns the sum over the tokens of each word; `of_tokens` begin with [CLS]."""
    tokens, = tokens_with_offsets([text], tuned.tokenizer)
    return [sum(value for start, value in zip(tokens.starts, of_tokens[1:]) if begin <= start < end)
            for begin, end in find_words(text)]


def left_out(text, words):
    """Returns the text without some of its words, (start, end)."""
    for start, end in sorted(words, reverse=True):
        text = text[:start] + text[end:]
    return text


def delete(tuned, texts):
    """Returns a row for each method."""
    tuned = dataclasses.replace(tuned, model=tuned.model.rebuild(layout="padded"))  # for the embeddings' gradients
    answers = tuned.predict(texts)
    curves = {name: [] for name in METHODS}
    for text, answer in zip(texts, answers):
        label, words = tuned.task.labels.index(answer.label), find_words(text)
        for name, weigh in METHODS.items():
            order = [words[index] for index in np.argsort(-np.array(weigh(tuned, text, label)), kind="stable")]
            variants = [left_out(text, order[:count]) for count in range(len(words) + 1)]
            curve = [dict(zip(found.labels, found.scores))[answer.label]
                     for found in tuned.predict(variants, top_k=len(tuned.task.labels))]
            curves[name].append(np.interp(np.linspace(0, len(words), 21), range(len(curve)), curve).mean())
    first = np.array(curves["word_weights"])
    return [{"library": name, "probability": float(np.mean(found)),
             "better": float(np.mean(first < found)) if name != "word_weights" else None}
            for name, found in curves.items()]


def measure(folder):
    """Returns the milliseconds of the two signatures, and their ratio."""
    model, inputs = SavedModel(folder, 0), {"text": np.array([WORDS.encode()], object)}
    seconds = {name: [] for name in ("word_weights", "serving_default")}
    for _ in range(40):
        for name, some in seconds.items():
            started = time.perf_counter()
            model.run(name, [inputs])
            some.append(time.perf_counter() - started)
    medians = {name: float(np.median(some[5:])) for name, some in seconds.items()}
    return [{"library": name, "milliseconds": 1000 * value, "ratio": value / medians["serving_default"]}
            for name, value in medians.items()]


def main():
    given = ruler.parser(__doc__, models=str, tasks=["intent176", "nsmc"], texts=200, download=False).parse_args()
    versions, rows = ruler.describe("tensorflow"), []
    for task in given.tasks:
        folder = pathlib.Path(given.models, task)
        tuned = FineTuned.load(folder / "keras")
        _, test = texts_of(task, folder, given.download)
        texts = [example.text for example in tuned.task.read(str(test)) if len(find_words(example.text)) >= 4]
        random.Random(0).shuffle(texts)
        with tempfile.TemporaryDirectory() as exported:
            tuned.export(pathlib.Path(exported, "model"))
            found = measure(str(pathlib.Path(exported, "model")))
        ruler.print_table(f"{task}: a text of {len(WORDS.split())} words", found)
        rows += [{"task": task} | row for row in found]
        found = delete(tuned, texts[:given.texts])
        ruler.print_table(f"{task}: deletion of {given.texts} texts' words; better: texts with a larger mean", found)
        rows += [{"task": task} | row for row in found]
        if task == "intent176":
            found = [find_planted(texts, given.texts)]
            ruler.print_table("planted words", found)
            rows += found
    ruler.finish("word_weights", versions, given, rows)


if __name__ == "__main__":
    main()
