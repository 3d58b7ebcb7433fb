"""`keras-bert finetune`: fine-tunes an encoder on labelled texts."""

import os

from absl import flags

from keras_bert.files import read_json

REQUIRED = ("train", "valid", "init_from", "output_dir")


def define(values):
    flags.DEFINE_string("task", "intent", "intent or classify: one label a text or pair of texts.", flag_values=values)
    flags.DEFINE_string("train", None, "Training file: .tsv, .csv (with header) or .jsonl.", flag_values=values)
    flags.DEFINE_string("valid", None, "Validation file, scored after each epoch.", flag_values=values)
    flags.DEFINE_string("init_from", None, "Pretrained encoder: a folder or a name, see keras-bert presets.",
                        flag_values=values)
    flags.DEFINE_string("output_dir", None, "Folder to write.", flag_values=values)
    flags.DEFINE_string("text", "text", "Column of the text.", flag_values=values)
    flags.DEFINE_string("text_pair", None, "Column of the second text; text_pair if there is one.", flag_values=values)
    flags.DEFINE_string("label", "label", "Column of the label.", flag_values=values)
    flags.DEFINE_string("out_of_scope", None, "Label of the texts in --valid that no label fits: they choose the score "
                        "below which an intent counts as out of scope.", flag_values=values)
    flags.DEFINE_integer("epochs", 3, "Passes over the training file.", flag_values=values)
    flags.DEFINE_integer("batch_size", 32, "Texts a step.", flag_values=values)
    flags.DEFINE_float("learning_rate", 5e-5, "Peak learning rate.", flag_values=values)
    flags.DEFINE_float("warmup_ratio", 0.1, "Share of the steps in which the learning rate rises.", flag_values=values)
    flags.DEFINE_float("weight_decay", 0.01, "Decoupled weight decay.", flag_values=values)
    flags.DEFINE_float("dropout", 0.2, "Dropout rate of the pooled output.", flag_values=values)
    flags.DEFINE_integer("max_length", 128, "Longest input in tokens; longer texts are cut.", flag_values=values)
    flags.DEFINE_integer("seed", 0, "Seed of the head, the order and the dropout.", flag_values=values)
    flags.DEFINE_integer("early_stopping", None, "Stop after so many epochs without a better score.",
                         flag_values=values)
    flags.DEFINE_enum("class_weights", None, ["balanced"], "Weigh rare classes up.", flag_values=values)
    flags.DEFINE_integer("freeze_blocks", 0, "Leave the embeddings and so many encoder blocks as they are.",
                         flag_values=values)
    flags.DEFINE_integer("lora_rank", 0, "Train low-rank additions of this rank (LoRA) instead of the encoder.",
                         flag_values=values)
    flags.DEFINE_enum("dtype", "float32", ["float32", "mixed_bfloat16"], "What to compute in.", flag_values=values)
    flags.DEFINE_list("devices", None, "TensorFlow devices to share each batch out over: GPU:0,GPU:1.",
                      flag_values=values)
    flags.DEFINE_integer("save_steps", 500, "Steps between two checkpoints.", flag_values=values)
    flags.DEFINE_string("log_dir", None, "Folder for TensorBoard's logs.", flag_values=values)
    flags.DEFINE_bool("overwrite", False, "Replace output_dir, and the checkpoints of another run.", flag_values=values)


def run(values, _):
    from keras_bert.training import enable_determinism, finetune

    arguments = values.flag_values_dict()
    enable_determinism()
    finetune(**arguments)
    folder = arguments["output_dir"]
    metrics = read_json(os.path.join(folder, "metrics.json"))
    print(f"{folder}: accuracy {metrics['accuracy']:.4f}, macro F1 {metrics['macro_f1']:.4f} on "
          f"{metrics['valid_examples']} texts, epoch {metrics['best_epoch']}, {metrics['seconds']:.0f} s")
    for name in sorted(os.listdir(folder)):
        if name.endswith((".png", ".md")):
            print(os.path.join(folder, name))
