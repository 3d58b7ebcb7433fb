"""Pretraining: texts to examples, and examples to an encoder (Devlin et al., 2018, section 3.1)."""
