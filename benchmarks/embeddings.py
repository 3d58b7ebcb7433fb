"""Compares sentence embeddings of MiniLM: texts and real tokens per second, in order of arrival and sorted by length.

    python benchmarks/embeddings.py [--corpora=intents,mixed --peers=NAME,… --turns=3]

The texts and the batches of 32 are those of `texts.py`. This package runs as the raw-text SavedModel. The peers are
`SentenceTransformer.encode` with its backends PyTorch, ONNX and OpenVINO (pip install sentence-transformers
optimum-onnx optimum-intel). All read one folder with the weights of MiniLM, compute in float32 and must give the same
embeddings.
"""

import argparse
import functools
import os
import tempfile

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
from peer_models import PACKAGES  # noqa: E402
from ruler import OURS, describe, finish, installed  # noqa: E402
from texts import BATCH, CORPORA, compare_orders, in_batches  # noqa: E402

from keras_bert.convert import convert, load_pretrained, open_source  # noqa: E402
from keras_bert.export import export_text_model  # noqa: E402
from keras_bert.models import BertEmbedder  # noqa: E402

_TOLERANCE = 1e-4
_BACKENDS = {"torch": {}, "onnx": {"provider": "CPUExecutionProvider"},
             "openvino": {"ov_config": {"INFERENCE_PRECISION_HINT": "f32"}}}
PEERS = [f"sentence-transformers-{backend}" for backend in _BACKENDS]


def ours(folder, max_length):
    source = open_source(folder)
    with tempfile.TemporaryDirectory() as work:
        export_text_model(load_pretrained(source, BertEmbedder), source.tokenizer, f"{work}/model",
                          max_length=max_length)
        embed = tf.saved_model.load(f"{work}/model")
    return lambda texts: embed(tf.constant(texts)).numpy()


def sentence_transformers(backend, folder, max_length):
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(folder, backend=backend, device="cpu", model_kwargs=_BACKENDS[backend])
    model.max_seq_length = max_length
    return functools.partial(model.encode, batch_size=BATCH, show_progress_bar=False)


MAKERS = {OURS: ours} | {name: functools.partial(sentence_transformers, backend)
                         for name, backend in zip(PEERS, _BACKENDS)}


def measure(corpus, peers, turns):
    """Prints the table of one corpus; returns its rows."""
    read, _, max_length = CORPORA[corpus]
    texts = read()
    with tempfile.TemporaryDirectory() as work:
        convert("minilm", f"{work}/minilm", "sentence_transformers")
        source = open_source(f"{work}/minilm")
        lengths = [len(ids) for ids, _ in source.tokenizer.pack(texts, None, max_length)]
        embedders = installed({name: MAKERS[name] for name in [OURS, *peers]}, f"{work}/minilm", max_length)
    wanted = embedders[OURS](texts[:BATCH])
    for name, embed in embedders.items():
        np.testing.assert_allclose(embed(texts[:BATCH]), wanted, rtol=0, atol=_TOLERANCE, err_msg=name)
    answers = {name: in_batches(embed) for name, embed in embedders.items()}
    return compare_orders(corpus, answers, texts, lengths, source.config, turns, "float32")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpora", default="intents,mixed")
    parser.add_argument("--peers", default=",".join(PEERS))
    parser.add_argument("--turns", type=int, default=3)
    given = parser.parse_args()
    versions, rows = describe(*PACKAGES, "sentence-transformers", "optimum-onnx", "optimum-intel"), []
    for corpus in given.corpora.split(","):
        found = measure(corpus, list(filter(None, given.peers.split(","))), given.turns)
        rows += [{"corpus": corpus} | row for row in found]
    finish("embeddings", versions, given, rows)


if __name__ == "__main__":
    main()
