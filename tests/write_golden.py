"""Writes the golden files of the installed version: one artifact of each kind, and the answers that it gave.

    python tests/write_golden.py tests/data/golden/0.1

The files of version 0.1 are from a checkout of commit 1117940 on PYTHONPATH, with keras_bert/export linked to export,
and TensorFlow 2.20. Those of version 0.2 are from commit db2150b and TensorFlow 2.21, with this file as it was there,
and with `intent_rules` and `write_converted`. Their threshold of spans is not the fitted one, which is the score of a
question that is asked. For a later version, adapt the calls below to its API, write a new folder, and leave those of
the earlier versions as they are.

    VERSION/versions.json          what wrote the folder
    VERSION/KIND/NAME.tar.xz       an artifact
    VERSION/KIND/NAME.json         its inputs and answers

All models are tiny: an encoder of two blocks of width 8, pretrained for a few steps, and heads fine-tuned on it. The
weights of the encoder start from a wide distribution, so that answers differ clearly. Frozen blocks and LoRA are not
covered separately: the files that they leave have the same names and shapes as those of a plain model.
"""

import contextlib
import dataclasses
import importlib.metadata
import json
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile

os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import golden_calls
import keras
import numpy as np

import keras_bert
from keras_bert.convert import convert, load_pretrained, open_source
from keras_bert.export import export_encoder, export_preprocessor, export_text_model, export_version
from keras_bert.files.json_files import write_json
from keras_bert.pretraining.examples import PretrainingSettings, make_pretraining_data
from keras_bert.tasks import TASKS
from keras_bert.text.unigram import UnigramTokenizer
from keras_bert.training import make_optimizer
from keras_bert.training.checkpoints import Checkpoints
from keras_bert.weights import native
from keras_bert.weights.format import Weights
from keras_bert.weights.kinds import KINDS

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(
    "the a i to my is it play some music song stop turn on off light lamp book flight table for two please now what "
    "time weather today seoul busan paris from who went where ##s ##ing , . ? 음악 틀 ##어 줘 불 꺼 ##줘 켜 오늘 날씨 "
    "서울 부산 ##에서 ##으로 가 ##는 표 예약 ##해 노래 들려 지금 몇 시 cafe über 音 楽").split()]
CONFIG = {"vocab_size": len(VOCABULARY), "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2,
          "intermediate_size": 16, "max_position_embeddings": 80, "initializer_range": 0.3, "hidden_dropout_prob": 0.02,
          "attention_probs_dropout_prob": 0.02}
DOCUMENTS = """\
play some music . stop the music . play it now please .
turn on the light . turn off the lamp . is the lamp on ? it is off .
음악 틀어 줘 . 노래 들려 줘 . 지금 몇 시 ?

book a flight from seoul to busan . i went to paris today . where is paris ?
서울에서 부산으로 가는 표 예약해줘 . 오늘 날씨 ? what is the weather today ?
book a table for two . what time is it now ?
"""
INTENTS = [("play some music", "music"), ("음악 틀어 줘", "music"), ("play a song please", "music"),
           ("노래 들려 줘", "music"), ("turn on the light", "light"), ("불 켜 줘", "light"),
           ("turn the lamp off", "light"), ("불 꺼줘", "light"), ("book a flight to paris", "travel"),
           ("서울에서 부산으로 가는 표 예약해줘", "travel"), ("book a table for two", "travel")]
OUT_OF_SCOPE = [("what time is it now ?", "other"), ("오늘 날씨", "other")]
PAIRS = [("play some music", "play a song", "same", 5.0), ("음악 틀어 줘", "노래 들려 줘", "same", 4.5),
         ("turn on the light", "turn the lamp on", "same", 4.0), ("불 켜 줘", "turn on the light", "same", 3.5),
         ("play some music", "turn off the lamp", "other", 1.0), ("오늘 날씨", "지금 몇 시", "other", 1.5),
         ("book a table", "stop the music", "other", 0.5), ("불 꺼줘", "서울에서 부산으로", "other", 0.0)]
TAGGED = ["book/O a/O flight/O from/O seoul/B-from to/O busan/B-to now/B-time", "i/O went/O to/O paris/B-to",
          "서울에서/B-from 부산으로/B-to 가는/O 표/O 예약해줘/O", "book/O a/O table/O two/O today/B-time please/O",
          "from/O paris/B-from to/O seoul/B-to today/B-time"]
