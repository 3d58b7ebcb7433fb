"""Run by test_hub.py in a process with TF_USE_LEGACY_KERAS=1: the notebook's lines on an exported encoder, word for
word, then training, saving and loading. Arguments: PATH FOLDER."""

import sys

import numpy as np
import tensorflow as tf
import tensorflow_hub as hub

PATH, FOLDER = sys.argv[1:]
rng = np.random.default_rng(0)
data = [rng.integers(1, 50, (16, 9)), np.ones((16, 9)), np.zeros((16, 9))]
data = [array.astype("int32") for array in data]

bert_layer = hub.KerasLayer(PATH, trainable=True)
input_word_ids = tf.keras.layers.Input(shape=(None,), dtype=tf.int32, name="input_word_ids")
input_mask = tf.keras.layers.Input(shape=(None,), dtype=tf.int32, name="input_mask")
segment_ids = tf.keras.layers.Input(shape=(None,), dtype=tf.int32, name="segment_ids")
pooled_output, sequence_output = bert_layer([input_word_ids, input_mask, segment_ids])
dropped = tf.keras.layers.Dropout(0.2)(pooled_output)
output = tf.keras.layers.Dense(176, activation=tf.nn.softmax)(dropped)
model = tf.keras.Model(inputs=[input_word_ids, input_mask, segment_ids], outputs=output)

before = [variable.numpy() for variable in bert_layer.trainable_variables]
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
model.fit(data, np.arange(16), epochs=2, verbose=0)
unmoved = [variable.name for old, variable in zip(before, bert_layer.trainable_variables)
           if (old == variable.numpy()).all()]
assert len(before) > 30 and unmoved == [], unmoved
answers = model.predict(data, verbose=0)
for suffix in ("keras", "h5", "tf"):
    model.save(f"{FOLDER}/model.{suffix}", save_format=suffix)
    loaded = tf.keras.models.load_model(f"{FOLDER}/model.{suffix}", custom_objects={"KerasLayer": hub.KerasLayer})
    np.testing.assert_array_equal(loaded.predict(data, verbose=0), answers)
