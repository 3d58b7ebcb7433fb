"""Lazy imports of a package's names."""

import ast
import importlib


def importer(package, modules):
    """Returns a package's `__getattr__` (PEP 562), which imports names from other modules when they are first used.

    Args:
        package: the package's `__name__`.
        modules: dict of names to the modules that define them, or to the package itself for its submodules.
    """
    def get(name):
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if modules[name] == package:
            return importlib.import_module(f"{package}.{name}")
        return getattr(importlib.import_module(modules[name]), name)

    return get


def read_stub(path):
    """Returns the `modules` for `importer` that a stub (`.pyi`) declares, so that type checkers and this package read
    the same declaration: lines of `from module import Name as Name`."""
    lines = ast.parse(path.read_text(encoding="utf-8")).body
    return {alias.name: line.module for line in lines if isinstance(line, ast.ImportFrom) for alias in line.names}