CONTEXT = "i went to paris from seoul today . the flight to busan is now . "
QUESTIONS = [("who went to paris ?", CONTEXT, "i"), ("where is the flight to ?", CONTEXT, "busan"),
             ("어디에서 ?", "서울에서 부산으로 가는 표 . 오늘 날씨", "서울에서"), ("what time ?", CONTEXT, "now"),
             ("the music ?", CONTEXT, None), ("몇 시 ?", CONTEXT * 6 + "지금", "지금")]
CHOICES = [("turn on", ["the light", "the weather", "two ?"], 0), ("play some", ["paris", "music", "time"], 1),
           ("음악", ["표", "켜 줘", "틀어 줘"], 2), ("book a", ["table for two", "now", "song off"], 0)]

# What the artifacts are asked: normal, empty and long texts, other scripts, unknown characters. None is in valid.tsv:
# the threshold of the intents is the score of a text there, so that rounding would decide whether that one is in scope.
TEXTS = ["play the song please", "Turn ON the lamps, please?", "불을 꺼줘", "", "café Über 音楽 ☃",
         "book a flight to seoul " * 9]
SECOND_TEXTS = ["play a song", "불 켜 줘", "", "what?", "the weather", "to busan"]
TAGGED_TEXTS = ["i went from Seoul to Busan today.", "부산에서 서울으로 가는 표", "", "book a flight to paris, " * 6]
ASKED_QUESTIONS = [("who went to paris?", CONTEXT), ("the music?", CONTEXT), ("what?", ""),
                   ("몇 시?", CONTEXT * 6 + "지금")]
ASKED_CHOICES = [("turn off", ["the light", "my weather"]), ("음악", ["틀어 줘", "two"]), ("", ["", "play"])]
MASKED = ["play some [MASK] .", "[MASK] 꺼 [MASK] ."]
IDS = {
    "input_word_ids": [[2, 12, 13, 14, 3, 45, 46, 3], [2, 47, 50, 3, 0, 0, 0, 0]],
    "input_mask": [[1, 1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0, 0, 0]],
    "input_type_ids": [[0, 0, 0, 0, 0, 1, 1, 1], [0, 0, 0, 0, 0, 0, 0, 0]],
}
SEGMENTS = dict(zip(("input_word_ids", "input_mask", "segment_ids"), IDS.values()))
FINETUNE = {"train": "train.tsv", "valid": "valid.tsv", "model": "pretrained", "batch_size": 4, "epochs": 6,
            "learning_rate": 0.02, "dropout": 0.0, "save_steps": 2, "seed": 1}
# The rules of another tokenizer, and the formats that a model is converted to. Some store only the encoder.
RULES = {"strip_accents": False, "tokenize_chinese_chars": False, "normalization": "none"}
FORMATS = "garden", "huggingface", "hub", "keras_bert", "kerashub", "tf1"
CONVERTED = {"cased": FORMATS, "intent_rules": FORMATS, "intent": ("huggingface", "keras_bert", "kerashub", "tf1"),
             "span": ("huggingface", "tf1"), **dict.fromkeys(("regress", "tag", "choice"), ("huggingface",))}
PRETRAIN = {"train": "examples", "valid": "examples", "config": "config.json", "batch_size": 4, "steps": 12,
            "learning_rate": 0.01, "eval_steps": 6, "save_steps": 4, "seed": 1}


class Writer:
    """Archives artifacts and records their answers.

    Args:
        folder: where to write.
    """

    def __init__(self, folder):
        self.folder = folder

    def add(self, name, paths, inputs, answers):
        """Writes an artifact.

        Args:
            name: KIND/NAME.
            paths: the files and folders that it consists of, relative to the current folder.
            inputs, answers: values that JSON can hold, or tensors.
        """
        path = self.folder / f"{name}.tar.xz"
        path.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(path, "w:xz", preset=9) as archive:
            for part in paths:
                archive.add(part, filter=_anonymous)
        write_json(self.folder / f"{name}.json", {"inputs": inputs, "answers": golden_calls.plain(answers)})

    def add_predictions(self, name, path, model, columns, top_k=3):
        """Writes a folder at `path` and what its model answers to columns of texts."""
        options = {"top_k": top_k} if model.task.supports_top_k else {}
        self.add(name, [path], {"path": path, "columns": columns, "options": options},
                 model.predict(*columns, **options))

    def add_saved_model(self, name, path, inputs, extra=()):
        """Writes a SavedModel and what it answers in a process with TensorFlow alone; `extra` as `paths` of `add`."""
        request = json.dumps({str(path): [name.split("/")[0], inputs, ()]})
        answers = subprocess.run([sys.executable, golden_calls.__file__], input=request, capture_output=True, text=True,
                                 check=True).stdout
        self.add(name, [path, *extra], {"path": str(path), **inputs}, json.loads(answers)[str(path)])


