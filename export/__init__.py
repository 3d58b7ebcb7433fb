"""Functions that write SavedModels."""

from .encoder import export_encoder
from .int8 import quantized
from .preprocessor import export_preprocessor
from .serving_folder import export_version
from .text_model import export_text_model

__all__ = ["export_encoder", "export_preprocessor", "export_text_model", "export_version", "quantized"]
