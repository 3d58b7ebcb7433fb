"""Compares sentence embeddings of MiniLM: texts and real tokens per second, in order of arrival and sorted by length.

    python benchmarks/embeddings.py [--corpora=intents,mixed --peers=NAME,… --turns=3]

The texts and the batches of 32 are those of `texts.py`. This package runs as the raw-text SavedModel and, on LiteRT, as
`LiteModel.predict`. The others are `SentenceTransformer.encode` with its backends PyTorch, ONNX and OpenVINO (pip
install sentence-transformers optimum-onnx optimum-intel). All read one folder with the weights of MiniLM; all but
`keras_bert-litert-int8` compute in float32 and must give the same embeddings.
"""

import functools
import tempfile

import numpy as np
import ruler
import tensorflow as tf
from peer_models import load_exported, load_lite
from texts import BATCH, CORPORA, LITE, compare_orders, in_batches

from keras_bert.convert import convert, load_pretrained, open_source
from keras_bert.models import BertEmbedder
from keras_bert.tasks import Embed

_TOLERANCE = 1e-4
_BACKENDS = {"torch": {}, "onnx": {"provider": "CPUExecutionProvider"},
             "openvino": {"ov_config": {"INFERENCE_PRECISION_HINT": "f32"}}}


def ours(folder, max_length):
    source = open_source(folder)
    embed = load_exported(load_pretrained(source, BertEmbedder), source.tokenizer, max_length=max_length)
    return lambda texts: embed(tf.constant(texts)).numpy()


def lite(dtype, folder, max_length):
    source = open_source(folder)
    return load_lite(load_pretrained(source, BertEmbedder), source.tokenizer, f"{folder}-{dtype}",
                     Embed(max_length), dtype).predict


def sentence_transformers(backend, folder, max_length):
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(folder, backend=backend, device="cpu", model_kwargs=_BACKENDS[backend])
    model.max_seq_length = max_length
    return functools.partial(model.encode, batch_size=BATCH, show_progress_bar=False)


PEERS = {name: functools.partial(lite, dtype) for name, dtype in LITE.items()} | {
    f"sentence-transformers-{backend}": functools.partial(sentence_transformers, backend) for backend in _BACKENDS}


def measure(corpus, peers, turns):
    """Prints the table of one corpus; returns its rows."""
    read, _, max_length = CORPORA[corpus]
    texts = read()
    with tempfile.TemporaryDirectory() as work:
        convert("minilm", f"{work}/minilm", "sentence_transformers")
        source = open_source(f"{work}/minilm")
        lengths = [len(ids) for ids, _ in source.tokenizer.pack(texts, None, max_length)]
        embedders = ruler.installed({ruler.OURS: ours} | {name: PEERS[name] for name in peers}, f"{work}/minilm",
                                    max_length)
        wanted = embedders[ruler.OURS](texts[:BATCH])
        for name, embed in embedders.items():
            if LITE.get(name) != "int8":
                np.testing.assert_allclose(embed(texts[:BATCH]), wanted, rtol=0, atol=_TOLERANCE, err_msg=name)
        answers = {name: in_batches(embed) for name, embed in embedders.items()}
        return compare_orders(corpus, answers, texts, lengths, source.config, turns, "float32")


def main():
    given = ruler.parser(__doc__, corpora=["intents", "mixed"], peers=list(PEERS), turns=3).parse_args()
    versions = ruler.describe(*ruler.PACKAGES, "sentence-transformers", "optimum-onnx", "optimum-intel")
    rows = [{"corpus": corpus} | row for corpus in given.corpora for row in measure(corpus, given.peers, given.turns)]
    ruler.finish("embeddings", versions, given, rows)


if __name__ == "__main__":
    main()
