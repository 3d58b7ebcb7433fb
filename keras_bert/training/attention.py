"""The attention of one text, for a picture."""

import numpy as np
from keras import ops

# The picture is of a text of this many tokens, if there is one.
_TOKENS = range(6, 17)


def attention(model, encoded):
    """The attention of a short one of some examples.

    Args:
        model: a `FineTuned`.
        encoded: `Encoded` examples.

    Returns:
        dict of `tokens`, and `layers`, [layer][head][token][token] as lists.
    """
    batches = encoded.batched(model.tokenizer)
    fitting = [i for i, length in enumerate(batches.lengths) if length in _TOKENS]
    inputs = batches.inputs([fitting[0] if fitting else int(np.argmin(batches.lengths))])
    length = inputs["input_mask"].reshape(-1, inputs["input_mask"].shape[-1])[0].sum()
    inputs = {name: values.reshape(-1, values.shape[-1])[:1, :length] for name, values in inputs.items()}
    layers = model.model.bert.encode(inputs, return_attention=True).attention_probabilities
    return {"tokens": [model.tokenizer.vocabulary[i] for i in inputs["input_word_ids"][0]], "layers": [
        np.round(ops.convert_to_numpy(ops.cast(layer[0], "float32")).astype(float), 4).tolist() for layer in layers]}
