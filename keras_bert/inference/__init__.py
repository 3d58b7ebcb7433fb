"""Answers from fine-tuned models, encoders and exported SavedModels."""
