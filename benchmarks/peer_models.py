"""Models with random weights for each library in the speed benchmarks, and the files that they are read from."""

import os
import tempfile

import tensorflow as tf

from keras_bert.config import BertConfig
from keras_bert.export import export_litert, export_text_model
from keras_bert.inference.lite_model import LiteModel
from keras_bert.layers import BertLayer
from keras_bert.weights import huggingface
from keras_bert.weights.format import Weights

DECAY = 0.01  # of the weights, in training


def config_of(size, **changes):
    """Returns the `BertConfig` of a size. `L6-H384` is MiniLM's size, which has attention heads of width 32."""
    if size == "L6-H384":
        size, changes = "L6-H256", {"hidden_size": 384, "num_attention_heads": 12, "intermediate_size": 1536} | changes
    return BertConfig.from_size(size, **changes)


def policy_of(dtype):
    """Returns the name of Keras's dtype policy that keeps weights in float32 and computes in `dtype`."""
    return "float32" if dtype == "float32" else f"mixed_{dtype}"


def write_encoder(config, folder, tokenizer=None):
    """Writes an encoder as a Hugging Face folder."""
    os.makedirs(folder)
    huggingface.write(Weights.of(BertLayer(config), tokenizer), folder)


def load_exported(model, tokenizer, load=tf.saved_model.load, **options):
    """Returns what `load` makes of the folder of `export_text_model`."""
    with tempfile.TemporaryDirectory() as work:
        export_text_model(model, tokenizer, f"{work}/model", **options)
        return load(f"{work}/model")


def load_lite(model, tokenizer, folder, task, dtype):
    """Returns the `LiteModel` of the folder that `export_litert` writes, which must stay: it reads the file again."""
    export_litert(model, tokenizer, folder, task, dtype=dtype)
    return LiteModel.load(folder)


def torch_names(config):
    """Returns the arguments for transformers' `BertConfig`."""
    return {name: value for name, value in config.to_dict().items() if name not in ("model_type", "directionality")}


def torch_module(folder, dtype="float32", attention="sdpa"):
    """Returns a PyTorch module from word ids and mask to the pooled output, with the weights of a Hugging Face
    folder."""
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


def nested_module(folder, dtype="float32"):
    """Returns the module of `torch_module` with its blocks as PyTorch's own `TransformerEncoder`, which skips padding:
    outside training, it works on nested tensors."""
    import torch

    class Pooled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.bert = torch_module(folder, dtype).bert
            config, names = self.bert.config, ("query", "key", "value")
            self.encoder = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(
                config.hidden_size, config.num_attention_heads, config.intermediate_size, activation=config.hidden_act,
                layer_norm_eps=config.layer_norm_eps, batch_first=True, dtype=self.bert.dtype),
                config.num_hidden_layers)
            for layer, block in zip(self.encoder.layers, self.bert.encoder.layer):
                for parameter in ("weight", "bias"):
                    joined = torch.cat([getattr(getattr(block.attention.self, name), parameter) for name in names])
                    setattr(layer.self_attn, f"in_proj_{parameter}", torch.nn.Parameter(joined))
                layer.self_attn.out_proj, layer.norm1 = block.attention.output.dense, block.attention.output.LayerNorm
                layer.linear1, layer.linear2 = block.intermediate.dense, block.output.dense
                layer.norm2 = block.output.LayerNorm

        def forward(self, ids, mask):
            return self.bert.pooler(self.encoder(self.bert.embeddings(ids), src_key_padding_mask=mask == 0))

    return Pooled().eval()


def write_onnx(folder, path, quantized=False):
    """Writes the module of `torch_module` for ONNX Runtime, optimized for transformers.

    The optimizer finds attention to fuse only in the graph that the older exporter makes of attention in plain
    operations.

    Args:
        folder: Hugging Face folder with the weights.
        path: file to write.
        quantized: If True, writes the weights in int8.
    """
    import onnx
    import onnxruntime.quantization
    import torch
    from onnxruntime.transformers import optimizer

    module, dynamic = torch_module(folder, attention="eager"), {0: "batch", 1: "seq"}
    config = module.bert.config
    with tempfile.TemporaryDirectory() as work:
        exported, optimized = f"{work}/exported.onnx", f"{work}/optimized.onnx" if quantized else path
        torch.onnx.export(
            module, 2 * (torch.ones([2, 8], dtype=torch.int32),), exported, dynamo=False, opset_version=17,
            input_names=["ids", "mask"], output_names=["pooled"],
            dynamic_axes={"ids": dynamic, "mask": dynamic, "pooled": {0: "batch"}})
        fused = optimizer.optimize_model(exported, "bert", config.num_attention_heads, config.hidden_size)
        fused.save_model_to_file(optimized)
        if quantized:  # ONNX does not know the fused operations, so the dtype of their outputs is declared
            onnxruntime.quantization.quantize_dynamic(
                optimized, path, extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT})


def openvino_model(folder):
    """Returns the module of `torch_module` as an OpenVINO model."""
    import openvino
    import torch

    return openvino.convert_model(torch_module(folder), example_input=2 * (torch.ones([2, 8], dtype=torch.int32),))


def torch_step(model, rate, dtype="bfloat16", clip_norm=None, device="cpu", compiled=False):
    """Returns a function of a transformers model's inputs and labels that trains it for one step with AdamW, by
    autocast in bfloat16, and returns the loss."""
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=DECAY, fused=True)
    if compiled:
        torch._dynamo.reset()  # otherwise shapes of earlier models count towards the recompilation limit
    run = torch.compile(model) if compiled else model

    def step(*inputs, labels):
        with torch.autocast(device, torch.bfloat16, enabled=dtype == "bfloat16"):
            loss = run(*inputs, labels=labels).loss
        loss.backward()
        if clip_norm:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def kerashub_backbone(config, dtype):
    import keras_hub

    return keras_hub.models.BertBackbone(
        vocabulary_size=config.vocab_size, num_layers=config.num_hidden_layers, num_heads=config.num_attention_heads,
        hidden_dim=config.hidden_size, intermediate_dim=config.intermediate_size, dropout=config.hidden_dropout_prob,
        max_sequence_length=config.max_position_embeddings, dtype=dtype)


def garden_encoder(name, config, dtype, **options):
    """Returns an encoder of the Model Garden's `networks`. It uses the Keras before Keras 3 (`tf_keras`)."""
    import tf_keras
    from official.nlp.modeling import networks

    tf_keras.mixed_precision.set_global_policy(policy_of(dtype))
    return getattr(networks, name)(
        vocab_size=config.vocab_size, hidden_size=config.hidden_size, num_layers=config.num_hidden_layers,
        num_attention_heads=config.num_attention_heads, inner_dim=config.intermediate_size,
        max_sequence_length=config.max_position_embeddings, **options)
