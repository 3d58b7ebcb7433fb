import itertools

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from keras_bert.data import Example, TextBatches, plan_batches, read_examples, sorted_batches, token_batches


def test_columns_by_name(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("q1\tq2\tsame\nx\ty\t1\n")
    assert read_examples(path, "q1", "q2", "same") == [Example("x", "y", "1", 2)]
    assert read_examples(path, "q2", label_column=None) == [Example("y", None, None, 2)]


@pytest.mark.parametrize("end", ["", "\n", "\n\r\n\n"])
def test_a_blank_line_is_an_empty_text_where_a_row_has_one_cell(tmp_path, end):
    path = tmp_path / "a.tsv"
    path.write_text(f"\n\ntext\n\nx\r\n\r\n\ny{end}")
    assert [(example.text, example.row) for example in read_examples(path, label_column=None)] == [
        ("", 4), ("x", 5), ("", 6), ("", 7), ("y", 8)]
    path.write_text(f"\ntext\tlabel\n\nx\ta\n\ny\tb{end}")
    assert [(example.text, example.row) for example in read_examples(path)] == [("x", 4), ("y", 6)]


@hypothesis.given(st.lists(st.integers(1, 100), min_size=1, max_size=500), st.integers(1, 40), st.integers(0, 99))
def test_plans_hold_every_text_once(lengths, batch_size, seed):
    for plan in (plan_batches(lengths, batch_size, np.random.default_rng(seed)), sorted_batches(lengths, batch_size)):
        assert sorted(np.concatenate(plan)) == list(range(len(lengths)))
        assert max(map(len, plan)) <= batch_size
        assert len(plan) == -(-len(lengths) // batch_size)


@hypothesis.given(st.lists(st.integers(1, 100), min_size=1, max_size=500), st.integers(1, 400))
def test_batches_of_tokens_hold_every_text_once(lengths, tokens):
    plan = token_batches(lengths, tokens)
    assert sorted(np.concatenate(plan)) == list(range(len(lengths)))
    in_order = [lengths[i] for indices in plan for i in indices]
    assert in_order == sorted(lengths)
    assert all(sum(lengths[i] for i in indices[:-1]) <= tokens for indices in plan)
    assert all(sum(lengths[i] for i in (*one, *other)) > tokens - 100 for one, other in itertools.pairwise(plan))


def test_plans_pad_little_and_differ_by_epoch():
    lengths = np.random.default_rng(0).integers(3, 100, 5000)
    first, second = (plan_batches(lengths, 32, np.random.default_rng((0, epoch))) for epoch in (0, 1))
    padded = sum(lengths[batch].max() * len(batch) for batch in first)
    assert padded / lengths.sum() < 1.05
    assert [list(batch) for batch in first] != [list(batch) for batch in second]


def test_training_batches_follow_seed_and_step():
    packed = [([2, *range(10, 10 + i), 3], i + 2) for i in range(1, 10)]

    def batches(seed):
        text_batches = TextBatches(packed, 0, np.arange(9))
        datasets = [text_batches.training_dataset(4, seed, epoch) for epoch in range(2)]
        assert [len(dataset) for dataset in datasets] == [text_batches.steps(4)] * 2
        return [(inputs["dropout_seed"].numpy().tolist(), labels.numpy().tolist(), inputs["input_word_ids"].numpy())
                for dataset in datasets for inputs, labels in dataset]

    first, again, other = batches(7), batches(7), batches(8)
    assert [seeds for seeds, _, _ in first] == [[[7, step]] * len(labels) for step, (_, labels, _) in enumerate(first)]
    assert [labels for _, labels, _ in first] == [labels for _, labels, _ in again]
    assert [labels for _, labels, _ in first] != [labels for _, labels, _ in other]
    for epoch in (first[:3], first[3:]):  # nine texts in batches of four
        assert sorted(label for _, labels, _ in epoch for label in labels) == list(range(9))
    for _, labels, word_ids in first:
        for label, row in zip(labels, word_ids):
            assert [i for i in row if i] == packed[label][0]
    skipped = TextBatches(packed, 0, np.arange(9)).training_dataset(4, 7, epoch=1, skip=2)
    assert [(seeds.numpy().tolist(), labels.numpy().tolist()) for (seeds, labels) in
            ((inputs["dropout_seed"], labels) for inputs, labels in skipped)] == [first[5][:2]]


def test_lengths_in_multiples():
    batches = TextBatches([([2, 5, 3], 3), ([2, 5, 5, 5, 3], 5)], 0, length_multiple=4)
    assert batches.inputs([0])["input_word_ids"].shape == (1, 4)
    assert batches.inputs([0, 1])["input_word_ids"].shape == (2, 8)
