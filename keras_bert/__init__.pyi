"""The names of the package and the modules that define them; `__init__.py` imports them when they are first used."""

from keras_bert import convert as convert
from keras_bert import data as data
from keras_bert import export as export
from keras_bert import layers as layers
from keras_bert import models as models
from keras_bert import tasks as tasks
from keras_bert import text as text
from keras_bert import training as training
from keras_bert.config import BertConfig as BertConfig
from keras_bert.errors import InputError as InputError
from keras_bert.errors import Stopped as Stopped
from keras_bert.export import export_encoder as export_encoder
from keras_bert.export import export_litert as export_litert
from keras_bert.export import export_preprocessor as export_preprocessor
from keras_bert.export import export_text_model as export_text_model
from keras_bert.hub import HubLayer as HubLayer
from keras_bert.inference.lite_model import LiteModel as LiteModel
from keras_bert.layers import BertLayer as BertLayer
from keras_bert.models import BertClassifier as BertClassifier
from keras_bert.models import BertEmbedder as BertEmbedder
from keras_bert.models import BertFeatures as BertFeatures
from keras_bert.models import BertMultipleChoice as BertMultipleChoice
from keras_bert.models import BertPretrainer as BertPretrainer
from keras_bert.models import BertRegressor as BertRegressor
from keras_bert.models import BertSpanLabeler as BertSpanLabeler
from keras_bert.models import BertTokenClassifier as BertTokenClassifier
from keras_bert.presets import find_pretrained as find_pretrained
from keras_bert.pretraining.examples import make_pretraining_data as make_pretraining_data
from keras_bert.tasks import register_task as register_task
from keras_bert.text import BertTokenizer as BertTokenizer
from keras_bert.training import FineTuned as FineTuned
from keras_bert.training import fill_mask as fill_mask
from keras_bert.training import finetune as finetune
from keras_bert.training import pretrain as pretrain

__version__: str
