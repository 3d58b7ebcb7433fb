"""Weights into a layer, every one of them or none."""

from keras_bert.errors import InputError


def assign(bert, names, tensors, source):
    """Assigns every weight of `bert`, after checking all of them.

    Args:
        bert: a `BertLayer`.
        names: `Name`s, one for each variable of `bert`.
        tensors: dict of the other library's names to arrays in its layout.
        source: path for messages.

    Raises:
        InputError: weights are missing, left over or of another shape; all of them are listed at once.
    """
    expected = {name.theirs for name in names}
    problems = [f"missing {key}" for key in sorted(expected - tensors.keys())]
    problems += [f"unexpected {key}" for key in sorted(tensors.keys() - expected)]
    values = {name: name.convert(tensors[name.theirs]) for name in names if name.theirs in tensors}
    problems += [
        f"{name.theirs} has shape {tensors[name.theirs].shape} where the config gives "
        f"{name.convert(name.variable(bert)).shape}"
        for name, value in values.items() if value.shape != tuple(name.variable(bert).shape)
    ]
    if problems:
        raise InputError(f"{source}: the weights do not fit the config: {'; '.join(problems)}")
    for name, value in values.items():
        name.variable(bert).assign(value)
