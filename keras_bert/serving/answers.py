"""Conversion of a raw-text SavedModel's outputs (export/text_model.py) to JSON-compatible answers, one per text."""


def kind_of(columns):
    """Returns the task of the model with these outputs, as named in `keras_bert.tasks`; None if it is an embedder or
    not a raw-text model."""
    return next((kind for kind, (column, _) in _KINDS.items() if column in columns), None)


def read_answers(outputs, labels=None):
    """Returns a list with the answer to each row of the inputs.

    Args:
        outputs: what the signature `serving_default` returned: dict of names to arrays, strings as bytes.
        labels: names of a classifier's classes in their order. If given, answers have all classes; if None, the best
            one.

    Returns:
        a list, whose items depend on the task. Classifier: {labels, scores, in_scope}, best class first; in_scope is
        None if there is no threshold. Regression: a float. Tagger: a list of {label, text, start, end, score}. Spans:
        {text, start, end, score}. Choices: {index, probabilities}.
    """
    _, read = _KINDS[kind_of(outputs)]
    rows = zip(*(_plain(array) for array in outputs.values()))
    return [read(labels=labels, **dict(zip(outputs, row))) for row in rows]


def _labels(label, score, probabilities, labels, in_scope=None):
    best = [(label, score)]
    if labels:
        best = sorted(zip(labels, probabilities), key=lambda pair: -pair[1])
    return {"labels": [name for name, _ in best], "scores": [share for _, share in best], "in_scope": in_scope}


def _value(value, **_):
    return value


def _entities(entity_label, entity_text, entity_start, entity_end, entity_score, **_):
    return [{"label": label, "text": text, "start": start, "end": end, "score": score}
            for label, text, start, end, score in zip(entity_label, entity_text, entity_start, entity_end, entity_score)
            if start >= 0]


def _span(answer, start, end, score, **_):
    return {"text": answer, "start": start, "end": end, "score": score}


def _choice(choice, probabilities, **_):
    return {"index": choice, "probabilities": probabilities}


def _plain(array):
    """Returns an array as nested lists of Python values."""
    def text(value):
        return [text(item) for item in value] if isinstance(value, list) else value.decode(errors="replace")

    return text(array.tolist()) if array.dtype == object else array.tolist()


# For each task: an output that no other task has, and the function that reads one row of all outputs.
_KINDS = {"classify": ("label", _labels), "regress": ("value", _value), "tag": ("entity_label", _entities),
          "span": ("answer", _span), "choice": ("choice", _choice)}
