"""BERT for TensorFlow and Keras: from raw text to a served SavedModel.

Names are imported when they are first used, so that `import keras_bert` and the command line start at once. The import
sets TF_ENABLE_ONEDNN_OPTS=1 on x86-64 processors, unless the variable is set or TensorFlow is already imported.
"""

import importlib.metadata
import pathlib
import typing

from keras_bert import startup
from keras_bert.lazy import importer

__version__ = "0.2.0.dev0"

# In a wheel, `keras_bert.export` is inside the package; in a checkout, it is the top-level folder export/.
if not pathlib.Path(__file__).with_name("export").exists():
    __path__.append(str(pathlib.Path(__file__).parents[1]))

_MODULES = {
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
    "Stopped": "keras_bert.errors",
    "export_encoder": "keras_bert.export",
    "export_preprocessor": "keras_bert.export",
    "export_text_model": "keras_bert.export",
    "fill_mask": "keras_bert.training",
    "find_pretrained": "keras_bert.presets",
    "finetune": "keras_bert.training",
    "make_pretraining_data": "keras_bert.data.pretraining",
    "pretrain": "keras_bert.training",
}
__all__ = sorted(_MODULES)

if typing.TYPE_CHECKING:  # type checkers do not see what `__getattr__` imports
    from keras_bert.config import BertConfig as BertConfig
    from keras_bert.data.pretraining import make_pretraining_data as make_pretraining_data
    from keras_bert.errors import InputError as InputError
    from keras_bert.errors import Stopped as Stopped
    from keras_bert.export import export_encoder as export_encoder
    from keras_bert.export import export_preprocessor as export_preprocessor
    from keras_bert.export import export_text_model as export_text_model
    from keras_bert.hub import HubLayer as HubLayer
    from keras_bert.layers import BertLayer as BertLayer
    from keras_bert.models import BertClassifier as BertClassifier
    from keras_bert.models import BertFeatures as BertFeatures
    from keras_bert.models import BertMultipleChoice as BertMultipleChoice
    from keras_bert.models import BertPretrainer as BertPretrainer
    from keras_bert.models import BertRegressor as BertRegressor
    from keras_bert.models import BertSpanLabeler as BertSpanLabeler
    from keras_bert.models import BertTokenClassifier as BertTokenClassifier
    from keras_bert.presets import find_pretrained as find_pretrained
    from keras_bert.text import BertTokenizer as BertTokenizer
    from keras_bert.training import FineTuned as FineTuned
    from keras_bert.training.fill_mask import fill_mask as fill_mask
    from keras_bert.training.finetune import finetune as finetune
    from keras_bert.training.pretrain import pretrain as pretrain

__getattr__ = importer(__name__, _MODULES)


def __dir__():
    return [*globals(), *_MODULES]


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
