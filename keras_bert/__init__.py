"""BERT for TensorFlow and Keras: from raw text to a served SavedModel.

Names are imported when they are first used, so that `import keras_bert` and the command line start at once. The import
sets TF_ENABLE_ONEDNN_OPTS=1 on x86-64 processors, unless the variable is set or TensorFlow is already imported.
"""

import importlib.metadata
import pathlib

from keras_bert import startup
from keras_bert.lazy import importer

__version__ = "0.2.0.dev0"

# In a wheel, `keras_bert.export` is inside the package; in a checkout, it is the top-level folder export/.
if not pathlib.Path(__file__).with_name("export").exists():
    __path__.append(str(pathlib.Path(__file__).parents[1]))

_HOMES = {
    "BertClassifier": "keras_bert.models",
    "BertConfig": "keras_bert.config",
    "BertFeatures": "keras_bert.models",
    "BertLayer": "keras_bert.layers",
    "BertMultipleChoice": "keras_bert.models",
    "BertPretrainer": "keras_bert.models",
    "BertRegressor": "keras_bert.models",
    "BertSpanLabeler": "keras_bert.models",
    "BertTokenClassifier": "keras_bert.models",
    "BertTokenizer": "keras_bert.text",
    "FineTuned": "keras_bert.training",
    "HubLayer": "keras_bert.hub",
    "InputError": "keras_bert.errors",
    "export_encoder": "keras_bert.export",
    "export_preprocessor": "keras_bert.export",
    "export_text_model": "keras_bert.export",
    "fill_mask": "keras_bert.training",
    "find_pretrained": "keras_bert.presets",
    "finetune": "keras_bert.training",
    "make_pretraining_data": "keras_bert.data.pretraining",
    "pretrain": "keras_bert.training",
}
__all__ = sorted(_HOMES)


__getattr__ = importer(__name__, _HOMES)


def __dir__():
    return [*globals(), *_HOMES]


def _refuse_other_keras_bert():
    """Raises ImportError if PyPI's other project `keras-bert` is installed: it has the same import name, and the files
    would mix."""
    try:
        version = importlib.metadata.version("keras-bert")
    except importlib.metadata.PackageNotFoundError:
        return
    raise ImportError(
        f"the package keras-bert {version} installs its files where keras-bert-hub has its own; run "
        "`pip uninstall keras-bert` and `pip install --force-reinstall --no-deps keras-bert-hub`")


_refuse_other_keras_bert()
startup.enable_onednn()
