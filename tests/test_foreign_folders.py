"""What the files of other libraries' folders say of answers is followed as by those libraries, or refused."""

import dataclasses
import json
import shutil

import numpy as np
import pytest

from keras_bert.convert import convert, open_source
from keras_bert.errors import InputError
from keras_bert.export import export_text_model
from keras_bert.files.declared_keys import declared
from keras_bert.inference.exported import Exported
from keras_bert.inference.lite_model import LiteModel
from keras_bert.text import BertTokenizer
from keras_bert.training import FineTuned

import zoo
from conftest import TINY_VOCABULARY, Peer

transformers, sentence_transformers = Peer("transformers"), Peer("sentence_transformers")
LONG = "turn the lamp off and the music on " * 4
TEXTS = [LONG, "the lamp", "", "música", "the" * 40 + " lamp", "the" * 70]
PAIRS = ["the music " * 20, LONG, "off", LONG, "the lamp", ""]
FAST = {"tokenizer_class": "TokenizersBackend", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]",
        "pad_token": "[PAD]", "mask_token": "[MASK]"}
V4 = FAST | {"tokenizer_class": "PreTrainedTokenizerFast"}
CLS, SEP = ({"SpecialToken": {"id": name, "type_id": 0}} for name in ("[CLS]", "[SEP]"))
A = {"Sequence": {"id": "A", "type_id": 0}}


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


