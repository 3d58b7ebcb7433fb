"""BERT for TensorFlow and Keras: from raw text to a served SavedModel.

Names are imported when they are first used, so that `import keras_bert` and the command line start at once. The import
sets TF_ENABLE_ONEDNN_OPTS=1 on x86-64 processors, unless the variable is set or TensorFlow is already imported. It
registers the classes of `.keras` files, before or after Keras is imported.
"""

import importlib
import importlib.metadata
import pathlib

from keras_bert import startup
from keras_bert.lazy import importer, read_stub

__version__ = "0.4.0"

# In a wheel, `keras_bert.export` is inside the package; in a checkout, it is the top-level folder export/.
if not pathlib.Path(__file__).with_name("export").exists():
    __path__.append(str(pathlib.Path(__file__).parents[1]))

_MODULES = read_stub(pathlib.Path(__file__).with_name("__init__.pyi"))
__all__ = sorted(_MODULES)

__getattr__ = importer(__name__, _MODULES)


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})


# PyPI's other project `keras-bert` has the same import name, and the files would mix.
if _other := next(iter(importlib.metadata.distributions(name="keras-bert")), None):
    raise ImportError(f"the package keras-bert {_other.version} installs its files where keras-bert-hub has its own; "
                      "run `pip uninstall keras-bert` and `pip install --force-reinstall --no-deps keras-bert-hub`")

startup.enable_onednn()
startup.register_classes()
