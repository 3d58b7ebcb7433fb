"""Names that go with version 1.0: they work, with a warning."""

import pkgutil

import pytest

from keras_bert.tasks import TASKS

MOVED = {"keras_bert.tasks:run": "keras_bert.tasks:run_model",
         "keras_bert.training.loop:enable_determinism": "keras_bert.training:enable_determinism",
         "keras_bert.text.vocabulary_training:find_texts": "keras_bert.files.paths:find_texts"}


@pytest.mark.parametrize("old", MOVED)
def test_moved_names(old):
    with pytest.warns(FutureWarning, match=f"^{old.replace(':', '.')} goes with version 1.0; use ") as warned:
        assert pkgutil.resolve_name(old) is pkgutil.resolve_name(MOVED[old])
    assert len(warned) == 1


def test_the_old_name_of_inputs():
    with pytest.warns(FutureWarning, match="^Task.columns goes with version 1.0; use Task.inputs$") as warned:
        assert TASKS["classify"](8, labels=["a"]).columns == ("text",)
    assert warned[0].filename == __file__
