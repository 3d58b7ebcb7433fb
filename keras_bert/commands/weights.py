"""Flags that say how weights are read."""

from absl import flags


def define(values):
    flags.DEFINE_string("config", None, "bert_config.json of weights that do not say what BERT they are of.",
                        flag_values=values)
    flags.DEFINE_bool("next_sentence_pooler", False, "Take the dense layer of the next-sentence head as the pooler: of "
                      "pretraining checkpoints of the Model Garden, whose own pooler is not trained.",
                      flag_values=values)
