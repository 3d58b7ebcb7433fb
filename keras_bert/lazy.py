"""Lazy imports of a package's names."""

import importlib


def importer(package, modules):
    """Returns a package's `__getattr__` (PEP 562), which imports names from other modules when they are first used.

    Args:
        package: the package's `__name__`.
        homes: dict of names to the modules that define them.
    """
    def get(name):
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(modules[name]), name)

    return get
