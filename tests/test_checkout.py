"""`keras_bert.export` in a checkout that is not installed."""

import pathlib
import shutil
import subprocess
import sys

import pytest

CHECKOUT = pathlib.Path(__file__).parents[1]


def files_of_export(checkout, more_paths, cwd):
    """What a process imports that has a checkout on its path.

    Args:
        checkout: folder of the checkout.
        more_paths: folders that follow it on the path.
        cwd: working directory.

    Returns:
        list of the files of `keras_bert` and of `keras_bert.export`.
    """
    # -S leaves site-packages out, and with it the finders of editable installs, until the path is set.
    paths = [str(path) for path in (checkout, *more_paths)]
    code = (f"import sys; sys.path[:0] = {paths!r}; sys.path += {site_packages()!r}\n"
            "import importlib.util, keras_bert\n"
            "print(keras_bert.__file__, importlib.util.find_spec('keras_bert.export').origin, sep='\\n')")
    process = subprocess.run([sys.executable, "-I", "-S", "-c", code], cwd=cwd, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr[-2000:]
    return [pathlib.Path(line) for line in process.stdout.splitlines()]


def site_packages():
    return [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]


@pytest.fixture
def other(tmp_path):
    """Another checkout."""
    for folder in ("keras_bert", "export"):
        shutil.copytree(CHECKOUT / folder, tmp_path / "other" / folder, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path / "other"


def test_is_the_folder_export_of_the_checkout(tmp_path):
    assert files_of_export(CHECKOUT, [], tmp_path) == [
        CHECKOUT / "keras_bert/__init__.py", CHECKOUT / "export/__init__.py"]


def test_of_two_checkouts_each_has_its_own(other, tmp_path):
    for first, second in ((CHECKOUT, other), (other, CHECKOUT)):
        for cwd in (tmp_path, second):
            assert files_of_export(first, [second], cwd) == [
                first / "keras_bert/__init__.py", first / "export/__init__.py"]


def test_an_installed_package_has_its_own(other, tmp_path):
    """In a wheel, export is a folder inside the package."""
    (other / "export").rename(other / "keras_bert/export")
    assert files_of_export(other, [CHECKOUT], CHECKOUT) == [
        other / "keras_bert/__init__.py", other / "keras_bert/export/__init__.py"]
