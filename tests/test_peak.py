import types

import pytest
import tensorflow as tf

from keras_bert.pretraining.flops import peak
from keras_bert.training.log import TrainingLog


@pytest.mark.parametrize("names,operations", [
    (["NVIDIA L4"], 121e12), (["NVIDIA L40S"], 362e12), (["NVIDIA L40"], None), (["NVIDIA A10G"], 70e12),
    (["NVIDIA A100-SXM4-80GB", "NVIDIA A100-SXM4-80GB"], 624e12), (["NVIDIA H100 80GB HBM3"], 989e12),
    (["NVIDIA H100 PCIe"], 756e12), (["NVIDIA H200"], 989e12), (["Tesla V100-SXM2-16GB"], 125e12),
    (["Tesla T4"], 65e12), (["NVIDIA T400 4GB"], None), (["Tesla T4", "NVIDIA GeForce RTX 3090"], None), ([], None)])
def test_peak_of_gpus_by_whole_words(monkeypatch, names, operations):
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: names if kind == "GPU" else [])
    monkeypatch.setattr(tf.config, "experimental", types.SimpleNamespace(
        get_device_details=lambda name: {"device_name": name}))
    assert peak() == operations


def test_without_a_folder_tensorboard_is_not_needed(monkeypatch):
    monkeypatch.setattr(tf.summary, "scalar", None)  # it raises an error if TensorBoard is not installed
    TrainingLog(10, "examples").write(1, "train", {"loss": 1.0})
