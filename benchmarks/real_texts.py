"""The real texts, vocabularies and task data that the benchmarks read.

They are read from `tests/data/real` in this repository or, if the environment variable `KERAS_BERT_DATA` is set, from
that folder, which has the same layout. The README of `tests/data/real` names the source of each file, and says which
ones are samples; `fetch` downloads some complete files.
"""

import hashlib
import http.client
import os
import pathlib
import urllib.request

ROOT = pathlib.Path(__file__).parents[1]
BUNDLED, DOWNLOADS = ROOT / "tests/data/real", ROOT / "build/data"
DATA = pathlib.Path(os.environ.get("KERAS_BERT_DATA", BUNDLED))

GITHUB = "https://raw.githubusercontent.com/"
WNUT17 = f"{GITHUB}leondz/emerging_entities_17/e52a2d2a71ac1a051ca2d532eef28653c5c02603"
CODAH = f"{GITHUB}Websail-NU/CODAH/acf7ffa4041ade86c6f7dd2f92fb08c957350280/data/cv_split/fold_0"
XQUAD = f"{GITHUB}google-deepmind/xquad/7d30520c717524000f0d9d2f9c10a069acd9d285"
KORSTS = f"{GITHUB}kakaobrain/KorNLUDatasets/0df0fe7d496eb61b092e022e238c2230b29f1cbc/KorSTS"
QUESTION_PAIR = f"{GITHUB}monologg/KoELECTRA/024fbdd600e653b6e4bdfc64ceec84181b5ce6c4/finetune/data/question-pair"
BANKING77 = f"{GITHUB}PolyAI-LDN/task-specific-datasets/57ec275d8078af65b7731c2a98be812d844a6d6b/banking_data"
GOEMOTIONS = f"{GITHUB}monologg/GoEmotions-pytorch/b75f9d3a8b76bc1060687925b04ca98a1b8ea66b/data/original"
JOINT_BERT = f"{GITHUB}monologg/JointBERT/00324f60dda4a491b2913bc3065ae93966caea3f/data"
# Complete files, by their names for `find`: address and SHA-256.
OFFICIAL = {
    "ner/wnut17/train.conll": (
        f"{WNUT17}/wnut17train.conll", "731820e13f71af324c6b55a1575ec2ce59fbaa2a0806f8f0400b98d56cd6a7a5"),
    "ner/wnut17/dev.conll": (
        f"{WNUT17}/emerging.dev.conll", "e053b752b8155113ca66e7db08af5f2f5f43ab993694e4774f1ec5bad42312d8"),
    "multiple_choice/codah/fold0_train.tsv": (
        f"{CODAH}/train.tsv", "790edcdfcba7d07b66ae2f3074c9ed17239b1f0865962f1bea0e0768207f0d43"),
    "multiple_choice/codah/fold0_dev.tsv": (
        f"{CODAH}/dev.tsv", "96c69a4240e6b0ef1f2364aeaa9d549e1b36188814f63d52bbc678a57b855923"),
    "qa/xquad/xquad.en.json": (
        f"{XQUAD}/xquad.en.json", "e4c57d1c9143aaa1c5d265ba5987a65f4e69528d2a98f29d6e75019b10344f29"),
    "ko/kornlu/KorSTS/sts-train.tsv": (
        f"{KORSTS}/sts-train.tsv", "b5aaa7f957d6ff46f4b6834a8b0f024a9234a6eefe9289aed66746b4533da3b8"),
    "ko/kornlu/KorSTS/sts-dev.tsv": (
        f"{KORSTS}/sts-dev.tsv", "d835b65b424401fbcce6be28a78159df8d61f5b19977ea7a0b83b8cb6105f393"),
    "ko/question_pair/train.tsv": (
        f"{QUESTION_PAIR}/train.tsv", "addf4c88b19066ad55a09f466c5c3f6428b3f2bd5d55100d3ca5b93d9d8daff9"),
    "ko/question_pair/dev.tsv": (
        f"{QUESTION_PAIR}/dev.tsv", "3928c783f561f36547fd8e0c9d78a6e1d6013db3debcf559c4135aa5536badea"),
    "intent/banking77/train.csv": (
        f"{BANKING77}/train.csv", "b06e26ac675513959a63135f11b94ea7786ed02da65db93a5650d8838cbc664b"),
    "intent/banking77/test.csv": (
        f"{BANKING77}/test.csv", "d12d6e3bc4c3103966ae786dc435913c0c563dfa328f5a3646d0e62cfeeb474d"),
    "multilabel/goemotions/train.tsv": (
        f"{GOEMOTIONS}/train.tsv", "1c254a142be5c00e80d819b9ae1bbd36d94b2eeb8f4b1271846508d57e57d9c5"),
    "multilabel/goemotions/dev.tsv": (
        f"{GOEMOTIONS}/dev.tsv", "575489c079c9de1097062a01738f998590d6b7ead66dd1c9fd1d2ba01fd8bc62"),
    "intent/atis/train/seq.in": (
        f"{JOINT_BERT}/atis/train/seq.in", "3a670980841b21ab39088b2595efc17d487cdc45769c075a3e5f9458bba28c7f"),
    "intent/atis/train/seq.out": (
        f"{JOINT_BERT}/atis/train/seq.out", "14c7131bd66562f797dbd7189bc7358f0cf354c6afb0785a9ab973c35b58f34c"),
    "intent/atis/dev/seq.in": (
        f"{JOINT_BERT}/atis/dev/seq.in", "c7435b96e7948393608c34819628e863c5338f11ca68e8f896d2cc041d8e17f8"),
    "intent/atis/dev/seq.out": (
        f"{JOINT_BERT}/atis/dev/seq.out", "83ccff3e36f83a993f8e5b5b82adf3256076f234abda4d784051381d7ac76922"),
    "intent/snips/train/seq.in": (
        f"{JOINT_BERT}/snips/train/seq.in", "04ad1e3f2121d83c6478f9a4b17d2dbdc21d06d6127f73cb7af835ed733f9855"),
    "intent/snips/train/seq.out": (
        f"{JOINT_BERT}/snips/train/seq.out", "fd5f2121d8055827e5d6b3d3bac30f3d7e94e82a5d437751960cbdd9e1b4f6d3"),
    "intent/snips/train/label": (
        f"{JOINT_BERT}/snips/train/label", "bfd7df6cf9dd76c5da5d8b61bc85f90386197bdd3d7510c1d324c051537b962f"),
    "intent/snips/dev/seq.in": (
        f"{JOINT_BERT}/snips/dev/seq.in", "64e0f6d8ad8aab3a3828164d7d53731a0993d3ca1aed437ceaca6d3d568d410e"),
    "intent/snips/dev/seq.out": (
        f"{JOINT_BERT}/snips/dev/seq.out", "712e6d34feb8d52d208b820a5f8bae6e6ff990f08374507dfde22de389088319"),
    "intent/snips/dev/label": (
        f"{JOINT_BERT}/snips/dev/label", "9c1dd041216f647bcfca838aaf1a48eb5781e4404256d31ff07cd38a5436c52f"),
}


