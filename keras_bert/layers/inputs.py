"""The inputs of an encoder call."""

from keras import ops


def standardize_inputs(inputs):
    """The three int32 tensors of an encoder call, (word_ids, mask, segment_ids), from a dict or a list of three.

    A dict needs `input_word_ids`, `input_mask`, and `segment_ids` or `input_type_ids`; other keys are ignored.
    """
    if isinstance(inputs, dict):
        segments = "segment_ids" if "segment_ids" in inputs else "input_type_ids"
        missing = [key for key in ("input_word_ids", "input_mask", segments) if key not in inputs]
        if missing:
            raise ValueError("inputs need input_word_ids, input_mask, and segment_ids or input_type_ids; "
                             f"missing {', '.join(missing)}, got {', '.join(sorted(inputs))}")
        inputs = [inputs["input_word_ids"], inputs["input_mask"], inputs[segments]]
    if len(inputs) != 3:
        raise ValueError(f"inputs need three tensors, input_word_ids, input_mask, segment_ids; got {len(inputs)}")
    return tuple(ops.cast(tensor, "int32") for tensor in inputs)
