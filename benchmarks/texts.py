"""Compares classification of strings: texts and real tokens per second, in order of arrival and sorted by length.

    python benchmarks/texts.py [--size=base --dtypes=float32 --corpora=intents,korean,mixed --peers=NAME,…]

All texts are bundled with this repository (`tests/data/real`): 512 intents of clinc-hwu-176; 512 Korean reviews; and a
mix of 340 texts (250 of the intents, 70 sentences from books and 20 paragraphs), truncated to 256 tokens. Batches have
32 texts. This package runs as the raw-text SavedModel, which gets strings, and on LiteRT as `LiteModel.predict`, in
float32 and int8. In the rows that end in `-predict`, `FineTuned.predict` and `LiteModel.predict` get all texts at once
and sort them themselves. The other libraries (`peers.py`) get transformers' fast tokenizer and a dense layer. The
tokenizer pads to the longest text of the batch; for KerasHub, it pads to what its preprocessor pads to, 128 tokens, or
256 for the mix. There are 176 classes. Takes about three hours per dtype for `base` on two cores, half of that for
KerasHub.
"""

import functools
import json
import tempfile

import numpy as np
import ruler
import tensorflow as tf
from peer_models import config_of, load_exported, load_lite, policy_of, write_encoder
from peers import ENCODERS, make_encoders
from real_texts import BUNDLED, announce, find

from keras_bert.convert import load_pretrained
from keras_bert.data.tables import read_table
from keras_bert.inference.fine_tuned import FineTuned
from keras_bert.models import BertClassifier
from keras_bert.tasks import Classify
from keras_bert.text import BertTokenizer

BATCH, CLASSES = 32, 176
LABELS = [f"class {i}" for i in range(CLASSES)]
INTENTS, PARAGRAPHS = "intent/intent176/train.tsv", "qa/xquad/xquad.en.json"
BOOKS = "corpora/en/classic_books.txt"
LITE = {f"{ruler.OURS}-litert": "float32", f"{ruler.OURS}-litert-int8": "int8"}  # names and dtypes on LiteRT
ENGLISH, KOREAN = "bert-base-uncased", "bert-base-multilingual-cased"


def sample(path, column, count):
    """Returns `count` texts from a column of a table."""
    return draw([row.values[column] for row in read_table(find(path, BUNDLED), kind=".tsv")[1]], count, path)


def draw(texts, count, path=None):
    """Draws `count` of the texts with a fixed seed; repeats them if there are fewer.

    Args:
        path: source of the texts; if given, it is printed.
    """
    if path:
        announce(BUNDLED / path, min(count, len(texts)))
    return [texts[i] for i in np.resize(np.random.default_rng(0).permutation(len(texts)), count)]


def mixed(count=340):
    """Returns intents, sentences from books (one per line) and paragraphs in the ratio 25 to 7 to 2, shuffled."""
    sentences = list(filter(None, find(BOOKS, BUNDLED).read_text(encoding="utf-8").split("\n")))
    articles = json.loads(find(PARAGRAPHS, BUNDLED).read_text(encoding="utf-8"))["data"]
    paragraphs = [part["context"] for article in articles for part in article["paragraphs"]]
    medium, long = count * 7 // 34, count * 2 // 34
    texts = [*draw(sentences, medium, BOOKS), *draw(paragraphs, long, PARAGRAPHS),
             *sample(INTENTS, "text", count - medium - long)]
    return draw(texts, count)


# Function that returns the texts, vocabulary, maximum number of tokens.
CORPORA = {"intents": (lambda: sample(INTENTS, "text", 512), ENGLISH, 128),
           "korean": (lambda: sample("ko/nsmc/train_rebuilt.txt", "document", 512), KOREAN, 128),
           "mixed": (mixed, ENGLISH, 256)}


def tokenizer_of(vocabulary):
    return BertTokenizer(find(f"vocab/{vocabulary}/vocab.txt", BUNDLED), lower_case=vocabulary == ENGLISH)


def fast_tokenizer(folder, max_length, padding=True):
    """Returns a function from texts to int32 word ids and mask [batch, seq]."""
    import transformers

    tokenizer = transformers.BertTokenizerFast.from_pretrained(folder)

    def encode(texts):
        encoded = tokenizer(texts, padding=padding, truncation=True, max_length=max_length, return_tensors="np",
                            return_token_type_ids=False)
        return encoded["input_ids"].astype(np.int32), encoded["attention_mask"].astype(np.int32)

    return encode


def in_batches(answer):
    return lambda texts: [answer(texts[i:i + BATCH]) for i in range(0, len(texts), BATCH)]


