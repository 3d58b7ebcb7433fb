"""Functions that write SavedModels and LiteRT folders. Imported on first use, as `verify` may need no TensorFlow."""

from keras_bert.lazy import importer

_MODULES = {"export_encoder": "encoder", "export_litert": "litert", "export_preprocessor": "preprocessor",
            "export_text_model": "text_model", "export_version": "serving_folder"}
__all__ = sorted(_MODULES)

__getattr__ = importer(__name__, {name: f"{__name__}.{module}" for name, module in _MODULES.items()})
