"""How far a written model is from the one that it was written from."""

import numpy as np
from keras import ops

from keras_bert.convert.kinds import ENCODER, KINDS

_TEXTS = [
    "The bank raised its rates, and the river its banks.",
    "Who wrote this, and when?",
    "play some music in the kitchen",
    "오늘 서울 날씨가 어때요?",
    "이 영화는 정말 재미있었어요!",
    "北京の冬は寒いです。",
    "¿Dónde está la biblioteca? Nº 7",
    "3.14 × 2 = 6.28 😀",
]


def differences(weights, target, folder):
    """The largest absolute difference of each output, on real texts.

    Args:
        weights: `Weights` that were written.
        target: the `Format` that they were written in.
        folder: where they stand.

    Returns:
        dict of the outputs' names to floats.
    """
    inputs = _inputs(weights)
    wanted = _outputs(weights.build(), weights.kind, inputs)
    if target.run:
        written = target.run(folder, inputs)
    else:
        written = _outputs(target.read(folder).take()[0].build(), weights.kind, inputs)
    return {name: float(np.max(np.abs(np.asarray(written[name]) - value))) for name, value in wanted.items()}


def _inputs(weights):
    """Real texts; random ids where there is no vocabulary."""
    length = min(64, weights.config.max_position_embeddings)
    if weights.tokenizer is None:
        shape = (len(_TEXTS), length)
        ids = np.random.default_rng(0).integers(0, weights.config.vocab_size, shape).astype(np.int32)
        inputs = {"input_word_ids": ids, "input_mask": np.ones_like(ids), "input_type_ids": np.zeros_like(ids)}
    else:
        inputs = weights.tokenizer(_TEXTS, max_length=length)
        inputs["input_type_ids"] = inputs.pop("segment_ids")
    if weights.kind in ("masked_lm", "pretraining"):
        inputs["masked_lm_positions"] = np.tile(np.arange(3, dtype=np.int32), (len(_TEXTS), 1))
    return inputs


def _outputs(model, kind, inputs):
    bert = model if kind == ENCODER else model.bert
    outputs = bert.encode(inputs)._asdict()
    names = ("pooled_output", "sequence_output") if KINDS[kind].is_pooled else ("sequence_output",)
    outputs = {name: outputs[name] for name in names}
    if kind != ENCODER:
        if kind == "multiple_choice":
            inputs = {name: array[:, None] for name, array in inputs.items()}
        logits = model(inputs)
        outputs |= logits if isinstance(logits, dict) else {"logits": logits}
    return {name: ops.convert_to_numpy(output) for name, output in outputs.items()}