def exported(folder, tokenizer, max_length, dtype):
    """Returns this package's raw-text SavedModel, as a function of all texts."""
    served = load_exported(BertClassifier(load_pretrained(folder), CLASSES), tokenizer, labels=LABELS,
                           max_length=max_length, dtype=dtype)
    return in_batches(lambda texts: served(tf.constant(texts))["label"].numpy())


def lite(dtype, folder, tokenizer, max_length):
    """Returns this package's classifier on LiteRT, as a function of texts."""
    return load_lite(BertClassifier(load_pretrained(folder), CLASSES), tokenizer, f"{folder}-{dtype}",
                     Classify(max_length, LABELS), dtype).predict


def ours(folder, tokenizer, max_length, dtype):
    """Returns this package's two classifiers on TensorFlow, as a dict of functions of all texts."""
    model = BertClassifier(load_pretrained(folder, dtype=policy_of(dtype), layout="unpadded"), CLASSES)
    task = Classify(max_length, LABELS)
    return {ruler.OURS: exported(folder, tokenizer, max_length, dtype),
            f"{ruler.OURS}-predict": FineTuned(model, tokenizer, task).predict}


def theirs(names, folder, config, max_length, dtype):
    """Returns the other libraries' classifiers, as a dict of functions of all texts."""
    kernel = np.random.default_rng(0).normal(0, 0.02, (config.hidden_size, CLASSES)).astype(np.float32)

    def classify(encode, tokenize, texts):
        return [LABELS[i] for i in np.argmax(encode(*tokenize(texts)) @ kernel, axis=1)]

    return {name: in_batches(functools.partial(
        classify, encode, fast_tokenizer(folder, max_length, "max_length" if "kerashub" in name else True)))
        for name, encode in make_encoders(names, folder, dtype).items()}


def measure(corpus, size, dtype, peers, turns):
    """Prints the table of one corpus; returns its rows."""
    read, vocabulary, max_length = CORPORA[corpus]
    texts, tokenizer = read(), tokenizer_of(vocabulary)
    lengths = [len(ids) for ids, _ in tokenizer.pack(texts, None, max_length)]
    config = config_of(size, vocab_size=len(tokenizer.vocabulary))
    with tempfile.TemporaryDirectory() as work:
        write_encoder(config, f"{work}/encoder", tokenizer)
        answers = ours(f"{work}/encoder", tokenizer, max_length, dtype)
        if dtype == "float32":
            lites = {name: functools.partial(lite, lite_dtype) for name, lite_dtype in LITE.items()}
            for name, predict in ruler.installed(lites, f"{work}/encoder", tokenizer, max_length).items():
                answers |= {name: in_batches(predict), f"{name}-predict": predict}
        answers |= theirs(peers, f"{work}/encoder", config, max_length, dtype)
        return compare_orders(f"{corpus}, {dtype}", answers, texts, lengths, config, turns, dtype)


def compare_orders(title, answers, texts, lengths, config, turns, dtype):
    """Prints the table of some libraries, with texts in order of arrival and sorted by length; returns its rows.

    Args:
        answers: dict of names to functions of all texts.
        lengths: number of tokens of each text.
        config, turns, dtype: the encoder's `BertConfig`; see `compare`.
    """
    orders = {"arrival": texts, "sorted": sorted(texts, key=len)}
    seconds, limit = ruler.compare({(name, order): functools.partial(answer, orders[order])
                              for name, answer in answers.items() for order in orders}, turns, dtype)
    ratio = {order: ruler.ratios({name: seconds[name, order] for name in answers}) for order in orders}
    rows = [{"library": name} | {
        f"{order}_{key}": value for order in orders for key, value in (
            ("texts_per_second", len(texts) / seconds[name, order]),
            ("tokens_per_second", sum(lengths) / seconds[name, order]), ("ratio", ratio[order][name]))}
        for name in answers]
    limit *= sum(lengths) / sum(ruler.forward_cost(config, length) for length in lengths)
    ruler.print_table(f"{title}: {len(texts)} texts of {sum(lengths) / len(texts):.0f} tokens; at the rate of a "
                f"matrix product {limit:,.0f} tokens/s", rows)
    return rows


def main():
    peers = [name for name in ENCODERS if not name.startswith(ruler.OURS)]
    given = ruler.parser(__doc__, size="base", dtypes=["float32"], corpora=list(CORPORA), peers=peers,
                         turns=3).parse_args()
    versions = ruler.describe(*ruler.PACKAGES, "tokenizers")
    rows = [{"corpus": corpus, "dtype": dtype} | row for dtype in given.dtypes for corpus in given.corpora
            for row in measure(corpus, given.size, dtype, given.peers, given.turns)]
    ruler.finish("texts", versions, given, rows)


if __name__ == "__main__":
    main()
