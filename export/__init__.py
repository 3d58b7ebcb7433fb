"""Writers of SavedModels."""

from .encoder import export_encoder

__all__ = ["export_encoder"]
