"""sentence-transformers folders (https://sbert.net): a Hugging Face folder with `modules.json`, which lists the modules
Transformer, Pooling and Normalize, `sentence_bert_config.json`, `1_Pooling/config.json` and, for prompts,
`config_sentence_transformers.json`."""

import dataclasses
import os

from keras_bert.arguments import as_list
from keras_bert.config import BertConfig
from keras_bert.errors import InputError
from keras_bert.files.json_files import Record, all_differences, read_object, write_json
from keras_bert.models.embedder import POOLING
from keras_bert.tasks import write_settings
from keras_bert.tasks.embed import prompts_of
from keras_bert.text.tokenizer_files import MODULES, TRANSFORMER, read_modules
from keras_bert.weights import huggingface
from keras_bert.weights.format import Format, Source, Weights
from keras_bert.weights.huggingface import LIBRARY
from keras_bert.weights.kinds import ENCODER
from keras_bert.weights.native import SETTINGS_FILE, read_settings

_PROMPTS = ("prompts", "default_prompt_name")  # the fields of that file, and of the settings
_CLASSES = ("Transformer", "Pooling", "Normalize")  # the modules that can be read, in order
_APPLIED = "task", "max_length", *_PROMPTS  # settings for which the library has files of its own
# The fields of Pooling up to version 5, which later versions read too; version 6 writes `pooling_mode`.
_FLAGS = {"pooling_mode_cls_token": "cls", "pooling_mode_mean_tokens": "mean", "pooling_mode_max_tokens": "max",
          "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
          "pooling_mode_weightedmean_tokens": "weightedmean", "pooling_mode_lasttoken": "lasttoken"}


def recognise(path: str) -> bool:
    """Returns True if the folder has modules after the Transformer; a cross-encoder has none."""
    return os.path.lexists(os.path.join(path, MODULES)) and list(read_modules(path)) != ["Transformer"]


def read(path: str, config: str | None = None) -> Source:
    """Reads a folder; raises an InputError for modules and settings that `BertEmbedder` lacks."""
    modules = read_modules(path)
    if tuple(modules) not in (_CLASSES, _CLASSES[:2]):
        raise InputError(f"{path}: the modules must be Transformer, Pooling and perhaps Normalize; got "
                         f"{', '.join(modules) or 'none'}; to read the encoder alone, remove {MODULES} from a copy of "
                         "the folder")
    folder = os.path.join(path, modules["Transformer"])
    source = huggingface.read(folder, config)
    pooling = _read_pooling(os.path.join(path, modules["Pooling"], "config.json"), source.config)
    file = os.path.join(folder, TRANSFORMER)
    Record(file, "", read_object(file)).one_of("transformer_task", ["feature-extraction"], "feature-extraction")
    library = read_object(os.path.join(path, LIBRARY))
    differences = all_differences({LIBRARY: library} | {
        name: read_object(os.path.join(path, modules[name], "config.json")) for name in _CLASSES[1:len(modules)]})
    length = {"max_length": source.files.arguments["max_length"]} if source.files else {}
    prompts = prompts_of(library | {"prompts": library.get("prompts") or {}})  # a default alone names an empty prompt
    # config.json may have the settings of another task.
    settings = {"task": "embed"} | length | prompts | read_settings(path)
    options = {"pooling": pooling, "normalize": "Normalize" in modules}
    return dataclasses.replace(source, path=path, format=FORMAT.name, kind="embedding", options=options, labels=None,
                               settings=settings, differences=tuple(dict.fromkeys([*source.differences, *differences])))


def _read_pooling(file: str, config: BertConfig) -> str:
    values = read_object(file, required=True)
    modes = as_list(values.get("pooling_mode", [mode for flag, mode in _FLAGS.items() if values.get(flag)]))
    if len(modes) != 1 or modes[0] not in list(POOLING):
        raise InputError(f"{file}: the pooling mode must be one of {', '.join(POOLING)}; got {modes!r:.100}")
    for name in ("embedding_dimension", "word_embedding_dimension"):
        Record(file, "", values).one_of(name, [config.hidden_size], config.hidden_size)
    return modes[0]


def write(weights: Weights, folder: str) -> None:
    """Writes the files that `SentenceTransformer` of every version reads."""
    length = weights.settings.get("max_length", weights.config.max_position_embeddings)
    huggingface.write(weights.as_kind(ENCODER), folder, length)
    classes = _CLASSES if weights.options["normalize"] else _CLASSES[:2]
    paths = ["", *(f"{index}_{name}" for index, name in enumerate(classes[1:], 1))]
    write_json(os.path.join(folder, MODULES), [
        {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{name}"}
        for index, (name, path) in enumerate(zip(classes, paths))])
    write_json(os.path.join(folder, TRANSFORMER), {"max_seq_length": length, "do_lower_case": False})
    write_settings({name: value for name, value in weights.settings.items() if name not in _APPLIED}, folder,
                   SETTINGS_FILE)
    if prompts := {name: weights.settings[name] for name in _PROMPTS if name in weights.settings}:
        write_json(os.path.join(folder, LIBRARY), dict.fromkeys(_PROMPTS) | prompts)
    pooling = {flag: mode == weights.options["pooling"] for flag, mode in _FLAGS.items()}
    for path, values in zip(paths[1:], ({"word_embedding_dimension": weights.config.hidden_size} | pooling, {})):
        os.mkdir(os.path.join(folder, path))
        write_json(os.path.join(folder, path, "config.json"), values)


def variant(weights: Weights) -> Format:
    """Returns the format with the restrictions of the type that stores the encoder; raises an InputError for a model
    that has no pooling of tokens."""
    if weights.kind not in FORMAT.kinds:
        raise InputError(f"{FORMAT.name} stores embedders, as finetune with task=embed writes, not models of the kind "
                         f"{weights.kind}; convert to {huggingface.FORMAT.name}")
    return dataclasses.replace(FORMAT, fixed=huggingface.variant(weights.as_kind(ENCODER)).fixed)


FORMAT = Format("sentence_transformers", recognise, read, write, ("embedding",), fixed=huggingface.FORMAT.fixed,
                settings_file=SETTINGS_FILE, applied=_APPLIED, variant=variant)
