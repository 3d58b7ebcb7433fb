import pytest

from keras_bert.errors import InputError
from keras_bert.files import written_beside


def test_a_failure_leaves_nothing(tmp_path):
    with pytest.raises(RuntimeError), written_beside(tmp_path / "new") as folder:
        (tmp_path / folder / "half").write_text("x")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_a_failure_keeps_what_stood_there(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/old").write_text("old")
    with pytest.raises(RuntimeError), written_beside(tmp_path / "out", overwrite=True):
        raise RuntimeError
    assert (tmp_path / "out/old").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_replaces_whole(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/old").write_text("old")
    with written_beside(tmp_path / "out", overwrite=True) as folder:
        (tmp_path / folder / "new").write_text("new")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["new"]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_an_empty_folder_is_free_and_a_file_is_not(tmp_path):
    (tmp_path / "empty").mkdir()
    with written_beside(tmp_path / "empty") as folder:
        (tmp_path / folder / "new").write_text("new")
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="file: exists already"), written_beside(tmp_path / "file"):
        pass
