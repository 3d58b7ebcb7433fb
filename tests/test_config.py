import dataclasses
import json

import pytest

from keras_bert.config import SIZES, BertConfig
from keras_bert.errors import InputError

from conftest import Peer

transformers = Peer("transformers")


def count_parameters(config):
    h, i = config.hidden_size, config.intermediate_size
    embeddings = (config.vocab_size + config.max_position_embeddings + config.type_vocab_size + 2) * h
    block = 4 * (h * h + h) + h * i + i + i * h + h + 4 * h
    return embeddings + config.num_hidden_layers * block + h * h + h


# Table 1 of Turc et al., 2019 and section 3 of Devlin et al., 2018, in millions.
@pytest.mark.parametrize("size,millions", [("tiny", 4.4), ("mini", 11.3), ("small", 29.1), ("medium", 41.7),
                                           ("base", 110.1), ("large", 340)])
def test_sizes_have_the_papers_parameter_counts(size, millions):
    assert count_parameters(BertConfig.from_size(size)) / 1e6 == pytest.approx(millions, rel=0.02)


def test_all_24_miniatures():
    miniatures = [name for name in SIZES if name.startswith("L")]
    assert len(miniatures) == 24
    assert BertConfig.from_size("L10-H512").num_attention_heads == 8


def test_multilingual_and_chinese_vocabularies():
    assert BertConfig.from_size("multilingual-cased").vocab_size == 119547
    assert BertConfig.from_size("chinese").vocab_size == 21128


def test_kernels_of_narrow_encoders_scale_their_inputs_as_those_of_bert_base():
    scales = {name: config.initializer_range * config.hidden_size ** 0.5
              for name in SIZES for config in [BertConfig.from_size(name)] if config.hidden_size <= 768}
    assert list(scales.values()) == pytest.approx([0.02 * 768 ** 0.5] * len(scales), rel=0.01)
    assert BertConfig.from_size("base").initializer_range == BertConfig.from_size("large").initializer_range == 0.02
    assert BertConfig.from_size("mini", initializer_range=0.02).initializer_range == 0.02


def test_json_round_trip(tmp_path):
    config = BertConfig.from_size("mini", hidden_act="gelu_new", layer_norm_eps=1e-6)
    config.to_json(tmp_path / "config.json")
    assert BertConfig.from_json(tmp_path / "config.json") == config


@pytest.mark.peers
def test_transformers_reads_our_file(tmp_path):
    config = BertConfig.from_size("mini", hidden_act="relu", hidden_dropout_prob=0.3)
    config.to_json(tmp_path / "config.json")
    peer = transformers.BertConfig.from_pretrained(tmp_path)
    written = config.to_dict()  # it lacks what BERT's configs lack
    for field in dataclasses.fields(config):
        if field.name in written:
            assert getattr(peer, field.name) == getattr(config, field.name), field.name


@pytest.mark.peers
def test_reads_what_transformers_writes(tmp_path):
    transformers.BertConfig(hidden_act="gelu_pytorch_tanh", num_labels=5).save_pretrained(tmp_path)
    assert BertConfig.from_json(tmp_path / "config.json") == BertConfig(hidden_act="gelu_tanh")


@pytest.mark.parametrize("changes,words", [
    ({"hidden_size": 770}, ["hidden_size", "num_attention_heads", "770"]),
    ({"hidden_act": "mish"}, ["hidden_act", "gelu_tanh", "mish"]),
    ({"hidden_dropout_prob": 1.5}, ["hidden_dropout_prob", "1.5"]),
    ({"vocab_size": "many"}, ["vocab_size", "many"]),
    ({"layer_norm_eps": -1.0}, ["layer_norm_eps", "positive"]),
    ({"pad_token_id": 99999}, ["pad_token_id", "99999"]),
    ({"model_type": "albert"}, ["model_type must be one of bert, roberta, xlm-roberta, camembert, electra, distilbert; "
                                "got 'albert': its blocks",
                                "; use transformers or KerasHub for it, or one of the encoders that `keras-bert "]),
    ({"model_type": "mpnet"}, ["got 'mpnet': its attention depends on relative positions"]),
    ({"model_type": "modernbert"}, ["got 'modernbert': its positions are rotations", "byte-level BPE"]),
    ({"model_type": "roberta", "max_position_embeddings": 1}, ["max_position_embeddings must be at least 1", "got 0"]),
    ({"model_type": ["gpt2"]}, ["got ['gpt2']: it is another architecture; use transformers or KerasHub"]),
    ({"position_embedding_type": "relative_key"}, ["position_embedding_type", "relative_key"]),
    ({"is_decoder": True}, ["is_decoder", "True"]),
    ({"embedding_size": 0}, ["embedding_size must be at least 1", "got 0"]),
    ({"pooler_activation": "silu"}, ["pooler_activation must be one of tanh, gelu, relu; got 'silu'"]),
    ({"head_size": 32}, ["head_size", "64", "32"]),
])
def test_contradictions_are_refused_by_rule_and_value(tmp_path, changes, words):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(BertConfig().to_dict() | changes))
    with pytest.raises(InputError) as error:
        BertConfig.from_json(path)
    for word in [str(path), *words]:
        assert word in str(error.value)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b'{"hidden_size": 8}'])
def test_broken_files_name_the_file(tmp_path, content):
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match="config.json"):
        BertConfig.from_json(path)


def test_unknown_size():
    with pytest.raises(InputError, match="huge"):
        BertConfig.from_size("huge")