@pytest.mark.peers
@pytest.mark.parametrize(("name", "changes", "line"), [
    (TOKENIZER, processor("RobertaProcessing"), "got RobertaProcessing"),
    (TOKENIZER, {"post_processor": None}, "got None"),
    (TOKENIZER, template([CLS, A], [CLS, A, *second(1)]), "another template"),
    (TOKENIZER, {"model": {"dropout": 0.1}}, "tokenizer.json: model: keras_bert does not know 'dropout'"),
    (CONFIG, {"padding_side": "left"}, "padding_side must be right; got 'left'"),
    (CONFIG, {"do_lower_cased": True}, "tokenizer_config.json: keras_bert does not know 'do_lower_cased'"),
    (CONFIG, {"never_split": ["lamp"]}, "never_split must be"),
    ("config.json", {"rope_theta": 10_000}, "config.json: keras_bert does not know 'rope_theta'"),
    ("config.json", {"pruned_heads": {"0": [1]}}, "pruned_heads must be"),
    (MODULE, {"processing_kwargs": {"text": {"add_special_tokens": False}}}, "add_special_tokens must be True"),
    (MODULE, {"tokenizer_args": {"padding_side": "left"}}, "padding_side must be right"),
    (MODULE, {"query_length": 8}, "query_length must be left out"),
    ("adapter_config.json", {"peft_type": "LORA"}, "merge_and_unload"),
    ("model_head.pkl", {}, "SetFit"),
])
def test_what_is_not_followed_is_refused(folder, tmp_path, name, changes, line):
    change(folder, CONFIG, FAST | WITH_TYPES)
    change(folder, name, changes)
    with pytest.raises(InputError, match=line):
        open_source(folder)
    if name in (CONFIG, TOKENIZER, MODULE):
        with pytest.raises(InputError, match=line):
            BertTokenizer.from_folder(folder)
    if name != "adapter_config.json" and "pruned" not in line:  # other architectures
        lines = []
        convert(folder, tmp_path / "output", "keras_bert", allow_inexact=True, report=lines.append)
        assert any(line in text for text in lines)


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
    convert(folder, tmp_path / "model", "keras_bert")
    expected = sentence_transformers.SentenceTransformer(str(folder), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(FineTuned.load(tmp_path / "model").predict(TEXTS), expected, atol=1e-5)


@pytest.mark.parametrize("case", ["intent", "pairs", "cls"])
@pytest.mark.filterwarnings("ignore:texts cut at max_length")
def test_each_runtime_cuts_at_the_beginning(case, tmp_path):
    """A word above the maximum length is unknown in each, too."""
    tokenizer = BertTokenizer(TINY_VOCABULARY, truncation_side="left", max_word_length=6)
    model = dataclasses.replace(zoo.make(case), tokenizer=tokenizer)
    texts = [LONG, "turn the lamp off", "stopping the music " * 9, "off"]
    texts = [texts, texts[::-1]][:len(model.task.inputs)]
    (ids, _), *_ = tokenizer.pack(*texts, max_length=16)
    assert len(ids) == 16 and tokenizer.unk_id in tokenizer.ids(["stopping"])[0]
    if case == "intent":
        assert ids[1:-1] == tokenizer.ids([LONG])[0][-14:]
    answers, numbers = zoo.numbers(model.predict(*texts))
    model.save(tmp_path / "model")
    model.export(tmp_path / "saved_model")
    model.export_litert(tmp_path / "litert")
    examples = model.task.arguments(*texts)
    for found in (FineTuned.load(tmp_path / "model").predict(*texts),
                  LiteModel.load(tmp_path / "litert").predict(*texts),
                  Exported(str(tmp_path / "saved_model")).answer_with_cuts(examples)[0]):
        again, close = zoo.numbers(list(found))
        assert again == answers
        np.testing.assert_allclose(close, numbers, atol=1e-5)


@pytest.mark.parametrize("case", ["tag", "span", "prompts"])
def test_windows_are_not_cut_at_the_beginning(case, tmp_path):
    model, tokenizer = zoo.make(case), BertTokenizer(TINY_VOCABULARY, truncation_side="left")
    tokenizer.save_settings(zoo.copy(zoo.model(case), tmp_path / "model"))
    options = {"tag": {"labels": ["O", "B-x", "I-x"]}, "prompts": {"doc_stride": 4}}.get(case, {})
    for use in (lambda: dataclasses.replace(model, tokenizer=tokenizer),
                lambda: FineTuned.load(tmp_path / "model"),
                lambda: export_text_model(model.model, tokenizer, tmp_path / "saved_model", **options)):
        with pytest.raises(InputError, match="truncation_side .* must be right .* windows"):
            use()
    assert not (tmp_path / "saved_model").exists()


# The keys of published folders, other than those of every one of the kind.
BERT = ("attention_probs_dropout_prob hidden_act hidden_dropout_prob hidden_size initializer_range intermediate_size "
        "max_position_embeddings num_attention_heads num_hidden_layers type_vocab_size vocab_size")
GOOGLE = (f"{BERT} directionality pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers pooler_size_per_head "
          "pooler_type")
OF_TRANSFORMERS = f"{BERT} architectures model_type layer_norm_eps pad_token_id"
SPECIAL = "unk_token sep_token pad_token cls_token mask_token"
WORDPIECE = f"do_lower_case tokenize_chinese_chars strip_accents model_max_length tokenizer_class {SPECIAL}"
PUBLISHED = {  # config.json, tokenizer_config.json
    "Google's multilingual BERT": (GOOGLE, "do_lower_case"),
    "KcBERT": (f"{GOOGLE} architectures model_type", "max_len do_lower_case"),
    "klue-bert, klue-roberta": (f"{OF_TRANSFORMERS} bos_token_id eos_token_id gradient_checkpointing use_cache "
                                "position_embedding_type tokenizer_class transformers_version",
                                f"{WORDPIECE} bos_token eos_token do_basic_tokenize never_split"),
    "KoELECTRA": (f"{OF_TRANSFORMERS} embedding_size summary_activation summary_last_dropout summary_type "
                  "summary_use_proj", "do_lower_case model_max_length"),
    "all-MiniLM": (f"{OF_TRANSFORMERS} _name_or_path gradient_checkpointing position_embedding_type use_cache "
                   "transformers_version classifier_dropout",
                   f"{WORDPIECE} name_or_path do_basic_tokenize never_split special_tokens_map_file"),
    "newer all-MiniLM, bge, gte": (f"{OF_TRANSFORMERS} _name_or_path classifier_dropout id2label label2id torch_dtype",
                                   f"{WORDPIECE} added_tokens_decoder clean_up_tokenization_spaces max_length "
                                   "pad_to_multiple_of pad_token_type_id padding_side stride truncation_side "
                                   "truncation_strategy"),
    "ms-marco cross-encoders": (f"{OF_TRANSFORMERS} sbert_ce_default_activation_function id2label label2id "
                                "sentence_transformers tokenizer_class", WORDPIECE),
    "DistilBERT": ("activation architectures attention_dropout dim dropout finetuning_task hidden_dim id2label "
                   "label2id initializer_range max_position_embeddings model_type n_heads n_layers output_past "
                   "pad_token_id qa_dropout seq_classif_dropout sinusoidal_pos_embds tie_weights_ torchscript "
                   "vocab_size",
                   f"{WORDPIECE} full_tokenizer_file"),
    "nlptown's sentiment model": (f"{GOOGLE} _num_labels finetuning_task id2label label2id layer_norm_eps output_past "
                                  "model_type pad_token_id", "do_lower_case"),
    "deepset's gbert": (f"{OF_TRANSFORMERS} language name", "do_lower_case max_len init_inputs"),
    "TinyBERT": (f"{BERT} cell emb_size pre_trained structure training", ""),
}


@pytest.mark.parametrize("family", PUBLISHED)
def test_no_key_of_a_published_folder_is_unknown(family):
    config, tokenizer = (dict.fromkeys(keys.split(), "a value") for keys in PUBLISHED[family])
    assert declared()["config.json"].unknown(config) == declared()[CONFIG].unknown(tokenizer) == []
