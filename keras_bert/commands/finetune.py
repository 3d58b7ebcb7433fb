"""`keras-bert finetune`: fine-tunes an encoder on labelled texts."""

import json
import os

from absl import flags

REQUIRED = ("train", "valid", "init_from", "output_dir")


def define(values):
    flags.DEFINE_string("task", "intent", "intent or classify: one label a text or pair of texts.", flag_values=values)
    flags.DEFINE_string("train", None, "Training file: .tsv, .csv (with header) or .jsonl.", flag_values=values)
    flags.DEFINE_string("valid", None, "Validation file, scored after each epoch.", flag_values=values)
    flags.DEFINE_string("init_from", None, "Folder of the pretrained encoder.", flag_values=values)
    flags.DEFINE_string("output_dir", None, "Folder to write.", flag_values=values)
    flags.DEFINE_string("text", "text", "Column of the text.", flag_values=values)
    flags.DEFINE_string("text_pair", None, "Column of the second text; text_pair if there is one.", flag_values=values)
    flags.DEFINE_string("label", "label", "Column of the label.", flag_values=values)
    flags.DEFINE_integer("epochs", 3, "Passes over the training file.", flag_values=values)
    flags.DEFINE_integer("batch_size", 32, "Texts a step.", flag_values=values)
    flags.DEFINE_float("learning_rate", 5e-5, "Peak learning rate.", flag_values=values)
    flags.DEFINE_float("warmup_ratio", 0.1, "Share of the steps in which the learning rate rises.", flag_values=values)
    flags.DEFINE_float("weight_decay", 0.01, "Decoupled weight decay.", flag_values=values)
    flags.DEFINE_float("dropout", 0.2, "Dropout rate of the pooled output.", flag_values=values)
    flags.DEFINE_integer("max_length", 128, "Longest input in tokens; longer texts are cut.", flag_values=values)
    flags.DEFINE_integer("seed", 0, "Seed of the head, the order and the dropout.", flag_values=values)
    flags.DEFINE_bool("overwrite", False, "Replace output_dir.", flag_values=values)


def run(values, _):
    from keras_bert.training import finetune

    arguments = values.flag_values_dict()
    finetune(**arguments)
    with open(os.path.join(arguments["output_dir"], "metrics.json"), encoding="utf-8") as file:
        metrics = json.load(file)
    print(f"{arguments['output_dir']}: accuracy {metrics['accuracy']:.4f} on {metrics['valid_examples']} texts, "
          f"{metrics['seconds']:.0f} s")
