"""Names of a package that are imported when first used."""

import importlib


def importer(package, homes):
    """The `__getattr__` of a package (PEP 562) whose names live in other modules.

    Args:
        package: the package's `__name__`.
        homes: dict of names to the modules they are in.
    """
    def get(name):
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(homes[name]), name)

    return get
