"""`pretrain`: from examples to a folder with both heads; phases, ablations, bad input."""

import json
import random
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_bert.errors import InputError
from keras_bert.layers import BertLayer
from keras_bert.models import BertPretrainer
from keras_bert.pretraining.examples import PretrainingSettings, make_pretraining_data
from keras_bert.pretraining.prepare import Options, prepare
from keras_bert.pretraining.pretrain import baselines, trainer_kind
from keras_bert.text import BertTokenizer
from keras_bert.training import fill_mask, pretrain
from keras_bert.training.checkpoints import Checkpoints
from keras_bert.training.optimizer import PhasedSchedule, WarmupDecay

from conftest import SMALL, TINY_VOCABULARY, options_of, random_inputs, randomize

CONFIG = {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
          "intermediate_size": 64, "max_position_embeddings": 32, "initializer_range": 0.1}


def write_examples(folder, length=16, seed=0, documents=40, **settings):
    """Examples of sentences in which each word is followed by the one after it in the vocabulary: there is something to
    learn."""
    rng, words = random.Random(seed), TINY_VOCABULARY[5:35]
    with open(f"{folder}.txt", "w") as file:
        for _ in range(documents):
            for _ in range(8):
                first = rng.randrange(len(words))
                file.write(" ".join(words[(first + i) % len(words)] for i in range(6)) + "\n")
            file.write("\n")
    make_pretraining_data([f"{folder}.txt"], BertTokenizer(TINY_VOCABULARY), folder,
                          PretrainingSettings(length, dupe_factor=2, seed=seed, **settings), shards=2, processes=1)
    return folder


@pytest.fixture(scope="module")
def examples(tmp_path_factory):
    return write_examples(tmp_path_factory.mktemp("pretrain") / "examples")