def find(name, folder=DATA):
    """Returns the path of a file.

    Args:
        name: path relative to the data folder.

    Raises:
        SystemExit: the file does not exist.
    """
    path = folder / name
    if not path.exists():
        raise SystemExit(f"{path} does not exist; set KERAS_BERT_DATA to a folder that holds {name}, which may not be "
                         "part of this repository")
    return path


def fetch(name, folder=DOWNLOADS):
    """Returns the path of a complete file. Downloads it if it is missing or has another checksum.

    Raises:
        SystemExit: there is no address for the file, or it cannot be downloaded.
    """
    if name not in OFFICIAL:
        raise SystemExit(f"{name} cannot be downloaded; set KERAS_BERT_DATA to a folder that holds it. Files that can: "
                         f"{', '.join(OFFICIAL)}")
    (address, expected), path = OFFICIAL[name], folder / name
    if path.exists() and hashlib.sha256(path.read_bytes()).hexdigest() == expected:
        return path
    try:
        with urllib.request.urlopen(address, timeout=60) as response:
            content = response.read()
    except (OSError, http.client.HTTPException) as error:
        raise SystemExit(f"{address}: cannot be downloaded: {error}") from None
    if (found := hashlib.sha256(content).hexdigest()) != expected:
        raise SystemExit(f"{address}: the SHA-256 must be {expected}; got {found}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def announce(path, count, what="texts"):
    """Prints the source and the number of texts."""
    print(f"{count:,} {what} from {path}", flush=True)
