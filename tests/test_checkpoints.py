"""What a checkpoint of an unfinished run says of itself, and which ones are refused."""

import dataclasses
import json

import keras
import numpy as np
import pytest
import safetensors
from safetensors.numpy import save_file

from keras_bert.errors import InputError
from keras_bert.layers import BertLayer
from keras_bert.models import BertClassifier, BertMultipleChoice, BertPretrainer, BertSpanLabeler, BertTokenClassifier
from keras_bert.models.feature_tagger import BertFeatureTagger
from keras_bert.training import finetune, make_optimizer
from keras_bert.training.checkpoints import Checkpoints, Progress
from keras_bert.training.optimizer import make_pretraining_optimizer
from keras_bert.training.options import Options
from keras_bert.training.prepare import prepare

import zoo
from conftest import TINY, change_json, options_of, randomize

RUN = {"arguments": {"epochs": 3}, "sha256": {}}
MODELS = {
    "classifier": lambda bert: BertClassifier(bert, 3),
    "tagger": lambda bert: BertTokenClassifier(bert, 3),
    "span": BertSpanLabeler,
    "choice": BertMultipleChoice,
    "features": lambda bert: BertFeatureTagger(bert, 3, features="weighted-all", units=5),
}
ONE_BLOCK = dataclasses.replace(TINY, num_hidden_layers=1)


def make_model(kind="classifier", lora=False, seed=0):
    bert = BertLayer(ONE_BLOCK)
    if lora:
        bert.enable_lora(2)
    model = randomize(MODELS[kind](bert), seed)
    optimizer = make_optimizer(model, 0.01, 10)
    for number, variable in enumerate(optimizer.variables):
        variable.assign(np.full(variable.shape, number * (seed + 1)))
    model.compile(optimizer, "mse")
    return model


def state(model):
    variables = *model.trainable_variables, *model.optimizer.variables
    return [keras.ops.convert_to_numpy(variable) for variable in variables]


@pytest.mark.parametrize("kind,lora", [*((kind, False) for kind in MODELS), ("classifier", True)])
def test_restored_by_path_whatever_the_process_made_before(tmp_path, kind, lora):
    """Keras numbers the layers of a class: `bert_layer_1`, `adam_w_1`."""
    first, second = make_model(kind, lora), make_model(kind, lora, seed=1)
    checkpoints = Checkpoints(tmp_path / "run", RUN)
    checkpoints.save_last(first, Progress(5))
    assert Checkpoints(tmp_path / "run", RUN).restore_last(second) == Progress(5)
    for got, wanted in zip(state(second), state(first), strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_tensors_have_the_paths_of_variables(tmp_path):
    checkpoints = Checkpoints(tmp_path / "run", RUN)
    model = make_model()
    checkpoints.save_last(model, Progress(1))
    path = checkpoints.path("last.safetensors")
    with safetensors.safe_open(path, framework="numpy") as file:
        names, metadata = set(file.keys()), file.metadata()
        tensors = {name: file.get_tensor(name) for name in names}
    query = "block_0/attention/query/kernel"
    assert {f"model/bert_layer/{query}", "model/bert_classifier/classifier/bias", "optimizer/adam_w/iteration",
            f"optimizer/adam_w/bert_layer_{query.replace('/', '_')}_momentum"} <= names
    # The order in the file says nothing.
    save_file(dict(reversed(tensors.items())), path, metadata)
    other = make_model(seed=1)
    checkpoints.restore_last(other)
    np.testing.assert_array_equal(state(other)[3], state(model)[3])
    del tensors[f"model/bert_layer/{query}"]
    save_file(tensors, path, metadata)
    with pytest.raises(InputError, match=f"the checkpoint is damaged or incomplete: .*{query}"):
        checkpoints.restore_last(other)


def test_pretraining_with_loss_scaling_is_saved(tmp_path):
    models = [randomize(BertPretrainer(BertLayer(ONE_BLOCK, dtype="mixed_float16")), seed) for seed in range(2)]
    for number, model in enumerate(models):
        model.compile(make_pretraining_optimizer(model, "lamb", 0.1, 0.1, 1.0))
        model.optimizer.dynamic_scale.assign(2.0**(number + 5))
    checkpoints = Checkpoints(tmp_path / "run", RUN)
    checkpoints.save_last(models[0], Progress(1))
    checkpoints.restore_last(models[1])
    assert float(models[1].optimizer.dynamic_scale) == 2.0**5


def test_paths_that_are_not_unique_are_refused(tmp_path):
    """Else one of them would be restored into both."""
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(3, name="same"),
                              keras.layers.Dense(3, name="same_1")])
    model.compile(make_optimizer(model, 0.1, 1))
    with pytest.raises(ValueError, match="same_1/kernel and .*same/kernel are both model/.*same/kernel"):
        Checkpoints(tmp_path / "run", RUN).save_last(model, Progress())


