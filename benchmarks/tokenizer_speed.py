"""Compares tokenizers in texts per second, from texts to ids.

    python benchmarks/tokenizer_speed.py [--vocab=vocab.txt --texts=lines.txt --cased]

Without `--vocab` and `--texts`, reads English and Korean texts (`real_texts.py`). `--cased`: does not lower-case the
texts of `--texts`, nor strips their accents. The tokenizers take turns; a rate is the size of a batch divided by its
median time. Tokenizers in TensorFlow run as concrete functions from strings to ragged ids. Libraries that are not
installed are skipped. Takes about two minutes.
"""

import json
import statistics
import time

import ruler
import tensorflow as tf
from real_texts import announce, find

from keras_bert.text import BertTokenizer
from keras_bert.text.tokenizer_files import MAX_WORD_LENGTH
from keras_bert.text.vocabulary import load_vocabulary

REFERENCE = "FastBertTokenizer"
BATCHES = {1: 256, 32: 64, 1024: 8}  # texts per batch: batches per turn
CORPORA = {"English": ("vocab/bert-base-uncased/vocab.txt", "corpora/en/classic_books.txt", True),
           "Korean": ("vocab/bert-base-multilingual-cased/vocab.txt", "corpora/ko/nsmc_raw_reviews.txt", False)}


def in_graph(tokenize):
    signature = [tf.TensorSpec([None], tf.string)]
    return tf.function(tokenize, input_signature=signature, autograph=False).get_concrete_function()


def graph_tokenizer(vocab, lower_case):
    graph = BertTokenizer(vocab, lower_case).graph()
    return in_graph(lambda texts: graph.tokenize(texts).merge_dims(1, 2))


def offline_tokenizer(vocab, lower_case):
    return BertTokenizer(vocab, lower_case).ids


def tokenizers_alone(vocab, lower_case):
    import tokenizers
    from tokenizers import models, normalizers, pre_tokenizers

    ids = {piece: index for index, piece in enumerate(load_vocabulary(vocab))}
    tokenizer = tokenizers.Tokenizer(
        models.WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=MAX_WORD_LENGTH))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lower_case, strip_accents=lower_case)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return lambda texts: [encoding.ids for encoding in tokenizer.encode_batch_fast(texts)]


def fast_bert_tokenizer(vocab, lower_case):
    import tensorflow_text

    tokenizer = tensorflow_text.FastBertTokenizer(
        load_vocabulary(vocab), token_out_type=tf.int32, lower_case_nfd_strip_accents=lower_case)
    return in_graph(tokenizer.tokenize)


def bert_tokenizer(vocab, lower_case):
    import tensorflow_text

    tokenizer = tensorflow_text.BertTokenizer(vocab, token_out_type=tf.int32, lower_case=lower_case)
    return in_graph(lambda texts: tokenizer.tokenize(texts).merge_dims(1, 2))


def full_tokenizer(vocab, lower_case):
    from official.nlp.tools.tokenization import FullTokenizer

    tokenizer = FullTokenizer(vocab, lower_case)
    return lambda texts: [tokenizer.convert_tokens_to_ids(tokenizer.tokenize(text)) for text in texts]


TOKENIZERS = {"keras_bert, graph": graph_tokenizer, REFERENCE: fast_bert_tokenizer,
              "tf_text BertTokenizer": bert_tokenizer, "keras_bert, offline": offline_tokenizer,
              "tokenizers": tokenizers_alone, "Model Garden": full_tokenizer}


def rates(tokenizers, batches, turns):
    """Returns the texts per second of each tokenizer, by name."""
    seconds = {name: [] for name in tokenizers}
    for turn in range(turns + 1):
        for name, tokenize in tokenizers.items():
            is_graph = hasattr(tokenize, "structured_outputs")
            for batch in map(tf.constant, batches) if is_graph else batches:
                started = time.perf_counter()
                tokenize(batch)
                if turn:
                    seconds[name].append(time.perf_counter() - started)
    return {name: len(batches[0]) / statistics.median(times) for name, times in seconds.items()}


def measure(corpus, turns, vocab, texts, lower_case):
    """Prints a table for one corpus; returns the rates by batch size and name."""
    with open(texts, encoding="utf-8") as file:
        lines = [line.strip() for line in file if line.strip()]
    announce(texts, len(lines))
    tokenizers = ruler.installed(TOKENIZERS, str(vocab), lower_case)
    results = {size: rates(tokenizers, [lines[i * size:(i + 1) * size]
                                        for i in range(min(count, len(lines) // size))], turns)
               for size, count in BATCHES.items()}
    print(f"\n{corpus}: texts a second, and as a share of {REFERENCE}'s\n{'batch':22}"
          + "".join(f"{size:>17}" for size in BATCHES))
    for name in tokenizers:
        cells = [(rate[name], rate[name] / rate.get(REFERENCE, float("nan"))) for rate in results.values()]
        print(f"{name:22}" + "".join(f"{rate:11,.0f} {share:5.2f}" for rate, share in cells))
    return results


def main():
    given = ruler.parser(__doc__, vocab=None, texts=None, cased=False, turns=12).parse_args()
    ruler.describe("tensorflow", "tensorflow-text", "tokenizers", "tf-models-official")
    if given.vocab and given.texts:
        corpora = {given.texts: (given.vocab, given.texts, not given.cased)}
    else:
        corpora = {name: (find(vocab), find(texts), lower) for name, (vocab, texts, lower) in CORPORA.items()}
    print(json.dumps({name: measure(name, given.turns, *settings) for name, settings in corpora.items()}))


if __name__ == "__main__":
    main()
