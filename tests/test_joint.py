"""The task joint: reading, targets, loss and scores, against those of the two tasks that it joins and of seqeval."""

import dataclasses
import json
import re
import shutil

import numpy as np
import pytest
from seqeval.metrics import f1_score
from text_reference import TOKENIZER

from keras_bert import LiteModel
from keras_bert.data.tables import unread_columns
from keras_bert.errors import InputError
from keras_bert.export import export_litert, export_text_model
from keras_bert.inference.saved_model import SavedModel
from keras_bert.models import BertClassifier, BertJointClassifier, BertTokenClassifier
from keras_bert.tasks import TASKS, Classify, Joint, Tag, run_model
from keras_bert.text import BertTokenizer
from keras_bert.training import FineTuned, finetune
from keras_bert.training.held_out import hold_out
from keras_bert.training.options import Options
from keras_bert.training.prepare import prepare

import zoo
from conftest import TINY_VOCABULARY, change_json, options_of, randomize

ROWS = [(["play", "some", "music"], ["O", "O", "B-what"], "listen"),
        (["turn", "off", "the", "light"], ["B-act", "I-act", "O", "B-what"], "home"),
        (["stop"], ["O"], "listen"), (["what", "time"], ["O", "O"], "time")]
LABELS, TAGS = ["home", "listen", "time"], ["O", "B-act", "I-act", "B-what", "I-what"]


def as_text(words, tags, label):
    text, entities = " ".join(words), []
    starts = np.cumsum([0, *(len(word) + 1 for word in words)]).tolist()
    for start, word, tag in zip(starts, words, tags):
        if tag[0] == "I":
            entities[-1]["end"] = start + len(word)
        elif tag != "O":
            entities.append({"start": start, "end": start + len(word), "label": tag[2:]})
    return {"text": text, "label": label, "entities": entities}


def write_snips(folder):
    folder.mkdir()
    for name, lines in (("seq.in", [" ".join(words) for words, *_ in ROWS]), ("label", [label for *_, label in ROWS]),
                        ("seq.out", [" ".join(tags) for _, tags, _ in ROWS])):
        (folder / name).write_text("\n".join(lines) + "\n")
    return folder


def test_all_forms_are_read(tmp_path):
    (tmp_path / "a.conll").write_text("\n".join("\n".join([f"# intent: {label}", *map("\t".join, zip(words, tags)), ""])
                                                for words, tags, label in ROWS))
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(as_text(*row)) + "\n" for row in ROWS))
    (tmp_path / "b.jsonl").write_text("".join(json.dumps(dict(zip(("words", "tags", "label"), row))) + "\n"
                                              for row in ROWS))
    for data in (write_snips(tmp_path / "snips"), tmp_path / "a.conll", tmp_path / "b.jsonl", ROWS):
        path = Joint.open(data, "data")
        assert [(each.words, each.tags, each.label) for each in Joint.read(path)] == ROWS
        task = Joint.from_examples(path, Joint.read(path), max_length=16)
        assert (task.labels, task.tags, task.unit) == (LABELS, TAGS, "word")
    of_texts = Joint.read(tmp_path / "a.jsonl")
    assert [(each.text, each.label) for each in of_texts] == [(" ".join(words), label) for words, _, label in ROWS]
    assert Joint.from_examples("a", of_texts, max_length=16).unit == "character"
    unlabelled = Joint.read(tmp_path / "a.jsonl", label_column=None)
    assert [(each.text, each.label, each.tags) for each in unlabelled] == [
        (" ".join(words), None, None) for words, *_ in ROWS]
    with unread_columns() as unread:
        renamed = Joint.read(Joint.open([{"text": "a b", "intent": "x", "entities": [], "id": 1}], "a"),
                             label_column="intent")
    assert (renamed[0].label, unread) == ("x", ["id"])
    for labels in ("label", "labels"):  # as doccano writes spans, and a single label
        doccano, = Joint.read(Joint.open([{"text": "a b", "intent": ["x"], labels: [[0, 1, "t"]]}], "a"),
                              label_column="intent")
        assert (doccano.label, doccano.tags) == ("x", ["B-t", "O", "O"])


@pytest.mark.parametrize(("name", "content", "message"), [
    ("label", "listen\nhome\nlisten\n", "row 4: seq.in, seq.out and label must have the same rows"),
    ("label", "listen\n\nlisten\ntime\nhome\n", "row 2: seq.in, seq.out and label must have the same rows"),
    ("a.conll", "play\tO\n\n# intent: x\n# intent: y\nmusic\tB-what\n", "row 1: must have one label: in CoNLL's"),
    ("a.conll", "# intent: x\n# intent: y\nmusic\tB-what\n", "row 3: must have one label: in CoNLL"),
    ("a.jsonl", '{"words": ["a"], "tags": ["O"]}\n', "there is no column 'label'"),
    ("a.jsonl", '{"words": ["a"], "tags": ["O"], "label": null}\n', "row 1: 'label' must be a text"),
    ("a.jsonl", '{"words": ["a"], "label": "x"}\n', "row 1: must have tags or entities")])
