"""What the heads share: an encoder passed in, and how they are made, saved and loaded."""

import keras

from keras_bert import kernels


class BertTask(keras.Model):
    """A head on an encoder. Its variables exist once it is made: a subclass makes its layers, then calls `build`.

    Args:
        bert: a `BertLayer`.
    """

    def __init__(self, bert, **kwargs):
        super().__init__(**kwargs)
        self.bert = bert

    @classmethod
    def from_pretrained(cls, name, **kwargs):
        """The head on the encoder that `keras_bert.convert.load_pretrained` finds under `name`."""
        from keras_bert.convert import load_pretrained  # a door like that of `BertLayer`

        return load_pretrained(name, cls, **kwargs)

    def make_dense(self, name, width):
        """A dense layer for logits: float32, whatever the encoder computes in. Its kernel is drawn from a whole normal
        distribution, as transformers' heads: those of a truncated one are 12% smaller, and learn slower."""
        return keras.layers.Dense(
            width, dtype="float32", name=name,
            kernel_initializer=keras.initializers.RandomNormal(stddev=self.bert.config.initializer_range))

    def build(self, *_):
        for layer in self.layers:
            if not layer.built:
                layer.build((None, self.bert.config.hidden_size))
        self.built = True

    def get_config(self):
        return super().get_config() | {"bert": keras.saving.serialize_keras_object(self.bert)}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        bert = keras.saving.deserialize_keras_object(config.pop("bert"), custom_objects=custom_objects)
        return cls(bert, **config)


class DropoutTask(BertTask):
    """A head that reads the encoder's output through dropout.

    Args:
        bert: a `BertLayer`.
        dropout: dropout rate of that output.
    """

    def __init__(self, bert, dropout, **kwargs):
        super().__init__(bert, **kwargs)
        self.dropout = dropout

    def drop(self, x, seed):
        """`x` dropped out; `seed` is the one the encoder got."""
        head = self.bert.config.num_hidden_layers + 1  # the place after the last block's
        return kernels.dropout(x, self.dropout, kernels.fold_in(seed, head))

    def get_config(self):
        return super().get_config() | {"dropout": self.dropout}
