"""What the files of other libraries' folders say of answers is followed as by those libraries, or refused."""

import dataclasses
import json
import re
import shutil

import numpy as np
import pytest
import tensorflow as tf

from keras_bert.convert import convert, open_source
from keras_bert.errors import InputError
from keras_bert.export import export_text_model
from keras_bert.export.text_model import TextModel
from keras_bert.files.json_files import declared
from keras_bert.inference.lite_model import LiteModel
from keras_bert.text import BertTokenizer
from keras_bert.training import FineTuned
from keras_bert.weights.loading import FORMATS

import zoo
from conftest import TINY_VOCABULARY, Peer, convert_proven

transformers, sentence_transformers = Peer("transformers"), Peer("sentence_transformers")
LONG = "turn the lamp off and the music on " * 4
TEXTS = [LONG, "playing the lamp", "", "música", "play" + "ing" * 40 + " lamp", "play" + "ing" * 70]
PAIRS = ["the music " * 20, LONG, "off", LONG, "the lamp", ""]
FAST = {"tokenizer_class": "TokenizersBackend", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]",
        "pad_token": "[PAD]", "mask_token": "[MASK]"}
CLS, SEP = ({"SpecialToken": {"id": name, "type_id": 0}} for name in ("[CLS]", "[SEP]"))
A = {"Sequence": {"id": "A", "type_id": 0}}
BERT = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None,
        "lowercase": True}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder that transformers wrote."""
    folder = tmp_path_factory.mktemp("saved")
    config = transformers.BertConfig(
        vocab_size=len(TINY_VOCABULARY), hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, max_position_embeddings=24)
    transformers.BertForSequenceClassification(config).save_pretrained(folder)
    tokenizer = transformers.BertTokenizer(vocab={token: id for id, token in enumerate(TINY_VOCABULARY)})
    tokenizer.model_max_length = 23  # an even number of tokens in a pair: of an odd one the library divides otherwise
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def folder(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "folder")


def change(folder, name, change):
    """Changes the object in a file: adds the values of a dict, also to the dicts in it."""
    def merged(value, change):
        if not isinstance(value, dict) or not isinstance(change, dict) or "type" in change:
            return change
        return value | {key: merged(value.get(key), part) for key, part in change.items()}

    file = folder / name
    file.write_text(json.dumps(merged(json.loads(file.read_text()) if file.exists() else {}, change)))


def template(single, pair):
    tokens = {name: {"id": name, "ids": [TINY_VOCABULARY.index(name)], "tokens": [name]} for name in ("[CLS]", "[SEP]")}
    return {"post_processor": {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": tokens}}


def second(segment):
    return [{"Sequence": {"id": "B", "type_id": segment}}, {"SpecialToken": {"id": "[SEP]", "type_id": segment}}]


def processor(kind):
    more = {"trim_offsets": True, "add_prefix_space": False} if kind == "RobertaProcessing" else {}
    return {"post_processor": {"type": kind, "sep": ["[SEP]", TINY_VOCABULARY.index("[SEP]")],
                               "cls": ["[CLS]", TINY_VOCABULARY.index("[CLS]")]} | more}


CONFIG, TOKENIZER, MODULE = "tokenizer_config.json", "tokenizer.json", "sentence_bert_config.json"
WITH_TYPES = {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}
LEFT = {"truncation": {"max_length": 9, "direction": "Left", "strategy": "LongestFirst", "stride": 0}}


@pytest.mark.peers
@pytest.mark.parametrize("changes", [
    {},
    {CONFIG: {"truncation_side": "left"}},
    {TOKENIZER: LEFT},
    {TOKENIZER: LEFT, CONFIG: {"truncation_side": "right"}},
    {TOKENIZER: LEFT, CONFIG: FAST | WITH_TYPES},
    {CONFIG: {"model_input_names": ["input_ids", "attention_mask"]}},
    {CONFIG: {"tokenizer_class": "DistilBertTokenizer"}},
    {CONFIG: FAST},
    {CONFIG: FAST | WITH_TYPES},
    {CONFIG: FAST | WITH_TYPES, TOKENIZER: {"model": {"max_input_chars_per_word": 5}}},
    {TOKENIZER: {"model": {"max_input_chars_per_word": 5}}},
    {CONFIG: FAST | WITH_TYPES, TOKENIZER: processor("BertProcessing")},
    {CONFIG: FAST | WITH_TYPES, TOKENIZER: template([CLS, A, SEP], [CLS, A, SEP, *second(0)])},
    {TOKENIZER: processor("RobertaProcessing")},  # of a BertTokenizer, which has its own
], ids=str)
def test_the_inputs_are_those_of_transformers(folder, changes):
    for name, values in changes.items():
        change(folder, name, values)
    theirs, ours = transformers.AutoTokenizer.from_pretrained(folder), open_source(folder).tokenizer
    for texts in ([TEXTS], [TEXTS, PAIRS]):
        found, expected = ours(*texts), theirs(*texts, truncation=True, max_length=23, padding="longest")
        np.testing.assert_array_equal(found["input_word_ids"], expected["input_ids"])
        np.testing.assert_array_equal(found["segment_ids"], expected.get("token_type_ids", found["segment_ids"] * 0))


def steps(*normalizers):
    return {"normalizer": {"type": "Sequence", "normalizers": normalizers}}


IDS = {token: TINY_VOCABULARY.index(token) for token in ("[SEP]", "lamp", "[unused1]")}
LISTED = [{"content": token, "id": id} for token, id in IDS.items()]
ADDED = "finds the added tokens 'lamp', '\\[unused1\\]' in texts"
OF_LIBRARY = "config_sentence_transformers.json"
NEVER = "adapter_config.json", "pruned_heads must be", "activation_fn must be"  # other architectures


@pytest.mark.parametrize(("case", "name", "changes", "line"), [
    ("pairs", TOKENIZER, processor("RobertaProcessing"), "got RobertaProcessing"),
    ("pairs", TOKENIZER, {"post_processor": None}, "got None"),
    ("pairs", TOKENIZER, template([CLS, A], [CLS, A, *second(1)]), "another template"),
    ("pairs", TOKENIZER, steps({"type": "NFC"}, BERT), "not NFC, BertNormalizer, BertPreTokenizer"),
    ("pairs", TOKENIZER, steps(BERT, {"type": "Replace"}), "not BertNormalizer, Replace, BertPreTokenizer"),
    ("pairs", TOKENIZER, {"pre_tokenizer": {"type": "Whitespace"}}, "not BertNormalizer, Whitespace"),
    ("pairs", TOKENIZER, {"model": {"dropout": 0.1}}, "tokenizer.json: model: keras_bert does not know 'dropout'"),
    # transformers finds `lamp` in `lamps`, and `[unused1]` before it splits off the brackets.
    ("pairs", TOKENIZER, {"added_tokens": LISTED}, ADDED), ("pairs", "added_tokens.json", IDS, ADDED),
    ("pairs", CONFIG, {"added_tokens_decoder": {token["id"]: token for token in LISTED}}, ADDED),
    *(("pairs", name, {key: token}, "finds the added tokens 'lamp' in texts") for name, key, token in (
        (CONFIG, "additional_special_tokens", ["lamp"]), (CONFIG, "extra_special_tokens", {"lamp_token": "lamp"}),
        (CONFIG, "eos_token", {"content": "lamp"}), ("special_tokens_map.json", "bos_token", "lamp"))),
    ("pairs", CONFIG, {"padding_side": "left"}, "padding_side must be right; got 'left'"),
    ("pairs", TOKENIZER, {"padding": {"direction": "Left"}}, "padding: direction must be Right; got 'Left'"),
    ("pairs", "config.json", {"id2label": {"3": "d"}}, "id2label must have the classes of the head, 0 to 2; got '3'"),
    ("pairs", CONFIG, {"do_lower_cased": True}, "tokenizer_config.json: keras_bert does not know 'do_lower_cased'"),
    ("pairs", CONFIG, {"never_split": ["lamp"]}, "never_split must be"),
    ("pairs", "config.json", {"rope_theta": 10_000}, "config.json: keras_bert does not know 'rope_theta'"),
    ("pairs", "config.json", {"pruned_heads": {"0": [1]}}, "pruned_heads must be"),
    ("rerank", "config.json", {"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Tanh"}},
     "activation_fn must be one of torch.nn.modules.activation.Sigmoid, torch"),
    ("pairs", "config.json", {"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Tanh"}},
     "activation_fn must be one of Softmax, Identity, Sigmoid for several labels; got Tanh"),
    ("pairs", MODULE, {"processing_kwargs": {"text": {"add_special_tokens": False}}}, "add_special_tokens must be Tr"),
    ("pairs", MODULE, {"tokenizer_args": {"padding_side": "left"}}, "padding_side must be right"),
    ("pairs", MODULE, {"query_length": 8}, "query_length must be left out"),
    ("mean", OF_LIBRARY, {"similarity_fn_name": "dot"}, "similarity_fn_name must be cosine; got 'dot'"),
    ("mean", OF_LIBRARY, {"truncate_dim": 8}, "truncate_dim must be left out; got 8"),
    ("mean", "1_Pooling/config.json", {"include_prompt": False}, "include_prompt must be True; got False"),
    ("pairs", "adapter_config.json", {"peft_type": "LORA"}, "adapter_config.json.*merge_and_unload"),
    ("pairs", "model_head.pkl", {}, "SetFit"),
])
def test_what_is_not_followed_is_refused(case, name, changes, line, tmp_path):
    form = "sentence_transformers" if case == "mean" else "huggingface"
    folder = zoo.copy(zoo.converted(case, form), tmp_path / "folder")
    (folder / TOKENIZER).write_text(json.dumps(processor("BertProcessing") | {
        "normalizer": BERT, "pre_tokenizer": {"type": "BertPreTokenizer"},
        "model": {"type": "WordPiece", "vocab": {token: id for id, token in enumerate(TINY_VOCABULARY)}}}))
    change(folder, CONFIG, FAST | WITH_TYPES)
    change(folder, name, changes)
    with pytest.raises(InputError, match=line):
        open_source(folder)
    if name in (CONFIG, TOKENIZER, MODULE):
        with pytest.raises(InputError, match=line):
            BertTokenizer.from_folder(folder)
    if not line.startswith(NEVER):
        differences = open_source(folder, allow_inexact=True).differences
        assert len(differences) == 1 and re.search(line, differences[0])


@pytest.fixture(scope="module")
def embedder(saved, tmp_path_factory):
    """A folder that sentence-transformers wrote."""
    folder = tmp_path_factory.mktemp("embedder") / "folder"
    library = sentence_transformers.sentence_transformer.modules
    transformer = sentence_transformers.base.modules.Transformer(str(saved))
    sentence_transformers.SentenceTransformer(
        modules=[transformer, library.Pooling(8), sentence_transformers.base.modules.Normalize()]).save(str(folder))
    return folder


@pytest.mark.peers
@pytest.mark.filterwarnings("ignore:texts cut at max_length")
@pytest.mark.parametrize(("name", "values"), [
    (MODULE, {}),
    (MODULE, {"max_seq_length": 9}),
    (MODULE, {"processing_kwargs": {"text": {"max_length": 9}}}),
    (MODULE, {"processing_kwargs": {"common": {"max_length": 9, "padding": "longest"}}, "max_seq_length": 20}),
    (MODULE, {"processor_kwargs": {"model_max_length": 9}, "max_seq_length": 20}),
    (MODULE, {"tokenizer_args": {"truncation_side": "left"}, "max_seq_length": 9}),
    (CONFIG, {"truncation_side": "left"}),
    ("sentence_roberta_config.json", {"max_seq_length": 9}),
], ids=str)
def test_embeddings_are_those_of_sentence_transformers(embedder, tmp_path, name, values):
    folder = shutil.copytree(embedder, tmp_path / "folder")
    if name.startswith("sentence_r"):
        (folder / MODULE).unlink()
    change(folder, name, values)
    convert_proven(folder, tmp_path / "model")
    expected = sentence_transformers.SentenceTransformer(str(folder), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(FineTuned.load(tmp_path / "model").predict(TEXTS), expected, atol=1e-5)


@pytest.mark.slow("a runtime that cuts at the other end")
@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize(("case", "output"), [("pairs", "score"), ("mean", "embedding")])
@pytest.mark.filterwarnings("ignore:texts cut at max_length")
def test_each_runtime_cuts_at_the_beginning(case, output, tmp_path):
    """A word above the maximum length is unknown in each, too. test_exporters.py writes such exports."""
    tokenizer = BertTokenizer(TINY_VOCABULARY, truncation_side="left", max_word_length=6)
    model = dataclasses.replace(zoo.make(case), tokenizer=tokenizer)
    texts = [LONG, "turn the lamp off", "stopping the music " * 9, "off"]
    texts = [texts, texts[::-1]][:len(model.task.inputs)]
    graph = TextModel(model.model, model.task, tokenizer, "float32")
    model.save(tmp_path / "model")
    runtimes = [FineTuned.load(tmp_path / "model")]
    if case == "mean":
        tokenizer.save_settings(zoo.copy(zoo.litert(case), tmp_path / "lite"))
        (tmp_path / "lite/sha256.json").unlink()
        runtimes.append(LiteModel.load(tmp_path / "lite"))
    wanted = graph.serve(*map(tf.constant, texts))[output]
    for runtime in (model, *runtimes):
        found = [getattr(answer, output, answer) for answer in runtime.predict(*texts)]
        np.testing.assert_allclose(found, wanted, atol=1e-5)
    assert tokenizer.ids(["stopping"]) == [[tokenizer.unk_id]]
    assert tokenizer.pack([LONG], None, 16)[0][0][1:-1] == tokenizer.ids([LONG])[0][-14:]


@pytest.mark.parametrize("case", ["tag", "span", "prompts"])
def test_windows_are_not_cut_at_the_beginning(case, tmp_path):
    model, tokenizer = zoo.make(case), BertTokenizer(TINY_VOCABULARY, truncation_side="left")
    tokenizer.save_settings(zoo.copy(zoo.model(case), tmp_path / "model"))
    for use in (lambda: dataclasses.replace(model, tokenizer=tokenizer),
                lambda: FineTuned.load(tmp_path / "model"),
                lambda: export_text_model(model.model, tokenizer, tmp_path / "out", model.task)):
        with pytest.raises(InputError, match="truncation_side .* must be right .* windows"):
            use()
    assert not (tmp_path / "out").exists()


def test_segment_ids_of_pairs_are_kept_or_refused(tmp_path):
    folder = zoo.copy(zoo.converted("pairs", "huggingface"), tmp_path / "folder")
    change(folder, CONFIG, {"model_input_names": ["input_ids", "attention_mask"]})
    for form in ("kerashub", "huggingface", "tf1"):
        convert(folder, tmp_path / form, form, allow_inexact=True)  # another GELU
        assert not open_source(tmp_path / form).tokenizer.has_segments
    encoder = open_source(folder).load("encoder")[0]
    assert "gives both texts of a pair the id 0" in " ".join(FORMATS["hub"].losses(encoder))


def test_what_no_task_can_answer_is_refused(tmp_path):
    folder = zoo.copy(zoo.converted("tag", "huggingface"), tmp_path / "folder")
    change(folder, CONFIG, {"truncation_side": "left"})
    with pytest.raises(InputError, match="folder: truncation_side .* must be right"):
        convert(folder, tmp_path / "out", "keras_bert")
    folder = zoo.copy(zoo.converted("regress", "huggingface"), tmp_path / "one")
    change(folder, "config.json", {"problem_type": "single_label_classification"})
    with pytest.raises(InputError, match="the head must have two classes or more"):
        open_source(folder)


@pytest.mark.peers
@pytest.mark.parametrize("labels", [2, 3])
def test_a_cross_encoder_of_several_labels_takes_pairs(folder, tmp_path, labels):
    """The config does not name the labels if there are two, the default."""
    config = transformers.BertConfig.from_pretrained(folder, num_labels=labels)
    transformers.BertForSequenceClassification(config).save_pretrained(folder)
    sentence_transformers.CrossEncoder(str(folder), device="cpu").save_pretrained(str(tmp_path / "saved"))
    source = open_source(tmp_path / "saved")
    assert source.settings["pairs"] and not any("pairs" in note for note in source.notes)


# The keys of published folders: Google's multilingual BERT, KcBERT, klue-bert and klue-roberta, KoELECTRA, all-MiniLM,
# bge, gte, ms-marco's cross-encoders, DistilBERT, nlptown's sentiment model, deepset's gbert, TinyBERT.
PUBLISHED = {"config.json": """
    _name_or_path _num_labels activation architectures attention_dropout attention_probs_dropout_prob bos_token_id cell
    classifier_dropout dim directionality dropout emb_size embedding_size eos_token_id eos_token_ids finetuning_task
    gradient_checkpointing hidden_act hidden_dim hidden_dropout_prob hidden_size id2label initializer_range
    intermediate_size label2id language layer_norm_eps max_position_embeddings model_type n_heads n_layers name
    num_attention_heads num_hidden_layers output_past pad_token_id pooler_fc_size pooler_num_attention_heads
    pooler_num_fc_layers pooler_size_per_head pooler_type position_embedding_type pre_trained qa_dropout
    sbert_ce_default_activation_function sentence_transformers seq_classif_dropout sinusoidal_pos_embds structure
    summary_activation summary_last_dropout summary_type summary_use_proj tie_weights_ tokenizer_class torch_dtype
    torchscript training transformers_version type_vocab_size use_cache vocab_size
    xla_device""", "tokenizer_config.json": """
    added_tokens_decoder bos_token clean_up_tokenization_spaces cls_token do_basic_tokenize do_lower_case eos_token
    full_tokenizer_file init_inputs mask_token max_len max_length model_max_length name_or_path never_split
    pad_to_multiple_of pad_token pad_token_type_id padding_side sep_token special_tokens_map_file stride strip_accents
    tokenize_chinese_chars tokenizer_class truncation_side truncation_strategy unk_token"""}


@pytest.mark.parametrize("place", PUBLISHED)
def test_no_key_of_a_published_folder_is_unknown(place):
    assert declared()[place].unknown(dict.fromkeys(PUBLISHED[place].split(), "a value")) == []
