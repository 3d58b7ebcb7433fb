"""What weights hold that no source has."""

import numpy as np
import pytest

from keras_bert.errors import InputError
from keras_bert.models import BertClassifier, BertTokenClassifier
from keras_bert.weights.kinds import initial

from conftest import TINY

QUERY, VALUE = "bert.blocks.0.attention.query.kernel", "bert.blocks.1.attention.value.kernel"


def test_weights_differ_although_their_names_are_equally_long():
    first, second = (initial(name, (64, 64), TINY) for name in (QUERY, VALUE))
    assert len(QUERY) == len(VALUE) and abs(np.corrcoef(first.ravel(), second.ravel())[0, 1]) < 0.1
    np.testing.assert_array_equal(first, initial(QUERY, (64, 64), TINY))


def test_kernels_are_drawn_from_a_truncated_normal_distribution():
    values = initial(QUERY, (200, 200), TINY) / TINY.initializer_range
    assert abs(values.mean()) < 0.02 and abs(values.std() - 0.88) < 0.02 and np.abs(values).max() <= 2


@pytest.mark.parametrize("head", [BertClassifier, BertTokenClassifier])
def test_a_head_of_unknown_width_is_asked_for(pretrained, head):
    with pytest.raises(InputError) as error:
        head.from_pretrained(pretrained)
    assert str(error.value) == (f"{pretrained}: these weights have no classification head; pass num_classes=…, the "
                                f"number of classes, for {head.__name__} to add one")
