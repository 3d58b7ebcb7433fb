"""Models of random weights in the libraries that the benchmarks of speed compare, and the files that they are read
from."""

import os
import tempfile

from keras_bert.config import BertConfig
from keras_bert.convert import huggingface
from keras_bert.convert.weights import Weights
from keras_bert.layers import BertLayer

PACKAGES = ("tensorflow", "keras", "torch", "transformers", "onnxruntime", "openvino", "keras-hub",
            "tf-models-official")


def config_of(size, **changes):
    """The `BertConfig` of a size; `L6-H384` is MiniLM's, which has heads of 32."""
    if size == "L6-H384":
        size, changes = "L6-H256", {"hidden_size": 384, "num_attention_heads": 12, "intermediate_size": 1536} | changes
    return BertConfig.from_size(size, **changes)


def policy_of(dtype):
    """Keras's name of float32 weights that are computed with in a dtype."""
    return "float32" if dtype == "float32" else f"mixed_{dtype}"


def write_encoder(config, folder, tokenizer=None):
    """Writes an encoder as a Hugging Face folder."""
    os.makedirs(folder)
    huggingface.write(Weights.of(BertLayer(config), tokenizer), folder)


def torch_names(config):
    """What transformers' `BertConfig` takes."""
    return {name: value for name, value in config.to_dict().items() if name not in ("model_type", "directionality")}


def torch_module(folder, dtype="float32", attention="sdpa"):
    """A PyTorch module of word ids and mask to the pooled output, of the weights in a Hugging Face folder."""
    import torch
    import transformers

    class Pooled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.bert = transformers.BertModel.from_pretrained(
                folder, dtype=getattr(torch, dtype), attn_implementation=attention)

        def forward(self, ids, mask):
            return self.bert(ids, mask).pooler_output

    return Pooled().eval()


def write_onnx(folder, path, quantized=False):
    """Writes such a module for ONNX Runtime, optimized for transformers, its weights in int8 if `quantized`. The older
    exporter and attention in plain operations give the one graph in which the optimizer finds attention to fuse."""
    import onnx
    import onnxruntime.quantization
    import torch
    from onnxruntime.transformers import optimizer

    module, dynamic = torch_module(folder, attention="eager"), {0: "batch", 1: "seq"}
    config = module.bert.config
    with tempfile.TemporaryDirectory() as work:
        exported, optimized = f"{work}/exported.onnx", f"{work}/optimized.onnx" if quantized else path
        torch.onnx.export(
            module, _example(), exported, dynamo=False, opset_version=17, input_names=["ids", "mask"],
            output_names=["pooled"], dynamic_axes={"ids": dynamic, "mask": dynamic, "pooled": {0: "batch"}})
        fused = optimizer.optimize_model(exported, "bert", config.num_attention_heads, config.hidden_size)
        fused.save_model_to_file(optimized)
        if quantized:  # what the fused operations return must be declared: ONNX knows none of them
            onnxruntime.quantization.quantize_dynamic(
                optimized, path, extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT})


def openvino_model(folder):
    """Such a module as a model of OpenVINO."""
    import openvino

    return openvino.convert_model(torch_module(folder), example_input=_example())


def write_openvino(folder, path):
    """Writes that model, its weights in float32."""
    import openvino

    openvino.save_model(openvino_model(folder), path, compress_to_fp16=False)


def kerashub_backbone(config, dtype):
    import keras_hub

    return keras_hub.models.BertBackbone(
        vocabulary_size=config.vocab_size, num_layers=config.num_hidden_layers, num_heads=config.num_attention_heads,
        hidden_dim=config.hidden_size, intermediate_dim=config.intermediate_size, dropout=config.hidden_dropout_prob,
        max_sequence_length=config.max_position_embeddings, dtype=dtype)


def garden_encoder(name, config, dtype):
    """An encoder of the Model Garden's `networks`; its Keras is the one before Keras 3."""
    import tf_keras
    from official.nlp.modeling import networks

    tf_keras.mixed_precision.set_global_policy(policy_of(dtype))
    return getattr(networks, name)(
        vocab_size=config.vocab_size, hidden_size=config.hidden_size, num_layers=config.num_hidden_layers,
        num_attention_heads=config.num_attention_heads, inner_dim=config.intermediate_size,
        max_sequence_length=config.max_position_embeddings)


def _example():
    import torch

    return torch.ones([2, 8], dtype=torch.int32), torch.ones([2, 8], dtype=torch.int32)
