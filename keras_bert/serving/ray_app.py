"""The name of `keras_bert.integrations.ray_app` up to version 0.2."""

from keras_bert.integrations.ray_app import build as build
