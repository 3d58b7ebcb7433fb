"""Files and folders are written whole or not at all, whatever happens meanwhile."""

import concurrent.futures
import contextlib
import errno
import functools
import itertools
import os
import pathlib
import shutil
import signal
import stat
import subprocess
import sys
import tempfile

import pytest

from keras_bert.errors import InputError
from keras_bert.files.atomic import atomic_file, atomic_folder, check_free, only_writer
from keras_bert.files.json_files import write_json

CHECKOUT = pathlib.Path(__file__).parents[1]
OLD, NEW = {"a": "old", "sub/b": "old"}, {"a": "new", "sub/c": "new"}
# Everything that keras_bert.files, tempfile and shutil.rmtree ask of the system to change something.
CHANGES = ("mkdir", "open", "fsync", "chown", "chmod", "rename", "replace", "unlink", "rmdir")


def write(path, content):
    """Writes a folder, a dict of file to text, or a file, a text."""
    if isinstance(content, str):
        pathlib.Path(path).write_text(content)
    else:
        for name, text in content.items():
            file = pathlib.Path(path, name)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)


def read(path):
    """What `write` wrote; None where nothing exists."""
    path = pathlib.Path(path)
    if path.is_dir():
        return {str(file.relative_to(path)): file.read_text() for file in path.rglob("*") if file.is_file()}
    return path.read_text() if path.exists() else None


def replace(path, content):
    """Writes new content with the functions of `files`."""
    context = atomic_file(path) if isinstance(content, str) else atomic_folder(path, overwrite=True)
    with context as new:
        write(new, content)


def break_at(patch, number, action, late):
    """Calls `action` in the change of that number, before or, if `late`, after it is made.

    Args:
        patch: a function of name and function that replaces `os.<name>`.

    Returns:
        list that gets the name of each change.
    """
    changes = []

    def broken(name, function):
        def call(*arguments, **named):
            changes.append(name)
            if len(changes) == number and not late:
                action()
            result = function(*arguments, **named)
            if len(changes) == number and late:
                action()
            return result
        return call

    for name in CHANGES:
        patch(name, broken(name, getattr(os, name)))
    return changes


def interrupt():
    raise KeyboardInterrupt


def fill_disk():
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


CASES = {"folder": (OLD, NEW), "new_folder": (None, NEW), "file": ("old", "new"), "new_file": (None, "new")}


def start(path, old):
    """Leaves the old content alone in the folder of `path`."""
    shutil.rmtree(path.parent)
    path.parent.mkdir()
    if old is not None:
        write(path, old)


def check_whole(path, old, new):
    """Old or new is complete, at once or after the next call; the call after that leaves nothing else behind."""
    found = read(path)
    assert found in (old, new) or found is None
    check_free(path, overwrite=True)
    assert read(path) in (old, new)
    replace(path, new)
    assert read(path) == new and os.listdir(path.parent) == ["out"]


@pytest.mark.parametrize("action, late", [(interrupt, False), (interrupt, True), (fill_disk, False)])
@pytest.mark.parametrize("old, new", CASES.values(), ids=CASES)
def test_an_error_at_any_step(tmp_path, monkeypatch, old, new, action, late):
    monkeypatch.setattr(os, "fsync", lambda file: None)  # which takes long while other programs write
    path, raised = tmp_path / "in/out", 0
    path.parent.mkdir()
    for step in itertools.count(1):
        start(path, old)
        with monkeypatch.context() as patched:
            changes = break_at(functools.partial(patched.setattr, os), step, action, late)
            try:
                replace(path, new)
            except (KeyboardInterrupt, InputError):
                raised += 1
                assert read(path) in (old, new)  # moved back at once
        check_whole(path, old, new)
        if len(changes) < step:
            break
    assert raised >= 8 and {"mkdir", "open", "fsync", "rmdir"} < set(changes)