def test_a_missing_label_is_refused(tmp_path, name, content, message):
    folder = write_snips(tmp_path / "snips")
    (folder / name).write_text(content)
    with pytest.raises(InputError, match=message):
        Joint.read(str(folder if name == "label" else folder / name))


@pytest.fixture(scope="module")
def joint(source):
    """A model with random weights, and models of the two tasks with the same weights."""
    model = randomize(BertJointClassifier(source, 3, 5))
    one, other = BertClassifier(source, 3), BertTokenClassifier(source, 5)
    one.classifier.set_weights(model.classifier.get_weights())
    other.classifier.set_weights(model.tagger.get_weights())
    return FineTuned(model, TOKENIZER, Joint(16, LABELS, TAGS)), [
        FineTuned(one, TOKENIZER, Classify(16, LABELS)), FineTuned(other, TOKENIZER, Tag(16, TAGS, max_windows=1))]


def test_answers_scores_and_losses_are_those_of_two_models(joint):
    model, (classify, tag) = joint
    texts = [*(" ".join(words) for words, *_ in ROWS), "", "the lamps turn on " * 9, "각각의 집 é!"]
    with pytest.warns(match="texts cut at max_length 16: 1 of 7"):
        answers = model.predict(texts)
    with pytest.warns(match="texts cut"):
        labels, entities = classify.predict(texts), tag.predict(texts)
    for frame, label, found in zip(answers, labels, entities, strict=True):
        assert (frame.label, [entity.text for entity in frame.entities]) == (label.label, [e.text for e in found])
        assert frame.score == pytest.approx(label.score, abs=1e-5)
    scores, of_tags = model.evaluate(ROWS), tag.evaluate([row[:2] for row in ROWS])
    of_labels = classify.evaluate([(" ".join(words), label) for words, _, label in ROWS])
    for name in ("f1", "precision", "recall"):
        assert scores[name] == pytest.approx(of_tags[name])
    assert scores["accuracy"] == of_labels["accuracy"] and len(scores["classes"]) == 3
    assert scores["loss"] == pytest.approx(of_tags["loss"] + of_labels["loss"], rel=1e-5)


def test_frames_are_right_if_the_label_and_all_tags_are(joint):
    model, _ = joint
    encoded = model.encode(ROWS)
    right = [{"label_logits": np.eye(3)[LABELS.index(label)] * 9, "tag_logits": np.pad(
        np.eye(5)[[TAGS.index(tag) for tag in tags]] * 9, ((1, 1), (0, 0)))} for _, tags, label in ROWS]
    scores = model.task.score(encoded, right)
    assert (scores["frame_accuracy"], scores["accuracy"], scores["f1"]) == (1, 1, 1)
    right[0]["label_logits"] = np.eye(3)[0]
    right[1]["tag_logits"][1] = np.eye(5)[0]
    scores = model.task.score(encoded, right)
    assert (scores["frame_accuracy"], scores["accuracy"]) == (0.5, 0.75)
    answered = [tags for _, tags, _ in ROWS]
    answered = [answered[0], ["O", "I-act", "O", "B-what"], *answered[2:]]
    assert scores["f1"] == pytest.approx(f1_score([tags for _, tags, _ in ROWS], answered))


def test_the_training_loss_is_the_mean_over_texts_plus_that_over_tags(joint):
    model, _ = joint
    encoded = model.encode(ROWS)
    batches = encoded.batched(TOKENIZER)
    inputs, targets, weights = next(iter(batches.training_dataset(4, 0, 0)))
    model.model.compile(**model.task.loss_arguments())
    loss = model.model.evaluate(inputs, targets, sample_weight=weights, verbose=0, return_dict=True)["loss"]
    assert float(loss) == pytest.approx(model.task.score(encoded, run_model(model.model, batches))["loss"], rel=1e-4)


def test_batches_of_a_step_weigh_as_one(joint):
    """The mean over all texts, and over all tags, of batches whose texts have 1 to 4 tags."""
    model, _ = joint
    encoded = model.encode(ROWS)
    parts = list(encoded.batched(TOKENIZER).training_dataset(2, 0, 0, accumulation_steps=2).as_numpy_iterator())
    assert len(parts) == 2
    for name, of_all in (("label_logits", encoded.targets["label_logits"]), ("tag_logits", np.concatenate(
            [of_text[of_text >= 0] for of_text in encoded.targets["tag_logits"]]))):
        means = [np.mean((targets[name] + 1) * weights[name]) for _, targets, weights in parts]
        assert np.mean(means) == pytest.approx(np.mean(of_all + 1))


