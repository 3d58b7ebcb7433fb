"""What the outputs of a raw-text SavedModel say (export/text_model.py), text by text, as JSON can hold it."""


def kind_of(columns):
    """The task of the model that has these outputs, by the name of `keras_bert.tasks`; None of an embedder, and where
    it is no raw-text model."""
    return next((kind for kind, (column, _) in _KINDS.items() if column in columns), None)


def read_answers(outputs, labels=None):
    """The answer to each row of the inputs.

    Args:
        outputs: what the signature `serving_default` returned: dict of arrays, strings as bytes.
        labels: of a classifier, the names of its classes in their order, to have all of them; the best one where None.

    Returns:
        a list: of a classifier {labels, scores, in_scope}, the best first, in_scope None where there is no threshold;
        of a regression a float; of a tagger a list of {label, text, start, end, score}; of spans {text, start, end,
        score}; of choices {index, probabilities}.
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
    """An array as nested lists of Python's own values."""
    def text(value):
        return [text(item) for item in value] if isinstance(value, list) else value.decode(errors="replace")

    return text(array.tolist()) if array.dtype == object else array.tolist()


# By task, an output that no other one has, and what reads a row of all.
_KINDS = {"classify": ("label", _labels), "regress": ("value", _value), "tag": ("entity_label", _entities),
          "span": ("answer", _span), "choice": ("choice", _choice)}
