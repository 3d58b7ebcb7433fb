"""The bundled real data: small, and each file has a source and a licence."""

import fnmatch
import re

from conftest import REAL


def test_each_file_is_listed_and_together_they_are_small():
    rows = re.findall(r"^\| (`.+?) \| (.+) \| (.+) \| (.+) \|$", (REAL / "README.md").read_text(encoding="utf-8"), re.M)
    patterns = [pattern for row in rows for pattern in re.findall("`(.+?)`", row[0])]
    files = {path.relative_to(REAL).as_posix(): path.stat().st_size for path in REAL.rglob("*") if path.is_file()}
    data = [name for name in files if name not in ("README.md", ".gitattributes") and not name.endswith("/LICENSE")]
    assert [name for name in data if not any(fnmatch.fnmatch(name, pattern) for pattern in patterns)] == []
    assert [pattern for pattern in patterns if not fnmatch.filter(data, pattern)] == []
    assert sum(files.values()) < 3_000_000