def test_a_head_is_kept_only_with_the_same_labels_and_tags(tmp_path):
    for kind, line in (("x", "head: that of"), ("y", "new head: .* has other tags")):
        rows = [(["play", "it"], [f"B-{kind}", "O"], label) for label in zoo.LABELS] * 2
        options = options_of(finetune, Options, train=rows, valid=rows, model=zoo.model("joint"), task="joint",
                             output=str(tmp_path / "new"))
        assert any(re.match(line, found) for found in prepare(options).lines)


def test_rare_entities_and_labels_are_not_held_out(tmp_path):
    rows = [([f"word{i}", "it"], ["B-rare" if i == 3 else "B-what", "O"], "ab"[i % 2]) for i in range(10)]
    examples = Joint.read(Joint.open(rows, "data"))
    task = Joint.from_examples("data", examples, max_length=16)
    for seed in range(10):
        train, held_out = hold_out(task, "data", examples, 0.4, seed, None)
        assert "B-rare" in {tag for each in train for tag in each.tags} and len(held_out) == 4


def test_texts_are_cut_on_the_right_alone():
    tokenizer = BertTokenizer(TINY_VOCABULARY, truncation_side="left")
    with pytest.raises(InputError, match="truncation_side .* must be right"):
        Joint(16, LABELS, TAGS).check_tokenizer(tokenizer)


@pytest.mark.slow("two losses that do not go together")
def test_it_learns_and_its_folder_answers(pretrained, tmp_path):
    tuned = finetune(ROWS * 12, ROWS, model=pretrained, output=tmp_path / "model", task="joint", epochs=12,
                     batch_size=4, learning_rate=5e-3)
    metrics = json.loads((tmp_path / "model/metrics.json").read_text())
    assert metrics["frame_accuracy"] > 0.7 and {"classes", "entities"} <= metrics.keys()
    assert "classes and entities of texts" in (tmp_path / "model/README.md").read_text()
    loaded = FineTuned.load(tmp_path / "model")
    assert loaded.predict(["turn off the light"]) == tuned.predict(["turn off the light"])
    assert TASKS["joint"].fits(loaded.model)
    for row, message in (((["stop"], ["O"], "new"), "row 1: label 'new' is not among the learned labels"),
                         ((["stop"], ["B-new"], "home"), "row 1: tag 'B-new' is not among the learned tags"),
                         ({"text": "stop", "entities": [], "label": "home"}, "must have the tags of words, as")):
        with pytest.raises(InputError, match=message):
            loaded.evaluate([row])
    for options, message in (({"few_shot": True}, "few_shot"), ({"doc_stride": 8}, "doc_stride"),
                             ({"out_of_scope_label": "none"}, "out_of_scope_label")):
        with pytest.raises(InputError, match=f"{message} must be left out unless task is"):
            finetune(ROWS, ROWS, model=pretrained, output=tmp_path / "other", task="joint", **options)


@pytest.mark.parametrize(("file", "change", "message"), [
    ("settings.json", {"tags": TAGS[:3]}, "tags must be the names of the 5 classes of this BertJointClassifier; got 3"),
    ("labels.json", LABELS[:1], "labels must be the names of the 3 classes of this BertJointClassifier; got 1")])
def test_names_must_be_as_many_as_the_head_has_classes(joint, file, change, message, tmp_path):
    model, _ = joint
    model.save(tmp_path / "model")
    path = tmp_path / "model" / file
    changed = change if isinstance(change, list) else json.loads(path.read_text()) | change
    path.write_text(json.dumps(changed))
    with pytest.raises(InputError, match=f"model: labels.json or settings.json: {message} names"):
        FineTuned.load(tmp_path / "model")
    task = dataclasses.replace(model.task, **(change if isinstance(change, dict) else {"labels": change}))
    for export in (export_text_model, export_litert):
        with pytest.raises(InputError, match=f"^{message} names"):
            export(model.model, TOKENIZER, tmp_path / "export", task)
    with pytest.raises(InputError, match="^tags must be texts that are not empty"):
        Joint(16, LABELS, ["O", 1])
    folder = shutil.copytree(zoo.litert("joint"), tmp_path / "lite")
    change_json(folder / "settings.json", tags=TAGS)
    with pytest.raises(InputError, match=r"have a name for each of the tag_logits of model.tflite \(3\); got 5"):
        LiteModel.load(folder)


@pytest.mark.slow("an output that another task has, too")
def test_a_saved_model_without_settings_is_known_by_its_outputs(tmp_path):
    folder = shutil.copytree(zoo.saved_model("joint"), tmp_path / "joint")
    shutil.rmtree(folder / "assets.extra")
    assert SavedModel(str(folder), 1).display == "frame"
