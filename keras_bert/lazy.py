"""Lazy imports of a package's names, and names that have moved."""

import ast
import importlib
import pathlib
import pkgutil
import warnings
from collections.abc import Callable, Mapping
from typing import Any


def importer(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """Returns a package's `__getattr__` (PEP 562), which imports each name from its module at its first use; the module
    of a submodule is the package itself."""
    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if modules[name] == package:
            return importlib.import_module(f"{package}.{name}")
        return getattr(importlib.import_module(modules[name]), name)

    return get


def moved(module: str, places: Mapping[str, str]) -> Callable[[str], Any]:
    """Returns a module's `__getattr__` for names that are elsewhere now, given as `module:name`."""
    def get(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        warn_deprecated(f"{module}.{name}", places[name].replace(":", "."))
        return pkgutil.resolve_name(places[name])

    return get


def warn_deprecated(old: str, new: str) -> None:
    """Warns the caller's caller of what goes with version 1.0."""
    warnings.warn(f"{old} goes with version 1.0; use {new}", FutureWarning, stacklevel=3)


def read_stub(path: pathlib.Path) -> dict[str, str]:
    """Returns the `modules` for `importer` that a stub (`.pyi`) declares by lines of `from module import Name as Name`;
    type checkers read the same lines."""
    lines = ast.parse(path.read_text(encoding="utf-8")).body
    return {alias.name: line.module for line in lines if isinstance(line, ast.ImportFrom) and line.module
            for alias in line.names}
