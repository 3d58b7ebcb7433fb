"""Lazy imports of a package's names."""

import importlib


def importer(package, homes):
    """Returns a package's `__getattr__` (PEP 562), which imports names from other modules when they are first used.

    Args:
        package: the package's `__name__`.
        homes: dict of names to the modules that define them.
    """
    def get(name):
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(homes[name]), name)

    return get
