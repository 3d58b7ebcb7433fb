"""`keras-bert pretrain`: trains an encoder and its heads."""

import os

from absl import flags

from keras_bert.errors import InputError
from keras_bert.files import read_json

REQUIRED = ("data", "output_dir", "steps")
# Flags of which each phase may have its own, and of what type they are.
_PHASED = {"data": str, "valid": str, "steps": int, "batch_size": int, "learning_rate": float}


def define(values):
    flags.DEFINE_list("data", None, "Folder of make-pretraining-data, or a glob of TFRecord files with the Model "
                      "Garden's features; several for several phases.", flag_values=values)
    flags.DEFINE_list("valid", None, "Held-out examples, as --data.", flag_values=values)
    flags.DEFINE_string("output_dir", None, "Folder to write.", flag_values=values)
    flags.DEFINE_list("steps", None, "Optimizer steps, of each phase.", flag_values=values)
    flags.DEFINE_list("batch_size", ["256"], "Examples a step, of all devices together; one for all phases, or one a "
                      "phase.", flag_values=values)
    flags.DEFINE_string("init_from", None, "What to go on from: a folder in any format, or a name.", flag_values=values)
    flags.DEFINE_string("config", "base", "What to begin anew: a size, as base or L4-H256, or a bert_config.json.",
                        flag_values=values)
    flags.DEFINE_string("vocab", None, "vocab.txt or a folder with it, for TFRecord files without a folder.",
                        flag_values=values)
    flags.DEFINE_enum("optimizer", "adamw", ["adamw", "lamb"], "Optimizer.", flag_values=values)
    flags.DEFINE_list("learning_rate", ["1e-4"], "Peak of one schedule for all phases; or one a phase, for a schedule "
                      "each.", flag_values=values)
    flags.DEFINE_float("warmup_ratio", 0.01, "Share of the steps in which the learning rate rises.", flag_values=values)
    flags.DEFINE_float("power", 1.0, "Power of the decay that follows, 1 for a straight line.", flag_values=values)
    flags.DEFINE_float("weight_decay", 0.01, "Decoupled weight decay.", flag_values=values)
    flags.DEFINE_float("clip_norm", 1.0, "Most of the gradients' global norm.", flag_values=values)
    flags.DEFINE_integer("accumulate", 1, "Parts that a device's batch is computed in, to save memory.",
                         flag_values=values)
    flags.DEFINE_enum("directionality", "bidi", ["bidi", "ltr", "rtl"], "ltr and rtl train a language model of the "
                      "next or last token instead (ablations).", flag_values=values)
    flags.DEFINE_bool("next_sentence", None, "Train the next-sentence head; where not given, if the examples were made "
                      "for it.", flag_values=values)
    flags.DEFINE_float("next_sentence_weight", 1.0, "Factor of its loss beside that of masked tokens.",
                       flag_values=values)
    flags.DEFINE_enum("masking", None, ["static", "dynamic"], "Take the examples' masks, or mask anew at each step; as "
                      "they were made where not given.", flag_values=values)
    flags.DEFINE_enum("dtype", "float32", ["float32", "mixed_bfloat16", "mixed_float16"], "What to compute in.",
                      flag_values=values)
    flags.DEFINE_bool("recompute", False, "Compute activations again for the gradients, to save memory.",
                      flag_values=values)
    flags.DEFINE_string("strategy", "one", "one device, mirrored over this machine's, multiworker over the machines of "
                        "TF_CONFIG, tpu or tpu:NAME.", flag_values=values)
    flags.DEFINE_enum("backend", None, ["tensorflow", "jax"], "Keras's backend; KERAS_BACKEND's where not given.",
                      flag_values=values)
    flags.DEFINE_integer("model_parallel", 1, "With --backend=jax, devices that share out the weights.",
                         flag_values=values)
    flags.DEFINE_integer("seed", 0, "Seed of weights, order, masks and dropout.", flag_values=values)
    flags.DEFINE_integer("eval_steps", None, "Steps between two evaluations; a tenth of all where not given.",
                         flag_values=values)
    flags.DEFINE_integer("save_steps", 1000, "Steps between two checkpoints.", flag_values=values)
    flags.DEFINE_bool("skip_corrupt", False, "Pass over broken records and count them.", flag_values=values)
    flags.DEFINE_string("log_dir", None, "Folder for TensorBoard's logs.", flag_values=values)
    flags.DEFINE_bool("deterministic", False, "Give the same weights each time on a GPU too, and slower; a CPU always "
                      "does.", flag_values=values)
    flags.DEFINE_bool("overwrite", False, "Replace output_dir, and the checkpoint of another run.", flag_values=values)


def run(values, _):
    arguments = values.flag_values_dict()
    if backend := arguments.pop("backend"):
        os.environ["KERAS_BACKEND"] = backend
    for name, kind in _PHASED.items():
        arguments[name] = arguments[name] and _one_or_list(name, kind, arguments[name])
    from keras_bert.training import pretrain

    pretrain(**arguments)
    folder = arguments["output_dir"]
    metrics = read_json(os.path.join(folder, "metrics.json"))
    for title in ("valid", "baselines"):
        for name, value in metrics.get(title, {}).items():
            print(f"{name} {value:.4f}")
    if metrics["corrupt_records"]:
        print(f"corrupt_records {metrics['corrupt_records']}")
    print(folder)


def _one_or_list(name, kind, texts):
    try:
        numbers = [kind(text) for text in texts]
    except ValueError:
        raise InputError(f"--{name} must be numbers; got {','.join(texts)}") from None
    return numbers[0] if len(numbers) == 1 else numbers
