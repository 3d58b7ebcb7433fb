"""`BertClassifier`: one label a text or pair of texts."""

import keras

from keras_bert import kernels


@keras.saving.register_keras_serializable("keras_bert")
class BertClassifier(keras.Model):
    """Dropout and a dense layer on the pooled output (Devlin et al., 2018, section 4.1).

    Args:
        bert: a `BertLayer`.
        num_classes: number of labels.
        dropout: dropout rate of the pooled output.

    Call arguments:
        inputs: as for `BertLayer`.
        training: whether to drop out.
        seed: int32 [2], see `BertLayer`.

    Returns:
        logits [batch, num_classes], float32.
    """

    def __init__(self, bert, num_classes, dropout=0.2, **kwargs):
        super().__init__(**kwargs)
        # Layers
        self.bert = bert
        self.classifier = keras.layers.Dense(
            num_classes, dtype="float32", name="classifier",
            kernel_initializer=keras.initializers.TruncatedNormal(stddev=bert.config.initializer_range))
        # Config
        self.num_classes = num_classes
        self.dropout = dropout
        self.build()

    def build(self, *_):
        self.classifier.build((None, self.bert.config.hidden_size))
        self.built = True

    def call(self, inputs, training=False, seed=None):
        seed = self.bert.dropout_seed(inputs, training, seed)
        pooled, _ = self.bert(inputs, training=training, seed=seed)
        head = self.bert.config.num_hidden_layers + 1  # the place after the last block's
        return self.classifier(kernels.dropout(pooled, self.dropout, kernels.fold_in(seed, head)))

    def get_config(self):
        return super().get_config() | {
            "bert": keras.saving.serialize_keras_object(self.bert),
            "num_classes": self.num_classes,
            "dropout": self.dropout,
        }

    @classmethod
    def from_config(cls, config, custom_objects=None):
        bert = keras.saving.deserialize_keras_object(config.pop("bert"), custom_objects=custom_objects)
        return cls(bert, **config)
