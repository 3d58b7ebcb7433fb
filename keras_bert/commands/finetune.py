"""`keras-bert finetune`: fine-tunes an encoder on labelled texts."""

import os

from absl import flags

from keras_bert.commands import layout
from keras_bert.files import read_json

REQUIRED = ("train", "valid", "init_from", "output_dir")


def define(values):
    flags.DEFINE_string("task", "intent", "intent, classify: a label for each text or pair of texts; regress: a "
                        "number; tag: entities; span: answers in a context; choice: the best of several endings.",
                        flag_values=values)
    flags.DEFINE_string("train", None, "Training file: .tsv, .csv (with header), .jsonl, .parquet; CoNLL's for tag, "
                        "SQuAD's .json for span.", flag_values=values)
    flags.DEFINE_string("valid", None, "Validation file, scored after each epoch.", flag_values=values)
    flags.DEFINE_string("init_from", None, "Pretrained encoder: a folder or a name, see keras-bert presets.",
                        flag_values=values)
    flags.DEFINE_string("output_dir", None, "Folder to write.", flag_values=values)
    layout.define(values)
    flags.DEFINE_string("out_of_scope", None, "Label of the texts in --valid that no label fits: they choose the score "
                        "below which an intent counts as out of scope.", flag_values=values)
    flags.DEFINE_integer("epochs", 3, "Passes over the training file.", flag_values=values)
    flags.DEFINE_integer("batch_size", 32, "Texts a step.", flag_values=values)
    flags.DEFINE_float("learning_rate", 5e-5, "Peak learning rate.", flag_values=values)
    flags.DEFINE_float("warmup_ratio", 0.1, "Share of the steps in which the learning rate rises.", flag_values=values)
    flags.DEFINE_float("weight_decay", 0.01, "Decoupled weight decay.", flag_values=values)
    flags.DEFINE_float("dropout", None, "Dropout rate of what the head gets; where not given, 0.2 for classes, else "
                       "0.1.", flag_values=values)
    flags.DEFINE_integer("max_length", None, "Longest input in tokens; longer texts are cut. Where not given, 384 for "
                         "span, else 128.", flag_values=values)
    flags.DEFINE_integer("doc_stride", None, "Of span: tokens from one window of a context to the next; 128 where not "
                         "given.", flag_values=values)
    flags.DEFINE_string("features", None, "Of tag: train a BiLSTM on the frozen encoder's features, concat-last-4 for "
                        "one, see keras-bert features.", flag_values=values)
    flags.DEFINE_integer("seed", 0, "Seed of the head, the order and the dropout.", flag_values=values)
    flags.DEFINE_integer("early_stopping", None, "Stop after so many epochs without a better score.",
                         flag_values=values)
    flags.DEFINE_enum("class_weights", None, ["balanced"], "Weigh rare classes up.", flag_values=values)
    flags.DEFINE_integer("freeze_blocks", 0, "Leave the embeddings and so many encoder blocks as they are.",
                         flag_values=values)
    flags.DEFINE_integer("lora_rank", 0, "Train low-rank additions of this rank (LoRA) instead of the encoder.",
                         flag_values=values)
    flags.DEFINE_enum("dtype", "float32", ["float32", "mixed_bfloat16"], "What to compute in.", flag_values=values)
    flags.DEFINE_bool("pack", None, "Of intent, classify and regress: lay several texts into each row of max_length "
                      "tokens, so that XLA compiles one shape.", flag_values=values)
    flags.DEFINE_list("devices", None, "TensorFlow devices to share each batch out over: GPU:0,GPU:1.",
                      flag_values=values)
    flags.DEFINE_integer("save_steps", 500, "Steps between two checkpoints.", flag_values=values)
    flags.DEFINE_string("log_dir", None, "Folder for TensorBoard's logs.", flag_values=values)
    flags.DEFINE_bool("deterministic", False, "Give the same weights each time on a GPU too, and slower; a CPU always "
                      "does.", flag_values=values)
    flags.DEFINE_bool("overwrite", False, "Replace output_dir, and the checkpoints of another run.", flag_values=values)


def run(values, _):
    from keras_bert.training import finetune
    from keras_bert.training.report import SCORES

    arguments = values.flag_values_dict()
    finetune(**arguments)
    folder = arguments["output_dir"]
    metrics = read_json(os.path.join(folder, "metrics.json"))
    scores = [f"{name} {metrics[key]:.4f}" for key, name in SCORES.items() if key in metrics]
    print(f"{folder}: {', '.join(scores[:2])} on {metrics['valid_examples']} texts, epoch {metrics['best_epoch']}, "
          f"{metrics['seconds']:.0f} s")
    for name in sorted(os.listdir(folder)):
        if name.endswith((".png", ".md")):
            print(os.path.join(folder, name))
