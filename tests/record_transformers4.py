"""Records TensorFlow models of transformers 4, the last version that has them, and what they compute.

Run in an environment of its own: `pip install "transformers<5" tensorflow==2.18.* tf-keras==2.18.* safetensors`;

    python tests/record_transformers4.py

It replaces tests/data/transformers4, which tests/test_tensor_files.py compares with our results:

    versions.json            this command and the versions of the libraries
    <model>/config.json, tf_model.h5, vocab.txt   a folder of transformers
    <model>/reference.safetensors                 its inputs and outputs
"""

import importlib.metadata
import json
import os
import pathlib
import platform
import shutil
import tempfile

import numpy as np
from safetensors.numpy import save_file

FOLDER = pathlib.Path(__file__).parent / "data/transformers4"
LIBRARIES = ["numpy", "transformers", "tensorflow", "tf-keras", "h5py"]
SIZES = {"vocab_size": 24, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 12,
         "max_position_embeddings": 16}
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LABELS = {"TFBertModel": 2, "TFBertForPreTraining": 2, "TFBertForMaskedLM": 2, "TFBertForSequenceClassification": 3,
          "TFBertForTokenClassification": 4, "TFBertForQuestionAnswering": 2, "TFBertForMultipleChoice": 2}
LENGTHS = [16, 7, 3, 9]


def make_inputs(seed, name):
    """Token ids, attention mask and segment ids, int32 [4, 16]; of two choices for each text, [4, 2, 16]."""
    rng, lengths = np.random.default_rng(seed), np.array(LENGTHS)[:, None]
    if name == "TFBertForMultipleChoice":
        lengths = np.stack([lengths, lengths[::-1]], axis=1)
    mask = (np.arange(max(LENGTHS)) < lengths).astype("int32")
    return {"input_ids": rng.integers(1, SIZES["vocab_size"], mask.shape).astype("int32") * mask,
            "attention_mask": mask, "token_type_ids": rng.integers(0, 2, mask.shape).astype("int32") * mask}


def record(folder):
    """Writes everything into a new folder."""
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    import transformers

    vocabulary = [*SPECIAL, *(f"[unused{i}]" for i in range(SIZES["vocab_size"] - len(SPECIAL)))]
    for seed, (name, labels) in enumerate(LABELS.items()):
        inputs, rng = make_inputs(seed, name), np.random.default_rng(seed)
        model = getattr(transformers, name)(transformers.BertConfig(**SIZES, num_labels=labels))
        model(inputs)  # makes the weights
        for weight in model.weights:
            center = 1.0 if "gamma" in weight.name else 0.0
            weight.assign(rng.normal(center, 0.3, weight.shape))
        model.save_pretrained(folder / name, safe_serialization=False)
        (folder / name / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
        outputs = {key: value.numpy() for key, value in model(inputs).items()}
        save_file({key: np.ascontiguousarray(array) for key, array in (inputs | outputs).items()},
                  folder / name / "reference.safetensors")
    versions = {"python": platform.python_version()} | {name: importlib.metadata.version(name) for name in LIBRARIES}
    made = {"command": "python tests/record_transformers4.py", "versions": versions}
    (folder / "versions.json").write_text(json.dumps(made, indent=2) + "\n")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=FOLDER.parent) as parent:
        record(pathlib.Path(parent) / "new")
        shutil.rmtree(FOLDER, ignore_errors=True)
        (pathlib.Path(parent) / "new").rename(FOLDER)