def _anonymous(entry):
    """The entry of an archive without times and owners; no pictures, which nothing reads back."""
    if entry.name.endswith(".png"):
        return None
    entry.mtime = entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


@contextlib.contextmanager
def killed_at(step):
    """Ends a run in the middle, once the checkpoint of a step is saved, as a kill would."""
    save_last = Checkpoints.save_last

    def save_and_die(self, model, progress):
        save_last(self, model, progress)
        if progress.step == step:
            raise KeyboardInterrupt

    Checkpoints.save_last = save_and_die
    try:
        with contextlib.suppress(KeyboardInterrupt):
            yield
    finally:
        Checkpoints.save_last = save_last


def write_data():
    """Writes the training files of unfinished runs into the current folder."""
    for name, rows in (("train", INTENTS), ("valid", INTENTS[::2] + OUT_OF_SCOPE)):
        lines = ["\t".join(row) for row in [("text", "label"), *rows]]
        pathlib.Path(f"{name}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    pathlib.Path("documents.txt").write_text(DOCUMENTS, encoding="utf-8")
    write_json("config.json", CONFIG)


def write_with_rules(folder, rules):
    """Copies the pretrained folder and changes rules of its tokenizer."""
    shutil.copytree("pretrained", folder)
    settings = json.loads(pathlib.Path(folder, "tokenizer_config.json").read_text())
    write_json(f"{folder}/tokenizer_config.json", settings | rules)


def write_unigram(folder):
    """Writes an encoder with a unigram model, of the words of `VOCABULARY` and of their characters."""
    words = ["\u2581" + word for word in VOCABULARY[5:] if not word.startswith("##")]
    letters = sorted({letter for word in VOCABULARY[5:] for letter in word.removeprefix("##")} | {"\u2581"})
    pieces = ["<s>", "<pad>", "</s>", "<unk>", *words, *letters, "<mask>"]
    scores = [0.0] * 4 + [-5 - number / 100 for number in range(len(words))] + [-12.0] * len(letters) + [0.0]
    tokenizer = UnigramTokenizer(pieces, scores, ["<pad>", "<unk>", "<s>", "</s>", "<mask>"])
    layer = keras_bert.BertLayer(CONFIG | {"vocab_size": len(pieces), "pad_token_id": 1})
    os.mkdir(folder)
    native.write(Weights.of(layer, tokenizer), folder)


def write_pretrained(writer):
    """An unfinished run of `pretrain`, and the folder that it writes when it is continued."""
    settings = PretrainingSettings(24, dupe_factor=4, masking="dynamic")
    make_pretraining_data(["documents.txt"], keras_bert.BertTokenizer(VOCABULARY), "examples", settings, shards=1,
                          processes=1)
    with killed_at(6):
        keras_bert.pretrain(output="pretrained", **PRETRAIN)
    shutil.copytree("pretrained.checkpoints", "run/pretrained.checkpoints")
    keras_bert.pretrain(output="pretrained", **PRETRAIN)
    model = keras_bert.BertPretrainer.from_pretrained("pretrained")
    guesses = keras_bert.fill_mask(model, keras_bert.BertTokenizer.from_folder("pretrained"), MASKED, 3)
    logits = model.predict_on_batch(_arrays(IDS))
    writer.add("pretrained/bert", ["pretrained"], {"path": "pretrained", "texts": MASKED, "ids": IDS},
               {"guesses": guesses, "logits": logits})
    history = json.loads(pathlib.Path("pretrained/metrics.json").read_text())["history"]
    shutil.move("run/pretrained.checkpoints", ".")
    writer.add("runs/pretrain", ["examples", "config.json", "pretrained.checkpoints"],
               {"arguments": PRETRAIN | {"output": "pretrained"}, "ids": IDS},
               {"logits": logits, "history": history})
    shutil.rmtree("pretrained.checkpoints")
    return model


def write_finetuned(writer):
    """An unfinished run of `finetune`, and a folder of each task.

    Returns:
        the `FineTuned` models, a dict by name; and what they were asked, the columns of texts, a dict by name.
    """
    def run(name, **arguments):
        return keras_bert.finetune(output=name, **FINETUNE | {"epochs": 20} | arguments)

    intent = {"out_of_scope_label": "other", "max_length": 32}
    unfinished = FINETUNE | intent | {"output": "unfinished"}
    with killed_at(8):
        keras_bert.finetune(**unfinished)
    shutil.copytree("unfinished.checkpoints", "run/unfinished.checkpoints")
    finished = keras_bert.finetune(**unfinished)
    history = json.loads(pathlib.Path("unfinished/metrics.json").read_text())["history"]
    shutil.move("run/unfinished.checkpoints", ".")
    writer.add("runs/finetune", ["train.tsv", "valid.tsv", "pretrained", "unfinished.checkpoints"],
               {"arguments": unfinished, "columns": [TEXTS], "options": {"top_k": 3}},
               {"predictions": finished.predict(TEXTS, top_k=3), "history": history})

    pairs, numbers = [TEXTS, SECOND_TEXTS], [(*row[:2], row[3]) for row in PAIRS]
    labels = [*((text, [label]) for text, label in INTENTS), *((text, []) for text, _ in OUT_OF_SCOPE),
              *((f"{text} . {other}", [label, second])
                for (text, label), (other, second) in zip(INTENTS, INTENTS[4:]))]
    tags = [tuple(zip(*(word.split("/") for word in sentence.split()))) for sentence in TAGGED]
    questions = [(question, context, {"text": [answer] if answer else [],
                                      "answer_start": [context.index(answer)] if answer else []})
                 for question, context, answer in QUESTIONS]
    choices = [{"prompt": prompt, "choices": options, "label": label} for prompt, options, label in CHOICES]
    # For each task: the data, what is asked, and options.
    runs = {
        "classify": ([row[:3] for row in PAIRS], pairs, {"max_length": 24}),
        "multilabel": (labels, [TEXTS], {"max_length": 24}),
        "regress": (numbers, pairs, {"max_length": 24}),
        "rerank": ([(*texts, number / 5) for *texts, number in numbers], pairs, {"max_length": 24}),
        "embed": (numbers, [TEXTS], {"max_length": 24, "query_prompt": "what is ", "document_prompt": "it is ",
                                     "dropout": None}),
        "tag": ([(list(words), list(tags)) for words, tags in tags], [TAGGED_TEXTS], {"max_length": 16}),
        "span": (questions, list(map(list, zip(*ASKED_QUESTIONS))),
                 {"max_length": 68, "doc_stride": 24, "dropout": None}),
        "joint": ([{"words": words, "tags": tags, "label": "travel" if "book" in words else "other"}
                   for words, tags in tags], [TAGGED_TEXTS], {"max_length": 16}),
        "choice": (choices, list(map(list, zip(*ASKED_CHOICES))), {"max_length": 16}),
    }
    models = {"intent": run("intent", **intent)} | {
        name: run(name, task=name, train=data, valid=data, **options) for name, (data, _, options) in runs.items()}
    asked = {name: columns for name, (_, columns, _) in runs.items()} | {
        "intent": [TEXTS], "intent_windows": [TEXTS], "intent_rules": pairs, "tag_features": [TAGGED_TEXTS]}
    assert set(models) == set(TASKS)
    write_with_rules("ruled", RULES)
    sides = [{"text": text, "text_pair": other, "label": '같음, "same"' if label == "same" else label}
             for text, other, label, _ in PAIRS]
    scope = sides + [{"text": "where is paris ?", "text_pair": "오늘 날씨", "label": "neither"},
                     {"text": "what time is it now ?", "text_pair": "i went to paris", "label": "neither"}]
    model = run("intent_rules", train=sides, valid=scope, model="ruled", max_length=20, dropout=0.3,
                text_pair_column="text_pair", out_of_scope_label="neither")
    # The fitted threshold is too near to a score.
    models["intent_rules"] = dataclasses.replace(model, task=dataclasses.replace(model.task, threshold=0.85))
    models["intent_rules"].save_settings("intent_rules")
    models["intent_windows"] = run("intent_windows", **intent | {"max_length": 12, "doc_stride": 4})
    write_unigram("unigram")
    models["intent_unigram"] = run("intent_unigram", model="unigram", **intent)
    calibrated = dataclasses.replace(models["intent"].task, temperature=1.7, threshold=0.6)
    models["intent_calibrated"] = dataclasses.replace(models["intent"], task=calibrated)
    os.mkdir("intent_calibrated")
    models["intent_calibrated"].save("intent_calibrated")
    asked |= {"intent_unigram": [TEXTS], "intent_calibrated": [TEXTS]}
    # `finetune` takes no `units`: its tagger on features has 4.8 million weights.
    tagger = models["tag"]
    features = keras_bert.models.BertFeatureTagger(
        keras_bert.BertLayer.from_pretrained("pretrained"), len(tagger.task.labels), "weighted-all", units=6)
    features = keras_bert.FineTuned(
        features, tagger.tokenizer, dataclasses.replace(tagger.task, features="weighted-all"))
    os.mkdir("tag_features")
    features.save("tag_features")
    for name, model in {**models, "tag_features": features}.items():
        writer.add_predictions(f"finetuned/{name}", name, model, asked[name])

    clear = TEXTS[:4]  # their labels differ by more than bfloat16 rounds
    mixed = run("intent_mixed_bfloat16", dtype="mixed_bfloat16", **intent)
    writer.add_predictions("finetuned/intent_mixed_bfloat16", "intent_mixed_bfloat16", mixed, [clear], top_k=1)
    return models, asked


def write_encoders(writer, pretrainer):
    """Encoder SavedModels, and a preprocessor."""
    tokenizer = keras_bert.BertTokenizer(VOCABULARY)
    factorized = keras_bert.BertLayer(CONFIG | {"embedding_size": 4, "pooler_activation": "gelu"})
    exports = {"plain": (pretrainer.bert, {}), "jit_compile": (pretrainer.bert, {"jit_compile": True}),
               "bfloat16": (pretrainer.bert, {"dtype": "bfloat16"}), "mlm": (pretrainer, {}),
               "factorized": (factorized, {})}
    for name, (model, options) in exports.items():
        export_encoder(model, f"encoder_{name}", tokenizer, **options)
        writer.add_saved_model(f"encoders/{name}", f"encoder_{name}", IDS | {"masked_lm_positions": [[1, 3], [2, 0]]})
    export_preprocessor(tokenizer, "preprocessor", max_length=16)
    writer.add_saved_model("preprocessors/preprocessor", "preprocessor", {"text": TEXTS, "text_pair": SECOND_TEXTS})


def write_text_models(writer, bert, models, asked):
    """Raw-text SavedModels of each task and of the encoder; that of intents as a serving folder."""
    names = {"tag": ["text"], "joint": ["text"], "span": ["question", "context"], "choice": ["prompt", "choices"]}
    for name, model in models.items():
        columns = asked[name]
        texts = dict(zip(names.get(model.task.name, ["text", "text_pair"]), columns))
        ids = {key: [rows] for key, rows in IDS.items()} if name == "choice" else IDS
        if name == "intent":
            path = os.path.relpath(
                export_version(model.model, model.tokenizer, "serving", task=model.task))
            extra = ["serving/models.config", "serving/batching_parameters.txt"]
        else:
            path, extra = f"text_{name}", []
            export_text_model(model.model, model.tokenizer, path, model.task)
        writer.add_saved_model(f"text_models/{name}", path, {"texts": texts, "ids": ids}, extra)
    export_text_model(bert, keras_bert.BertTokenizer(VOCABULARY), "text_embeddings", max_length=32)
    writer.add_saved_model("text_models/embeddings", "text_embeddings", {"texts": {"text": TEXTS}, "ids": IDS})
    embedder = keras_bert.BertEmbedder(bert, "mean", normalize=True)
    export_text_model(embedder, keras_bert.BertTokenizer(VOCABULARY), "text_embedder", max_length=32)
    writer.add_saved_model("text_models/embedder", "text_embedder", {"texts": {"text": TEXTS}, "ids": IDS})


def write_litert(writer, models, asked):
    """A LiteRT folder of each task."""
    for name, model in models.items():
        path = f"litert_{name}"
        model.export_litert(path)
        writer.add_predictions(f"litert/{name}", path, keras_bert.LiteModel.load(path), asked[name])


def write_converted(writer):
    """Folders that `convert` wrote: of models with most heads, of a cased one, and of one with other rules."""
    write_with_rules("cased", {"do_lower_case": False})
    for source, forms in CONVERTED.items():
        for form in forms:
            path = f"{source}_{form}"
            convert(source, path, form, allow_inexact=True)
            read = open_source(path)
            model = KINDS[read.kind].model
            inputs = SEGMENTS
            if model is keras_bert.BertPretrainer:
                inputs = inputs | {"masked_lm_positions": [[1, 3], [2, 0]]}
            elif model is keras_bert.BertMultipleChoice:
                inputs = {name: [rows] for name, rows in inputs.items()}
            asked = {"path": path, "texts": TEXTS, "model": model.__name__, "ids": inputs}
            answers = {"tokens": read.tokenizer(TEXTS, max_length=16)["input_word_ids"], "labels": read.labels,
                       "outputs": load_pretrained(read, model)(_arrays(inputs))}
            if os.path.exists(f"{path}/settings.json"):  # `predict` reads it too
                tuned = keras_bert.FineTuned.load(path)
                asked["columns"] = [TEXTS, SECOND_TEXTS][:len(tuned.task.inputs)]
                answers["predictions"] = tuned.predict(*asked["columns"])
            writer.add(f"converted/{path}", [path], asked, answers)


def write_keras_files(writer, bert):
    """`.keras` files: a functional model with a BertLayer, a head with its optimizer, a HubLayer."""
    inputs = [keras.Input((None,), dtype="int32", name=name) for name in IDS]
    pooled, sequence = keras_bert.BertLayer.from_config(bert.get_config())(inputs)
    functional = keras.Model(inputs, [keras.layers.Dense(3)(pooled), sequence])
    _copy_weights(bert, next(layer for layer in functional.layers if isinstance(layer, keras_bert.BertLayer)))
    functional.save("functional.keras")
    writer.add("keras_files/functional", ["functional.keras"], {"path": "functional.keras", "ids": IDS},
               {"outputs": functional.predict_on_batch(list(_arrays(IDS).values()))})

    undropped = keras_bert.BertLayer(
        dataclasses.replace(bert.config, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))
    _copy_weights(bert, undropped)
    head = keras_bert.BertClassifier(undropped, 3, dropout=0.0)
    head.compile(make_optimizer(head, 0.01, 10), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    labels = np.array([2, 1], np.int32)
    head.train_on_batch(_arrays(IDS), labels)
    head.save("head.keras")
    before = head.predict_on_batch(_arrays(IDS))
    loss = head.train_on_batch(_arrays(IDS), labels)
    writer.add("keras_files/head", ["head.keras"], {"path": "head.keras", "ids": IDS, "labels": labels.tolist()},
               {"outputs": before, "loss": loss, "outputs_after_a_step": head.predict_on_batch(_arrays(IDS))})

    inputs = [keras.Input((None,), dtype="int32", name=name) for name in IDS]
    layer = keras_bert.HubLayer("encoder_plain", trainable=True)
    layer.saved_model_path = "encoder_plain"  # the file would have the absolute path
    hub = keras.Model(inputs, layer(inputs))
    hub.save("hub_layer.keras")
    writer.add("keras_files/hub_layer", ["hub_layer.keras", "encoder_plain"], {"path": "hub_layer.keras", "ids": IDS},
               {"outputs": hub.predict_on_batch(list(_arrays(IDS).values()))})


def _copy_weights(source, target):
    for one, other in zip(source.weights, target.weights, strict=True):
        other.assign(one)


def _arrays(ids):
    return {name: np.array(rows, np.int32) for name, rows in ids.items()}


def write(folder):
    """Writes all golden files into a new folder."""
    writer = Writer(folder)
    keras.utils.set_random_seed(0)
    with tempfile.TemporaryDirectory() as workspace, contextlib.chdir(workspace):
        write_data()
        pretrainer = write_pretrained(writer)
        models, asked = write_finetuned(writer)
        write_encoders(writer, pretrainer)
        write_text_models(writer, pretrainer.bert, models, asked)
        write_litert(writer, models, asked)
        write_converted(writer)
        write_keras_files(writer, pretrainer.bert)
    packages = ("tensorflow", "keras", "numpy", "tokenizers", "safetensors")
    write_json(folder / "versions.json", {
        "keras_bert": keras_bert.__version__, "python": platform.python_version(), "machine": platform.machine(),
        **{name: importlib.metadata.version(name) for name in packages}})


if __name__ == "__main__":
    write(pathlib.Path(sys.argv[1]).absolute())