@pytest.mark.parametrize("changes,refusal", [
    ({"keras": "3.11.0", "backend": "torch"}, "of backend torch (now {backend}), keras 3.11.0 (now {keras}); finish it "
     "with these versions"),
    ({"tensorflow": "2.19.1"}, "of tensorflow 2.19.1 (now {tensorflow}); finish it with these versions"),
    ({"keras-bert-hub": "9.9.0"}, "of keras-bert-hub 9.9.0 (now {keras-bert-hub}); finish it with these versions"),
    ({"tensorflow": None}, "of tensorflow None (now {tensorflow}); finish it with these versions"),
    (None, "of keras-bert-hub 0.1, which later versions cannot resume; finish it with that version"),
])
def test_other_versions_are_refused(tmp_path, changes, refusal):
    folder = tmp_path / "run"
    Checkpoints(folder, RUN)
    description = json.loads((folder / "run.json").read_text())
    here = dict(description["made_with"])
    if changes is None:  # as version 0.1 wrote it
        del description["made_with"]
    else:
        description["made_with"] |= changes
    (folder / "run.json").write_text(json.dumps(description))
    with pytest.raises(InputError) as error:
        Checkpoints(folder, RUN)
    assert str(error.value) == (f"{folder}: holds the checkpoints of an unfinished run {refusal.format_map(here)}, or "
                                "pass overwrite=True to start again")
    Checkpoints(folder, RUN, overwrite=True)
    assert json.loads((folder / "run.json").read_text())["made_with"] == here


@pytest.mark.parametrize("file,values,message", [
    ("config.json", {"hidden_act": "relu"}, "hidden_act of the config: 'gelu' .now 'relu'."),
    ("config.json", {"attention_probs_dropout_prob": 0.25}, "attention_probs_dropout_prob of the config: 0.1 .now 0.2"),
    ("config.json", {"id2label": {"0": "c", "1": "b", "2": "a"}}, "weights of the head: "),
    ("tokenizer_config.json", {"strip_accents": False}, "strip_accents of the tokenizer: True .now False."),
    ("config_sentence_transformers.json", {"prompts": {"long": "a "}}, "prompts of the task: ")])
def test_whatever_files_of_a_model_change_is_named(tmp_path, file, values, message):
    rows, task, case = [("play", "a"), ("stop", "b"), ("lamp", "c")], "classify", ("intent", "huggingface")
    if file.startswith("config_"):
        rows, task, case = [("play", "music"), ("stop", "light")], "embed", ("prompts", "sentence_transformers")
    folder, path = zoo.copy(zoo.converted(*case), tmp_path / "model"), tmp_path / "run"
    (folder / "tokenizer.json").unlink()  # which an edited tokenizer_config.json contradicts
    options = options_of(finetune, Options, train=rows, valid=rows, model=folder, output=path, max_length=16, task=task)
    run = prepare(options).run
    Checkpoints(path, run)
    Checkpoints(path, run)
    change_json(folder / file, **values)
    changed = prepare(options).run
    with pytest.raises(InputError, match=f"unfinished run with another {message}"):
        Checkpoints(path, changed)


def test_other_patches_of_the_same_versions_are_resumed(tmp_path):
    folder = tmp_path / "run"
    Checkpoints(folder, RUN).save_last(make_model(), Progress(5))
    description = json.loads((folder / "run.json").read_text())
    for name in ("keras", "tensorflow", "keras-bert-hub"):
        description["made_with"][name] = ".".join([*description["made_with"][name].split(".")[:2], "99"])
    (folder / "run.json").write_text(json.dumps(description))
    assert Checkpoints(folder, RUN).restore_last(make_model(seed=1)) == Progress(5)
