import numpy as np
import pytest

from keras_bert.errors import InputError
from keras_bert.layers import BertLayer
from keras_bert.models import BertPretrainer
from keras_bert.training import fill_mask

from conftest import SMALL, randomize

TEXTS = 9 * ["[MASK]", "play some [MASK] in the [MASK] please", "turn on the [MASK]", "i [MASK] a [MASK] for [MASK]"]


def test_batches_are_bounded_and_change_nothing(tokenizer, monkeypatch):
    model = randomize(BertPretrainer(BertLayer(SMALL)))
    sizes, call = [], BertPretrainer.call
    monkeypatch.setattr(BertPretrainer, "call", lambda self, inputs, **options: (
        sizes.append(len(inputs["input_word_ids"])), call(self, inputs, **options))[1])
    wanted = fill_mask(model, tokenizer, TEXTS, top_k=3, batch_size=len(TEXTS))
    assert sizes == [36]
    got = fill_mask(model, tokenizer, TEXTS, top_k=3)
    assert sizes == [36, 32, 4]
    assert [len(masks) for masks in got] == [1, 2, 1, 3] * 9
    for masks, others in zip(got, wanted, strict=True):
        for guesses, other in zip(masks, others, strict=True):
            assert [piece for piece, _ in guesses] == [piece for piece, _ in other]
            np.testing.assert_allclose([score for _, score in guesses], [score for _, score in other], rtol=1e-5)
    assert fill_mask(model, tokenizer, iter([])) == []
    assert fill_mask(model, tokenizer, iter(TEXTS), top_k=3, batch_size=len(TEXTS)) == wanted


def test_what_is_no_list_of_texts(tokenizer):
    for texts, message in (("a [MASK]", "texts must be a list"), (["a [MASK]", None], "texts: row 2")):
        with pytest.raises(InputError, match=message):
            fill_mask(None, tokenizer, texts)