def kill_at_each_step(folder, name, late):
    """Kills a process (SIGKILL) at each step of replacing. Forks, hence runs in a process without threads."""
    os.fsync = lambda file: None
    path, (old, new) = pathlib.Path(folder, "out"), CASES[name]
    kills, moved_back = 0, 0
    for step in itertools.count(1):
        start(path, old)
        child = os.fork()
        if child == 0:
            kill = functools.partial(os.kill, os.getpid(), signal.SIGKILL)
            changes = break_at(functools.partial(setattr, os), step, kill, late)
            replace(path, new)
            os._exit(3 if len(changes) < step else 0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        kills += code == -signal.SIGKILL
        moved_back += old is not None and read(path) is None
        check_whole(path, old, new)
        if code == 3:  # there are fewer steps
            break
    assert kills >= 8 and moved_back == {"folder": 5}.get(name, 0), (name, late, kills, moved_back)


@pytest.mark.slow("a file that a kill leaves half-written")
def test_a_kill_at_any_step(tmp_path):
    run_python(f"""import itertools, pathlib, test_files
for name, late in itertools.product(test_files.CASES, [False, True]):
    folder = pathlib.Path({str(tmp_path)!r}, f"{{name}}-{{late}}")
    folder.mkdir()
    test_files.kill_at_each_step(folder, name, late)""")


def run_python(code, *prefix):
    """Runs code in a process that can import this file."""
    process = subprocess.run(
        [*prefix, sys.executable, "-c", code], cwd=pathlib.Path(__file__).parent, capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": str(CHECKOUT)}, timeout=120)
    assert process.returncode == 0, process.stderr[-2000:]


def test_a_full_disk(tmp_path):
    mount = ["unshare", "-rm", "sh", "-c", 'mount -t tmpfs -o size=256k tmpfs "$0" && exec "$@"', str(tmp_path)]
    if not shutil.which("unshare") or subprocess.run([*mount, "true"], capture_output=True).returncode:
        pytest.skip("needs Linux, and the right to mount a file system of 256 KiB")
    run_python(f"import test_files; test_files.fill({str(tmp_path)!r})", *mount)


def fill(folder):
    """Writes more than the disk of `folder` holds."""
    os.chdir(folder)
    for path, old, new in (("folder", OLD, NEW | {"large": "x" * 400_000}), ("file", "old", "x" * 400_000)):
        write(path, old)
        with pytest.raises(InputError, match=f"{path}: cannot be written: No space left on device"):
            replace(path, new)
        assert read(path) == old
    with pytest.raises(InputError, match="is a mount point, which cannot be replaced; pass a path in it"):
        check_free(folder, overwrite=True)
    assert sorted(os.listdir()) == ["file", "folder"]


def write_often(path, number):
    """Replaces a folder 10 times."""
    for _ in range(10):
        replace(path, {str(file): str(number) for file in range(10)})


def test_two_processes_that_write_the_same_folder(tmp_path):
    code = f"import test_files; test_files.write_often({str(tmp_path / 'out')!r}, %d)"
    with concurrent.futures.ThreadPoolExecutor() as threads:
        list(threads.map(run_python, [code % number for number in range(3)]))
    content = read(tmp_path / "out")
    assert len(content) == 10 and len(set(content.values())) == 1
    assert os.listdir(tmp_path) == ["out"]


def test_of_two_writers_the_later_replaces_or_is_refused(tmp_path):
    with atomic_folder(tmp_path / "out", overwrite=True) as last:
        write(last, NEW)
        with pytest.raises(InputError, match="out: exists already"), atomic_folder(tmp_path / "out") as refused:
            replace(tmp_path / "out", OLD)  # leaves the workspaces of writers at work alone
            write(refused, {"a": "refused"})
        assert read(tmp_path / "out") == OLD
    assert read(tmp_path / "out") == NEW and os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize("taken", [False, True])
def test_a_folder_moved_away_by_a_killed_process_keeps_its_name(tmp_path, taken):
    """A writer that may not overwrite is refused as if nothing had happened. Neither output is removed where another
    took the name."""
    killed, out = tmp_path / ".keras_bert.out.abcdefgh", tmp_path / "out"
    write(killed, {"old/a": "old", "new/a": "new"})
    if taken:
        write(out, {"a": "by hand"})
    with pytest.raises(InputError, match="out: exists already"), atomic_folder(out):
        pass
    assert read(out) == {"a": "by hand" if taken else "old"}
    assert (read(killed / "old"), killed.exists()) == (({"a": "old"}, True) if taken else (None, False))


def test_a_user_s_own_files_stay(tmp_path):
    for name in ("out.part", "out.new", ".out.abcdefgh", ".keras_bert.out.and_more"):
        write(tmp_path / name, "mine")
    write(tmp_path / ".keras_bert.out.abcdefgh.txt", "mine")
    before = sorted(os.listdir(tmp_path))
    write_json(tmp_path / "out", 1)
    replace(tmp_path / "folder", NEW)
    assert sorted(os.listdir(tmp_path)) == sorted([*before, "folder", "out"])
    assert read(tmp_path / "out.part") == "mine"


def test_an_empty_folder_is_free_and_a_file_is_not(tmp_path):
    (tmp_path / "empty").mkdir()
    with atomic_folder(tmp_path / "empty") as folder:
        write(folder, NEW)
    assert read(tmp_path / "empty") == NEW
    write(tmp_path / "file", "x")
    with pytest.raises(InputError, match="file: exists already"), atomic_folder(tmp_path / "file"):
        pass


def test_permissions_are_the_usual_ones(tmp_path):
    (tmp_path / "usual").mkdir()
    for name, new in (("folder", NEW), ("file", "new")):
        replace(tmp_path / name, new)
        write(tmp_path / "usual" / name, new)
        assert (tmp_path / name).stat().st_mode == (tmp_path / "usual" / name).stat().st_mode


@pytest.mark.parametrize("old, new, mode", [(OLD, NEW, 0o700), ("old", "new", 0o600)], ids=["folder", "file"])
def test_what_replaces_keeps_permissions_and_links(tmp_path, old, new, mode):
    """Also the owner, if this process may give files away."""
    (tmp_path / "elsewhere").mkdir()
    target, link = tmp_path / "elsewhere/out", tmp_path / "link"
    link.symlink_to("elsewhere/out")
    replace(link, old)  # as `open` does, a link to nothing gets what it names
    assert link.is_symlink() and read(target) == old
    target.chmod(mode)
    if os.geteuid() == 0:
        os.chown(target, 12345, 54321)
    before = target.stat()
    with pytest.raises(InputError, match="link: exists already"):
        check_free(link)
    check_free(link, overwrite=True)
    replace(link, new)
    after = target.stat()
    assert link.is_symlink() and read(target) == new and after.st_ino != before.st_ino
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)
    assert sorted(os.listdir(tmp_path)) == ["elsewhere", "link"] and os.listdir(tmp_path / "elsewhere") == ["out"]


@pytest.fixture
def home():
    """A folder of a user who is not root, as whom the test runs."""
    with tempfile.TemporaryDirectory() as folder:
        if os.geteuid() > 0:
            yield pathlib.Path(folder)
            return
        os.chown(folder, 12345, 12345)
        os.setresuid(12345, 12345, 0)
        try:
            yield pathlib.Path(folder)
        finally:
            os.setresuid(0, 0, 0)


def test_what_cannot_be_read_or_written_is_replaced_or_refused(home):
    """A file without any permission is replaced, and keeps having none; a folder that may not be changed stays."""
    file, folder = home / "file", home / "folder"
    write(file, "old")
    write(folder, OLD)
    file.chmod(0)
    folder.chmod(0o555)
    replace(file, "new")
    assert stat.S_IMODE(file.stat().st_mode) == 0
    file.chmod(0o600)
    with pytest.raises(InputError, match="folder: must be a writable folder, to be replaced"):
        check_free(folder, overwrite=True)
    assert read(file) == "new" and read(folder) == OLD and sorted(os.listdir(home)) == ["file", "folder"]
    folder.chmod(0o755)


@pytest.mark.parametrize("old, new, mode", [(OLD, NEW, 0o2750), ("old", "new", 0o4640)], ids=["folder", "file"])
@pytest.mark.parametrize("number", [errno.EINVAL, errno.EPERM])
def test_permissions_that_cannot_be_copied_keep_the_result(tmp_path, monkeypatch, number, old, new, mode):
    """In a namespace without the owner; for a user who may give files to a group; on a file system without modes."""
    target, chown, groups = tmp_path / "out", os.chown, []

    def only_group(path, user, group):
        if user != -1:
            raise OSError(number, os.strerror(number))
        chown(path, user, group)
        groups.append(group)

    replace(target, old)
    target.chmod(mode)
    monkeypatch.setattr(os, "chown", only_group)
    replace(target, new)
    assert read(target) == new and groups == [target.stat().st_gid]
    assert stat.S_IMODE(target.stat().st_mode) == mode & ~stat.S_ISUID
    for name in ("chown", "chmod"):
        monkeypatch.setattr(os, name, lambda *_: (_ for _ in ()).throw(OSError(number, os.strerror(number))))
    replace(target, old)
    assert read(target) == old and os.listdir(tmp_path) == ["out"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make links of other users")
@pytest.mark.parametrize("mode, owner, is_refused", [
    (0o1777, 12345, True), (0o1777, 0, False), (0o0777, 12345, False), (0o1755, 12345, False)])
def test_links_of_others_in_shared_folders_are_not_followed(tmp_path, mode, owner, is_refused):
    shared, link = tmp_path / "shared", tmp_path / "shared/out"
    write(tmp_path / "file", "old")
    shared.mkdir()
    shared.chmod(mode)
    link.symlink_to(tmp_path / "file")
    os.chown(link, owner, owner, follow_symlinks=False)
    for act in (lambda: check_free(link, overwrite=True), lambda: replace(link, "new")):
        with pytest.raises(InputError, match="out: is a symbolic link of another user in a shared folder; pass another "
                           ) if is_refused else contextlib.nullcontext():
            act()
    assert read(tmp_path / "file") == ("old" if is_refused else "new") and link.is_symlink()
    assert os.listdir(shared) == ["out"]


def test_a_missing_folder_stays_missing(tmp_path):
    with pytest.raises(InputError, match="missing/out: cannot be written: No such file"):
        write_json(tmp_path / "missing/out", 1)
    assert os.listdir(tmp_path) == []


def test_without_locks_nothing_of_others_is_removed(tmp_path, monkeypatch):
    """As on Windows: a workspace may be that of a process at work."""
    monkeypatch.setitem(sys.modules, "fcntl", None)
    (tmp_path / ".keras_bert.out.abcdefgh").mkdir()
    write_json(tmp_path / "out", 1)
    assert sorted(os.listdir(tmp_path)) == [".keras_bert.out.abcdefgh", "out"]


def test_only_one_writer_until_it_ends_or_is_killed(tmp_path):
    folder = tmp_path / "a/b"
    run_python("import os, signal\nfrom keras_bert.files.atomic import only_writer\nif not os.fork():\n"
               f"    with only_writer({str(folder)!r}): os.kill(os.getpid(), signal.SIGKILL)\nos.wait()")
    assert len(os.listdir(folder)) == 1
    with only_writer(folder):
        with pytest.raises(InputError, match="a/b: another process writes to it; wait until that has ended, or pass "):
            with only_writer(folder):
                pass
        write_json(folder / "x.json", 1)
    assert os.listdir(folder) == ["x.json"]
    for name in ("a", "new"):
        with only_writer(tmp_path / name):
            pass
    assert os.listdir(tmp_path) == ["a"]  # a new folder that stays empty is removed