@pytest.fixture
def command(examples, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return lambda *more: ("pretrain", f"--train={examples}", f"--config={tmp_path}/config.json",
                          f"--output={tmp_path}/out", "--steps=6", "--batch_size=8", *more)


def metrics(folder):
    return json.loads((folder / "metrics.json").read_text())


def test_a_config_that_changed_is_named(examples, tmp_path):
    (config := tmp_path / "config.json").write_text(json.dumps(CONFIG))
    options = options_of(pretrain, Options, train=examples, config=config, output=tmp_path / "out", steps=6,
                         batch_size=8)
    Checkpoints(tmp_path / "run", prepare(options, trainer_kind(options)).run)
    config.write_text(json.dumps(CONFIG | {"hidden_act": "relu"}))
    with pytest.raises(InputError, match="with another hidden_act of the config: 'gelu' .now 'relu'.; finish it with"):
        Checkpoints(tmp_path / "run", prepare(options, trainer_kind(options)).run)


@pytest.mark.slow("a command that does not learn")
def test_learns_and_is_written_whole(run, examples, command, tmp_path):
    held_out = write_examples(tmp_path / "valid", seed=1)
    status, output, messages = run(*command(
        f"--valid={held_out}", "--steps=300", "--learning_rate=0.01", "--warmup_ratio=0.1", "--eval_steps=150",
        f"--log_dir={tmp_path}/logs", "--batch_size=32", "--next_sentence_weight=0.5"))
    assert status == 0, messages
    told = metrics(tmp_path / "out")
    assert told["valid"]["mlm_accuracy"] > 0.5 > 5 * told["baselines"]["mlm_majority_accuracy"]
    assert told["history"]["loss"][-1] < told["history"]["loss"][0] / 1.5
    scores = told["valid"]
    assert scores["loss"] == pytest.approx(scores["mlm_loss"] + 0.5 * scores["next_sentence_loss"], abs=1e-6)
    assert told["history"]["valid_step"] == [150, 300] and told["history"]["step"][-1] == 300
    assert f"mlm_accuracy {told['valid']['mlm_accuracy']:.4f}" in output
    assert list((tmp_path / "logs").iterdir()) and (tmp_path / "out/pretraining_curve.png").exists()
    assert not (tmp_path / "out.checkpoints").exists()
    assert any(line.startswith("held out, step 300/300  loss") and "tokens/s" in line for line in messages)

    model = BertPretrainer.from_pretrained(tmp_path / "out")
    assert model.next_sentence is not None and model.bert.dtype_policy.name == "float32"
    assert run("fill-mask", f"--model={tmp_path}/out", "my to [MASK] it play")[1]


@pytest.mark.slow("phases that do not follow one another, or weights that are not continued")
@pytest.mark.usefixtures("eager")
def test_phases_and_going_on_from_other_weights(run, examples, command, pretrained_once, tmp_path):
    longer = write_examples(tmp_path / "longer", length=32)
    status, _, messages = run(*command(
        f"--train={examples},{longer}", "--steps=4,2", "--batch_size=8,4", "--optimizer=lamb",
        "--learning_rate=0.1,0.2", "--power=0.5"))
    assert status == 0, messages
    assert metrics(tmp_path / "out")["history"]["step"] == [1, 2, 3, 4, 5, 6]
    with pytest.warns(match="head in these weights"):
        pretrain(examples, output=tmp_path / "next", steps=1, batch_size=8, learning_rate=1e-9, weight_decay=0.0,
                 model=pretrained_once)
    before, after = (BertLayer.from_pretrained(path).get_weights() for path in (pretrained_once, tmp_path / "next"))
    for one, other in zip(before, after, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-8)  # the step is as small as its rate


def test_schedules_follow_one_another():
    schedules = [WarmupDecay(1.0, 2, 10), WarmupDecay(3.0, 1, 4)]
    phased = PhasedSchedule(schedules)
    expected = [float(schedules[0](step)) for step in range(10)] + [float(schedules[1](step)) for step in range(4)]
    np.testing.assert_allclose([float(phased(step)) for step in range(14)], expected, atol=1e-7)
    assert float(phased(14)) == 0


@pytest.mark.slow("a language model that guesses another token than its neighbour")
@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("directionality,step", [("ltr", 1), ("rtl", -1)])
def test_language_models(tmp_path, directionality, step):
    """The loss is what NumPy computes from the logits of all places."""
    examples = write_examples(tmp_path / "examples", documents=8)
    model = pretrain(examples, output=tmp_path / "out", steps=3, config=CONFIG, valid=examples, batch_size=32,
                     learning_rate=0.01, directionality=directionality, next_sentence=False)
    assert model.bert.config.directionality == directionality
    from keras_bert.pretraining.input import PretrainingInput

    given = PretrainingInput.open(examples)
    loss, count, right = 0.0, 0, 0
    batches = given.batches(given.tokenizer, 32, 0, directionality, once=True)
    for batch in batches().take(-(-len(given.records) // 32)).as_numpy_iterator():
        ids = batch["input_word_ids"]
        assert (ids != given.tokenizer.mask_id).all()
        inputs = {name: batch[name] for name in ("input_word_ids", "input_mask", "input_type_ids")}
        logits = np.float64(model(inputs)["mlm_logits"])
        logits -= np.log(np.exp(logits).sum(-1, keepdims=True))
        for row, text in enumerate(ids[batch["example_weights"] == 1]):  # those that fill up the batch come last
            for place in range(len(text)):
                target = place + step
                if 0 <= target < len(text) and text[target] > 4:
                    loss -= logits[row, place, text[target]]
                    right += logits[row, place].argmax() == text[target]
                    count += 1
    told = metrics(tmp_path / "out")["valid"]
    assert told["mlm_loss"] == pytest.approx(loss / count, rel=1e-4)
    assert told["mlm_accuracy"] == pytest.approx(right / count, abs=2 / count)


def test_left_to_right_pools_the_last_token():
    config = {**CONFIG, "directionality": "ltr"}
    layer = randomize(BertLayer(config))
    inputs = random_inputs(3, 9)
    inputs["input_mask"] = (np.arange(9) < np.array([[9], [4], [1]])).astype("int32")
    pooled, sequence = layer(inputs)
    last = np.array([keras.ops.convert_to_numpy(sequence)[row, place] for row, place in ((0, 8), (1, 3), (2, 0))])
    np.testing.assert_allclose(pooled, layer.pooler(last), atol=1e-6)
    some = layer.encode(inputs, positions=np.array([[2, 5]] * 3, "int32"))
    np.testing.assert_allclose(some.pooled_output, pooled, atol=1e-6)


@pytest.mark.slow("dropout that recomputation draws anew")
@pytest.mark.usefixtures("eager")
def test_recomputation_changes_nothing(examples, tmp_path):
    """With dropout, which must be drawn alike again; and with parts of batches."""
    runs = [pretrain(examples, output=tmp_path / f"{checkpointing}", steps=2, config=CONFIG, batch_size=8,
                     learning_rate=0.01, gradient_checkpointing=checkpointing, gradient_accumulation_steps=2
                     ).get_weights() for checkpointing in (False, True)]
    for one, other in zip(*runs, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-6)  # float32 sums in another order, Adam's division after them


def test_baselines_know_the_training_examples_alone():
    weights = np.array([[1, 1, 1], [1, 1, 0.]])
    trained = {"masked_lm_ids": np.array([[7, 7, 5], [7, 9, 0]]), "masked_lm_weights": weights,
               "next_sentence_labels": np.array([1, 0])}
    held_out = {"masked_lm_ids": np.array([[5, 5, 7], [5, 3, 0]]), "masked_lm_weights": weights,
                "next_sentence_labels": np.array([0, 0])}
    batches = [trained, {**trained, "next_sentence_labels": np.array([1, 1])}], [held_out]
    guesses = baselines(*batches, vocab_size=10, next_sentence=True)
    assert guesses["mlm_majority_accuracy"] == pytest.approx(1 / 5)  # 7, whose share in training is 3/5
    shares = {5: 3 / 20, 7: 7 / 20, 3: 1 / 20}  # 2, 6 and 0 of 10 tokens, and 1 more for each of the vocabulary
    assert guesses["mlm_unigram_accuracy"] == pytest.approx(np.mean([shares[token] for token in (5, 5, 7, 5, 3)]))
    assert guesses["mlm_unigram_loss"] == pytest.approx(-np.mean([np.log(shares[token]) for token in (5, 5, 7, 5, 3)]))
    assert guesses["next_sentence_majority_accuracy"] == 0  # of 1, the more frequent label in training
    assert guesses.keys() - baselines(*batches, 10, next_sentence=False) == {"next_sentence_majority_accuracy"}


@pytest.mark.usefixtures("eager")
def test_corrupt_records(run, command, examples, tmp_path):
    broken = shutil.copytree(examples, tmp_path / "broken")
    path = sorted(broken.glob("*.tfrecord"))[1]
    content = bytearray(path.read_bytes())
    content[40] ^= 255
    path.write_bytes(content)
    broken_command = command(f"--train={broken}", "--steps=1")
    status, _, messages = run(*broken_command)
    assert status == 1 and messages[-1].startswith(f"keras-bert: {path}: byte 0: the record is corrupt;")
    status, output, messages = run(*broken_command, "--skip_corrupt", "--overwrite")
    assert status == 0, messages
    assert "corrupt_records 1" in output


@pytest.mark.slow("a record that another program wrote")
@pytest.mark.usefixtures("eager")
def test_an_example_of_another_length(run, command, examples, tmp_path):
    records = [record.numpy() for record in tf.data.TFRecordDataset(sorted(map(str, examples.glob("*.tfrecord"))))]
    last = tf.train.Example.FromString(records[-1])
    del last.features.feature["input_word_ids"].int64_list.value[-1]
    with tf.io.TFRecordWriter(str(tmp_path / "0.tfrecord")) as writer:
        for record in [*records[:-1], last.SerializeToString()]:
            writer.write(record)
    (tmp_path / "vocab.txt").write_text("\n".join(TINY_VOCABULARY))
    status, _, messages = run(*command(f"--train={tmp_path}/*.tfrecord", f"--vocab={tmp_path}/vocab.txt",
                                       f"--steps={len(records) // 8 + 1}"))
    assert status == 1 and messages[-1].startswith(
        "keras-bert: --train: an example does not match the other examples or the vocabulary: Key: input_word_ids, "
        ), messages


@pytest.mark.parametrize("flags,message", [
    (["--train=nowhere"], "nowhere: cannot be read"),
    (["--steps=0"], "steps must be at least 1; got 0"), (["--steps=2,many"], "--steps must be numbers; got 2,many;"),
    (["--steps=2,3,4", "--batch_size=8,8"], "batch_size must be one value, or one for each of 3 phases; got 2"),
    (["--learning_rate=1,2"], "learning_rate must be one value, or one for each of 1 phases; got [1.0, 2.0]"),
    (["--learning_rate=0"], "learning_rate must be positive; got 0.0"),
    (["--batch_size=9", "--gradient_accumulation_steps=2"],
     "batch_size must be multiples of --gradient_accumulation_steps (2) times the number of devices"),
    (["--seed=-1"], "seed must be from 0"), (["--model_parallel=0"], "model_parallel must be at least 1; got 0"),
    (["--warmup_ratio=1"], "warmup_ratio must be at least 0 and below 1; got 1.0"),
    (["--config=enormous"], "--config must be an existing bert_config.json or a size: tiny, mini,"),
    (["--train=LONG"], "at most the encoder's max_position_emb"),
    (["--model_parallel=2"], "model_parallel must be 1 unless on the JAX backend; got 2"),
    (["--distribution_strategy=many"], "distribution_strategy must be one, mirrored, multiworker or tpu; got 'many'"),
    (["--distribution_strategy=multiworker"], "--distribution_strategy=multiworker needs TF_CONFIG"),
    (["--vocab=VOCAB"], "the model's vocabulary, or with --vocab if it is given; they use another; make"),
    (["--model=nothing/here"], "--config must be left out with --model"),
])
def test_bad_arguments(run, command, tmp_path, flags, message):
    if flags == ["--train=LONG"]:
        flags = [f"--train={write_examples(tmp_path / 'long', 64, documents=8)}"]
    (tmp_path / "vocab.txt").write_text("\n".join(reversed(TINY_VOCABULARY)))
    status, _, messages = run(*command(*(flag.replace("VOCAB", f"{tmp_path}/vocab.txt") for flag in flags)))
    assert status in (1, 2) and message in messages[-1], messages
    assert not (tmp_path / "out").exists() and not (tmp_path / "out.checkpoints").exists()


def test_the_next_sentence_head_needs_pairs(run, command, tmp_path):
    """Examples without pairs have labels, too, all of them 0."""
    single = write_examples(tmp_path / "single", documents=8, next_sentence=False)
    for path in (single, f"{single}/*.tfrecord"):
        flags = [f"--valid={path}"] if path == single else [f"--train={path}", "--next_sentence"]
        assert run(*command(*flags))[2][-1].startswith(
            f"keras-bert: {path}: the examples must be pairs with next_sentence_labels, made with --next_sentence")
        assert not (tmp_path / "out").exists()


def test_a_missing_file_is_noticed(run, command, examples, tmp_path):
    copy = shutil.copytree(examples, tmp_path / "copy")
    (copy / "pretraining-00001-of-00002.tfrecord").unlink()
    assert run(*command(f"--valid={copy}"))[2][-1].startswith(
        f"keras-bert: {copy}: must have the 2 files that make-pretraining-data wrote; it has 1")


@pytest.mark.usefixtures("eager")
def test_files_without_a_folder(examples, tmp_path):
    """As the Model Garden writes them: their vocabulary must be named."""
    (tmp_path / "files").mkdir()
    for file in examples.glob("*.tfrecord"):
        shutil.copy(file, tmp_path / "files")
    arguments = {"output": tmp_path / "out", "steps": 1, "config": CONFIG, "batch_size": 8}
    with pytest.raises(InputError, match="pass vocab"):
        pretrain(f"{tmp_path}/files/*.tfrecord", **arguments)
    model = pretrain(f"{tmp_path}/files/*.tfrecord", **arguments, vocab=examples)
    assert model.next_sentence is not None


TEXTS = 9 * ["[MASK]", "play some [MASK] in the [MASK] please", "turn on the [MASK]", "i [MASK] a [MASK] for [MASK]"]


def test_masks_are_filled_in_bounded_batches_which_change_nothing(tokenizer, monkeypatch):
    model = randomize(BertPretrainer(BertLayer(SMALL)))
    sizes, call = [], BertPretrainer.call
    monkeypatch.setattr(BertPretrainer, "call", lambda self, inputs, **options: (
        sizes.append(len(inputs["input_word_ids"])), call(self, inputs, **options))[1])
    wanted = fill_mask(model, tokenizer, TEXTS, top_k=3, batch_size=len(TEXTS))
    assert sizes == [36]
    got = fill_mask(model, tokenizer, TEXTS, top_k=3)
    assert sizes == [36, 32, 4]
    assert [len(masks) for masks in got] == [1, 2, 1, 3] * 9
    for masks, others in zip(got, wanted, strict=True):
        for guesses, other in zip(masks, others, strict=True):
            assert [piece for piece, _ in guesses] == [piece for piece, _ in other]
            np.testing.assert_allclose([score for _, score in guesses], [score for _, score in other], rtol=1e-5)
    assert fill_mask(model, tokenizer, iter([])) == []
    assert fill_mask(model, tokenizer, iter(TEXTS), top_k=3, batch_size=len(TEXTS)) == wanted


def test_masks_are_filled_in_lists_of_texts_alone(tokenizer):
    for texts, message in (("a [MASK]", "texts must be a list"), (["a [MASK]", None], "texts: row 2")):
        with pytest.raises(InputError, match=message):
            fill_mask(None, tokenizer, texts)
