"""The labels, the length of the inputs and the tokenizers of the tests of raw-text graphs."""

from keras_bert.text import BertTokenizer

from conftest import TINY_VOCABULARY

LABELS = ["O", "B-곳", "I-곳", "B-x", "I-x"]
LENGTH = 16  # of the inputs, so that texts need several
TOKENIZER = BertTokenizer(TINY_VOCABULARY)


class TwoSeparators(BertTokenizer):
    """Packs pairs as RoBERTa and XLM-R do."""

    separators = 2


XLM_R = TwoSeparators(TINY_VOCABULARY, has_segments=False)
